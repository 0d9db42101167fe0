"""Sets the scene for the causes: everything known of a place where two models part, and the means to try it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from padiff.align import CallPairing
from padiff.capture.session import Session
from padiff.compare.arrays import compare_arrays
from padiff.compare.layouts import agree_in_any_layout
from padiff.diagnose.scene import Scene
from padiff.engine.allowance import FORWARD, WHOLE, Allowance
from padiff.engine.explaining.by_itself import ByItself
from padiff.engine.fed.local import LocalRun, Reference
from padiff.engine.job import Job
from padiff.frameworks.settings import settings_of, with_settings
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Comparison, DrawGap, Fault, Side, Slot, StepTrace, Tolerance, Value, WeightPlan
from padiff.weights import build

MOST_SIBLINGS = 8
MOST_INSIDE = 24
"""Calls inside a module whose tensors are looked at."""
MOST_INNER = 8
"""Modules inside one whose weights are looked at."""


REPEATED = 10.0
"""An error so many times what base moves when it is shaken is none that base makes by itself: it ran twice for that,
and what it does at random would have moved it as far."""


class Reached(BaseException):
    """The place was reached: what comes after does not matter. Not an Exception, which the model's code may catch."""


@dataclass(frozen=True)
class RecordedOps:
    """What modules' own code did in two runs that are over, for who cannot run them again."""

    traces: tuple[StepTrace, StepTrace]
    noise: Mapping[int, float]
    """How far rounding moves base's tensors."""


