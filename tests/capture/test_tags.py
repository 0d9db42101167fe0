"""Tensors marked inside models are compared by name, gradients too; outside of a comparison a mark does nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.own_code import MODELS, batch, model
from tests.twins import PAIRS

import padiff
from padiff.errors import ArgumentError


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in MODELS:
        monkeypatch.setattr(type(model(framework).first), "tagged", True)


def tags(result: Any) -> list[tuple[str, str]]:
    return [(one.raw_path, one.phase) for one in result.comparisons if one.raw_kind == "tag"]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_compared_by_name(base: str, raw: str) -> None:
    result = padiff.compare(model(base), model(raw), batch())
    assert result.aligned, str(result)
    assert tags(result) == [
        ("first@scores", "forward"),
        ("second@scores", "forward"),
        ("second@scores", "backward"),
        ("first@scores", "backward"),
    ]
    assert result.coverage["calls"] == 1.0


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("level", ["module", "op"])
def test_a_divergence_names_it(base: str, raw: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw, "scale"), batch(), level=level)
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.comparison.raw_path == "second@scores"
    assert "'scores'" in found.note
    assert "'scores'" in str(result)
    assert found.op is not None
    assert (found.op.base.rpartition(".")[2].strip("_"), found.op.raw) == ("mul", "")


def test_tags_in_other_places_pair_by_name() -> None:
    class Other(MODELS["torch"]):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return padiff.tag("all", super().forward(padiff.tag("given", x)))

    class Inner(MODELS["torch"]):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return padiff.tag("all", self.second(self.first(x))) + 0.0

    torch.manual_seed(0)
    result = padiff.compare(Other(), Inner(), batch())
    assert result.aligned, str(result)
    assert ("@all", "forward") in tags(result)
    alone = [str(one) for one in result.unmatched]
    assert alone == ["base @given (tag): raw tags nothing of this name"]


def test_does_nothing_outside_of_a_comparison() -> None:
    x = torch.ones(2)
    assert padiff.tag("x", x) is x
    assert padiff.tag("anything", None) is None
    with pytest.raises(ArgumentError, match="name is 3, expected a name such as 'scores'"):
        padiff.tag(3, x)  # type: ignore[arg-type]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("framework", list(MODELS))
def test_changes_nothing(framework: str) -> None:
    """A model with tags returns and learns what it does without."""
    from tests.capture.test_ops import run

    found: list[dict[str, Any]] = []
    outputs = []
    for on in (True, False):
        given = model(framework)
        for block in (given.first, given.second):
            type(block).tagged = on
        outputs.append(run(framework, given, batch(), gradients=found).calls[-1].outputs[0].value.numpy().copy())
    np.testing.assert_array_equal(*outputs)
    for path, gradient in found[0].items():
        np.testing.assert_array_equal(gradient, found[1][path])


class Marking(torch.nn.Module):
    """Marks what it makes after each layer, but for some."""

    def __init__(self, left_out: int = -1, factors: tuple[float, ...] = (1.0, 1.0, 1.0)) -> None:
        super().__init__()
        self.layers, self.left_out, self.factors = _linears(3), left_out, factors

    def forward(self, x: Any) -> Any:
        for place, layer in enumerate(self.layers):
            made = torch.tanh(layer(x))
            made = made * self.factors[place]
            x = x + (made if place == self.left_out else padiff.tag("made", made))
        return x


def _linears(count: int) -> torch.nn.ModuleList:
    return torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))


@pytest.mark.parametrize("left_out", [0, 1, 2])
@pytest.mark.parametrize("side", ["base", "raw"])
def test_a_name_given_many_times_and_not_everywhere(left_out: int, side: str) -> None:
    models = Marking(), Marking(left_out)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    result = padiff.compare(*(models if side == "raw" else models[::-1]), x)
    assert result.aligned, str(result)
    assert [phase for _, phase in tags(result)] == ["forward", "forward", "backward", "backward"]
    assert len(result.unmatched) == 1


def test_the_op_before_one_of_many_tags() -> None:
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    found = padiff.compare(Marking(), Marking(factors=(1.0, 1.1, 1.0)), x).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.op.base, found.op.raw) == ("torch.Tensor.mul", "torch.Tensor.mul")
    assert found.op.raw_line.text == "made = made * self.factors[place]"
