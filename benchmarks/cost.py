"""What ``padiff.compare`` and single step cost, in plain runs: forward and backward of both models is one of each."""

from __future__ import annotations

import contextlib
import functools
import io
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

import padiff
from benchmarks.models import Case, Pair, build
from benchmarks.rows import Row, Target
from benchmarks.runs import ATOL, RTOL, plain, seconds

CASES = (
    Case("transformer 4 x 256", "transformer", 4, 256, 4, 128),
    Case("CNN, in-place ReLU", "cnn", 8, 16, 8, 64),
    Case("tiny layers 32 x 64", "transformer", 32, 64, 2, 32),
)
TOY = (Case("toy", "transformer", 2, 16, 1, 4),)
ALIGNED = Target("<= 2", "<= 2")
"""Three plain runs of base and one of raw, where base and raw cost the same: four runs, twice a plain run of both."""
DIVERGING = Target("<= 4", "<= 4")
"""Two more of each."""
SINGLE = Target("-", "<= 2.5")
"""Plain, and one and a half times what it adds."""


def run(repeat: int, toy: bool) -> list[Row]:
    rows: list[Row] = []
    for case in TOY if toy else CASES:
        pair = build(case)
        for name, what, target in (
            ("compare, aligned", aligned, ALIGNED),
            ("compare, diverging", diverging, DIVERGING),
            ("single step", single_step, SINGLE),
        ):
            rows.append(_row(name, case, pair, what, target, repeat))
    return rows


def _row(name: str, case: Case, pair: Pair, what: Callable[[Pair], None], target: Target, repeat: int) -> Row:
    calls = _calls(pair, what)  # and warm: imports, kernels, caches
    plain(pair)
    rounds = [(seconds(plain, pair), seconds(what, pair), seconds(plain, pair)) for _ in range(repeat)]
    ratio = statistics.median(ours / min(one, other) for one, ours, other in rounds)
    middle = [1e3 * statistics.median(column) for column in zip(*rounds, strict=True)]
    facts = f"plain {min(middle[0], middle[2]):.0f} ms, ours {middle[1]:.0f} ms; base called {calls[0]}, raw {calls[1]}"
    return Row(name, case.name, f"{ratio:.2f}", target, facts, ratio)


def _calls(pair: Pair, what: Callable[[Pair], None]) -> tuple[int, int]:
    """How often each model is called, be it with backward or without, to its end or not."""
    counted = [0, 0]

    def called(side: int, *_: Any) -> None:
        counted[side] += 1

    handles = [
        model.register_forward_pre_hook(functools.partial(called, side))
        for side, model in enumerate((pair.torch_model, pair.paddle_model))
    ]
    try:
        what(pair)
    finally:
        for handle in handles:
            handle.remove()
    return counted[0], counted[1]


def aligned(pair: Pair) -> None:
    result = padiff.compare(pair.torch_model, pair.paddle_model, (pair.torch_inputs, pair.paddle_inputs))
    assert result.aligned, str(result)


def diverging(pair: Pair) -> None:
    with _scaled(pair.torch_model):
        result = padiff.compare(pair.torch_model, pair.paddle_model, (pair.torch_inputs, pair.paddle_inputs))
    assert not result.aligned


def single_step(pair: Pair) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        inputs = (pair.torch_inputs, pair.paddle_inputs)
        assert padiff.auto_diff(pair.torch_model, pair.paddle_model, inputs, rtol=RTOL, atol=ATOL, single_step=True)


@contextlib.contextmanager
def _scaled(model: Any) -> Iterator[None]:
    """One layer in the middle returns one per cent more."""
    layers = [module for module in model.modules() if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d))]
    handle = layers[len(layers) // 2].register_forward_hook(lambda module, args, output: output * 1.01)
    try:
        yield
    finally:
        handle.remove()