@dataclass(frozen=True)
class WatchedCode:
    """Ops that were recorded in the runs in which a place was found, of calls that were likely to be it."""

    calls: tuple[frozenset[int], frozenset[int]]
    layers: tuple[bool, bool]
    """Whether those of the framework's own layers are among them, on each side."""
    traces: tuple[StepTrace, StepTrace]
    shaken: StepTrace | None
    """Base shaken, and fed what it was given, as far as these calls go."""
    backward: bool = False
    """Whether the gradients of their ops were recorded, too."""


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
    draws: tuple[DrawGap, ...] = ()
    """Random draws that do not correspond."""
    feeder: Callable[[bool], LocalRun] | None = None
    """What feeds raw base's tensors once more, told whether backward is needed; None where nothing can run."""
    recorded: RecordedOps | None = None
    """Where nothing can run: the ops that were recorded, if any."""
    watched: WatchedCode | None = None
    """What need not run once more to be looked into."""
    reached: frozenset[int] = frozenset()
    """Raw's calls to whose outputs a gradient came back."""
    unanswered: frozenset[int] = frozenset()
    """Those to which none did, though one was waited for."""
    wrong: frozenset[int] = frozenset()
    """Raw's calls in whose own code something was found; what they return may be right, made of base's tensors."""

    def of_fault(self, fault: Fault) -> Scene | None:
        """The scene of a call at fault."""
        if fault.expected is None or fault.found is None:
            return None
        base = self._calls.get(fault.base.index, fault.base)
        if fault.of_loss:
            scene = self._scene(fault.comparison, base, fault.raw.node, fault.expected, fault.found)
            sent = self._of_outputs()
            return replace(scene, role="loss", given=arrays_of(base.outputs), raw_gradients=sent, retry=lambda _: None)
        around, handed = self._around(base, fault)
        return replace(
            self._scene(fault.comparison, base, fault.raw.node, fault.expected, fault.found),
            given=self._given(base, fault.raw),
            around=around,
            in_base=self._in_base(fault),
            handed=handed,
            inner_weights=_inner(self.job.raw, fault.raw.node),
        )

    def unreached(self, fault: Fault, compared: Sequence[Comparison]) -> tuple[Side, tuple[str, ...]]:
        """Calls inside one whose outputs agree and get a gradient on one side only, and which side has none."""
        agree = {one.raw_call for one in compared if (one.phase, one.role) == ("forward", "output") and one.agrees}
        found: dict[Side, list[Call]] = {"raw": [], "base": []}
        for call in _inside(self.found, fault.raw, None):
            partner = self._partner(call)
            if partner is None or call.index not in agree:
                continue
            in_base = any(slot.tensor in self.reference.arrivals for slot in partner.outputs[:1])
            if in_base and call.index in self.unanswered:
                found["raw"].append(call)
            elif not in_base and call.index in self.reached:
                found["base"].append(call)
        side: Side = "raw" if found["raw"] else "base"
        return side, tuple(call.path for call in sorted(found[side], key=lambda call: call.index))

    def of_state(self, wrong: Comparison) -> Scene | None:
        """The scene of a loss or of the gradient of a parameter."""
        trace = self.reference.trace
        root = trace.root
        if wrong.role == "loss":
            if trace.loss is None or self.found.loss is None or root is None:
                return None
            scene = self._scene(wrong, root, 0, trace.loss.numpy(), self.found.loss.numpy())
            returned = arrays_of(root.outputs)
            return replace(scene, given=returned, retry=lambda changes: None, raw_gradients=self._of_outputs())
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
            given=arrays_of(base.inputs),
            base_weights=_own(job.base, base.node),
            raw_weights=_own(job.raw, raw_node),
            base_settings=settings_of(job.base.adapter, base_module),
            raw_settings=settings_of(job.raw.adapter, raw_module),
            agrees=agreement(wrong, job.tolerance.narrow),
            narrow=job.tolerance.narrow,
            retry=partial(self._retry, wrong, raw_node, self._by_itself(wrong)),
            repeats=lambda: _moved_little(wrong) or self._repeats(base),
            tensor=wrong.name,
            gradients={
                slot.name or "0": self.reference.arrivals[slot.tensor].numpy()
                for slot in base.outputs
                if slot.tensor in self.reference.arrivals
            },
            siblings=_siblings(job.base, base.node),
            draws=tuple(gap for gap in self.draws if _concerns(gap, base.path, job.raw.tree.nodes[raw_node].path)),
            base_ties=ties_of(job.base, base.node),
            raw_ties=ties_of(job.raw, raw_node),
            raw_layer=job.raw.tree.nodes[raw_node].layer,
        )

    def _given(self, base: Call, raw: Call) -> dict[str, Array]:
        """What the call was given: base's values, and raw's of what only raw's was given."""
        paired = self._partner(raw) is not None
        found = arrays_of(base.inputs) if paired else {}
        shapes = {array.shape for array in found.values()}
        for name, array in arrays_of(raw.inputs).items():
            if array.shape not in shapes:
                found[name if name not in found else f"{name} of raw"] = array
        return found

    def _around(self, base: Call, fault: Fault) -> tuple[dict[str, Array], dict[str, Array]]:
        """What had been returned inside a call, up to a child of it, and what had been given there first.

        Of raw's calls, with base's values; then of base's that raw's have nothing beside. Nearest first."""
        found: dict[str, Array] = {}
        handed: dict[str, Array] = {}
        raw_inside = _inside(self.found, fault.raw, fault.after)
        inside = [(call, self._partner(call)) for call in raw_inside]
        if self._partner(fault.raw) is not None:
            after = self.pairs.get(fault.after.index) if fault.after is not None else None
            beside = {partner.index for _, partner in inside if partner is not None}
            alone = [call for call in _inside(self.reference.trace, base, after) if call.index not in beside]
            inside += [(call, None) for call in alone]
        for call, partner in inside[:MOST_INSIDE]:
            for place, array in enumerate(_best(call.outputs, () if partner is None else partner.outputs)):
                found.setdefault(call.path if not place else f"{call.path}[{place}]", array)
            for array in _best(call.inputs[:1], () if partner is None else partner.inputs[:1]):
                handed.setdefault(call.path, array)
        return found, handed

    def _in_base(self, fault: Fault) -> dict[str, str]:
        """The paths of calls inside one that have a partner, to that of it."""
        inside = _inside(self.found, fault.raw, fault.after)[:MOST_INSIDE]
        return {call.path: partner.path for call in inside if (partner := self._partner(call)) is not None}

    def _partner(self, raw: Call) -> Call | None:
        """Base's call beside one of raw's, with what it held in the reference run."""
        found = self.pairs.get(raw.index)
        return None if found is None else self._calls.get(found.index)

    @cached_property
    def _calls(self) -> dict[int, Call]:
        return {call.index: call for call in self.reference.trace.calls}

    @property
    def allowance(self) -> Allowance:
        """What may be run to find out more."""
        return Allowance(self.base, self.raw)

    def _by_itself(self, wrong: Comparison) -> ByItself | None:
        """The layer that a comparison is about, where raw can run and its output is what differs."""
        if self.feeder is None or (wrong.phase, wrong.role) != ("forward", "output"):
            return None
        call = next((call for call in self.found.calls if call.index == wrong.raw_call), None)
        agrees = agreement(wrong, self.job.tolerance.narrow)
        return None if call is None else ByItself(self.raw, call, wrong.name, agrees)

    def _retry(
        self, wrong: Comparison, raw_node: int, alone: ByItself | None, changes: Mapping[str, Any]
    ) -> Array | None:
        found = None if alone is None else alone.with_settings(changes)
        if found is not None:
            return found
        seen: list[Array] = []
        if not self.allowance.covers(raw=FORWARD if wrong.phase == "forward" else WHOLE):
            return None

        def look(phase: str, role: str, call: int, name: str, value: Value) -> None:
            if (phase, role, call, name) == (wrong.phase, wrong.role, wrong.raw_call, wrong.name) and not seen:
                seen.append(np.array(value.numpy()))
                if wrong.phase == "forward":
                    raise Reached

        adapter = self.job.raw.adapter
        with with_settings(adapter, self.job.raw.modules[raw_node], changes), suppress(Reached):
            self.run_again(look, wrong.phase != "forward")
        return seen[0] if seen else None

    def _of_outputs(self) -> dict[str, Array]:
        """What raw's loss sends back to what raw returns."""
        seen: dict[str, Array] = {}
        root = next((call.index for call in self.found.calls if call.parent < 0), -1)

        def look(phase: str, role: str, call: int, name: str, value: Value) -> None:
            if (phase, role, call) == ("backward", "output", root):
                seen.setdefault(name or "0", np.array(value.numpy()))

        if self.reference.arrivals and self.allowance.covers(raw=WHOLE):
            self.run_again(look, True)
        return seen

    def _repeats(self, base: Call) -> bool:
        """Whether a call of base returns the same once more, as far as this place can tell."""
        again = next((call for call in self._once_more if call.index == base.index), None)
        if again is None:
            return True
        first, second = (arrays_of(one.outputs) for one in (base, again))
        return all(repeated(array, second[name]) for name, array in first.items() if name in second)

    @cached_property
    def _once_more(self) -> tuple[Call, ...]:
        """The calls of base, run again; none where that is not worth a run."""
        if not self.allowance.covers(base=FORWARD):
            return ()
        with self.base.again():
            trace = self.base.run(self.reference.trace.step, self.job.arguments()[0], loss_fn=None, backward=False)
        return trace.calls


