"""Ops and tags in dumps: two that were recorded apart are compared as those of one process are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.own_code import MODELS, batch, model
from tests.randomness.models import KINDS, data
from tests.randomness.models import net as drawing
from tests.test_own_code import RIGHT, WRONG, thing
from tests.twins import PAIRS

ACROSS = [("torch", "paddle"), ("paddle", "torch")]


def recorded(net: Any, to: Path, **options: Any) -> None:
    x = torch.from_numpy(batch()) if isinstance(net, torch.nn.Module) else paddle.to_tensor(batch())
    with padiff.capture(net, to, overwrite=True, **options):
        net(x).square().mean().backward()


def along(base: Any, raw: Any, folder: Path, **options: Any) -> Any:
    level = options.pop("level", "op")
    recorded(base, folder / "a", level=level)
    recorded(raw, folder / "b", base=folder / "a", level=level, **options)
    return padiff.compare_dumps(folder / "a", folder / "b")


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_ops_are_compared(base: str, raw: str, sync: bool, tmp_path: Path) -> None:
    result = along(model(base), model(raw), tmp_path, sync=sync)
    assert result.aligned, str(result)
    ops = [one for one in result.comparisons if "/" in one.raw_path and one.phase == "forward"]
    live = padiff.compare(model(base), model(raw), batch(), level="op")
    assert {(one.base_path, one.raw_path) for one in ops} == {
        (one.base_path, one.raw_path) for one in live.comparisons if "/" in one.raw_path and one.phase == "forward"
    }
    assert {op.path for call in padiff.load(tmp_path / "b").step(0).calls for op in call.ops} >= {
        one.raw_path for one in ops
    }
    if not sync:
        assert any("/" in one.raw_path and one.phase == "backward" for one in result.comparisons)


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), ACROSS)
@pytest.mark.parametrize("bug", RIGHT)
def test_the_op_is_named_with_both_lines(bug: str, base: str, raw: str, sync: bool, tmp_path: Path) -> None:
    found = along(model(base), model(raw, bug), tmp_path, sync=sync).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.op is not None
    sides = (found.op.base, found.op.base_line, base, RIGHT), (found.op.raw, found.op.raw_line, raw, WRONG)
    for name, line, framework, table in sides:
        expected = table[bug]
        assert thing(name) == expected[0]
        assert line is not None
        assert line.text == expected[1 if framework == "torch" else 2]


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in MODELS:
        monkeypatch.setattr(type(model(framework).first), "tagged", True)


def tags(result: Any) -> set[tuple[str, str]]:
    return {(one.raw_path, one.phase) for one in result.comparisons if one.raw_kind == "tag"}


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_tags_are_compared_by_name(base: str, raw: str, sync: bool, level: str, tmp_path: Path) -> None:
    result = along(model(base), model(raw), tmp_path, sync=sync, level=level)
    assert result.aligned, str(result)
    assert tags(result) == {
        ("first@scores", "forward"),
        ("second@scores", "forward"),
        ("second@scores", "backward"),
        ("first@scores", "backward"),
    }
    assert result.coverage["calls"] == 1.0


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_divergence_names_the_tag(base: str, raw: str, level: Any, tmp_path: Path) -> None:
    found = along(model(base), model(raw, "scale"), tmp_path, sync=True, level=level).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.comparison.raw_path == "second@scores"
    assert "'scores'" in found.note
    if level == "op":
        assert found.op is not None
        assert (thing(found.op.base), found.op.raw) == ("mul", "")


@pytest.mark.usefixtures("tagged")
def test_a_tag_of_one_side_only_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model("paddle").first), "tagged", False)
    result = along(model("torch"), model("paddle"), tmp_path, level="module")
    assert result.aligned
    assert [str(one) for one in result.unmatched] == [
        "base first@scores (tag): raw tags nothing of this name",
        "base second@scores (tag): raw tags nothing of this name",
    ]


def test_modules_that_are_left_out_leave_their_ops_out(tmp_path: Path) -> None:
    recorded(model("torch"), tmp_path / "a", level="op", only=["second"])
    calls = padiff.load(tmp_path / "a").step(0).calls
    assert {call.path for call in calls if call.ops} == {"second"}


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_ops_that_draw(base: str, raw: str, tmp_path: Path) -> None:
    def trained(framework: str, to: Path, **options: Any) -> None:
        net = drawing(framework, KINDS["two dropouts"])
        net.p = 0.3  # it looks as if it drew
        x = torch.from_numpy(data()) if framework == "torch" else paddle.to_tensor(data())
        with padiff.capture(net, to, level="op", **options):
            for _ in range(2):
                net(x).square().mean().backward()

    trained(base, tmp_path / "a")
    for step in padiff.load(tmp_path / "a").steps:
        made = {slot.tensor for call in step.calls for op in call.ops for slot in op.outputs}
        assert made and made <= {int(number) for number in step.noise["tensors"]}
        assert "repeats" not in step.extra
    trained(raw, tmp_path / "b", base=tmp_path / "a")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert result.replayed == 4
    assert len({one.raw_path for one in result.comparisons if one.raw_path.startswith("/dropout")}) == 2


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("kind", ["stats", "hash"])
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_ops_and_tags_of_summaries_are_compared(framework: str, kind: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        recorded(model(framework), tmp_path / name, level="op", kind=kind)
        recorded(model(framework), tmp_path / f"{name}_full", level="op")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    whole = padiff.compare_dumps(tmp_path / "a_full", tmp_path / "b_full")
    assert result.aligned, str(result)
    assert tags(result) == tags(whole) != set()
    ops, all_of_them = (
        {(one.raw_path, one.phase) for one in found.comparisons if "/" in one.raw_path} for found in (result, whole)
    )
    masked = all_of_them - ops  # statistics do not tell what is masked out from the rest
    assert ops <= all_of_them
    assert len(masked) < len(ops) / 2
    assert not masked or kind == "stats"


@pytest.mark.parametrize("framework", ["torch", "paddle"])
@pytest.mark.parametrize("kind", ["stats", "hash"])
@pytest.mark.parametrize("bug", [*RIGHT, "extra"])
def test_summaries_name_the_op(bug: str, kind: str, framework: str, tmp_path: Path) -> None:
    """That of whole tensors; but for operands that changed places, whose first sign is told."""
    recorded(model(framework), tmp_path / "a", level="op", kind=kind)
    recorded(model(framework, bug), tmp_path / "b", level="op", kind=kind)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert any("only=['second']" in note for note in result.notes)
    assert found.op is not None
    expected = {"extra": ("", "tanh"), "operands": ("transpose", "transpose")}
    right, wrong = RIGHT.get(bug, ("", "", "")), WRONG.get(bug, ("", "", ""))
    assert (thing(found.op.base), thing(found.op.raw)) == expected.get(bug, (right[0], wrong[0]))
    line = 1 if framework == "torch" else 2
    if found.op.base and found.op.base_line is not None:
        assert found.op.base_line.text == right[line]
    if wrong[0] and found.op.raw_line is not None:
        assert found.op.raw_line.text == wrong[line]


@pytest.mark.usefixtures("tagged")
def test_a_tag_of_one_summary_alone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(model("torch"), tmp_path / "a", kind="stats")
    monkeypatch.setattr(type(model("torch").first), "tagged", False)
    recorded(model("torch"), tmp_path / "b", kind="stats")
    there = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").unmatched
    back = padiff.compare_dumps(tmp_path / "b", tmp_path / "a").unmatched
    assert {(one.side, one.why) for one in there} == {("base", "raw tags nothing of this name")}
    assert {(one.side, one.why) for one in back} == {("raw", "base tags nothing of this name")}
