"""Dumps that hold statistics or digests: compared by these, and narrowed to the modules worth another look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from padiff.align import CallPairing, pair_slots, tag_key, tags_of
from padiff.compare.arrays import missing
from padiff.compare.given import as_given
from padiff.engine.apart.by_summary import judged, repeated
from padiff.engine.apart.replay import in_order
from padiff.engine.job import Job
from padiff.engine.ops.summed_ops import SummedOps
from padiff.records import (
    Call,
    Comparison,
    Divergence,
    Noise,
    Outcome,
    Phase,
    Role,
    Slot,
    StepComparison,
    StepTrace,
    Tolerance,
    Unmatched,
    Value,
    WeightPlan,
)
from padiff.store import Dump, StepDump, StoredValue

MOST_SUSPECTS = 8


class Summaries:
    """Holds raw's summaries against base's."""

    def __init__(self, job: Job, pairing: CallPairing | None, noise: Noise | None) -> None:
        self._job, self._pairing, self._noise = job, pairing, noise

    def step(self, base: StepTrace, raw: StepTrace) -> StepComparison:
        """Calls and gradients of a step."""
        pairing = self._pairing
        assert pairing is not None
        pairs: list[tuple[Call, Call]] = []
        found: list[Comparison] = []
        places: dict[int, tuple[int, Comparison]] = {}
        alone: list[Unmatched] = []
        met: set[tuple[str, int]] = set()
        ops = SummedOps(raw.step)

        def hold(role: Role, one: Slot, other: Slot, partner: Call, call: Call) -> None:
            if _summed(one.value) and _summed(other.value):
                outcome = judged(one.value, other.value, self._allowed(one.tensor))
                if role == "input":
                    outcome = as_given(one.value, other.value, outcome)
                comparison = self._at(base, "forward", role, partner, call, other.name or one.name, outcome)
                comparison = replace(comparison, tensor=other.tensor)
                found.append(comparison)
                places.setdefault(other.tensor, (one.tensor, comparison))

        for call, moment in in_order(raw.calls):
            if moment == "begins":
                continue
            if moment == "tags":
                partner = pairing.tagged(call)
                if partner is None:
                    alone.append(Unmatched("raw", call.path, call.kind, "base tags nothing of this name"))
                    continue
                met.add(tag_key(partner))
                for one, other in pair_slots(partner.outputs, call.outputs)[0]:
                    hold("output", one, other, partner, call)
                continue
            partner = pairing.base_call(call)
            if partner is None:
                continue
            pairing.pair(partner, call)
            pairs.append((partner, call))
            roles: tuple[tuple[Role, Sequence[Slot], Sequence[Slot]], ...] = (
                ("input", partner.inputs, call.inputs),
                ("output", partner.outputs, call.outputs),
            )
            for role, left, right in roles:
                both, left_alone, right_alone = pair_slots(left, right, loosely=role == "input" and not pairing.alike)
                for one, other in both:
                    hold(role, one, other, partner, call)
                for side, rest in (("base", left_alone), ("raw", right_alone)):
                    one_of = partner if side == "base" else call
                    alone += [
                        Unmatched(side, one_of.path, one_of.kind, f"{role} {s.name!r} exists in {side} only")  # type: ignore[arg-type]
                        for s in rest
                    ]
            ops.compare(partner, call, self._allowed)
        for number, gradient in raw.gradients.items():
            place = places.get(number)
            expected = None if place is None else base.gradients.get(place[0])
            if place is None:
                ops.on_gradient(number, gradient, base.gradients, self._allowed)
            elif expected is not None and _one_size(expected, gradient) and _summed(gradient) and _summed(expected):
                outcome = judged(expected, gradient, self._allowed(place[0], gradients=True))
                found.append(replace(place[1], phase="backward", outcome=outcome))
        alone += [
            Unmatched("base", tag.path, tag.kind, "raw tags nothing of this name")
            for key, tag in tags_of(base.calls).items()
            if key not in met
        ]
        unmatched = (*pairing.unmatched(raw.calls), *alone, *ops.unmatched)
        return StepComparison(
            raw.step,
            base,
            raw,
            tuple(pairs),
            tuple(found),
            unmatched,
            pairing.alike,
            ops=tuple(ops.comparisons),
            op_pairs=tuple(ops.pairs),
        )

    def state(self, plan: WeightPlan, base: StepDump, raw: StepDump) -> list[Comparison]:
        """What the step left in parameters and buffers."""
        noise = self._noise or Noise()
        found: list[Comparison] = []
        if base.trace().ran_backward and raw.trace().ran_backward:
            known = noise.parameters
            found += self._tensors(plan, base, "gradient", base.parameter_gradients, raw.parameter_gradients, known)
        if base.weights and raw.weights:
            found += self._tensors(plan, base, "weight", base.weights, raw.weights, noise.weights)
        found += self._tensors(plan, base, "buffer", base.buffers, raw.buffers, noise.buffers)
        return found

    def start(self, plan: WeightPlan, base: StepDump, raw: StepDump) -> list[Comparison]:
        return self._tensors(plan, base, "weight", base.weights_before, raw.weights_before, {})

    def _tensors(
        self,
        plan: WeightPlan,
        step: StepDump,
        phase: Phase,
        base: Mapping[str, Value | None],
        raw: Mapping[str, Value | None],
        noise: Mapping[str, float],
    ) -> list[Comparison]:
        """Tensors that are filled from one of base's, whole; of others no summary can be made."""
        trees = self._job.base.tree.by_path(), self._job.raw.tree.by_path()
        wanted: Role = "buffer" if phase == "buffer" else "parameter"
        found: list[Comparison] = []
        for entry in plan.entries:
            source = entry.sources[0] if len(entry.sources) == 1 else None
            if entry.role != wanted or source is None or source.start is not None or source.index is not None:
                continue
            if source.interleaved is not None or (source.permute and "hash" in _kinds(base, raw)):
                continue
            if source.path not in base or entry.path not in raw:
                continue
            one, other = base[source.path], raw[entry.path]
            if one is None and other is None:
                continue
            if one is None or other is None:
                outcome = missing("base has it, raw has none" if other is None else "raw has it, base has none")
            elif _summed(one) and _summed(other):
                turned, sums = bool(source.permute), phase != "weight"
                outcome = self._outcome(one, other, noise.get(source.path), sums=sums, turned=turned)
            else:
                continue
            owners = [(path.rpartition(".")[0], path.rpartition(".")[2]) for path in (source.path, entry.path)]
            kinds = [tree[owner].kind if owner in tree else "" for tree, (owner, _) in zip(trees, owners, strict=True)]
            (base_path, _), (raw_path, name) = owners
            found.append(Comparison(phase, step.number, wanted, base_path, raw_path, kinds[0], kinds[1], name, outcome))
        return found

    def _at(
        self, trace: StepTrace, phase: Phase, role: Role, base: Call, raw: Call, name: str, outcome: Outcome
    ) -> Comparison:
        kinds = base.kind, raw.kind
        return Comparison(phase, trace.step, role, base.path, raw.path, *kinds, name, outcome, base.index, raw.index)

    def _outcome(
        self, base: Value, raw: Value, noise: float | None, *, sums: bool = False, turned: bool = False
    ) -> Outcome:
        return judged(base, raw, self._tolerance(noise, sums), turned=turned)

    def _tolerance(self, noise: float | None, sums: bool) -> Tolerance:
        tolerance = replace(self._job.tolerance, sums=sums)
        if noise is not None and math.isfinite(noise) and tolerance.mode == "auto":
            tolerance = replace(tolerance, predicted=noise)
        return tolerance

    def _allowed(self, tensor: int, *, gradients: bool = False) -> Tolerance:
        """The tolerance for a tensor of base."""
        noise = self._noise or Noise()
        return self._tolerance((noise.gradients if gradients else noise.tensors).get(tensor), gradients)


