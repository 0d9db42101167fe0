"""Which tensor of one call belongs to which tensor of its partner."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from padiff.records import MASKED, UNORDERED, Slot, merged_axes

_MOST_FLAGS = 1 << 20
"""Elements of a mask that is held against others."""

_ALIKE = 1e-3
"""How far two tables may be apart that are the same."""


def pair_slots(
    base: Sequence[Slot], raw: Sequence[Slot], *, loosely: bool = False, counted: bool = False
) -> tuple[list[tuple[Slot, Slot]], list[Slot], list[Slot]]:
    """Pairs, and what is alone in base and in raw: by name where names agree, else in order, equal shapes first.

    ``loosely`` is for what modules are given: there each author passes what he needs, and shapes that have nothing to
    do with each other say that the tensors haven't, either. ``counted`` says that a tensor returned twice is two.
    """
    if len(base) == 1 and len(raw) == 1:
        return [(base[0], raw[0])], [], []
    if any(slot.name.startswith(UNORDERED) for slot in (*base, *raw)):
        return _by_values(_once(base), _once(raw)), [], []
    ordered = len(base) == len(raw) or counted
    if not ordered:  # a cell may return its state twice: (h, (h, c)) is (h, c); which of two places counts is not known
        base, raw = _once(base), _once(raw)
    names = {slot.name: slot for slot in raw}
    if len(base) == len(raw) and all(slot.name in names for slot in base):
        return [(slot, names[slot.name]) for slot in base], [], []
    pairs: list[tuple[Slot, Slot]] = []
    left, right = list(base), list(raw)
    if not loosely:
        _take(pairs, left, right, _same_word)
    if len(left) == len(right) and not pairs and not loosely and (ordered or not _same_shapes(left, right)):
        return list(zip(left, right, strict=True)), [], []
    for same in (_same_flags, _name_and_shape, _shape) if loosely else (_name_and_shape, _shape):
        _take(pairs, left, right, same)
    for same in (_merged, _same_table, _once_for_all, _turned) if loosely else (_may_be,):
        _take(pairs, left, right, same)
    return pairs, left, right


def _same_shapes(base: Sequence[Slot], raw: Sequence[Slot]) -> bool:
    """In whatever order."""
    return sorted(slot.value.shape for slot in base) == sorted(slot.value.shape for slot in raw)


def _take(
    pairs: list[tuple[Slot, Slot]], left: list[Slot], right: list[Slot], same: Callable[[Slot, Slot], bool]
) -> None:
    """Move what belongs together, each with the first that fits, from the two sides to the pairs."""
    for slot in list(left):
        partner = next((other for other in right if same(slot, other)), None)
        if partner is not None:
            pairs.append((slot, partner))
            left.remove(slot)
            right.remove(partner)


def _same_word(base: Slot, raw: Slot) -> bool:
    """One key of two dicts; a number is a position, and says less than a shape."""
    return base.name == raw.name and bool(base.name) and not base.name.isdigit()


def _may_be(base: Slot, raw: Slot) -> bool:
    """Nothing speaks for the two but that they are left; two keys of dicts that hold unlike things speak against it."""
    words = bool(base.name and raw.name) and not base.name.isdigit() and not raw.name.isdigit()
    return not words or math.prod(base.value.shape) == math.prod(raw.value.shape)


def name_of(base: Slot, raw: Slot) -> str:
    """What to call a pair: as raw does, or as base does where raw's name is empty or says nothing."""
    named = [slot.name for slot in (raw, base) if not slot.name.startswith(UNORDERED)]
    return next((name for name in named if name), "")


