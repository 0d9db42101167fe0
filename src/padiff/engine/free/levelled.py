"""Both models once more, with nothing coming back through numbers that rounding put on either side of a kink.

Models that are built differently may share one gradient differently between the same tensors. Then no single gradient
tells what a number that crossed (``crossings``) has changed, and it cannot be put right where it happens: parameters'
gradients differ before it, as after a fault. Where such a number sends nothing back in base and in raw, they are equal.

Where models are seen to hand on another number of tensors, base runs once more while raw waits between its forward and
its backward, and raw goes on like that. What shows only in gradients takes a run of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.capture.observers import Nobody, Observer
from padiff.capture.session import Session
from padiff.engine.fed.localise import Located
from padiff.engine.fed.second_look import wants_second_look
from padiff.engine.free.calibrate import set_apart
from padiff.engine.free.crossings import Crossings
from padiff.engine.free.kinks import BACKWARD
from padiff.engine.job import Job
from padiff.engine.state import State
from padiff.records import Array, Comparison, StepComparison, StepTrace, Tolerance, Value

NOTE = (
    "some gradients differ where numbers lie on a kink (of a ReLU) and fall to either side by rounding; without what "
    "comes back through those numbers all parameters' gradients agree"
)
LEFT_OUT = (
    "where numbers lie on a kink (of a ReLU) and fall to either side by rounding, what comes back through them is left "
    "out of both models' gradients"
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


def levelled_gradients(
    job: Job, state: State, sessions: tuple[Session, Session], step: int, crossings: Crossings
) -> list[Comparison]:
    """The parameters' gradients without what comes back through the numbers that crossed."""
    found = []
    for side, session in enumerate(sessions):
        places = crossings.of_side(side)
        found.append(_levelled(job, session, side, step, Leveller(Nobody(), places)).parameter_gradients)
    return state.tensors("gradient", "parameter", *found)


def without_gradients(located: Located) -> Located:
    """What is left of it then."""
    return replace(located, faults=(), state=tuple(one for one in located.state if one.agrees))


def base_levelled(job: Job, base: Session, step: int, crossings: Crossings) -> StepTrace:
    """What base's backward makes without what comes back through the numbers that crossed."""
    kept = _Keeping()
    trace = _levelled(job, base, 0, step, Leveller(kept, crossings.of_side(0)))
    return replace(trace, gradients=kept.gradients)


def _levelled(job: Job, session: Session, side: int, step: int, leveller: Leveller) -> StepTrace:
    arguments, loss = job.arguments()[side], job.losses[side]
    with session.again():
        trace = session.run(step, arguments, loss_fn=loss, backward=True, observer=leveller)
        set_apart(session.live, trace)
    return trace


class Leveller:
    """Tells somebody of everything, and has some numbers send nothing back."""

    def __init__(self, whom: Observer, places: Mapping[int, Array] | None = None) -> None:
        self._whom = whom
        self.places = places or {}
        """Tensors to those of their numbers."""
        self.on_call, self.on_tag, self.before_write = whom.on_call, whom.on_tag, whom.before_write

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        other = self._whom.on_gradient(tensor, gradient)
        places = self.places.get(tensor)
        if places is None or gradient.overwritten:
            return other
        found = np.array(gradient.numpy() if other is None else other)
        found[np.unravel_index(places, found.shape)] = 0
        return found


class _Keeping(Nobody):
    """Keeps gradients, and lets everything else go."""

    def __init__(self) -> None:
        self.gradients: dict[int, Value] = {}

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        self.gradients[tensor] = gradient
        return None
