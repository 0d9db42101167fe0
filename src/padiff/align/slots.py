"""Which tensor of one call belongs to which tensor of its partner."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.records import Slot


def pair_slots(
    base: Sequence[Slot], raw: Sequence[Slot], *, loosely: bool = False
) -> tuple[list[tuple[Slot, Slot]], list[Slot], list[Slot]]:
    """Pairs, and what is alone in base and in raw: by name where names agree, else in order, equal shapes first.

    ``loosely`` is for what modules are given: there each author passes what he needs, and shapes that have nothing to
    do with each other say that the tensors haven't, either.
    """
    if len(base) == 1 and len(raw) == 1:
        return [(base[0], raw[0])], [], []
    if len(base) != len(raw):  # a cell may return its state twice: (h, (h, c)) is (h, c)
        base, raw = _once(base), _once(raw)
    names = {slot.name: slot for slot in raw}
    if len(base) == len(raw) and all(slot.name in names for slot in base):
        return [(slot, names[slot.name]) for slot in base], [], []
    if len(base) == len(raw) and not loosely:
        return list(zip(base, raw, strict=True)), [], []
    pairs: list[tuple[Slot, Slot]] = []
    left, right = list(base), list(raw)
    for same in (_name_and_shape, _shape):
        for slot in list(left):
            partner = next((other for other in right if same(slot, other)), None)
            if partner is not None:
                pairs.append((slot, partner))
                left.remove(slot)
                right.remove(partner)
    for slot, other in [] if loosely else list(zip(list(left), list(right), strict=False)):
        pairs.append((slot, other))
        left.remove(slot)
        right.remove(other)
    return pairs, left, right


def _once(slots: Sequence[Slot]) -> list[Slot]:
    """Each tensor under its first name."""
    return list({slot.tensor: slot for slot in reversed(slots)}.values())[::-1]


def _name_and_shape(base: Slot, raw: Slot) -> bool:
    return base.name == raw.name and base.value.shape == raw.value.shape


def _shape(base: Slot, raw: Slot) -> bool:
    return base.value.shape == raw.value.shape
