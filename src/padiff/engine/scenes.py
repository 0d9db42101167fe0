"""Sets the scene for the causes: everything known of a place where two models part, and the means to try it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from padiff.align import CallPairing
from padiff.capture.session import Session
from padiff.compare.layouts import compare_in_any_layout
from padiff.diagnose.scene import Scene
from padiff.engine.job import Job
from padiff.engine.local import LocalRun, Reference
from padiff.frameworks.settings import settings_of, with_settings
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Comparison, Fault, Slot, StepTrace, Tolerance, Value, WeightPlan
from padiff.weights import build

MOST_SIBLINGS = 8


class Reached(BaseException):
    """The place was reached: what comes after does not matter. Not an Exception, which the model's code may catch."""


@dataclass
class Scenes:
    """The places of one step."""

    job: Job
    plan: WeightPlan
    reference: Reference
    found: StepTrace
    """Raw's step, fed base's tensors."""
    pairs: Mapping[int, Call]
    """Raw's calls to base's."""
    raw: Session
    base: Session
    run_again: Callable[[Callable[..., None], bool], None]
    """Run raw fed base's tensors once more, told what is compared; the second says whether backward is needed."""

    def of_fault(self, fault: Fault) -> Scene | None:
        """The scene of a call at fault."""
        if fault.expected is None or fault.found is None:
            return None
        calls = {call.index: call for call in self.reference.trace.calls}
        base = calls.get(fault.base.index, fault.base)
        after = self.pairs.get(fault.after.index) if fault.after is not None else None
        return self._scene(
            fault.comparison,
            base,
            fault.raw.node,
            fault.expected,
            fault.found,
            around=self._around(base, after),
        )

    def of_state(self, wrong: Comparison) -> Scene | None:
        """The scene of a loss or of the gradient of a parameter."""
        trace = self.reference.trace
        root = next((call for call in trace.calls if call.parent < 0), None)
        if wrong.role == "loss":
            if trace.loss is None or self.found.loss is None or root is None:
                return None
            scene = self._scene(wrong, root, 0, trace.loss.numpy(), self.found.loss.numpy())
            return replace(scene, given=_arrays(root.outputs), retry=lambda changes: None)
        path = ".".join(part for part in (wrong.raw_path, wrong.name) if part)
        entry = next((entry for entry in self.plan.entries if entry.path == path), None)
        gradient = self.found.parameter_gradients.get(path)
        if entry is None or gradient is None:
            return None
        sources = {source.path: trace.parameter_gradients.get(source.path) for source in entry.sources}
        if any(value is None for value in sources.values()):
            return None
        expected = build(entry, {path: value.numpy() for path, value in sources.items() if value is not None})
        call = next((call for call in trace.calls if call.path == wrong.base_path), root)
        node = self.job.raw.tree.by_path()[wrong.raw_path].index
        if call is None:
            return None
        scene = self._scene(wrong, call, node, expected, gradient.numpy())
        return replace(scene, tensor=wrong.name, retry=lambda changes: None)

    def _scene(
        self,
        wrong: Comparison,
        base: Call,
        raw_node: int,
        expected: Array,
        found: Array,
        around: Mapping[str, Array] | None = None,
    ) -> Scene:
        job = self.job
        base_module, raw_module = job.base.modules[base.node], job.raw.modules[raw_node]
        return Scene(
            phase=wrong.phase,
            role=wrong.role,
            base_kind=base.kind,
            raw_kind=job.raw.tree.nodes[raw_node].kind,
            layer=job.base.tree.nodes[base.node].layer,
            expected=expected,
            found=found,
            given=_arrays(base.inputs),
            around=around or {},
            base_weights=_own(job.base, base.node),
            raw_weights=_own(job.raw, raw_node),
            base_settings=settings_of(job.base.adapter, base_module),
            raw_settings=settings_of(job.raw.adapter, raw_module),
            agrees=_agreement(wrong),
            retry=lambda changes: self._retry(wrong, raw_node, changes),
            repeats=self._repeats,
            tensor=wrong.name,
            gradients={
                slot.name or "0": self.reference.arrivals[slot.tensor].numpy()
                for slot in base.outputs
                if slot.tensor in self.reference.arrivals
            },
            siblings=_siblings(job.base, base.node),
            base_ties=_ties(job.base, base.node),
            raw_ties=_ties(job.raw, raw_node),
        )

    def _around(self, base: Call, before: Call | None) -> dict[str, Array]:
        """What the children of a call had returned, up to another child of it."""
        found: dict[str, Array] = {}
        for call in self.reference.trace.calls:
            if call.parent == base.index and (before is None or call.index < before.index):
                arrays = list(_arrays(call.outputs).values())
                if arrays:
                    found[call.path] = arrays[0]
        return found

    def _retry(self, wrong: Comparison, raw_node: int, changes: Mapping[str, Any]) -> Array | None:
        seen: list[Array] = []

        def look(phase: str, role: str, call: int, name: str, value: Value) -> None:
            if (phase, role, call, name) == (wrong.phase, wrong.role, wrong.raw_call, wrong.name) and not seen:
                seen.append(np.array(value.numpy()))
                if wrong.phase == "forward":
                    raise Reached

        adapter = self.job.raw.adapter
        with with_settings(adapter, self.job.raw.modules[raw_node], changes), suppress(Reached):
            self.run_again(look, wrong.phase != "forward")
        return seen[0] if seen else None

    def _repeats(self) -> bool:
        """Whether base returns the same once more."""
        trace = self.reference.trace
        with self.base.again():
            once_more = self.base.run(trace.step, self.job.arguments()[0], loss_fn=None, backward=False)
        first, second = (_outputs(one) for one in (trace, once_more))
        return all(
            one.shape == two.shape and np.array_equal(one, two, equal_nan=one.dtype.kind in "fc")
            for one, two in zip(first, second, strict=False)
        )


