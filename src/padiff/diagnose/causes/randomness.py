"""Randomness: a module that does not repeat itself, and dropout where there should be none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.ratios import told
from padiff.diagnose.causes.trial import Trial
from padiff.records import Cause

CERTAIN = (0.0, 1.0)
"""What masks keep that come out the same whatever is drawn: a layer that is dropped with a chance of zero."""


def nondeterminism(trial: Trial) -> Iterator[Cause]:
    """Base differs from itself when it runs again on the same inputs."""
    if not trial.scene.repeats():
        yield Cause("nondeterminism", "base's module returns something else when it runs again on the same inputs", 1.0)


def drawn_otherwise(trial: Trial) -> Iterator[Cause]:
    """The two sides draw different things here, or one of them nothing: heard when they ran, not told by any number."""
    for gap in trial.scene.draws:
        base, raw = gap.keeps
        if gap.reason == "parameters" and base is not None and raw is not None:
            text = f"base drops {1 - base:.6g} of the values and raw {1 - raw:.6g}"
            tested = trial.same_shape and trial.finite and trial.repairs(trial.found * (raw / base))
            told = f"{text}; scaled as base scales, the outputs agree" if tested else text
            yield Cause("dropout", told, 0.965 if tested else 0.95, tested)
        elif not (base in CERTAIN or raw in CERTAIN) or gap.reason == "parameters":
            yield Cause("dropout" if gap.masked else "random draws", str(gap), 0.93, tested=False)


def dropout(trial: Trial) -> Iterator[Cause]:
    """Zeros in one tensor where the other has values, and one factor everywhere else."""
    expected, found = trial.expected, trial.found
    dropped, missed = (found == 0) & (expected != 0), (expected == 0) & (found != 0)
    live = (expected != 0) | (found != 0)
    kept = (expected != 0) & (found != 0)
    total = int(live.sum())
    if total < 16 or kept.sum() < 8:
        return
    share = [float(mask.sum()) / total for mask in (dropped, missed)]
    if max(share) < 0.005:
        return
    ratios = found[kept] / expected[kept]
    ratio = float(np.median(ratios))
    if ratio == 0 or float(np.quantile(np.abs(ratios / ratio - 1), 0.98)) > trial.within(1e-3):
        return
    if not trial.agree(expected[kept], found[kept] / ratio):
        return
    if _regular(trial, dropped if share[0] >= share[1] else missed):
        return
    if min(share) > 0.005:
        text = f"each side zeroes other values ({share[1]:.0%} in base, {share[0]:.0%} in raw): other random draws"
        yield Cause("dropout", text, 0.9)
        return
    side, p = ("raw", share[0]) if share[0] > share[1] else ("base", share[1])
    scaled = ratio if side == "raw" else 1 / ratio
    upscaled = abs(scaled * (1 - p) - 1) < 0.2  # of whole channels or samples there may be few
    if trial.near(scaled, 1.0):
        known = any(abs(p - one) < 0.1 for one in trial.numbers("p", "dropout"))
        if not known and trial.scene.phase == "forward":  # without scaling it could be any mask
            yield Cause("zeroed", f"{p:.1%} of the values are zero in {side} only, the others agree", 0.8)
        if not known:
            return
    elif not upscaled:
        return
    text = f"{p:.1%} of {side}'s values are zero where the other side's are not, the others are"
    yield Cause("dropout", f"{text} that side's times {told(trial, scaled)}", 0.9)


def _regular(trial: Trial, zeroed: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bool:
    """Zeroed in whole rows or columns of a pattern: a mask, or an activation, no dropout.

    Dropout of whole channels or samples stays possible: there the choice is the same for all the rest.
    """
    expected, found = trial.expected, trial.found
    source = expected if (found[zeroed] == 0).all() else found
    if zeroed.sum() >= 32 and any((sign * source[zeroed] > 0).all() and (sign * source < 0).any() for sign in (1, -1)):
        return True
    if zeroed.ndim < 2:
        return False
    flat = zeroed.reshape(-1, *zeroed.shape[-2:])
    rows, columns = np.indices(flat.shape[-2:])
    if flat.shape[-1] == flat.shape[-2]:
        upper = columns > rows
        if upper.any() and (flat[:, ~upper].mean() < 0.02 or flat[:, upper].mean() < 0.02) and flat.mean() > 0.1:
            return True
    return False
