"""Linear layers cut among ranks and run in one process: columns put one after the other, rows added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS

WIDTH = 8


class TorchWhole(torch.nn.Module):
    def __init__(self, inner: int, bias: bool) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, inner), torch.nn.Linear(inner, WIDTH, bias)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(x)))


class PaddleWhole(paddle.nn.Layer):
    def __init__(self, inner: int, bias: bool) -> None:
        super().__init__()
        self.up = paddle.nn.Linear(WIDTH, inner)
        self.down = paddle.nn.Linear(inner, WIDTH, bias_attr=None if bias else False)

    def forward(self, x: Any) -> Any:
        return x + self.down(paddle.tanh(self.up(x)))


class TorchColumns(torch.nn.Module):
    def __init__(self, given: int, returned: int, ranks: int, bug: str) -> None:
        super().__init__()
        self.ranks = torch.nn.ModuleList(torch.nn.Linear(given, returned // ranks) for _ in range(ranks))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        found = [rank(x) for rank in self.ranks]
        return torch.cat(found[::-1] if self.bug == "order" else found, -1)


class TorchRows(torch.nn.Module):
    def __init__(self, given: int, returned: int, ranks: int, bug: str) -> None:
        super().__init__()
        self.ranks = torch.nn.ModuleList(torch.nn.Linear(given // ranks, returned, False) for _ in range(ranks))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        found = [rank(part) for rank, part in zip(self.ranks, x.chunk(len(self.ranks), -1), strict=True)]
        return found[0] if self.bug == "reduce" else torch.stack(found).sum(0)


class PaddleColumns(paddle.nn.Layer):
    def __init__(self, given: int, returned: int, ranks: int, bug: str) -> None:
        super().__init__()
        self.ranks = paddle.nn.LayerList([paddle.nn.Linear(given, returned // ranks) for _ in range(ranks)])
        self.bug = bug

    def forward(self, x: Any) -> Any:
        found = [rank(x) for rank in self.ranks]
        return paddle.concat(found[::-1] if self.bug == "order" else found, -1)


class PaddleRows(paddle.nn.Layer):
    def __init__(self, given: int, returned: int, ranks: int, bug: str) -> None:
        super().__init__()
        made = [paddle.nn.Linear(given // ranks, returned, bias_attr=False) for _ in range(ranks)]
        self.ranks, self.bug = paddle.nn.LayerList(made), bug

    def forward(self, x: Any) -> Any:
        found = [rank(part) for rank, part in zip(self.ranks, x.chunk(len(self.ranks), -1), strict=True)]
        return found[0] if self.bug == "reduce" else paddle.stack(found).sum(0)


class TorchCut(torch.nn.Module):
    def __init__(self, inner: int, ranks: int, bug: str) -> None:
        super().__init__()
        self.up, self.down = TorchColumns(WIDTH, inner, ranks, bug), TorchRows(inner, WIDTH, ranks, bug)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(x)))


class PaddleCut(paddle.nn.Layer):
    def __init__(self, inner: int, ranks: int, bug: str) -> None:
        super().__init__()
        self.up, self.down = PaddleColumns(WIDTH, inner, ranks, bug), PaddleRows(inner, WIDTH, ranks, bug)

    def forward(self, x: Any) -> Any:
        return x + self.down(paddle.tanh(self.up(x)))


def model(framework: str, inner: int = 12, ranks: int = 0, bug: str = "", bias: bool = False) -> Any:
    """Three blocks, whole or cut; the bug is in the second."""
    whole, cut = (TorchWhole, TorchCut) if framework == "torch" else (PaddleWhole, PaddleCut)
    blocks: list[Any] = [cut(inner, ranks, bug if n == 1 else "") if ranks else whole(inner, bias) for n in range(3)]
    return torch.nn.Sequential(*blocks) if framework == "torch" else paddle.nn.Sequential(*blocks)


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, WIDTH)).astype("float32")


@pytest.mark.parametrize(("inner", "ranks"), [(12, 2), (16, 2), (24, 3), (32, 8)])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_cut_layers_are_filled_and_agree(base: str, raw: str, inner: int, ranks: int) -> None:
    result = padiff.compare(model(base, inner), model(raw, inner, ranks), batch())
    assert result.aligned, result.divergence
    assert result.coverage["parameters"] == 1.0
    assert any((one.base_path, one.raw_path) == ("1.down", "1.down") for one in result.comparisons)
    assert any(one.raw_path == "1.down.ranks.1" and one.phase == "gradient" for one in result.comparisons)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_whole_layers_are_filled_from_cut_ones(base: str, raw: str) -> None:
    result = padiff.compare(model(base, ranks=2), model(raw), batch())
    assert result.aligned, result.divergence
    assert result.coverage["parameters"] == 1.0


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_rows_that_are_not_added_up_are_named(base: str, raw: str) -> None:
    found = padiff.compare(model(base), model(raw, ranks=2, bug="reduce"), batch()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1.down", "forward")
    assert found.causes[0].name == "missing residual"
    assert "plus what 1.down.ranks.1 returned" in found.causes[0].evidence


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_columns_in_another_order_are_named(base: str, raw: str) -> None:
    """Base has nothing that stands beside all columns together: the module that joins them is named, and its op."""
    found = padiff.compare(model(base), model(raw, ranks=2, bug="order"), batch()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("1.up", "forward")
    assert "between its children 1.up" in found.note
    assert found.op is not None
    assert found.op.raw in ("torch.cat", "paddle.concat")
    assert found.causes[0].name == "head order"


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(8, 12), torch.nn.Linear(8, 12), torch.nn.Linear(12, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class GatedRanks(torch.nn.Module):
    """Each rank goes through on its own; the first keeps the bias of what is added up."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.ModuleList(torch.nn.Linear(8, 6) for _ in range(2)) for _ in range(2))
        self.down = torch.nn.ModuleList(torch.nn.Linear(6, 8, bias=rank == 0) for rank in range(2))
        self.bug = bug

    def forward(self, x: Any) -> Any:
        ranks = zip(self.gate, self.up, self.down, strict=True)
        found = [down(torch.sigmoid(gate(x)) * up(x)) for gate, up, down in ranks]
        if self.bug == "mean":
            return x + (found[0] + found[1]) / 2
        return x + found[0] + (found[1].detach() if self.bug == "detach" else found[1])


@pytest.mark.parametrize(("bug", "phase"), [("", ""), ("mean", "forward"), ("detach", "backward")])
def test_the_rank_that_keeps_the_bias_is_not_the_whole(bug: str, phase: str) -> None:
    raw = torch.nn.Sequential(GatedRanks(), GatedRanks(bug), GatedRanks())
    result = padiff.compare(torch.nn.Sequential(*(Gated() for _ in range(3))), raw, batch())
    assert result.aligned is not bool(bug), str(result)
    if bug:
        assert [(one.raw_path, one.phase) for one in result.divergences] == [("1", phase)]
    assert padiff.compare(torch.nn.Sequential(GatedRanks()), torch.nn.Sequential(Gated()), batch()).aligned