def feeder_of(reference: Reference, pairing: CallPairing, beside: Any) -> Callable[..., LocalRun]:
    """What feeds raw base's tensors once more."""

    def made(backward: bool, look: Callable[..., None] | None = None) -> LocalRun:
        return LocalRun(
            reference,
            beside(),
            Tolerance(mode="auto"),
            loosely=not pairing.alike,
            backward=backward,
            look=look,
        )

    return made


def run_again(
    job: Job, raw: Session, feeder: Callable[..., LocalRun], step: int
) -> Callable[[Callable[..., None], bool], None]:
    """How raw runs once more on base's tensors, for a scene."""

    def run(look: Callable[..., None], backward: bool) -> None:
        local = feeder(backward, look)
        with raw.again():
            raw.run(step, job.arguments()[1], loss_fn=job.losses[1], backward=backward, feeder=local, hooks=False)

    return run


def _moved_little(wrong: Comparison) -> bool:
    """Whether base made nearly the same once more, when it was shaken."""
    outcome = wrong.outcome
    if outcome.ratio is None:
        return False
    return outcome.reason != "values" or outcome.ratio > REPEATED


def _concerns(gap: DrawGap, base: str, raw: str) -> bool:
    """Whether the draws are of this module's own code, or of a child of it."""
    sides = ((gap.base, gap.base_path, base), (gap.raw, gap.raw_path, raw))
    return any(
        drawn and path in (place, f"{place}.{path.rpartition('.')[2]}".lstrip(".")) for drawn, path, place in sides
    )


