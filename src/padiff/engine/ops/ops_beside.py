"""Compares the ops of raw's modules with those of base's, as the modules end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from padiff.align import UNDETERMINED, pair_ops, pair_slots, same_thing
from padiff.compare.layouts import compare_in_any_layout
from padiff.compare.masks import without_masked
from padiff.diagnose.divergence import source_lines
from padiff.engine.ops.lone_ops import Agrees, done_by_one_side
from padiff.records import (
    FIRST_OP,
    Call,
    Comparison,
    Divergence,
    OpPair,
    Outcome,
    StepComparison,
    StepTrace,
    Tolerance,
    Unmatched,
    Value,
)

NEAR = 1e-3
"""How near sums over two tensors must be for these to seem the same."""
Allowed = Callable[..., Tolerance]
"""The tolerance for a tensor of base, by its number; with ``gradients=True`` for its gradient."""


@dataclass
class OpsBeside:
    """Told of paired calls and of gradients; holds what came of their ops."""

    step: int
    pairs: list[tuple[Call, Call]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    unmatched: list[Unmatched] = field(default_factory=list)
    _met: dict[int, tuple[int, Comparison]] = field(default_factory=dict)
    """Raw's tensor to base's, and where the two met."""
    _sums: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def compare(self, base: Call, raw: Call, allowed: Allowed) -> None:
        """All that the two calls' own code did."""
        ours, theirs = ([op for op in call.ops if not op.tag] for call in (base, raw))
        if not ours and not theirs:
            return
        self._sums.clear()
        found = pair_ops(ours, theirs, self._same)
        for one, other in found:
            self.pairs.append((one, other))
            if same_thing(one.kind) not in UNDETERMINED:
                self._outputs(one, other, allowed)
        for side, other_side, ops, met in (
            ("base", "raw", ours, {one.index for one, _ in found}),
            ("raw", "base", theirs, {other.index for _, other in found}),
        ):
            for op in ops:
                if op.index not in met:
                    line = f" ({op.stack[-1].file}:{op.stack[-1].line})" if op.stack else ""
                    why = f"no op of {other_side} corresponds{line}"
                    self.unmatched.append(Unmatched(side, op.path, op.kind, why))  # type: ignore[arg-type]

    def _outputs(self, base: Call, raw: Call, allowed: Allowed) -> None:
        pairs, _, _ = pair_slots(base.outputs, raw.outputs)
        for one, other in pairs:
            if one.value.overwritten or other.value.overwritten:
                continue
            if math.prod(one.value.shape) != math.prod(other.value.shape):
                continue  # they do the same to other things
            outcome = self._judged(one.value, other.value, allowed(one.tensor))
            if outcome is None:
                continue
            comparison = Comparison(
                "forward",
                self.step,
                "output",
                base.path,
                raw.path,
                base.kind,
                raw.kind,
                other.name or one.name,
                outcome,
                base.index,
                raw.index,
                other.tensor,
            )
            self.comparisons.append(comparison)
            self._met.setdefault(other.tensor, (one.tensor, comparison))

    def on_gradient(self, tensor: int, gradient: Value, expected: Mapping[int, Value], allowed: Allowed) -> None:
        """A gradient of raw's that no module has to do with."""
        met = self._met.get(tensor)
        partner = None if met is None else expected.get(met[0])
        if met is None or partner is None or partner.overwritten or gradient.overwritten:
            return
        if partner.dtype == "released":
            return
        outcome = self._judged_gradient(partner, gradient, allowed(met[0], gradients=True))
        if outcome is not None:
            self.comparisons.append(replace(met[1], phase="backward", outcome=outcome))

    def _judged(self, base: Value, raw: Value, tolerance: Tolerance) -> Outcome | None:
        """None where the two cannot be held against each other."""
        expected, found = base.numpy(), raw.numpy()
        if expected.dtype.kind != found.dtype.kind:
            return None  # a mask may be boolean here and floating there, and say the same
        rest = without_masked(expected, found)
        if rest is not None:  # what is left out is large, and so is its noise
            (expected, found), tolerance = rest, replace(tolerance, predicted=None)
        return compare_in_any_layout(expected, found, tolerance, loosely=True)

    def _judged_gradient(self, base: Value, raw: Value, tolerance: Tolerance) -> Outcome | None:
        return compare_in_any_layout(base.numpy(), raw.numpy(), tolerance, gradients=True, loosely=True)

    def _same(self, base: Call, raw: Call) -> bool:
        if not base.outputs or not raw.outputs:
            return False
        one, other = self._sum(base), self._sum(raw)
        return len(one) == len(other) and all(
            math.isclose(a, b, rel_tol=NEAR, abs_tol=NEAR * one[1]) for a, b in zip(one, other, strict=True)
        )

    def _sum(self, op: Call) -> tuple[float, ...]:
        if op.index not in self._sums:
            value = op.outputs[0].value
            empty = value.overwritten or not math.prod(value.shape)
            self._sums[op.index] = () if empty else self._moments(value)
        return self._sums[op.index]

    def _moments(self, value: Value) -> tuple[float, ...]:
        """Mean and root mean square of what an op returned: whatever the order of its elements."""
        array = np.asarray(value.numpy())
        kind = np.complex128 if array.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            flat = np.abs(array.astype(kind)) if kind is np.complex128 else array.astype(kind)
            return (float(flat.mean()), float(np.sqrt((flat * flat).mean())))


