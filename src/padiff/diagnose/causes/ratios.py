"""What a number may stand for: plain ratios, roots and counts of what is at hand, probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator

from padiff.diagnose.causes.trial import Trial

_CLOSE = 2e-5
_PLAIN = (2.0, 3.0, 4.0, 8.0, 10.0, 100.0, 1000.0)


def readings(trial: Trial, ratio: float, close: float = _CLOSE) -> list[str]:
    """What ``ratio`` could be, plainest first; none where it is nothing known."""
    if not math.isfinite(ratio) or ratio == 0:
        return []
    size = abs(ratio)
    sign = "-" if ratio < 0 else ""
    found = [f"{sign}{words}" for value, words in _known(trial) if abs(size - value) <= close * value]
    return list(dict.fromkeys(found))


def told(trial: Trial, ratio: float) -> str:
    """The number, and what it could stand for."""
    meanings = readings(trial, ratio)
    plain = f"{ratio:.6g}"
    others = [meaning for meaning in meanings if meaning != plain]
    return f"{plain} ({' or '.join(others[:2])})" if others else plain


def _known(trial: Trial) -> Iterator[tuple[float, str]]:
    yield 1.0, "1"
    for p in trial.numbers("p", "dropout", "drop", "attn_dropout"):
        if 0 < p < 1:
            yield 1 - p, f"1 - p of {p:g}"
            yield 1 / (1 - p), f"1 / (1 - p) of {p:g}"
    for value in _PLAIN:
        yield value, f"{value:g}"
        yield 1 / value, f"1/{value:g}"
    for name, length in trial.dimensions().items():
        yield math.sqrt(length), f"sqrt({name})"
        yield 1 / math.sqrt(length), f"1/sqrt({name})"
        yield length, name
        yield 1 / length, f"1/{name}"
    for name, length in trial.dimensions().items():
        yield length**-0.25, f"{name}^-1/4"
        yield length**0.25, f"{name}^1/4"
    yield math.sqrt(2), "sqrt(2)"
    yield 1 / math.sqrt(2), "1/sqrt(2)"
    yield math.log(2), "ln 2"
    yield 1 / math.log(2), "1/ln 2"
    yield 1.702, "1.702"
    yield 255.0, "255"
    yield 1 / 255.0, "1/255"
