"""Numbers that cross zero by rounding: backward goes on with base's side of them, and no second run is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.compare.arrays import compare_arrays
from padiff.engine.free.crossings import Crossings
from padiff.records import Tolerance

SHIFT, BACK = np.float32(0.7), np.float32(1.0)
AUTO = Tolerance(mode="auto", predicted=1e-7, sums=True)


def shifted(x: Any, together: bool) -> Any:
    return x + (SHIFT - BACK).item() if together else (x + SHIFT.item()) - BACK.item()


class Shift(torch.nn.Module):
    def __init__(self, together: bool) -> None:
        super().__init__()
        self.together = together

    def forward(self, x: Any) -> Any:
        return shifted(x, self.together)


class PaddleShift(paddle.nn.Layer):
    def __init__(self, together: bool) -> None:
        super().__init__()
        self.together = together

    def forward(self, x: Any) -> Any:
        return shifted(x, self.together)


class Block(torch.nn.Module):
    """Rectifies a sum in its own code."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.shift = Shift(together)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.shift(x) + 0.0)


def torch_model(together: bool, *, inplace: bool = False, block: bool = False) -> Any:
    torch.manual_seed(0)
    middle = [Block(together)] if block else [Shift(together), torch.nn.ReLU(inplace)]
    found = torch.nn.Sequential(torch.nn.Linear(4, 4), *middle, torch.nn.Linear(4, 3))
    torch.nn.init.eye_(found[0].weight)
    torch.nn.init.zeros_(found[0].bias)
    return found


def paddle_model(together: bool) -> Any:
    return paddle.nn.Sequential(paddle.nn.Linear(4, 4), PaddleShift(together), paddle.nn.ReLU(), paddle.nn.Linear(4, 3))


def on_the_kink() -> np.ndarray:
    """Inputs of which one lands at opposite sides of zero in the two orders of adding."""
    value = np.float32(0.29999)
    while (value + SHIFT - BACK > 0) == (value + (SHIFT - BACK) > 0):
        value = np.nextafter(value, np.float32(1))
    x = np.random.default_rng(0).uniform(-1.0, 1.0, size=(600, 4)).astype("float32")
    x[11, 1] = value
    return x


def counted(model: Any) -> list[int]:
    """How often a model is called, as it goes on."""
    calls: list[int] = []
    if isinstance(model, paddle.nn.Layer):
        model.register_forward_post_hook(lambda *_: calls.append(1))
    else:
        model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize(
    "models",
    [
        lambda: (torch_model(False), torch_model(True)),
        lambda: (torch_model(False, inplace=True), torch_model(True)),
        lambda: (torch_model(False), torch_model(True, inplace=True)),
        lambda: (torch_model(False, block=True), torch_model(True, block=True)),
        lambda: (torch_model(False), paddle_model(True)),
        lambda: (paddle_model(False), torch_model(True, inplace=True)),
    ],
    ids=["twins", "base in place", "raw in place", "in own code", "paddle raw", "paddle base"],
)
def test_an_aligned_pair_takes_two_runs_of_base_and_one_of_raw(models: Any) -> None:
    base, raw = models()
    if isinstance(base, paddle.nn.Layer):
        padiff.assign_weight(torch_model(False), base)
    runs = counted(base), counted(raw)
    result = padiff.compare(base, raw, on_the_kink())
    assert result.aligned, str(result)
    assert [len(side) for side in runs] == [2, 1]
    told = [one for one in result.comparisons if "other side of a kink" in one.outcome.message]
    assert told
    assert {one.phase for one in told} == {"backward"}
    assert any("kink" in note for note in result.notes)


def test_a_fault_before_the_kink_is_named() -> None:
    base, raw = torch_model(False), torch_model(True)
    raw[0].weight.register_hook(lambda gradient: gradient * 1.001)
    result = padiff.compare(base, raw, on_the_kink())
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("0", "gradient")


def test_what_jumps_when_base_is_shaken_is_no_noise() -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, size=(20_000, 4)).astype("float32")
    x[:30, 1] = on_the_kink()[11, 1]
    base, raw = torch_model(False), torch_model(False)
    assert padiff.compare(base, raw, x).aligned
    raw[0].weight.register_hook(lambda gradient: gradient * 1.005)
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("0", "gradient")


def test_a_jump_where_nothing_crossed_is_a_fault() -> None:
    def cut(gradient: Any) -> Any:
        gradient = gradient.clone()
        gradient[12, 2] = 0.0
        return gradient

    class Cut(Shift):
        def forward(self, x: Any) -> Any:
            x = super().forward(x)
            x.register_hook(cut)
            return x

    x = np.abs(on_the_kink()) + np.float32(0.5)
    x[11, 1] = on_the_kink()[11, 1]
    raw = torch_model(True)
    raw[1] = Cut(True)
    result = padiff.compare(torch_model(False), raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("1", "backward")


def test_only_what_crossed_is_taken_from_base() -> None:
    rng = np.random.default_rng(0)
    base = np.maximum(rng.standard_normal((50, 40)), 0).astype("float32")
    raw = base.copy()
    raw[3, 4] = 0.0 if base[3, 4] else 1e-9
    gradient = rng.standard_normal(base.shape).astype("float32")
    found = gradient * np.float32(1 + 1e-7)
    found[3, 4] = 0.0
    crossings = Crossings()
    crossings.look(base, raw)
    assert crossings.concern(base.shape)
    outcome, instead = crossings.compare(gradient, found, compare_arrays(gradient, found, AUTO), AUTO)
    assert outcome.agrees
    assert instead is not None
    assert np.array_equal(np.argwhere(instead != found), [[3, 4]])
    assert instead[3, 4] == gradient[3, 4]
    found[7, 7] = 9.0
    before = compare_arrays(gradient, found, AUTO)
    assert crossings.compare(gradient, found, before, AUTO) == (before, None)


def test_many_are_no_rounding_and_what_is_not_rectified_tells_nothing() -> None:
    base = np.maximum(np.random.default_rng(0).standard_normal((50, 40)), 0).astype("float32")
    crossings = Crossings()
    crossings.look(base, np.where(base == 0, np.float32(1e-9), base))
    crossings.look(base - 1, base - np.float32(1.0000001))
    assert not crossings.concern(base.shape)
