"""Gradients, optimizer steps, running statistics and the loss: what shows only when a model is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from padiff.diagnose.causes.ratios import readings, told
from padiff.diagnose.causes.trial import Trial, Unary, both, factor, gap, plain, rms
from padiff.records import Array, Cause, Divergence


def no_gradient(trial: Trial) -> Iterator[Cause]:
    """One side's gradient is missing or zero."""
    if trial.scene.phase not in ("backward", "gradient"):
        return
    if trial.scene.unreached:
        last = trial.scene.unreached[-1]
        side = trial.scene.unreached_in
        the_other = "base" if side == "raw" else "raw"
        text = f"no gradient comes back to what {last} returned in {side}, and one does in {the_other}: a detach"
        yield Cause("no gradient", text, 0.97)
        return
    for tensor, other, side in ((trial.found, trial.expected, "raw"), (trial.expected, trial.found, "base")):
        if not np.any(tensor) and np.any(other):
            text = f"{side}'s gradient is zero or missing and the other side's is not: a detach, a no_grad, a freeze"
            yield Cause("no gradient", text, 0.95)
            return


def stopped_gradient(divergence: Divergence) -> tuple[Cause, ...]:
    """One side does not follow gradients where the other does: told by what is tracked, not by any number."""
    outcome = divergence.comparison.outcome
    if outcome.reason != "structure" or divergence.phase not in ("backward", "gradient"):
        return ()
    if "frozen" in outcome.message:
        return (Cause("no gradient", outcome.message, 0.97),)
    told = "follow" in divergence.note
    what = f"{divergence.note}; the other side does" if told else outcome.message
    return (Cause("no gradient", f"{what}: a detach, a no_grad, a frozen parameter", 0.97),)


def not_given(divergence: Divergence) -> tuple[Cause, ...]:
    """One side's own code gives a child nothing where the other's gives it a tensor."""
    wrong = divergence.comparison
    if wrong.outcome.reason != "structure" or (wrong.phase, wrong.role) != ("forward", "input"):
        return ()
    name = wrong.name.rpartition(".")[2]
    called = "mask" if "mask" in name else f"missing {name}" if name and not name.isdigit() else "missing input"
    return (Cause(called, wrong.outcome.message, 0.95),)


def not_cleared(trial: Trial) -> Iterator[Cause]:
    """One side's gradient is the other's and what both had in the step before."""
    before = trial.scene.before
    if trial.scene.phase != "gradient" or before is None or before.shape != trial.scene.found.shape:
        return
    left = trial.cut(before)
    for side, added in (("raw", trial.found - left), ("base", trial.found + left)):
        if trial.repairs(added):
            other = "base" if side == "raw" else "raw"
            text = f"{side}'s gradient is {other}'s plus that of the step before: it is added to, and not cleared"
            yield Cause("not cleared", text, 0.96)
            return


def masked_gradient(trial: Trial) -> Iterator[Cause]:
    """Some of raw's gradients are zero, the others are base's."""
    if trial.scene.phase not in ("backward", "gradient") or not trial.rich:
        return
    for tensor, other, side in ((trial.found, trial.expected, "raw"), (trial.expected, trial.found, "base")):
        zeroed = (tensor == 0) & (other != 0)
        count = int(zeroed.sum())
        if not 0 < count < other.size or not np.any(tensor):
            continue
        cut = np.where(zeroed, 0.0, other)
        if trial.models(trial.expected, cut) if side == "raw" else trial.models(cut, trial.found):
            text = f"{count} of {other.size} gradients are zero in {side} only, the others agree"
            yield Cause("masked gradient", text, 0.85)
            return


def straight_gradient(trial: Trial) -> Iterator[Cause]:
    """The gradient of the output comes out as that of the input, on one side only."""
    if trial.scene.phase != "backward":
        return
    for name, tensor in trial.like.items():
        if not name.startswith("the gradient"):
            continue
        for side, own in (("raw", trial.found), ("base", trial.expected)):
            if gap(own, tensor) <= trial.within(1e-6) * rms(tensor):
                text = f"{side}'s gradient is {name} unchanged, as if nothing were there"
                yield Cause("straight-through gradient", text, 0.9)
                return


