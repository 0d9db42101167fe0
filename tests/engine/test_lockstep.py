"""Two backward passes that take turns."""

from __future__ import annotations

import io
import threading
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.capture.held import Held
from padiff.engine.free import free_run, lockstep
from padiff.engine.free.lockstep import AHEAD, Lockstep
from tests.twins import PAIRS, batch, net

SMALL = AHEAD // 4


@pytest.fixture(autouse=True)
def small_models_take_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_run, "LARGE", 0)


class Passes:
    """Base makes some gradients in order; raw asks for some."""

    def __init__(self, makes: list[int], asks: list[int], size: int = AHEAD) -> None:
        self.turns = Lockstep()
        self.makes, self.asks, self.size = makes, asks, size
        self.made: set[int] = set()
        self.order: list[str] = []

    def base(self) -> str:
        for tensor in self.makes:
            self.made.add(tensor)
            self.order.append(f"base {tensor}")
            self.turns.made(tensor, self.size)
        return "base"

    def raw(self) -> str:
        for tensor in self.asks:
            self.turns.wait_for((tensor,), self.made)
            self.order.append(f"raw {tensor}")
        return "raw"

    def run(self) -> str:
        assert self.turns.run(self.base, self.raw) == ("base", "raw")
        return ", ".join(self.order)


def test_base_runs_only_as_far_as_raw_asks() -> None:
    assert Passes([1, 2, 3], [1, 2, 3]).run() == "base 1, raw 1, base 2, raw 2, base 3, raw 3"


def test_small_gradients_come_several_at_a_time() -> None:
    order = Passes([1, 2, 3, 4, 5], [1, 2, 5], SMALL).run()
    assert order == "base 1, base 2, base 3, base 4, raw 1, raw 2, base 5, raw 5"


def test_another_order_lets_base_run_ahead() -> None:
    assert Passes([1, 2, 3], [3, 2, 1]).run() == "base 1, base 2, base 3, raw 3, raw 2, raw 1"


def test_what_base_never_makes_is_waited_for_until_it_ends() -> None:
    assert Passes([1, 2], [7, 1, 8]).run() == "base 1, base 2, raw 7, raw 1, raw 8"


def test_base_goes_on_when_raw_has_ended() -> None:
    assert Passes([1, 2, 3], [1]).run() == "base 1, raw 1, base 2, base 3"
    assert Passes([1, 2], []).run() == "base 1, base 2"


@pytest.mark.parametrize("side", ["base", "raw"])
def test_an_exception_comes_out_when_both_have_ended(side: str) -> None:
    passes = Passes([1, 2, 3], [1, 2, 3])

    def fails() -> Any:
        getattr(passes, side)()
        raise ValueError(side)

    with pytest.raises(ValueError, match=side):
        passes.turns.run(*(fails if side == one else getattr(passes, one) for one in ("base", "raw")))
    assert sorted(passes.order) == ["base 1", "base 2", "base 3", "raw 1", "raw 2", "raw 3"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("padiff")]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_few_gradients_of_base_are_held_at_once(base: str, raw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep, "AHEAD", 1)
    monkeypatch.setattr("padiff.engine.free.side_by_side.QUEUE_BYTES", 1)
    held: list[int] = []
    original = Lockstep.made
    seen: dict[int, Held] = {}

    class Watched(Lockstep):
        def wait_for(self, tensors: Any, made: Any) -> None:
            super().wait_for(tensors, made)
            seen.update(made)
            held.append(sum(value._tensor is not None for value in made.values()))

    monkeypatch.setattr(free_run, "Lockstep", Watched)
    with redirect_stdout(io.StringIO()):
        assert padiff.auto_diff(net(base), net(raw), ({"x": batch()}, {"x": batch()}), atol=1e-4)
    assert Lockstep.made is original
    assert len(seen) > 20
    assert max(held) <= 3  # a gradient may be of several names: a module's output and the next one's input


def test_gradients_are_the_ones_of_a_plain_run() -> None:
    found: dict[str, np.ndarray] = {}
    base, raw = net("torch"), net("paddle")
    plain = {}
    base(torch.from_numpy(batch())).mean().backward()
    for name, parameter in base.named_parameters():
        plain[name] = parameter.grad.numpy().copy()
        parameter.grad = None

    class Keeping(free_run.State):
        def tensors(self, phase: Any, role: Any, one: Any, other: Any) -> Any:
            if phase == "gradient":
                found.update({name: value.numpy().copy() for name, value in one.items()})
            return super().tensors(phase, role, one, other)

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.setattr(free_run, "State", Keeping)
        assert padiff.auto_diff(base, raw, ({"x": batch()}, {"x": batch()}), atol=1e-4)
    assert found.keys() == plain.keys()
    for name, gradient in plain.items():
        np.testing.assert_array_equal(found[name], gradient)


def test_where_threads_matter_the_passes_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("no turns here")

    monkeypatch.setattr(Lockstep, "run", never)
    model = net("torch")
    with redirect_stdout(io.StringIO()):
        assert padiff.auto_diff(model, model, ({"x": batch()}, {"x": batch()}), atol=1e-4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert padiff.auto_diff(net("torch"), net("torch"), ({"x": batch()}, {"x": batch()}), atol=1e-4)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_an_aligned_pair_leaves_nothing_to_explain(base: str, raw: str) -> None:
    log = io.StringIO()
    with redirect_stdout(log):
        assert padiff.auto_diff(net(base), net(raw), ({"x": batch()}, {"x": batch()}), atol=1e-4)
    assert "backward was not run" not in log.getvalue()
    assert log.getvalue().splitlines()[-1] == "[AutoDiff] SUCCESS !!!"
