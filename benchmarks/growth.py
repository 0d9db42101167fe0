"""How the cost of comparing, auto_diff minus plain, grows with depth and with the number of elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import padiff
from benchmarks.models import Case, Pair, build
from benchmarks.rows import Row, Target
from benchmarks.runs import compared, plain, seconds

DEPTHS = (4, 8, 16, 32, 64)
WIDTHS = (64, 128, 256, 512)
LINEAR = Target("1.0 +- 0.1", "1.0 +- 0.1")


def run(repeat: int, toy: bool) -> list[Row]:
    depths, widths = ((1, 2), (8, 16)) if toy else (DEPTHS, WIDTHS)
    by_depth = [Case(f"depth {depth}", "transformer", depth, 64, 2, 32) for depth in depths]
    by_width = [Case(f"width {width}", "transformer", 4, width, 4, 64) for width in widths]
    return [
        _row("cost against depth", "width 64", depths, _costs(by_depth, repeat)),
        _row(
            "cost against elements", "depth 4", [_elements(build(case)) for case in by_width], _costs(by_width, repeat)
        ),
    ]


def _costs(cases: Sequence[Case], repeat: int) -> list[float]:
    """Best auto_diff minus best plain of each case; all cases in turns, so that no one has the quiet hour."""
    pairs = [build(case) for case in cases]
    best = [[float("inf"), float("inf")] for _ in pairs]
    for _ in range(repeat + 1):
        for pair, times in zip(pairs, best, strict=True):
            for place, each in enumerate((plain, compared)):
                times[place] = min(times[place], seconds(each, pair))
    return [with_us - alone for alone, with_us in best]


def _elements(pair: Pair) -> int:
    """How many elements of raw are compared."""
    result = padiff.compare(pair.torch_model, pair.paddle_model, (pair.torch_inputs, pair.paddle_inputs))
    return sum(c.outcome.numbers.size for c in result.comparisons if c.outcome.numbers is not None)


def _row(what: str, case: str, sizes: Sequence[int], costs: Sequence[float]) -> Row:
    """The slope in a double logarithmic plot, over all and over the last doubling."""
    exponent = float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-6)), 1)[0])
    points = ", ".join(f"{size}: {1e3 * cost:.0f} ms" for size, cost in zip(sizes, costs, strict=True))
    last = np.log(costs[-1] / costs[-2]) / np.log(sizes[-1] / sizes[-2]) if min(costs[-2:]) > 0 else float("nan")
    return Row(what, case, f"exponent {exponent:.2f}", LINEAR, f"{points}; last step {last:.2f}", exponent)
