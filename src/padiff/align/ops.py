"""Which op of base belongs to which op of raw, inside two paired calls: by what they do, their shapes, their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

from padiff.align.op_names import same_thing
from padiff.align.sequences import align_sequences
from padiff.records import Call

Same = Callable[[Call, Call], bool]
"""Whether two ops seem to have returned the same."""


def pair_ops(base: Sequence[Call], raw: Sequence[Call], same: Same) -> list[tuple[Call, Call]]:
    """Pairs in order; what one side fuses, or the other does besides, stays alone."""

    def likeness(one: Call, other: Call) -> float:
        alike = same_thing(one.kind) == same_thing(other.kind)
        if _shapes(one) == _shapes(other):
            return (4.0 if alike else 1.0) + same(one, other) if alike or same(one, other) else 0.0
        if _sizes(one) == _sizes(other):
            return 3.0 if alike else 0.0
        return 1.0 if alike and len(one.outputs) == len(other.outputs) else 0.0

    keys = [[_key(op) for op in ops] for ops in (base, raw)]
    if keys[0] == keys[1]:  # no need to look at values
        return list(zip(base, raw, strict=True))
    return align_sequences(base, raw, likeness, _key)


def _key(op: Call) -> Hashable:
    return same_thing(op.kind), _shapes(op), op.tag


def _shapes(op: Call) -> tuple[tuple[int, ...], ...]:
    return tuple(slot.value.shape for slot in op.outputs[:1])


def _sizes(op: Call) -> tuple[int, ...]:
    return tuple(math.prod(slot.value.shape) for slot in op.outputs[:1])