def _by_values(base: Sequence[Slot], raw: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
    """Where nothing tells what is what but what it holds: of equal shapes the likest first. What is left over was only
    seen on one side, and is no finding."""
    found: list[tuple[float, int, int]] = []
    for left, one in enumerate(base):
        for right, other in enumerate(raw):
            if one.value.shape == other.value.shape:
                found.append((_distance(one, other), left, right))
    pairs: list[tuple[int, int]] = []
    for _, left, right in sorted(found):
        if not any(left == one or right == other for one, other in pairs):
            pairs.append((left, right))
    return [(base[left], raw[right]) for left, right in sorted(pairs)]


def _distance(one: Slot, other: Slot) -> float:
    try:
        left, right = (slot.value.numpy().astype(np.float64) for slot in (one, other))
    except RuntimeError:  # nobody holds the elements any more: order has to do
        return 0.0
    return float(np.nan_to_num(np.abs(left - right), posinf=0.0).mean()) if left.size else 0.0


def _once(slots: Sequence[Slot]) -> list[Slot]:
    """Each tensor under its first name, at its first place."""
    found: dict[int, Slot] = {}
    for slot in slots:  # where it is returned again says nothing
        found.setdefault(slot.tensor, slot)
    return list(found.values())


def wherever_they_are(
    pairs: Sequence[tuple[Slot, Slot]], alone: Sequence[Slot], agree: Callable[[Slot, Slot], bool]
) -> tuple[list[tuple[Slot, Slot]], list[Slot]]:
    """Where raw's call returns more than base's, all states of an encoder say: of these the one that is base's, if
    there is one. Whether raw goes on from the right one is seen where it does."""
    found, left = list(pairs), list(alone)
    for place, (one, other) in enumerate(pairs):
        alike = [n for n, slot in enumerate(left) if slot.value.shape == one.value.shape]
        if not alike or agree(one, other):
            continue
        which = next((n for n in alike if agree(one, left[n])), None)
        if which is not None:
            found[place], left[which] = (one, left[which]), other
    return found, left


def in_whatever_order(
    pairs: Sequence[tuple[Slot, Slot]], agree: Callable[[Slot, Slot], bool]
) -> list[tuple[Slot, Slot]]:
    """Pairs of what two calls are given besides their first inputs, which two authors hand on in different orders:
    those that are not each other's are paired with those that are; what is left stays in order."""
    open_ = [place for place, pair in enumerate(pairs) if place and not agree(*pair)]
    if len(open_) < 2:
        return list(pairs)
    found, free = list(pairs), list(open_)
    told: dict[int, int] = {}
    for place in open_:
        which = next((other for other in free if agree(pairs[place][0], pairs[other][1])), None)
        if which is not None:
            told[place] = which
            free.remove(which)
    rest = iter(free)
    for place in open_:
        found[place] = pairs[place][0], pairs[told[place] if place in told else next(rest)][1]
    return found


def _name_and_shape(base: Slot, raw: Slot) -> bool:
    return base.name == raw.name and base.value.shape == raw.value.shape


def _merged(base: Slot, raw: Slot) -> bool:
    """One author keeps apart what the other has merged: prompts of each picture, or all of them. Masks, whose axes of
    length one stand for what they are repeated along, may say something else in each shape."""
    few, many = sorted((base.value.shape, raw.value.shape), key=len)
    if len(few) < 3 or merged_axes(many, few) != len(many):
        return False
    return all(slot.value.dtype.startswith(("float", "bfloat")) and not _is_mask(slot) for slot in (base, raw))


def _turned(base: Slot, raw: Slot) -> bool:
    """Batches first here, and places first there: a sequence, of which no two axes are equally long."""
    one, other = base.value.shape, raw.value.shape
    if len({1, *one}) < 4 or other != (one[1], one[0], *one[2:]) or len(one) != 3:
        return False
    return all(slot.value.dtype.startswith(("float", "bfloat")) for slot in (base, raw))


def _once_for_all(base: Slot, raw: Slot) -> bool:
    """A table that one author makes for a batch of one, or for a head of each, and the other for none: distances of
    places, angles. Of masks see ``_merged``."""
    few, many = sorted((base.value.shape, raw.value.shape), key=len)
    lengths = [tuple(size for size in shape if size != 1) for shape in (few, many)]
    if lengths[0] != lengths[1] or len(lengths[0]) < 2 or len(few) == len(many) or many[0] != 1:
        return False
    return _family(base) == _family(raw) and not any(_is_mask(slot) for slot in (base, raw))


def _same_table(base: Slot, raw: Slot) -> bool:
    """The same, of equal numbers: a sine and a cosine are told apart, whichever comes first."""
    if not _once_for_all(base, raw):
        return False
    one, other = (slot.value.numpy().reshape(-1) for slot in (base, raw))  # it is no mask, so somebody holds them
    return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=_ALIKE, atol=_ALIKE))


def _family(slot: Slot) -> str:
    return slot.value.dtype.rstrip("0123456789").removeprefix("b").removeprefix("u")


def _is_mask(slot: Slot) -> bool:
    """Whether it may leave something out: nothing but zeros, ones and what is added to scores."""
    try:
        array = slot.value.numpy()
    except RuntimeError:  # nobody holds the elements any more
        return True
    return bool(((array == 0) | (array == 1) | (array <= MASKED)).all())


def _same_flags(base: Slot, raw: Slot) -> bool:
    """Whether both say the same of every place, and not the same of all: one author passes more masks than the other,
    and their positions don't tell which is which."""
    if base.value.shape != raw.value.shape or not all(_flags(slot) for slot in (base, raw)):
        return False
    try:
        one, other = base.value.numpy(), raw.value.numpy()
    except RuntimeError:  # nobody holds the elements any more
        return False
    return bool(one.any()) and not bool(one.all()) and np.array_equal(one, other)


def _flags(slot: Slot) -> bool:
    return slot.value.dtype == "bool" and math.prod(slot.value.shape) <= _MOST_FLAGS


def _shape(base: Slot, raw: Slot) -> bool:
    return base.value.shape == raw.value.shape
