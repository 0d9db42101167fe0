"""Both models once more, with nothing coming back through numbers that rounding put on either side of a kink.

Models that are built differently may share one gradient differently between the same tensors. Then no single gradient
tells what a number that crossed (``crossings``) has changed, and it cannot be put right where it happens: parameters'
gradients differ before it, as after a fault. Where such a number sends nothing back in base and in raw, they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.capture.observers import Nobody
from padiff.capture.session import Session
from padiff.engine.calibrate import set_apart
from padiff.engine.job import Job
from padiff.engine.kinks import BACKWARD
from padiff.engine.localise import Located
from padiff.engine.second_look import wants_second_look
from padiff.engine.state import State
from padiff.records import Array, Comparison, StepComparison, StepTrace, Tolerance, Value

NOTE = (
    "some gradients differ where numbers lie on a kink (of a ReLU) and fall to either side by rounding; without what "
    "comes back through those numbers all parameters' gradients agree"
)


def may_be_levelled(located: Located) -> bool:
    """Whether all that was found are gradients of models that are built differently."""
    found = [*(fault.comparison for fault in located.faults), *(one for one in located.state if not one.agrees)]
    return bool(found) and _gradients_only(found) and not located.alike


def levelled_first(done: StepComparison, told: Sequence[Comparison], tolerance: Tolerance) -> bool:
    """Whether the same is plain before raw was fed anything: parameters' gradients differ, forward does not."""
    found = [one for one in told if not one.agrees]
    forward = [one for one in told if one.phase not in BACKWARD]
    if done.alike or done.doubtful or wants_second_look(forward, tolerance):
        return False
    return any(one.phase == "gradient" for one in found) and _gradients_only(found)


def _gradients_only(found: Iterable[Comparison]) -> bool:
    return all(one.phase in BACKWARD and one.outcome.reason == "values" for one in found)


def agree_levelled(
    job: Job, state: State, sessions: tuple[Session, Session], step: int, crossed: Mapping[tuple[int, int], Array]
) -> bool:
    """Whether all parameters' gradients agree without what comes back through the numbers that crossed."""
    found = []
    for side, session in enumerate(sessions):
        places = {numbers[side]: where for numbers, where in crossed.items()}
        found.append(_levelled(job, session, side, step, places).parameter_gradients)
    judged = state.tensors("gradient", "parameter", *found)
    return bool(judged) and all(one.agrees for one in judged)


def without_gradients(located: Located) -> Located:
    """What is left of it then."""
    return replace(located, faults=(), state=tuple(one for one in located.state if one.agrees))


def _levelled(job: Job, session: Session, side: int, step: int, places: Mapping[int, Array]) -> StepTrace:
    arguments, loss = job.arguments()[side], job.losses[side]
    with session.again():
        trace = session.run(step, arguments, loss_fn=loss, backward=True, observer=_Leveller(places))
        set_apart(session.live, trace)
    return trace


class _Leveller(Nobody):
    """Lets everything go, and some numbers send nothing back."""

    def __init__(self, places: Mapping[int, Array]) -> None:
        self._places = places

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        places = self._places.get(tensor)
        if places is None or gradient.overwritten:
            return None
        found = np.array(gradient.numpy())
        found[np.unravel_index(places, found.shape)] = 0
        return found
