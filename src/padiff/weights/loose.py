"""Pairing tensors that no table knows, a user's own parameters and buffers: by name, then by shape in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from padiff.weights.rows import Held

Pairs = list[tuple[Held, Held]]
Key = Callable[[Held], Hashable]


def pair_within(base: Sequence[Held], raw: Sequence[Held]) -> tuple[Pairs, list[Held], list[Held]]:
    """Pairs among the tensors of two modules that belong together, and what is left on each side.

    A name decides even when the shapes differ: that is a mistake worth a message. A frozen parameter may be a buffer
    elsewhere.
    """
    pairs: Pairs = []
    for key in (_name_and_role, _name_and_shape):
        found, base, raw = _once_each(base, raw, key)
        pairs += found
    found, base, raw = _in_order(base, raw, lambda held: held.role == "parameter" and held.spec.shape)
    pairs += found
    # A buffer may stay without partner, so it takes more than a shape to give it one.
    found, base, raw = _same_number(
        base, raw, lambda held: held.role == "buffer" and (held.spec.shape, held.spec.dtype)
    )
    return pairs + found, list(base), list(raw)


def pair_across(base: Sequence[Held], raw: Sequence[Held]) -> tuple[Pairs, list[Held], list[Held]]:
    """Pairs among what modules have left over: one model keeps in a part what the other keeps in the whole."""
    pairs, base, raw = _same_number(base, raw, lambda held: (held.role, held.name, held.spec.shape))
    found, base, raw = _same_number(base, raw, lambda held: held.role == "parameter" and held.spec.shape)
    return pairs + found, list(base), list(raw)


def _name_and_role(held: Held) -> Hashable:
    return held.name, held.role


def _name_and_shape(held: Held) -> Hashable:
    return held.name, held.spec.shape


def _once_each(base: Sequence[Held], raw: Sequence[Held], key: Key) -> tuple[Pairs, Sequence[Held], Sequence[Held]]:
    return _grouped(base, raw, key, lambda left, right: len(left) == len(right) == 1)


def _same_number(base: Sequence[Held], raw: Sequence[Held], key: Key) -> tuple[Pairs, Sequence[Held], Sequence[Held]]:
    return _grouped(base, raw, key, lambda left, right: len(left) == len(right))


def _in_order(base: Sequence[Held], raw: Sequence[Held], key: Key) -> tuple[Pairs, Sequence[Held], Sequence[Held]]:
    return _grouped(base, raw, key, lambda left, right: True)


def _grouped(
    base: Sequence[Held],
    raw: Sequence[Held],
    key: Key,
    sure: Callable[[Sequence[Held], Sequence[Held]], bool],
) -> tuple[Pairs, Sequence[Held], Sequence[Held]]:
    """Pair tensors of one key in order, where the two groups satisfy ``sure``; a key of False takes no part."""
    groups: dict[Hashable, tuple[list[Held], list[Held]]] = defaultdict(lambda: ([], []))
    for side, tensors in enumerate((base, raw)):
        for held in tensors:
            if (text := key(held)) is not False:
                groups[text][side].append(held)
    sure_groups = [(left, right) for left, right in groups.values() if left and right and sure(left, right)]
    pairs = [pair for left, right in sure_groups for pair in zip(left, right, strict=False)]
    done = {id(held) for pair in pairs for held in pair}
    return pairs, [h for h in base if id(h) not in done], [h for h in raw if id(h) not in done]
