"""How much rounding alone moves every tensor of base: base runs again with its last digits shaken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from padiff.capture.held import Held, HostValue
from padiff.capture.jitter import Jitter, spacing_of
from padiff.capture.one_step import Arguments, Loss
from padiff.capture.perturb import perturbed, perturbed_arguments
from padiff.capture.scaling import Unscaled
from padiff.capture.session import Session
from padiff.capture.state import gradient_stays
from padiff.compare.measure import rms_gap
from padiff.engine.families import floating
from padiff.engine.free.crossings import Crossings
from padiff.engine.free.drift import relative_steps
from padiff.engine.free.where_they_lie import gap, size_of
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Noise, Slot, StepTrace, Value

K = TypeVar("K")

ROUNDED = 0.25
"""What rounding loses of each term of a sum, in units of the last place."""


UNBELIEVABLE = 1000.0
"""How many units in the last place rounding is expected to move an output at most."""


class NoiseMeter:
    """Told of the shaken run; holds the recorded one beside it. Both run the same code, so numbers are the same."""

    def __init__(self, base: StepTrace, crossings: Crossings | None = None) -> None:
        self._crossings = crossings
        """Numbers that shaking puts on the other side of zero. What jumps for that says nothing of rounding."""
        self._values: dict[int, Value] = {}
        for call in base.calls:
            for slot in _slots(call):
                self._values[slot.tensor] = slot.value
        self._gradients = base.gradients
        self.tensors: dict[int, float] = {}
        self.gradients: dict[int, float] = {}

    def on_call(self, call: Call) -> None:
        for slot in _slots(call):
            if slot.tensor not in self.tensors and slot.tensor in self._values:
                known = self._values[slot.tensor]
                self.tensors[slot.tensor] = gap(known, slot.value)
                moved = 0.0 < self.tensors[slot.tensor] < math.inf
                if self._crossings is not None and moved and not getattr(known, "elsewhere", False):
                    self._crossings.look(known.numpy(), slot.value.numpy())

    on_tag = on_call

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        if tensor not in self._gradients:
            return None
        known = self._gradients[tensor]
        instead: Array | None = None
        if self._crossings is not None and self._crossings.concern(gradient.shape) and not known.overwritten:
            instead = self._crossings.put_right(known.numpy(), gradient.numpy())
        self.gradients[tensor] = gap(known, gradient if instead is None else HostValue(instead))
        return instead

    def before_write(self) -> None:
        """Everything was read when it was seen."""


def _slots(call: Call) -> Iterable[Slot]:
    """All tensors of a call, and what its own code returned."""
    yield from call.inputs
    yield from call.outputs
    for op in call.ops:
        yield from op.outputs


def predict_noise(
    session: Session,
    base: StepTrace,
    arguments: Callable[[], Arguments],
    *,
    loss_fn: Loss,
    step: float,
    drift: Mapping[str, float],
    runs: int = 1,
    kinks: bool = False,
) -> Noise | None:
    """Run the step again on shaken weights and inputs, and see how far everything moves; None where the model
    refuses to run on them. ``step`` is the least relative step, beside the spacing of each dtype; ``drift`` how
    far earlier steps have moved the parameters already. ``kinks``: numbers that cross zero are put right."""
    try:
        found = [_predicted(session, base, arguments(), loss_fn, step, drift, seed, kinks) for seed in range(runs)]
        return found[0] if runs == 1 else _widest(found)
    except Exception:  # the model's own: it ran through on what it was really given
        return None


def _predicted(
    session: Session,
    base: StepTrace,
    arguments: Arguments,
    loss_fn: Loss,
    step: float,
    drift: Mapping[str, float],
    seed: int,
    kinks: bool,
) -> Noise:
    jitter = Jitter(step, seed)
    meter = NoiseMeter(base, Crossings() if kinks else None)
    live = session.live
    now = {path: np.array(live.adapter.to_numpy(b)) for path, b in live.buffers().items()}
    with session.again(), session.shaking(step), perturbed(live, jitter, relative_steps(session, drift)):
        shaken = session.run(
            base.step,
            perturbed_arguments(live, arguments, jitter),
            loss_fn=loss_fn,
            backward=base.ran_backward,
            observer=meter,
        )
        parameters = gaps(base.parameter_gradients, shaken.parameter_gradients)
        loss = None if base.loss is None or shaken.loss is None else gap(base.loss, shaken.loss)
        moved = meter.tensors
        loss = None if loss is None else max(loss, spread(base, base.gradients, lambda slot: moved.get(slot.tensor)))
        after = {path: np.array(live.adapter.to_numpy(b)) for path, b in live.buffers().items()}
    buffers = {path: rms_gap(now[path], after[path]) for path in now if path in after}
    return Noise(meter.tensors, meter.gradients, parameters, buffers, loss=loss, cancelled=jitter.cancelled)


def _widest(found: Sequence[Noise]) -> Noise:
    """For every tensor the furthest that any of several runs moved it."""
    losses = [one.loss for one in found if one.loss is not None]
    return Noise(
        _furthest([one.tensors for one in found]),
        _furthest([one.gradients for one in found]),
        _furthest([one.parameters for one in found]),
        _furthest([one.buffers for one in found]),
        loss=max(losses) if losses else None,
        cancelled=any(one.cancelled for one in found),
    )


def _furthest(runs: Sequence[Mapping[K, float]]) -> dict[K, float]:
    return {key: max(run.get(key, math.inf) for run in runs) for key in runs[0]}


def spread(base: StepTrace, gradients: Mapping[int, Value], noise: Callable[[Slot], float | None]) -> float:
    """How far the outputs' noise moves the loss, as its gradient says: one number alone may move little by luck."""
    root = base.root
    total = summing = 0.0
    for slot in () if root is None else root.outputs:
        gradient, moved = gradients.get(slot.tensor), noise(slot)
        if gradient is not None and moved is not None and math.isfinite(moved):
            slope, count = size_of(gradient), math.prod(gradient.shape)
            total += (slope * moved) ** 2 * count
            if not slot.value.overwritten:
                spacing = spacing_of(np.dtype(slot.value.dtype))
                summing += ROUNDED * spacing * slope * size_of(slot.value) * count
    return math.sqrt(total) + summing