def ops_of_pairs(
    pairs: Iterable[tuple[Call, Call]], base: StepTrace, raw: StepTrace, tolerance: Tolerance
) -> OpsBeside:
    """The ops of calls that have run, both on base's tensors: all outputs, then all gradients."""

    def allowed(tensor: int, *, gradients: bool = False) -> Tolerance:
        return tolerance

    found = OpsBeside(raw.step)
    for one, other in pairs:
        if one.ops or other.ops:
            found.compare(one, other, allowed)
    for tensor, gradient in raw.gradients.items():
        found.on_gradient(tensor, gradient, base.gradients, allowed)
    return found


def with_ops(done: StepComparison, comparisons: Iterable[Comparison], *, diverged: bool) -> StepComparison:
    """The step with its ops among its comparisons, each before its module's.

    Where what a module returns and hands to its children agrees, an op of it that differs went another way to the same
    result: it is listed as without partner."""
    if not done.ops and not done.op_pairs:
        return replace(done, comparisons=tuple(comparisons))
    parent = {raw.index: raw.parent for _, raw in done.op_pairs}
    unmatched = list(done.unmatched)
    inside: dict[int, list[Comparison]] = {}
    backward: list[Comparison] = []
    wrong = _wrong(done) if diverged else set()
    lost = diverged and any(not one.agrees and one.phase in ("backward", "gradient") for one in done.comparisons)
    for one in done.ops:
        if one.phase == "backward":
            backward += [one] if lost or one.agrees else []
        elif one.agrees or parent[one.raw_call] in wrong:
            inside.setdefault(parent[one.raw_call], []).append(one)
        else:
            why = f"differs from base's {one.base_kind}, and what is made of it agrees"
            unmatched.append(Unmatched("raw", one.raw_path, one.raw_kind, why))
    found: list[Comparison] = []
    for comparison in comparisons:
        found += inside.pop(comparison.raw_call, ())
        if comparison.phase not in ("forward", "backward"):
            found += backward
            backward = []
        found.append(comparison)
    for rest in (*inside.values(), backward):
        found += rest
    pairs: list[tuple[Call, Call]] = []
    within: dict[int, list[tuple[Call, Call]]] = {}
    for pair in done.op_pairs:
        within.setdefault(pair[1].parent, []).append(pair)
    for pair in done.pairs:
        pairs += within.pop(pair[1].index, ())
        pairs.append(pair)
    return replace(done, comparisons=tuple(found), pairs=tuple(pairs), unmatched=tuple(unmatched))


def _wrong(done: StepComparison) -> set[int]:
    """Raw's calls that return, or hand to a child, something that differs."""
    around = {call.index: call.parent for call in done.raw.calls}
    found: set[int] = set()
    for one in done.comparisons:
        if one.phase == "forward" and not one.agrees:
            found |= {one.raw_call, around.get(one.raw_call, -1)} if one.role == "input" else {one.raw_call}
    return found


def named_by_ops(divergence: Divergence, done: StepComparison, agrees: Agrees | None = None) -> Divergence:
    """A place without an op, in forward: the first of its ops that differs, where ops were compared. ``agrees`` holds
    two tensors of a dump against each other, so that what one side does alone can be named as well."""
    if divergence.op is not None or divergence.phase != "forward" or divergence.role != "output":
        return divergence
    alone = None if agrees is None else done_by_one_side(divergence, done, agrees)
    if alone is not None:
        return _at_op(divergence, *alone)
    calls = {raw.index: (base, raw) for base, raw in done.op_pairs}
    for one in done.ops:
        if one.phase != "forward" or one.agrees or one.raw_call < FIRST_OP:
            continue
        base, raw = calls[one.raw_call]
        if raw.parent == divergence.raw_call:
            return _at_op(divergence, base, raw)
    return divergence


def _at_op(divergence: Divergence, base: Call | None, raw: Call | None) -> Divergence:
    lines = [() if call is None else source_lines(call.stack) for call in (base, raw)]
    ends = [stack[-1] if stack else None for stack in lines]
    pair = OpPair("" if base is None else base.kind, "" if raw is None else raw.kind, ends[0], ends[1])
    kept = [own or before for own, before in zip(lines, divergence.source, strict=True)]
    return replace(divergence, op=pair, source=(kept[0], kept[1]))
