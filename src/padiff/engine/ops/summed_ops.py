"""Ops of dumps that hold statistics or digests, compared by these."""

from __future__ import annotations

import math
from dataclasses import dataclass

from padiff.engine.apart.by_summary import judged
from padiff.engine.apart.stored import dtype_named
from padiff.engine.ops.lone_ops import Agrees
from padiff.engine.ops.ops_beside import OpsBeside
from padiff.records import MASKED, Call, Outcome, Tolerance, Value
from padiff.store import StoredValue


@dataclass
class SummedOps(OpsBeside):
    """Holds raw's ops against base's as ``OpsBeside`` does, without their elements."""

    def _judged(self, base: Value, raw: Value, tolerance: Tolerance) -> Outcome | None:
        if not (isinstance(base, StoredValue) and isinstance(raw, StoredValue)):
            return None
        if dtype_named(base.dtype).kind != dtype_named(raw.dtype).kind or _masked(base) or _masked(raw):
            return None  # what is masked out may be any large number, and sums do not tell it from the rest
        return judged(base, raw, tolerance)

    def _judged_gradient(self, base: Value, raw: Value, tolerance: Tolerance) -> Outcome | None:
        stored = isinstance(base, StoredValue) and isinstance(raw, StoredValue)
        return judged(base, raw, tolerance) if stored else None

    def _same(self, base: Call, raw: Call) -> bool:
        values = [call.outputs[0].value for call in (base, raw) if call.outputs]
        if any(isinstance(value, StoredValue) and value.kind == "hash" for value in values):
            digests = {value.digest() for value in values if isinstance(value, StoredValue)}
            return len(values) == 2 and len(digests) == 1
        return super()._same(base, raw)

    def _moments(self, value: Value) -> tuple[float, ...]:
        if not isinstance(value, StoredValue):
            return ()
        known = value.statistics()
        return (known.mean, known.l2 / math.sqrt(max(known.finite, 1)))


def summed_alike(tolerance: Tolerance) -> Agrees:
    """Whether two tensors of a dump seem the same, in the same order."""

    def alike(base: Value, raw: Value) -> bool:
        if not (isinstance(base, StoredValue) and isinstance(raw, StoredValue)) or base.shape != raw.shape:
            return False
        if _masked(base) or _masked(raw):
            return base.digest() == raw.digest()
        return judged(base, raw, tolerance).agrees

    return alike


def _masked(value: StoredValue) -> bool:
    if value.kind == "hash":
        return False
    known = value.statistics()
    return known.minimum <= MASKED or known.negative_infinite > 0
