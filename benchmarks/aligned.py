"""``auto_diff`` of an aligned pair against a plain forward and backward of both models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import memory
from benchmarks.models import Case, build
from benchmarks.rows import Row, Target
from benchmarks.runs import compared, plain, seconds

CASES = (
    (Case("transformer 4 x 256", "transformer", 4, 256, 4, 128), Target("<= 1.4", "<= 1.15")),
    (Case("transformer 6 x 512", "transformer", 6, 512, 4, 128), Target("<= 1.4", "<= 1.15")),
    (Case("tiny layers 32 x 64", "transformer", 32, 64, 2, 32), Target("<= 3", "<= 2")),
    (Case("CNN, in-place ReLU", "cnn", 8, 16, 8, 64), Target("-", "<= 1.2")),
)
TOY = (
    (Case("toy", "transformer", 2, 16, 1, 4), Target("-", "-")),
    (Case("toy CNN", "cnn", 3, 4, 2, 8), Target("-", "-")),
)
MEMORY = Target("<= 2", "<= 1.75")
ROUNDS = 3
"""Of which the middle one is given."""


def run(repeat: int, toy: bool) -> list[Row]:
    """Time and peak memory of each case."""
    rows: list[Row] = []
    for case, target in TOY if toy else CASES:
        rows += time_of(case, target, repeat)
        rows += memory_of(case, alone=not toy)
    return rows


def time_of(case: Case, target: Target, repeat: int) -> list[Row]:
    """Plain, compared, plain again, in turns; the second plain run says how far the machine's noise goes."""
    pair = build(case)
    compared(pair)
    plain(pair)
    rounds = []
    for _ in range(repeat):
        rounds.append(tuple(seconds(each, pair) for each in (plain, compared, plain)))
    first, ours, second = zip(*rounds, strict=True)
    ratio = statistics.median(c / min(a, b) for a, c, b in rounds)
    noise = statistics.median(max(a, b) / min(a, b) for a, _, b in rounds)
    facts = (
        f"plain {1e3 * _middle((*first, *second)):.0f} ms, auto_diff {1e3 * _middle(ours):.0f} ms, "
        f"best of each {min(ours) / min(*first, *second):.2f}, A/A {noise:.2f}"
    )
    return [Row("time", case.name, f"{ratio:.2f}", target, facts, ratio)]


def memory_of(case: Case, *, alone: bool) -> list[Row]:
    """Growth of resident memory over the idle models, each side in its own process.

    Both growths count from the plain side's idle state: what auto_diff leaves behind after its warm-up is not hidden.
    Three rounds, of which the middle one counts.
    """
    peak = memory.in_child if alone else memory.here
    rounds = [(peak(case, "plain"), peak(case, "compared")) for _ in range(ROUNDS if alone else 1)]
    rounds.sort(key=lambda both: _growths(*both)[2])
    one, other = rounds[len(rounds) // 2]
    plain_growth, our_growth, ratio = _growths(one, other)
    every = ", ".join(f"{_growths(*both)[2]:.2f}" for both in rounds)
    facts = (
        f"plain {one.before:.0f} -> {one.highest:.0f} MiB, auto_diff {other.before:.0f} -> {other.highest:.0f}; "
        f"growth {plain_growth:.0f} and {our_growth:.0f}, all rounds {every}, "
        f"whole process {other.highest / one.highest:.2f}"
    )
    return [Row("peak memory", case.name, f"{ratio:.2f}", MEMORY, facts, ratio)]


def _growths(plain: memory.Peak, ours: memory.Peak) -> tuple[float, float, float]:
    """Of both sides, and the ratio of the two."""
    one, other = plain.highest - plain.before, ours.highest - plain.before
    return one, other, other / one if one > 0 else float("nan")


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)