def gaps(base: Mapping[str, Value | None], other: Mapping[str, Value | None]) -> dict[str, float]:
    """The same for tensors by path."""
    found: dict[str, float] = {}
    for path, value in base.items():
        shaken = other.get(path)
        if value is not None and shaken is not None:
            found[path] = gap(value, shaken)
    return found


def differs_from_itself(
    session: Session, base: StepTrace, arguments: Callable[[], Arguments], noise: Noise, step: float
) -> bool:
    """Whether base returns something else when it runs again on the same inputs and random state.

    Asked only where shaking seems to move an output further than any rounding would.
    """
    root = base.root
    moved = [slot.tensor for slot in (() if root is None else root.outputs)]
    if not any(_digits(base, noise.tensors, step, moved).get(tensor, 0.0) > UNBELIEVABLE for tensor in moved):
        return False
    meter = NoiseMeter(base)
    with session.again():
        session.run(base.step, arguments(), loss_fn=None, backward=False, observer=meter)
    return _jumps(base, _digits(base, meter.tensors, step))


def _digits(
    base: StepTrace, gaps: Mapping[int, float], step: float, wanted: Sequence[int] | None = None
) -> dict[int, float]:
    """How far floating tensors moved, in units of their last place."""
    found: dict[int, float] = {}
    for call in base.calls:
        for slot in (*call.inputs, *call.outputs):
            known = (
                slot.tensor in found or slot.tensor not in gaps or (wanted is not None and slot.tensor not in wanted)
            )
            if known or slot.value.overwritten or not floating(slot.value):
                continue
            rounding = max(spacing_of(np.dtype(slot.value.dtype)), step) * size_of(slot.value)
            found[slot.tensor] = (
                gaps[slot.tensor] / rounding if rounding > 0 else math.inf if gaps[slot.tensor] else 0.0
            )
    return found


def _jumps(base: StepTrace, digits: Mapping[int, float]) -> bool:
    """Whether something moves far at one place, and not little by little.

    Which kernel runs may depend on where memory lies: a last digit is no random number, and a net may make much of it.
    """
    inside: dict[int, float] = {}
    """Call to the furthest that anything in it has moved so far."""
    for call in base.calls:  # children come before their parents
        given = max((digits.get(slot.tensor, 0.0) for slot in call.inputs), default=0.0)
        returned = max((digits.get(slot.tensor, 0.0) for slot in call.outputs), default=0.0)
        before = max(given, inside.get(call.index, 0.0))
        if returned > UNBELIEVABLE * max(before, 1.0):
            return True
        inside[call.parent] = max(inside.get(call.parent, 0.0), given, returned)
    return _jumps_between(base, digits)


def _jumps_between(base: StepTrace, digits: Mapping[int, float]) -> bool:
    """The same in the code between calls: something given to a call moves far, and nothing before it did."""
    before = 1.0
    around: list[Call] = []
    for call in sorted(base.calls, key=lambda call: call.index):
        while around and around[-1].index != call.parent:  # what began earlier and is not around it has ended
            before = max(before, *(digits.get(slot.tensor, 0.0) for slot in around.pop().outputs), 0.0)
        given = max((digits.get(slot.tensor, 0.0) for slot in call.inputs), default=0.0)
        if call.parent >= 0 and given > UNBELIEVABLE * before:
            return True
        before = max(before, given)
        around.append(call)
    return False


def set_apart(live: LiveTree, trace: StepTrace, *, stepped: bool = False) -> None:
    """Copy what shares memory with the model's own tensors, or with gradients that the next run will make; or that an
    optimizer may clear, where the model is ``stepped``."""
    adapter = live.adapter
    own = {adapter.storage(tensor) for tensor in live.tensors().values()}
    for call in trace.calls:
        for slot in (*call.inputs, *call.outputs):
            if isinstance(slot.value, Held) and slot.value.storage() in own:
                slot.value.secure()
    parameters = live.parameters()
    for path, gradient in trace.parameter_gradients.items():
        stays = not stepped and path in parameters and gradient_stays(adapter, parameters[path])
        if isinstance(gradient, (Held, Unscaled)) and not stays:
            gradient.secure()
