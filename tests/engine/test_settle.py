"""Base's noise in backward is asked for when something differs by more than the least, and then it counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import padiff


class Shift(torch.nn.Module):
    """Adds a row to all rows; backward sums over these, from the first or from the last."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.backwards = backwards
        self.row = torch.nn.Parameter(torch.randn(1, 16))

    def forward(self, x: Any) -> Any:
        return (x.flip(0, 1) + self.row).flip(0, 1) if self.backwards else x + self.row


class Attention(torch.nn.Module):
    """The gradient of what is added to all keys is zero by rights: all of it is rounding."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))
        self.shift = Shift(backwards)

    def forward(self, x: Any) -> Any:
        weights = torch.softmax(self.query(x) @ self.shift(self.key(x)).transpose(1, 2) / 4, dim=-1)
        return x + weights @ self.value(x)


def model(backwards: bool = False) -> Any:
    torch.manual_seed(0)
    first, second = Attention(backwards), Attention(backwards)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), first, torch.nn.LayerNorm(16), second, torch.nn.Linear(16, 4))


def runs(model: Any) -> list[int]:
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    return calls


def compared(base: Any, raw: Any) -> Any:
    torch.manual_seed(1)
    return padiff.compare(base, raw, torch.randn(3, 6, 8))


def scaled(module: Any, factor: float) -> None:
    module.register_forward_hook(lambda _, args, output: output * factor)


def test_an_aligned_pair_with_gradients_that_cancel_is_not_looked_at_twice() -> None:
    base, raw = model(), model(backwards=True)
    seen = runs(base), runs(raw)
    assert compared(base, raw).aligned
    assert [len(side) for side in seen] == [2, 1]


def test_a_fault_in_forward_needs_no_noise_of_gradients() -> None:
    base, raw = model(), model()
    scaled(raw[1].value, 1.01)
    seen = runs(base), runs(raw)
    result = compared(base, raw)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("1.value", "forward")
    # Base: by itself, shaken, with every contribution seen, shaken and fed in forward only. Raw: by itself, fed.
    assert [len(side) for side in seen] == [4, 2]
    found = [one for step in result.steps for one in step.local if one.phase == "backward"]
    assert found
    assert all(one.outcome.predicted is None for one in found)


def test_a_fault_in_backward_is_held_against_noise() -> None:
    base, raw = model(), model()
    raw[0].weight.register_hook(lambda gradient: gradient * 1.001)
    seen = runs(base), runs(raw)
    result = compared(base, raw)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("0", "gradient")
    assert result.divergence.comparison.outcome.predicted
    assert len(result.divergences) == 1
    assert [len(side) for side in seen] == [4, 2]


@pytest.mark.parametrize("fault", [False, True])
def test_gradients_as_noisy_as_base_predicts_are_no_fault(fault: bool) -> None:
    base, raw = model(), model(backwards=True)
    if fault:
        scaled(raw[3].value, 1.001)
    result = compared(base, raw)
    assert result.aligned is not fault, str(result)
    assert [one.raw_path for one in result.divergences] == (["3.value"] if fault else [])
