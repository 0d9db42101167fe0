"""When a step must run again with raw fed base's tensors, and what is left of a difference that no call adds."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from padiff.engine.fed.givers import asked_for_no_number
from padiff.records import Comparison, Noise, Outcome, Slot, StepComparison, Tolerance

SUSPICIOUS = 4.0
"""Clean pairs stay below three times what was predicted; a fault that a norm hides may be little above it."""
FEW = 16.0
"""Elements of an output, of which one run tells rounding within a factor of two: of fewer it may seem to move none."""
SEEN, SEEN_BACKWARDS = 1e-6, 1e-5
"""Of what is compared: less is no fault, whatever was predicted. A fault in forward shows there, and one in backward
alone is larger: what a saturated function sends back is off by more than shaking tells."""
COARSE = 1e-2
"""Gradients that are further apart, relative to them, are not believed to be rounding at once: where base's own numbers
lie on a kink, shaking it moves gradients by any amount, and so much is allowed there."""
CANCELLED = 1.2e-7
"""Gradients that are closer, relative to the largest of them, may be all that is left of a sum whose terms cancel: that
of a key's bias before a softmax is zero by rights, and half of it is noise in any two models."""
LEFT_OVER = 1e-5
"""Of the largest gradient; what is smaller, and rounding is predicted to move by a good part of itself, is that too."""
MOVED = 0.3
"""Such a part."""
TINY = float(np.finfo(np.float32).tiny)
"""Below it numbers lose their digits, or are lost."""
HIDING = 2e-5
"""Of an output's size; where rounding is predicted to move it further, an error of a thousandth may hide behind it."""
MUCH = 3.0
"""How many times what a call is given may be off, relative to it, that is what it returns: rounding grows little within
one call."""
GROWN = 100.0
"""Up to how many times the predicted noise may grow when no call adds anything by itself."""


def wants_second_look(comparisons: Iterable[Comparison], tolerance: Tolerance) -> bool:
    """Something differs, or is further apart than rounding usually brings it.

    In a narrow dtype so much is explained by the way there that only a look at each call by itself tells anything."""
    if tolerance.mode == "auto" and tolerance.narrow:
        return any(comparison.outcome.verdict != "equal" for comparison in comparisons)
    known = [comparison for comparison in comparisons if comparison.phase != "buffer"]
    largest: dict[str, float] = {}
    for one in known:
        if one.outcome.numbers is not None:
            largest[one.phase] = max(largest.get(one.phase, 0.0), one.outcome.numbers.base_rms)
    return any(_suspicious(one, largest.get(one.phase, 0.0)) for one in known)


def asks_of_forward_alone(comparisons: Iterable[Comparison], tolerance: Tolerance) -> bool:
    """Whether a second look is to make sure of forward, in which nothing differs by much: neither the loss nor a
    gradient says that something is wrong."""
    if tolerance.mode == "auto" and tolerance.narrow:
        return False
    known = list(comparisons)
    further = [one for one in known if one.phase != "forward" or one.role == "loss"]
    if wants_second_look(further, tolerance):
        return False
    return all(one.agrees or _nearly(one.outcome) for one in known if one.phase == "forward")


def _nearly(outcome: Outcome) -> bool:
    return outcome.reason == "values" and outcome.ratio is not None and outcome.ratio <= SUSPICIOUS


def adds_much(done: StepComparison, spacing: float) -> bool:
    """Whether a call makes much more of a difference than it was given, in a dtype of few digits that has ``spacing``:
    there rounding is predicted to move everything so far that a fault of some per cent is within it, and so is all that
    comes after it."""
    errors: dict[int, float] = {}
    for one in done.comparisons:
        numbers = one.outcome.numbers
        if one.phase == "forward" and one.tensor >= 0 and numbers is not None and numbers.base_rms > 0:
            errors[one.tensor] = max(errors.get(one.tensor, 0.0), numbers.rmse / numbers.base_rms)
    for _, call in done.pairs:
        given, returned = (
            [errors[slot.tensor] for slot in slots if slot.tensor in errors] for slots in (call.inputs, call.outputs)
        )
        if given and returned and max(returned) > MUCH * max(given) + spacing:
            return True
    return False


def may_hide(comparisons: Iterable[Comparison], noise: Noise | None) -> bool:
    """Something is left of larger numbers, and what those lose moves an output so far that only a look at each call by
    itself tells an error from it."""
    if noise is None or not noise.cancelled:
        return False
    return any(_moved_far(one) for one in comparisons if one.phase == "forward" and one.role == "output")


