"""Gradients of tensors that one model has once and the other several times.

A tensor that a call is given under three names gets one gradient, the sum of three. Where the other model hands over
copies of it, each of them gets its share, and only the sums can be held against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from padiff.capture.feeding import Feed, See
from padiff.capture.held import HostValue
from padiff.capture.jitter import spacing_of
from padiff.compare.measure import rms, rms_gap
from padiff.engine.families import floating
from padiff.records import Array, Slot, Value

ROUNDED = 4.0
"""Units in the last place by which a copy may be off that was computed."""


class Share:
    """The tensors of both sides that stand for one, and what has come back to raw's so far."""

    def __init__(self, one: Slot, other: Slot) -> None:
        self.base, self.raw = {one.tensor: one}, {other.tensor: other}
        self.copies: list[Slot] = []
        """Those of raw's that have no partner of their own."""
        self._come: dict[int, Array] = {}

    def join(self, other: Share) -> None:
        self.base |= other.base
        self.raw |= other.raw

    def added(self, other: Slot, gradient: Value) -> Value | None:
        """What has come back to all of raw's tensors together; None while something is still to come."""
        self._come[other.tensor] = np.array(gradient.numpy())  # nobody keeps it
        return summed(map(HostValue, self._come.values())) if len(self._come) == len(self.raw) else None

    def largest(self, gradients: Mapping[int, Value | None]) -> Slot:
        """Base's tensor that gets most, and whose noise is that of the sum."""
        sizes = {tensor: rms(value.numpy()) for tensor, value in gradients.items() if value is not None}
        return self.base[max(sizes, key=sizes.__getitem__)]


def summed(values: Iterable[Value | None]) -> Value | None:
    """Gradients of one shape together; None where there are none."""
    found = [value.numpy() for value in values if value is not None]
    if not found or len({array.shape for array in found}) > 1:
        return None
    return HostValue(np.sum(found, axis=0, dtype=found[0].dtype))


def shares_of(pairs: Sequence[tuple[Slot, Slot]], base: Sequence[Slot], raw: Sequence[Slot]) -> Mapping[int, Share]:
    """Raw's tensors to the shares that they are part of, where one tensor of a side stands beside several.

    Several tensors of base are one if they hold the same numbers; those of raw are all given base's. What has found no
    partner is another copy if it holds the numbers of one that has."""
    if len(base) < 2 and len(raw) < 2:
        return {}
    followed = [(one, other) for one, other in pairs if one.tracked and other.tracked]
    shares: list[Share] = []
    for one, other in followed:
        share = Share(one, other)
        for known in [known for known in shares if _meet(known, one, other)]:
            shares.remove(known)
            known.join(share)
            share = known
        shares.append(share)
    for slot, share in _left_over(base, [(share, share.base) for share in shares]):
        share.base[slot.tensor] = slot
    for slot, share in _left_over(raw, [(share, share.raw) for share in shares]):
        share.raw[slot.tensor] = slot
        share.copies.append(slot)
    return {tensor: share for share in shares if len(share.base) + len(share.raw) > 2 for tensor in share.raw}


def _meet(share: Share, one: Slot, other: Slot) -> bool:
    if one.tensor in share.base:
        return True
    return other.tensor in share.raw and any(_copies(one, known) for known in share.base.values())


def _left_over(slots: Sequence[Slot], shares: Sequence[tuple[Share, Mapping[int, Slot]]]) -> list[tuple[Slot, Share]]:
    """What holds the numbers of a tensor that has a partner, and has none."""
    found: dict[int, tuple[Slot, Share]] = {}
    for slot in slots:
        if slot.tracked and not any(slot.tensor in own for _, own in shares):
            whose = next((share for share, own in shares if any(_copies(slot, known) for known in own.values())), None)
            if whose is not None:
                found[slot.tensor] = slot, whose
    return list(found.values())


def _copies(one: Slot, other: Slot) -> bool:
    """Whether two tensors of one side hold the same numbers."""
    if one.tensor == other.tensor:
        return True
    left, right = one.value, other.value
    if left.overwritten or right.overwritten or not floating(left) or left.shape != right.shape:
        return False
    if left.dtype != right.dtype:
        return False
    array = left.numpy()
    return rms_gap(array, right.numpy()) <= ROUNDED * spacing_of(array.dtype) * rms(array)


def watch_copies(feeds: dict[int, Feed], shares: Mapping[int, Share], sees: Callable[..., See]) -> None:
    """Copies that have no partner hold what the others are given, and get their share."""
    for share in shares.values():
        fed = [feeds[tensor] for tensor in share.raw if tensor in feeds]
        one = next(iter(share.base.values()))
        for slot in share.copies if fed else ():
            feeds.setdefault(slot.tensor, Feed(fed[0].value, sees(one, slot, share), True))