def _kinds(*sides: Mapping[str, Value | None]) -> set[str]:
    return {value.kind for side in sides for value in side.values() if isinstance(value, StoredValue)}


def _one_size(base: Value, raw: Value) -> bool:
    """Gradients of what only one side repeats are a sum there."""
    return base.shape == raw.shape or not repeated(base.shape, raw.shape)


def _summed(value: Value) -> bool:
    return isinstance(value, StoredValue)


def _along(raw: Dump, base: Dump) -> str:
    """How raw was run along base's dump, where it was, and where that can be done again."""
    ran = raw.extra.get("base")
    if not isinstance(ran, Mapping) or base.kind != "full":
        return ""
    return f', base="{base.path}"' + (", sync=True" if ran.get("synchronised") is True else "")


def suspects(found: Iterable[Divergence], done: StepComparison, base: Dump, raw: Dump) -> list[str]:
    """Which modules to look at in full, and how."""
    paths: dict[str, list[str]] = {"base": [], "raw": []}
    for divergence in found:
        paths["base"].append(divergence.base_path)
        paths["raw"].append(divergence.raw_path)
    wrong = {c.raw_call for c in done.comparisons if not c.agrees and c.phase == "forward" and c.role == "input"}
    modules = {call.path for call in done.raw.calls}
    for comparison in done.comparisons:
        if comparison.phase != "forward" or comparison.role != "output" or comparison.agrees:
            continue
        if comparison.raw_call not in wrong and comparison.raw_path in modules:  # and no op or tag
            paths["base"].append(comparison.base_path)
            paths["raw"].append(comparison.raw_path)
    notes = []
    for side, dump in (("base", base), ("raw", raw)):
        if dump.kind == "full" and "only" not in dump.extra:
            continue
        listed = list(dict.fromkeys(path for path in paths[side] if path))
        inner = [path for path in listed if not any(one.startswith(f"{path}.") for one in listed)]
        chosen = inner[:MOST_SUSPECTS]  # what is around them differs because they do
        where = f", only={chosen}" if chosen else ""
        to = f"{dump.path.name}_full"
        along = _along(dump, base) if side == "raw" else ""
        call = f'padiff.capture(model, to="{to}"{where}, steps=[{done.step}]{along})'
        notes.append(f"for the tensors themselves, run {side} again with {call}")
    return notes