def loss(trial: Trial) -> Iterator[Cause]:
    """One loss is the other times a count: a sum for a mean. Or each is something plain of what the model returned."""
    if trial.scene.role != "loss" or trial.expected.size != 1 or trial.agree(trial.expected, trial.found):
        return
    base, raw = float(trial.expected.ravel()[0]), float(trial.found.ravel()[0])
    if not (math.isfinite(base) and math.isfinite(raw)):
        return
    right, wrong = (_losses(trial, value) for value in (base, raw))
    for one, other in ((one, other) for one in right for other in wrong if one[:2] != other[:2]):
        same = one[0] == other[0]
        text = f"base's loss is {one[1]} of {one[0]} of {one[2]}, raw's {other[1]} of {other[0]} of {other[2]}"
        yield Cause("reduction" if same and one[1] != other[1] else "loss function", text, 0.95)
        return
    if base == 0 or raw == 0:
        return
    ratio = raw / base
    counts: dict[float, str] = {}
    for name, tensor in trial.scene.given.items():
        for axis in range(tensor.ndim):
            counts.setdefault(tensor.shape[axis], f"the length of axis {axis} of {name or 'the output'}")
            counts.setdefault(int(np.prod(tensor.shape[: axis + 1])), f"the count of rows of {name or 'the output'}")
        counts[tensor.size] = f"the number of elements of {name or 'the output'}"
    for count, words in counts.items():
        if count > 1:
            for value, how in ((count, "a sum for a mean"), (1 / count, "a mean for a sum")):
                if trial.near(ratio, value):
                    yield Cause("reduction", f"raw's loss is base's times {ratio:.6g}, {words}: {how}", 0.93)
                    return
    if trial.near(ratio, -1.0):
        yield Cause("sign", "raw's loss is base's with the other sign", 0.9)
    elif readings(trial, ratio, 1e-6):
        yield Cause("scale", f"raw's loss is base's times {told(trial, ratio)}", 0.6)
    for side, ways in (("base", right), ("raw", wrong)):
        if ways:
            what, how, name = ways[0]
            text = f"{side}'s loss is {how} of {what} of {name}, the other side's is not"
            yield Cause("loss function", text, 0.8)
            return


def _losses(trial: Trial, value: float) -> list[tuple[str, str, str]]:
    """Plain losses of what the model returned that have this value: of what, how reduced, of which output."""
    found: list[tuple[str, str, str]] = []
    for name, tensor in trial.scene.given.items():
        if tensor.dtype.kind not in "fV" or not tensor.size:
            continue
        y = plain(tensor)
        for what, function in _TERMS.items():
            terms = function(y)
            close = max(2e-5, trial.spacing / 8) * rms(terms) * (1 + 1 / math.sqrt(terms.size))  # terms may cancel
            for how, made, share in (
                ("the mean", float(terms.mean()), 1.0),
                ("the sum", float(terms.sum()), float(terms.size)),
                ("the sum, divided by the length of the first axis,", float(terms.sum()) / len(y), terms.size / len(y))
                if y.ndim
                else ("", math.nan, 1.0),
            ):
                if abs(made - value) <= close * share and abs(made - value) <= 1e-3 * abs(value):
                    found.append((what, how, f"its output {name}".strip()))
    return found[:4]


_TERMS: dict[str, Unary] = {
    "the values": lambda y: y,
    "the squares": np.square,
    "the magnitudes": np.abs,
    "half the squares": lambda y: np.square(y) / 2,
    "minus the values": np.negative,
    "minus the logarithms": lambda y: -np.log(np.abs(y) + 1e-300),
}


# ------------------------------------------------------------------ running statistics


def statistics(trial: Trial) -> Iterator[Cause]:
    """What each side's running statistic took in of the batch."""
    scene = trial.scene
    if scene.phase != "buffer" or not trial.same_shape:
        return
    before = None if scene.before is None else plain(trial.cut(scene.before))
    if before is None or before.shape != trial.expected.shape or trial.expected.size < 2:
        return
    base, raw = trial.expected - before, trial.found - before
    if not np.any(raw) or not np.any(base):
        side = "raw" if not np.any(raw) else "base"
        text = f"{side} leaves it as it was: its module is not in training mode, or does not track"
        yield Cause("not updated", text, 0.94)
        return
    yield from _variance(trial, before)
    share = factor(raw, base)
    if math.isfinite(share) and share and trial.repairs(before + raw / share):
        momenta = [settings.get("momentum") for settings in (scene.base_settings, scene.raw_settings)]
        text = f"raw takes in {share:.6g} times as much of the batch as base"
        if momenta[0] and momenta[1] and abs(momenta[1] / momenta[0] / share - 1) < 1e-3:
            yield Cause("momentum", f"{text}{both(trial, 'momentum')}", 0.97)
        else:
            yield Cause("momentum", f"{text}{both(trial, 'momentum')}", 0.85)


def _variance(trial: Trial, before: Array) -> Iterator[Cause]:
    """The batch's variance with n on one side and n - 1 on the other."""
    counts = {
        t.size // trial.expected.size
        for t in trial.scene.given.values()
        if t.size % trial.expected.size == 0 and t.size > trial.expected.size
    }
    momenta = dict.fromkeys([*trial.numbers("momentum"), 0.1])
    for momentum in momenta:
        new = [(t - (1 - momentum) * before) / momentum for t in (trial.expected, trial.found)]
        ratio = factor(new[1], new[0])
        for count in counts:
            for value, words in ((count / (count - 1), "n - 1"), ((count - 1) / count, "n")) if count > 1 else ():
                if abs(ratio - value) > 0.05 * abs(value - 1) + 1e-12:
                    continue
                if trial.repairs((1 - momentum) * before + momentum * new[1] / value):
                    text = f"raw divides the batch's variance by {words}, base does not (n is {count})"
                    yield Cause("variance", text, 0.96)
                    return
