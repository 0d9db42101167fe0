"""Experts that are picked by their scores: ties that rounding decides are no difference, wrong picks are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.localise.counted import ALIGNED, counting

import padiff
from padiff.capture.picks import Picks
from padiff.frameworks.picks import Picked, watching_picks
from padiff.frameworks.registry import adapter_named


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 16) * 0.1)
        self.register_buffer("bias", torch.linspace(-0.2, 0.2, 8))
        self.wrong = ""

    def forward(self, x: Any) -> Any:
        logits = torch.nn.functional.linear(x, self.weight)
        scores = logits.softmax(0 if self.wrong == "axis" else -1, dtype=torch.float32)
        choice = scores if self.wrong == "bias" else scores + self.bias.float()
        picked = torch.topk(choice, 1 if self.wrong == "k" else 2, -1, largest=self.wrong != "smallest").indices
        if self.wrong == "constant":
            picked = torch.zeros_like(picked) + torch.arange(2)
        weights = scores.gather(-1, picked)
        if self.wrong != "plain":
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), picked


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.gate = Gate()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        weights, picked = self.gate(x)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(picked == number)
            if len(row):
                found = found.index_add(0, row, expert(x[row]) * weights[row, place, None])
        return x + found


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), Experts(), Experts(), torch.nn.Linear(16, 4))


def tokens(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(48, 16)).astype("float32")


def test_experts_that_tie_but_for_rounding_are_no_difference() -> None:
    noted = 0
    for seed in range(6):
        base = net(seed)
        result = padiff.compare(base, copy.deepcopy(base).to(torch.bfloat16), tokens(seed))
        assert result.aligned, result.divergence
        noted += any("picks" in note for note in result.notes)
    assert noted  # else nothing has tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", ["axis", "bias", "smallest", "constant", "plain", "k"])
def test_wrong_picks_are_told_of_the_gate(wrong: str, dtype: torch.dtype) -> None:
    base = net()
    raw = copy.deepcopy(base).to(dtype)
    raw[2].gate.wrong = wrong
    result = padiff.compare(base, raw, tokens())
    assert not result.aligned and result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("2.gate", "forward")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_weight_of_a_gate_is_told_of_it(dtype: torch.dtype) -> None:
    base = net()
    raw = copy.deepcopy(base).to(dtype)
    with torch.no_grad():
        raw[1].gate.weight[3] *= 1.5
    result = padiff.compare(base, raw, tokens(), weights="keep")
    assert not result.aligned and result.divergence is not None
    assert result.divergence.raw_path == "1.gate"


def picked(scores: Any, count: int = 1, *, largest: bool = True, put: Any = None) -> Picked:
    array = np.array(scores, dtype="float32")
    order = np.argsort(-array if largest else array, -1, kind="stable")[..., :count]
    return Picked(array, order, array.ndim - 1, largest, True, put or (lambda others: pytest.fail("put right")))


def put_right(base: Any, raw: Any, shaken: Any = None, **how: Any) -> list[Any]:
    picks, found = Picks(), []
    picks.of("base")(picked(base))
    with picks.shaking(0.0):
        picks.of("base")(picked(base if shaken is None else shaken, put=lambda others: None))
    picks.of("raw")(picked(raw, put=lambda others: found.append(others.tolist()), **how))
    return found


def test_picks_are_put_right_where_scores_tie_within_what_shaking_moves() -> None:
    rows, moved = [[1.0, 0.999, 0.2], [0.5, 0.1, 0.3]], [[1.0005, 0.999, 0.2], [0.5, 0.1005, 0.3]]
    assert put_right(rows, [[0.999, 1.0, 0.2], [0.5, 0.1, 0.3]], moved) == [[[0], [0]]]


def test_picks_stay_where_scores_do_not_tie() -> None:
    rows = [[1.0, 0.999, 0.2], [0.5, 0.1, 0.3]]
    assert put_right(rows, [[0.999, 1.0, 0.2], [0.5, 0.1, 0.3]]) == []
    assert put_right(rows, [[0.2, 0.999, 1.0], [0.5, 0.1, 0.3]], [[1.001, 0.999, 0.2], [0.5, 0.1, 0.3]]) == []


def test_picks_from_the_other_end_or_of_another_number_stay() -> None:
    rows = [[1.0, 1.0, 1.0]]
    assert put_right(rows, [[0.9999999, 1.0, 1.0]]) == [[[0]]]
    assert put_right(rows, [[1.0, 0.9999999, 1.0]], largest=False) == []
    assert put_right(rows, [[0.9999999, 1.0, 1.0]], count=2) == []


@pytest.mark.parametrize("pick", ["topk", "sort", "max", "argmax"])
def test_backward_follows_what_was_put(pick: str) -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)

    def told(seen: Picked) -> None:
        others = np.array(seen.indices)
        others[0, :2] = (1, 2)[: others.shape[1]]  # what is sorted stays whole
        seen.put(others)

    with watching_picks(adapter_named("torch"), told):
        given = {"topk": (1,), "sort": (-1, True), "max": (-1,), "argmax": (-1,)}[pick]
        found = getattr(scores * 1, pick)(*given)
    index = found if pick == "argmax" else found.indices
    assert index.reshape(-1)[0] == 1
    if pick != "argmax":
        assert found.values.reshape(-1)[0] == 2.0
        found.values.reshape(-1)[0].backward()
        assert scores.grad is not None and scores.grad.tolist() == [[0.0, 1.0, 0.0]]


def autocast(model: Any) -> Any:
    """The model, which from now on computes in bfloat16, and whose code says so."""
    inner = model.forward

    def forward(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return inner(x)

    model.forward = forward
    return model


@pytest.mark.parametrize("seed", [6, 7])
def test_ties_under_autocast_that_may_or_may_not_be(seed: int) -> None:
    """Raw has run forward before it is known how far rounding moves scores; where that tells of ties, it runs again."""
    base = net(seed)
    raw = autocast(copy.deepcopy(base))
    with counting(base, raw) as runs:
        result = padiff.compare(base, raw, tokens(seed))
    assert result.aligned, result.divergence
    assert any("picks" in note for note in result.notes)
    assert runs.plain()[0] + runs.plain()[1] <= sum(ALIGNED) + 1 / 3


@pytest.mark.parametrize("wrong", ["axis", "bias", "smallest", "k"])
def test_wrong_picks_under_autocast(wrong: str) -> None:
    base = net(6)
    raw = autocast(copy.deepcopy(base))
    raw[2].gate.wrong = wrong
    result = padiff.compare(base, raw, tokens(6))
    assert result.divergence is not None
    assert result.divergence.raw_path == "2.gate"
