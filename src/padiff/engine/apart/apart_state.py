"""What two steps of two dumps left besides their calls: the loss, gradients of parameters, weights, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from padiff.engine.apart.summaries import Summaries
from padiff.engine.explaining.moments import Moments
from padiff.engine.job import Job
from padiff.engine.state import State
from padiff.frameworks.tree import join
from padiff.records import Array, Comparison, Noise, Phase, Value, WeightPlan
from padiff.store import StepDump


class ApartState:
    """Compares what steps of dumps left, as far as it is wanted."""

    def __init__(self, job: Job, plan: WeightPlan, wanted: frozenset[Phase], *, summed: bool) -> None:
        self._job, self._plan, self._wanted, self._summed = job, plan, wanted, summed
        self._moments = Moments(job, plan)
        self._last = -1
        """The last step whose moments were compared."""

    def moments(
        self,
        base: StepDump,
        raw: StepDump,
        noise: Noise | None,
        compared: Sequence[Comparison],
        *,
        anyway: bool = False,
    ) -> list[Comparison]:
        """What the optimizers remember, where the weights they made agree, or ``anyway``; ``compared`` says how far
        gradients do."""
        weights = [one for one in compared if one.phase == "weight"]
        if self._summed or noise is None or self._job.tolerance.mode != "auto" or not weights:
            return []
        if not anyway and not all(one.agrees for one in weights):
            return []
        sides = _read(base), _read(raw)
        gradients = {p: v.numpy() for p, v in base.parameter_gradients.items() if v is not None and not v.overwritten}
        times, self._last = base.number - self._last, base.number
        return self._moments.compare_read(sides, base.number, noise, gradients, compared, times=times)

    def left(self, base: StepDump, raw: StepDump, noise: Noise | None, *, gradients: bool = True) -> list[Comparison]:
        """The loss, and of gradients of parameters, weights and buffers what is wanted."""
        found: list[Comparison] = []
        if self._summed:
            found = Summaries(self._job, None, noise).state(self._plan, base, raw)
            return [one for one in found if one.role == "loss" or one.phase in self._wanted]
        state = State(self._job, self._plan, base.number, noise)
        if gradients:
            if base.loss is not None and raw.loss is not None:
                found += state.loss(base.loss, raw.loss, ())
            if "gradient" in self._wanted:
                found += self.gradients(base, raw, noise)
        if "weight" in self._wanted and base.weights and raw.weights:
            found += state.tensors("weight", "parameter", base.weights, raw.weights)
        if "buffer" in self._wanted:
            found += state.tensors("buffer", "buffer", *self._one_convention(base, raw))
        return found

    def gradients(self, base: StepDump, raw: StepDump, noise: Noise | None) -> list[Comparison]:
        """Gradients of parameters, wanted or not."""
        if self._summed or not base.trace().ran_backward or not raw.trace().ran_backward:
            return []
        if not base.parameter_gradients or not raw.parameter_gradients:  # cleared before they could be seen
            return []
        state = State(self._job, self._plan, base.number, noise)
        return state.tensors("gradient", "parameter", base.parameter_gradients, raw.parameter_gradients)

    def start(self, base: StepDump, raw: StepDump) -> list[Comparison]:
        """The weights that the first step found: when these differ, everything does."""
        if base.number or "weight" not in self._wanted or not base.weights_before or not raw.weights_before:
            return []
        if self._summed:
            return Summaries(self._job, None, None).start(self._plan, base, raw)
        exact = self._job.tolerance
        if exact.mode == "auto":
            exact = replace(exact, predicted=0.0)
        state = State(replace(self._job, tolerance=exact), self._plan, base.number)
        return state.tensors("weight", "parameter", base.weights_before, raw.weights_before)

    def _one_convention(self, base: StepDump, raw: StepDump) -> tuple[dict[str, Value | None], dict[str, Value | None]]:
        """Buffers; where not every update was seen, without those that frameworks count differently."""
        whole = base.number == 0 or not any(step.extra.get("statistics_from_here") for step in (base, raw))
        alike = self._job.base.adapter.name == self._job.raw.adapter.name
        if any(step.extra.get("statistics_unseen") for step in (base, raw)):  # compiled code updated them
            whole = alike = False
        found: list[dict[str, Value | None]] = []
        for live, step in ((self._job.base, base), (self._job.raw, raw)):
            own = set() if whole or alike else _conventional(live)
            found.append({path: value for path, value in step.buffers.items() if path not in own})
        return found[0], found[1]


def _read(step: StepDump) -> dict[str, dict[str, Array]]:
    return {
        name: {path: value.numpy() for path, value in row.items() if not value.overwritten}
        for name, row in step.moments.items()
    }


def _conventional(live: Any) -> set[str]:
    """Paths of buffers that frameworks count differently."""
    found: set[str] = set()
    for node in live.tree.nodes:
        spec = live.layer_spec(node.index)
        for name, stored in () if spec is None else spec.stored.items():
            if stored.convention or "var" in name:
                found.add(join(node.path, name))
    return found
