"""How far rounding moves what a step computes that somebody else runs: the step run again while its weights are at
hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from padiff.capture.draws import Listener
from padiff.capture.held import Held
from padiff.capture.recorder import Recorder
from padiff.compare.measure import rms
from padiff.engine.apart.stored import numbered_slots
from padiff.engine.captured.captured_draws import CapturedDraws
from padiff.engine.captured.dumping import StepSink
from padiff.engine.captured.rehearsal import Rehearsal, most_held, repeatable
from padiff.engine.captured.samples import Samples, sampled
from padiff.engine.fed.local import Reference
from padiff.engine.fed.local_comparing import Key
from padiff.engine.free.drift import UNCERTAIN, uncertain_part
from padiff.records import Array, Noise, Value
from padiff.report.progress import stages

if TYPE_CHECKING:
    from padiff.engine.captured.capturing import Capture


class CapturedNoise:
    """Predicts how far rounding moves a step; ``extra`` takes what has no place of its own."""

    def __init__(self, capture: Capture, number: int, sink: StepSink, extra: dict[str, Any], *, first: bool) -> None:
        self._capture, self._live, self._adapter = capture, capture.live, capture.live.adapter
        self._number, self._sink, self._extra, self._first = number, sink, extra, first
        self.samples = Samples(sink, kept=capture.calibrates)
        """Told of the step as it is recorded, and tells the sink."""
        self._made: dict[str, Array] = {}
        """Samples of the gradients that backward makes, where an optimizer may be given others."""
        self._rehearsal: Rehearsal | None = None
        self._rehearsed = False
        self._noise: Noise | None = None
        self.local: Mapping[Key, float] = {}
        """How far it moves what each call of base adds by itself."""
        self.fed: Noise | None = None
        """The same of the step where every call is fed."""
        self._before: dict[str, Array] = {}
        """Parameters before the optimizer's step."""

    # --- as the step goes

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], listener: Listener | None) -> None:
        """The model is called for the first time."""
        capture, adapter = self._capture, self._adapter
        if not capture.calibrates or not repeatable((*args, *kwargs.values()), adapter.is_tensor):
            return
        moves = adapter.grad_enabled() and capture.optimizer is None
        self._rehearsal = Rehearsal(self._live, args, kwargs, weights=moves, listener=listener, ops=capture.ops)
        self._sink.bordered = self._first and capture.holds

    def came_back(self, name: str, gradient: Value) -> None:
        """Backward starts from something that the model's first call returned."""
        if self._rehearsal is not None and name not in self._rehearsal.gradients:
            self._rehearsal.gradients[name] = np.array(gradient.numpy())

    def made(self, path: str, gradient: Value) -> None:
        """Backward has made the gradient of a parameter."""
        few = sampled(gradient)
        self._made[path] = self._made[path] + few if path in self._made else few

    def before_update(self, gradients: Mapping[str, Held]) -> None:
        """The optimizer is about to step; the step has been rehearsed."""
        if self._noise is not None:
            parameters = self._live.parameters()
            self._before = {path: np.array(self._adapter.to_numpy(parameters[path])) for path in gradients}

    # --- the step again

    def rehearse(self, gradients: Mapping[str, Held], calls: int, recorder: Recorder, draws: CapturedDraws) -> None:
        """Run the step again, shaken, while its weights are at hand; once."""
        rehearsal = self._rehearsal
        if rehearsal is None or self._rehearsed:
            return
        self._rehearsed = True
        with stages(self._capture.progress) as shown:
            shown.now(f"calibrating step {self._number}")
            self._calibrate(rehearsal, gradients, calls, recorder, draws)

    def _calibrate(
        self,
        rehearsal: Rehearsal,
        gradients: Mapping[str, Held],
        calls: int,
        recorder: Recorder,
        draws: CapturedDraws,
    ) -> None:
        number, samples = self._number, self.samples
        if draws.unheard and calls == 1:
            heard = rehearsal.listened(number)
            if heard is not None:
                draws.heard(heard)
        rehearsal.find_start(number)
        backward, drift = bool(rehearsal.gradients), self._capture.drift
        if calls > 1:
            rehearsal.alone(number, samples, backward=backward)
        else:
            kept = {path: sampled(held) for path, held in gradients.items()}
            samples.parameters.update(kept | self._made)
        noise = rehearsal.noise(number, samples, drift, backward=backward)
        if noise is None:
            self._extra["repeats"] = False
            if draws.listener is None:  # it may draw from a generator of its own
                draws.missed()
            return
        self._noise = self._as_stepped(noise, gradients)
        if self._first and self._capture.holds and calls == 1 and samples.nbytes <= most_held():
            found = rehearsal.reference(number, drift, backward=backward)
            if found is not None:
                self._write_reference(*found, recorder, gradients)

    def _write_reference(
        self, reference: Reference, fed: Noise | None, recorder: Recorder, gradients: Mapping[str, Held]
    ) -> None:
        """Gradients at the borders of calls, and the numbers they go by, which are not those of the trace."""
        numbers: list[list[int]] = []
        same: dict[int, int] = {}
        if len(reference.trace.calls) != len(recorder.calls):
            return
        for mine, other in zip(recorder.calls, reference.trace.calls, strict=True):
            slots, others = numbered_slots(mine), numbered_slots(other)
            if mine.node != other.node or len(slots) != len(others):
                return
            numbers.append([slot.tensor for slot in others])
            same.update({b.tensor: a.tensor for a, b in zip(slots, others, strict=True)})
        self.local, self.fed = reference.noise, None if fed is None else self._as_stepped(fed, gradients)
        self._extra["reference"] = numbers
        self._sink.step.borders(reference.contributions, reference.arrivals, same)

    def _as_stepped(self, noise: Noise, gradients: Mapping[str, Held]) -> Noise:
        """The same for the gradients that the optimizer is given: smaller ones where somebody clips, or unscales."""
        found = dict(noise.parameters)
        for path, made in self._made.items():
            size = rms(made)
            if path in found and path in gradients and size > 0:
                found[path] *= min(1.0, rms(sampled(gradients[path])) / size)
        return replace(noise, parameters=found)

    def with_drift(self, gradients: Mapping[str, Held], calls: int) -> Noise | None:
        """The prediction, with what the step of an optimizer makes of it."""
        noise, capture, rehearsal = self._noise, self._capture, self._rehearsal
        if noise is None or rehearsal is None or not gradients:
            return noise
        weights: dict[str, float] = {}
        for path, parameter in self._live.parameters().items():
            before = self._before.get(path, rehearsal.weight_before(path))
            if before is None or path not in gradients or path not in noise.parameters:
                continue
            moved = self._adapter.to_numpy(parameter).astype(np.float64) - before
            gradient, unsure = gradients[path].numpy(), calls * noise.parameters[path]
            earlier = capture.drift.get(path, 0.0)
            weights[path] = uncertain_part(moved, gradient, UNCERTAIN * unsure, unsure) + earlier
            steps = self._number - capture.steps[-1] if capture.steps else 1
            capture.drift[path] = steps * uncertain_part(moved, gradient, unsure, unsure) + earlier
        return replace(noise, weights=weights)