def agreement(wrong: Comparison, narrow: float) -> Callable[[Array, Array], bool]:
    """Whether two tensors are as near as its place allows; ``narrow`` is what the tolerance in force says of dtypes."""
    predicted, sums = wrong.outcome.predicted, wrong.phase == "gradient"
    tolerance = Tolerance(mode="auto", predicted=predicted, narrow=narrow, sums=sums)

    def agrees(base: Array, raw: Array) -> bool:
        return agree_in_any_layout(base, raw, tolerance)

    return agrees


def arrays_of(slots: tuple[Slot, ...]) -> dict[str, Array]:
    return {slot.name or "0": slot.value.numpy() for slot in slots if not slot.value.overwritten}


def _best(raw: tuple[Slot, ...], base: tuple[Slot, ...]) -> list[Array]:
    """Raw's tensors, and base's in their place where they are alike: those were handed on."""
    mine, theirs = list(arrays_of(raw).values()), list(arrays_of(base).values())
    theirs += mine[len(theirs) :]
    return [two if one.shape == two.shape else one for one, two in zip(mine, theirs, strict=False)]


def _inside(trace: StepTrace, around: Call, before: Call | None) -> list[Call]:
    """The calls inside one, up to one of its children, the nearest first."""
    depth = {around.index: 0}
    found: list[Call] = []
    for call in sorted(trace.calls, key=lambda call: call.index):
        if call.parent in depth and (before is None or call.index < before.index):
            depth[call.index] = depth[call.parent] + 1
            found.append(call)
    return sorted(found, key=lambda call: depth[call.index])


def repeated(one: Array, two: Array) -> bool:
    """The same up to what the order of a sum may change."""
    if one.shape != two.shape or one.dtype.kind not in "fc":
        return one.shape == two.shape and bool(np.array_equal(one, two))
    return compare_arrays(one, two, Tolerance(mode="auto")).agrees


def _own(live: LiveTree, node: int) -> dict[str, Array]:
    adapter, module = live.adapter, live.modules[node]
    return {name: adapter.to_numpy(t) for name, t in (*adapter.own_parameters(module), *adapter.own_buffers(module))}


def _inner(live: LiveTree, node: int) -> dict[str, Array]:
    """Weights of the modules inside one, by their path in it; of its own children, the last, where there are many."""
    own = live.tree.nodes[node]
    prefix = f"{own.path}." if own.path else ""
    inside = [one for one in live.tree.nodes if one.index != node and one.path.startswith(prefix) and one.parameters]
    if len(inside) > MOST_INNER:
        inside = [one for one in inside if one.parent == node][-MOST_INNER:]
    return {
        f"{one.path.removeprefix(prefix)}.{name}": array
        for one in inside
        for name, array in _own(live, one.index).items()
    }


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


def ties_of(live: LiveTree, node: int) -> dict[str, tuple[str, ...]]:
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
