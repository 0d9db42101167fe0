"""What goes wrong in a module's own code is named by the op and by the lines of both sides, without being asked for."""

from __future__ import annotations

from typing import Any

import pytest

import padiff
from padiff.align import same_thing
from tests.own_code import batch, model
from tests.twins import PAIRS

RIGHT = {
    "eps": ("add", "h = x * torch.rsqrt(mean_square + 1e-5)", "h = x * paddle.rsqrt(mean_square + 1e-5)"),
    "operands": ("matmul", "scores = q @ k.transpose(-1, -2)", "scores = q @ k.transpose([0, 1, 3, 2])"),
    "scale": ("mul", "scores = scores * 0.5", "scores = scores * 0.5"),
    "mask": (
        "triu",
        "mask = torch.ones(5, 5, dtype=torch.bool).triu(1)",
        "mask = paddle.triu(paddle.full([5, 5], -1e9), 1)",
    ),
    "axis": (
        "softmax",
        "weights = torch.nn.functional.softmax(scores, -1)",
        "weights = paddle.nn.functional.softmax(scores, -1)",
    ),
    "transpose": (
        "transpose",
        "context = context.transpose(1, 2)",
        "context = paddle.transpose(context, [0, 2, 1, 3])",
    ),
    "residual": ("add", "return out + x", "return out + x"),
}
"""Bug to what base does there, and its line in torch and in paddle."""

WRONG = {
    "eps": ("add", "h = x * torch.rsqrt(mean_square + 1e-3)", "h = x * paddle.rsqrt(mean_square + 1e-3)"),
    "operands": ("matmul", "scores = k @ q.transpose(-1, -2)", "scores = k @ q.transpose([0, 1, 3, 2])"),
    "scale": ("", 'scores = scores.masked_fill(mask, float("-inf"))', "scores = scores + mask"),
    "mask": (
        "triu",
        "mask = torch.ones(5, 5, dtype=torch.bool).triu(2)",
        "mask = paddle.triu(paddle.full([5, 5], -1e9), 2)",
    ),
    "axis": (
        "softmax",
        "weights = torch.nn.functional.softmax(scores, -2)",
        "weights = paddle.nn.functional.softmax(scores, -2)",
    ),
    "transpose": ("", "out = self.o(context)", "out = self.o(context)"),
    "residual": ("", "out = self.o(context)", "out = self.o(context)"),
}
"""Bug to what raw does there, "" where it lacks it, and its line in torch and in paddle."""


def thing(name: str) -> str:
    return same_thing(name) if name else ""


def text(line: Any) -> str:
    return "" if line is None else line.text


@pytest.mark.parametrize(("base", "raw", "level"), [*((*pair, "module") for pair in PAIRS), ("torch", "paddle", "op")])
@pytest.mark.parametrize("bug", list(RIGHT))
def test_names_op_and_lines(base: str, raw: str, bug: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw, bug), batch(), level=level)
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.op is not None
    right, wrong = RIGHT[bug], WRONG[bug]
    assert (thing(found.op.base), thing(found.op.raw)) == (right[0], wrong[0])
    places = {"torch": 1, "paddle": 2}
    assert text(found.op.base_line) == right[places[base]]
    assert text(found.op.raw_line) == wrong[places[raw]]
    assert [stack[-1].text for stack in found.source] == [right[places[base]], wrong[places[raw]]]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_what_raw_does_besides(base: str, raw: str) -> None:
    found = padiff.compare(model(base), model(raw, "extra"), batch()).divergence
    assert found is not None and found.op is not None
    assert (found.op.base, thing(found.op.raw)) == ("", "tanh")
    assert (
        text(found.op.raw_line)
        == {"torch": "context = context.tanh()", "paddle": "context = paddle.tanh(context)"}[raw]
    )


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_gradients_that_stop(base: str, raw: str) -> None:
    found = padiff.compare(model(base), model(raw, "detach"), batch()).divergence
    assert found is not None and found.op is not None
    assert (found.raw_path, found.phase) == ("second", "backward")
    assert (found.op.base, found.op.raw.rpartition(".")[2]) == ("", "detach")
    assert text(found.op.raw_line) == "weights = weights.detach()"


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("level", ["module", "op"])
def test_code_that_goes_another_way_is_right(base: str, raw: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw), batch(), level=level)
    assert result.aligned, str(result)
    assert all(one.agrees for one in result.comparisons)


def test_says_it_in_words() -> None:
    result = padiff.compare(model("torch"), model("paddle", "axis"), batch())
    told = str(result.divergence)
    assert "it starts with the op torch.nn.functional.softmax vs paddle.nn.functional.softmax" in told
    assert "weights = paddle.nn.functional.softmax(scores, -2)" in told
    plain = result.to_dict()["divergence"]["op"]
    assert plain["base"] == "torch.nn.functional.softmax"
    assert plain["raw_line"]["text"] == "weights = paddle.nn.functional.softmax(scores, -2)"


def test_a_rerun_that_fails_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("padiff.engine.inside.first_op", fails)
    found = padiff.compare(model("torch"), model("torch", "axis"), batch()).divergence
    assert found is not None
    assert (found.raw_path, found.op) == ("second", None)