def _moved_far(comparison: Comparison) -> bool:
    numbers, predicted = comparison.outcome.numbers, comparison.outcome.predicted
    if comparison.outcome.verdict != "rounding" or numbers is None or predicted is None:
        return False
    return predicted > HIDING * numbers.base_rms


def without_idle_inputs(done: StepComparison) -> list[Comparison]:
    """Without what tells nothing of what calls are given, where all that they return agrees: what they are given
    besides, in whatever form (a mask), which would show where it is used; first inputs of modules that begin elsewhere
    or ask them for no number, and pictures with a frame around them, of layers that pad otherwise. A first input that
    is wrong otherwise may be taken away by a norm, and counts."""
    given = {call.index: (base.inputs[0], call.inputs[0]) for base, call in done.pairs if base.inputs and call.inputs}
    tables = {call.index for base, call in done.pairs if asked_for_no_number(base) and asked_for_no_number(call)}
    right: dict[int, bool] = {}
    for one in done.comparisons:
        if one.phase == "forward" and one.role == "output":
            right[one.raw_call] = right.get(one.raw_call, True) and one.agrees
    returned: tuple[set[int], set[int]] = set(), set()
    for pair in done.pairs:
        if right.get(pair[1].index, False):
            for tensors, call in zip(returned, pair, strict=True):
                tensors.update(slot.tensor for slot in call.outputs)

    def idle(one: Comparison) -> bool:
        if one.role != "input" or one.agrees or not right.get(one.raw_call, False):
            return False
        first = given.get(one.raw_call)
        if one.outcome.reason == "shape" and first is not None and first[1].tensor == one.tensor and _framed(*first):
            return True
        if one.phase != "forward":
            return False
        if first is None or first[1].tensor != one.tensor or one.raw_call in tables:
            return True
        # Each was returned by a call whose partner returned the same: a pooling is before the head, or its first part.
        return all(slot.tensor in tensors for slot, tensors in zip(first, returned, strict=True))

    return [one for one in done.comparisons if not idle(one)]


def _framed(base: Slot, raw: Slot) -> bool:
    """Whether one of two pictures is larger, by their shapes: that many, and as many axes."""
    one, other = base.value.shape, raw.value.shape
    if len(one) != len(other) or len(one) < 3 or one[0] != other[0]:
        return False
    larger = [a >= b for a, b in zip(one, other, strict=True)], [a <= b for a, b in zip(one, other, strict=True)]
    same = sum(a == b for a, b in zip(one, other, strict=True))
    return any(map(all, larger)) and same == 2  # the batch and the channels


def _suspicious(comparison: Comparison, largest: float) -> bool:
    outcome = comparison.outcome
    if not outcome.agrees:
        return True
    ratio, numbers = outcome.ratio, outcome.numbers
    if ratio is None or numbers is None:
        return False
    if numbers.rmse <= TINY:
        return False
    backwards = comparison.phase in ("backward", "gradient")
    if backwards:
        coarse = numbers.rmse > COARSE * numbers.base_rms
        if coarse and numbers.rmse > CANCELLED * largest and not _left_over(comparison, largest):
            return True
    if ratio <= SUSPICIOUS * (1 + FEW / max(numbers.size, 1)):
        return False
    least = SEEN_BACKWARDS if backwards else SEEN
    return comparison.role == "output" and numbers.rmse > least * numbers.base_rms


def _left_over(comparison: Comparison, largest: float) -> bool:
    """Whether a parameter's gradient is what rounding leaves of a sum whose terms cancel: a key's bias, or one before a
    norm of batches."""
    numbers, predicted = comparison.outcome.numbers, comparison.outcome.predicted
    if comparison.phase != "gradient" or numbers is None or predicted is None:
        return False
    return numbers.base_rms < LEFT_OVER * largest and predicted > MOVED * numbers.base_rms