def run_again(
    job: Job, raw: Session, reference: Reference, pairing: CallPairing, beside: Any, step: int
) -> Callable[[Callable[..., None], bool], None]:
    """How raw runs once more on base's tensors, for a scene."""

    def run(look: Callable[..., None], backward: bool) -> None:
        local = LocalRun(
            reference,
            beside(),
            Tolerance(mode="auto"),
            loosely=not pairing.alike,
            backward=backward,
            look=look,
        )
        with raw.again():
            raw.run(step, job.arguments()[1], loss_fn=job.losses[1], backward=backward, feeder=local, hooks=False)

    return run


def _agreement(wrong: Comparison) -> Callable[[Array, Array], bool]:
    tolerance = Tolerance(mode="auto", predicted=wrong.outcome.predicted, sums=wrong.phase == "gradient")

    def agrees(base: Array, raw: Array) -> bool:
        return compare_in_any_layout(base, raw, tolerance).agrees

    return agrees


def _arrays(slots: tuple[Slot, ...]) -> dict[str, Array]:
    return {slot.name or "0": slot.value.numpy() for slot in slots if not slot.value.overwritten}


def _outputs(trace: StepTrace) -> list[Array]:
    root = next((call for call in trace.calls if call.parent < 0), None)
    return [] if root is None else list(_arrays(root.outputs).values())


def _own(live: LiveTree, node: int) -> dict[str, Array]:
    adapter, module = live.adapter, live.modules[node]
    return {name: adapter.to_numpy(t) for name, t in (*adapter.own_parameters(module), *adapter.own_buffers(module))}


def _siblings(live: LiveTree, node: int) -> dict[str, dict[str, Array]]:
    """Weights of other modules of the same class and shapes."""
    own = live.tree.nodes[node]
    shapes = [(spec.name, spec.shape) for spec in own.parameters]
    if not shapes:
        return {}
    alike = [
        other
        for other in live.tree.nodes
        if other.index != node
        and other.kind == own.kind
        and other.identity != own.identity
        and [(spec.name, spec.shape) for spec in other.parameters] == shapes
    ]
    alike.sort(key=lambda other: abs(other.index - node))
    return {other.path: _own(live, other.index) for other in alike[:MOST_SIBLINGS]}


def _ties(live: LiveTree, node: int) -> dict[str, tuple[str, ...]]:
    """Other paths under which the module's tensors are known."""
    own = live.tree.nodes[node]
    found: dict[str, tuple[str, ...]] = {}
    for spec in own.parameters:
        here = f"{own.path}.{spec.name}".lstrip(".")
        others = tuple(
            path
            for other in live.tree.nodes
            for one in other.parameters
            if one.identity == spec.identity and (path := f"{other.path}.{one.name}".lstrip(".")) != here
        )
        if others:
            found[spec.name] = others
    return found
