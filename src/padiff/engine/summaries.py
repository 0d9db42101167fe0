"""Dumps that hold statistics or digests: compared by these, and narrowed to the modules worth another look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.align import CallPairing, pair_slots
from padiff.compare.kinds import Kind, kind_of
from padiff.compare.tolerance import allowed_error
from padiff.engine.job import Job
from padiff.engine.stored import dtype_named
from padiff.records import (
    Call,
    Comparison,
    Divergence,
    Noise,
    Numbers,
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
from padiff.store import Dump, Stats, StepDump, StoredValue

MOST_SUSPECTS = 8
QUANTILES = 10.0
"""A quantile is one element, which may be that much further off than all are on average."""


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
        for call in raw.calls:
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
                    if not (_summed(one.value) and _summed(other.value)):
                        continue
                    noise = None if self._noise is None else self._noise.tensors.get(one.tensor)
                    outcome = self._outcome(one.value, other.value, noise)
                    comparison = self._at(base, "forward", role, partner, call, other.name or one.name, outcome)
                    comparison = replace(comparison, tensor=other.tensor)
                    found.append(comparison)
                    places.setdefault(other.tensor, (one.tensor, comparison))
                for side, rest in (("base", left_alone), ("raw", right_alone)):
                    one_of = partner if side == "base" else call
                    alone += [
                        Unmatched(side, one_of.path, one_of.kind, f"{role} {s.name!r} exists in {side} only")  # type: ignore[arg-type]
                        for s in rest
                    ]
        for number, gradient in raw.gradients.items():
            place = places.get(number)
            expected = None if place is None else base.gradients.get(place[0])
            if place is not None and expected is not None and _summed(gradient) and _summed(expected):
                noise = None if self._noise is None else self._noise.gradients.get(place[0])
                outcome = self._outcome(expected, gradient, noise, sums=True)
                found.append(replace(place[1], phase="backward", outcome=outcome))
        unmatched = (*pairing.unmatched(raw.calls), *alone)
        return StepComparison(raw.step, base, raw, tuple(pairs), tuple(found), unmatched, pairing.alike)

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
            one, other = base.get(source.path), raw.get(entry.path)
            if one is None or other is None or not (_summed(one) and _summed(other)):
                continue
            turned, sums = bool(source.permute), phase != "weight"
            outcome = self._outcome(one, other, noise.get(source.path), sums=sums, turned=turned)
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
        assert isinstance(base, StoredValue) and isinstance(raw, StoredValue)
        tolerance = replace(self._job.tolerance, sums=sums)
        if noise is not None and math.isfinite(noise) and tolerance.mode == "auto":
            tolerance = replace(tolerance, predicted=noise)
        if "hash" in (base.kind, raw.kind):
            return by_digest(base, raw)
        return by_statistics(base.statistics(), raw.statistics(), tolerance, turned=turned)


def by_digest(base: StoredValue, raw: StoredValue) -> Outcome:
    """Equal bit by bit, or not."""
    forms = [f"{value.dtype}{list(value.shape)}" for value in (base, raw)]
    if base.shape != raw.shape:
        return Outcome("different", "shape", f"base is {forms[0]}, raw {forms[1]}")
    if base.dtype != raw.dtype:
        return Outcome("different", "dtype", f"base is {forms[0]}, raw {forms[1]}")
    if base.digest() == raw.digest():
        return Outcome("equal", None, "equal bit by bit")
    return Outcome("different", "values", "not equal bit by bit; digests don't say by how much")


def by_statistics(base: Stats, raw: Stats, tolerance: Tolerance, *, turned: bool = False) -> Outcome:
    """How far two tensors are apart at least; ``turned``: their elements come in different orders."""
    if base.digest == raw.digest and base.shape == raw.shape and base.dtype == raw.dtype:
        return Outcome("equal", None, "equal bit by bit")
    if base.size != raw.size:
        return Outcome("different", "shape", f"base is {list(base.shape)}, raw {list(raw.shape)}")
    kind = kind_of(dtype_named(base.dtype))
    if base.dtype != raw.dtype and not tolerance.narrow:
        return Outcome("different", "dtype", f"base is {base.dtype}, raw {raw.dtype}")
    counts = ("nan", "positive_infinite", "negative_infinite")
    if any(getattr(base, name) != getattr(raw, name) for name in counts):
        return Outcome("different", "nonfinite", "NaN or infinities on one side that the other does not have")
    rms = base.l2 / math.sqrt(base.finite) if base.finite else 0.0
    apart = _least(base, raw, rms, ordered=not turned and base.shape == raw.shape)
    allowed = _allowed(kind, tolerance, rms, base)
    mean = base.l1 / max(base.finite, 1)
    cosine = max(-1.0, 1.0 - 0.5 * (apart / rms) ** 2) if rms else 1.0
    numbers = Numbers(base.size, apart, apart, mean, apart, rms, cosine)
    relative = f"{apart / rms:.1e} of base's size" if rms else f"{apart:.1e}"
    if apart <= allowed:
        return Outcome("rounding", None, f"statistics apart by {relative}", numbers, allowed, tolerance.predicted)
    message = f"statistics apart by at least {relative}, allowed {allowed:.1e}"
    return Outcome("different", "values", message, numbers, allowed, tolerance.predicted)


def _least(base: Stats, raw: Stats, rms: float, *, ordered: bool) -> float:
    """A lower bound of the root mean square error, near it where elements were sampled."""
    root = math.sqrt(base.finite) if base.finite else 1.0
    found = [abs(raw.l2 - base.l2) / root, abs(raw.mean - base.mean)]
    extremes = [abs(raw.minimum - base.minimum), abs(raw.maximum - base.maximum)]
    if ordered and len(base.sample) == len(raw.sample) and base.sample:
        one, other = np.array(base.sample), np.array(raw.sample)
        both = np.isfinite(one) & np.isfinite(other)
        if both.any():
            found.append(float(np.sqrt(np.mean((other - one)[both] ** 2))))
        extremes += [abs(r - b) for b, r in zip(base.quantiles, raw.quantiles, strict=True)]
    found.append(max(extremes, default=0.0) / QUANTILES)
    return max(found)


def _allowed(kind: Kind, tolerance: Tolerance, rms: float, base: Stats) -> float:
    if tolerance.mode == "auto":
        return float(allowed_error(kind, tolerance, rms))
    size = base.l1 / max(base.finite, 1) if tolerance.mode == "mean" else rms
    return tolerance.atol + tolerance.rtol * size


def _kinds(*sides: Mapping[str, Value | None]) -> set[str]:
    return {value.kind for side in sides for value in side.values() if isinstance(value, StoredValue)}


def _summed(value: Value) -> bool:
    return isinstance(value, StoredValue)


def suspects(found: Iterable[Divergence], done: StepComparison, base: Dump, raw: Dump) -> list[str]:
    """Which modules to look at in full, and how."""
    paths: dict[str, list[str]] = {"base": [], "raw": []}
    for divergence in found:
        paths["base"].append(divergence.base_path)
        paths["raw"].append(divergence.raw_path)
    wrong = {c.raw_call for c in done.comparisons if not c.agrees and c.phase == "forward" and c.role == "input"}
    for comparison in done.comparisons:
        if comparison.phase != "forward" or comparison.role != "output" or comparison.agrees:
            continue
        if comparison.raw_call not in wrong:
            paths["base"].append(comparison.base_path)
            paths["raw"].append(comparison.raw_path)
    notes = []
    for side, dump in (("base", base), ("raw", raw)):
        listed = list(dict.fromkeys(path for path in paths[side] if path))
        inner = [path for path in listed if not any(one.startswith(f"{path}.") for one in listed)]
        chosen = inner[:MOST_SUSPECTS]  # what is around them differs because they do
        where = f", only={chosen}" if chosen else ""
        to = f"{dump.path.name}_full"
        call = f'padiff.capture(model, to="{to}"{where}, steps=[{done.step}])'
        notes.append(f"for the tensors themselves, run {side} again with {call}")
    return notes