def explained(comparisons: Iterable[Comparison], local: Iterable[Comparison]) -> Iterable[Comparison]:
    """No call of raw adds anything by itself: what differs within reason is rounding that has grown.

    A number that crosses a kink (of a ReLU, of a pooling's choice) changes gradients by any amount. Where every
    gradient of a parameter agrees that was made of base's tensors, that is all there is to gradients that differ.
    """
    judged = [one for one in local if one.phase == "gradient"]
    kinks = bool(judged) and all(one.agrees for one in judged)
    for comparison in comparisons:
        outcome = comparison.outcome
        grown = outcome.ratio is not None and outcome.ratio <= GROWN
        crossed = kinks and comparison.phase in ("backward", "gradient")
        if not outcome.agrees and outcome.reason == "values" and (grown or crossed):
            yield _rounding(comparison, "no call adds to it when fed base's tensors: rounding that has grown")
        else:
            yield comparison


def without_cut(done: StepComparison, cut: Collection[int]) -> list[Comparison]:
    """Without what calls of modules came to that one side calls once and the other often, on a part each (``cut``): a
    run by itself holds the one against the first of several, a second look against all of them."""
    calls = {call.index for call in done.raw.calls if call.node in cut}
    return [one for one in done.comparisons if one.agrees or one.raw_call not in calls or one.phase == "gradient"]


def agreeing_by_themselves(state: Iterable[Comparison], free: Iterable[Comparison]) -> Iterable[Comparison]:
    """Gradients of parameters that differ when raw is fed base's tensors, and agree when it runs by itself.

    Of models built differently not everything can be put in the place of raw's, and what base sends back may meet
    what raw sends back. Where all parameters' gradients agree without that, none of them is wrong."""
    alone = {(one.raw_path, one.name): one for one in free if one.phase == "gradient"}
    sure = bool(alone) and all(one.agrees for one in alone.values())
    nothing = _nothing(alone.values())
    for comparison in state:
        known = alone.get((comparison.raw_path, comparison.name)) if comparison.phase == "gradient" else None
        if sure and known is not None and not comparison.agrees and not _coarse(known, nothing):
            yield _rounding(comparison, "not so when raw runs by itself")
        else:
            yield comparison


def shares_of(done: StepComparison, *, uneven: bool) -> list[Comparison]:
    """Gradients that may differ because each model has its shares, where all parameters' gradients agree, and not
    because much is allowed; none where those don't.

    A tensor that is handed on in two ways may be one tensor here, and there a copy for one of them (a cast that does
    nothing): what a call sends back to its input is then all of the gradient or a share. What they come to is told by
    the parameters before. ``uneven`` models hand on another number of tensors, and may share out any gradient."""
    found = [one for one in done.comparisons if one.phase == "gradient"]
    nothing = _nothing(found)
    if not found or not all(one.agrees and not _coarse(one, nothing) for one in found):
        return []
    holding, around = {one.raw_path for one in found}, {call.parent for call in done.raw.calls}
    leaves = [call.index for call in done.raw.calls if call.path in holding and call.index not in around]
    first = min(leaves, default=math.inf)
    values = [one for one in done.comparisons if one.phase == "backward" and one.outcome.reason in (None, "values")]
    return [one for one in values if uneven or (one.role == "input" and one.raw_call > first)]


def as_shares(comparisons: Iterable[Comparison], shares: Iterable[Comparison]) -> Iterable[Comparison]:
    """Comparisons, with nothing wrong in those of shares."""
    known = {id(one) for one in shares if not one.agrees}
    for one in comparisons:
        yield _rounding(one, "a share; all parameters' gradients agree") if id(one) in known else one


def _nothing(gradients: Iterable[Comparison]) -> float:
    """What may be left of gradients that are zero by rights."""
    sizes = [one.outcome.numbers.base_rms for one in gradients if one.outcome.numbers is not None]
    return CANCELLED * max(sizes, default=0.0)


def _coarse(comparison: Comparison, nothing: float) -> bool:
    """Whether two gradients agree because much is allowed; those closer than ``nothing`` may have cancelled."""
    numbers = comparison.outcome.numbers
    return numbers is None or numbers.rmse > max(COARSE * numbers.base_rms, nothing)


def on_kinks(comparisons: Iterable[Comparison]) -> Iterable[Comparison]:
    """Gradients that differ, and don't when the inputs are a little different."""
    for comparison in comparisons:
        of_gradients = comparison.phase in ("backward", "gradient") and comparison.outcome.reason == "values"
        yield _rounding(comparison, "not so with inputs moved a little: a kink") if of_gradients else comparison


def _rounding(comparison: Comparison, why: str) -> Comparison:
    outcome = comparison.outcome
    message = f"{outcome.message}; {why}"
    return replace(comparison, outcome=replace(outcome, verdict="rounding", reason=None, message=message))
