"""Which tensors that the user marked belong together: those of one name, at the same place, else in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from padiff.records import Call

NEAR = 0.05
"""How far apart two tensors may be that are taken for the same, relative to them."""


def tag_key(tag: Call) -> tuple[str, int]:
    """The name that the user gave it, and how many times it had been given before."""
    return tag.path.rpartition("@")[2], tag.occurrence


def tags_of(calls: Sequence[Call]) -> dict[tuple[str, int], Call]:
    """All that was marked inside some calls."""
    return {tag_key(op): op for call in calls for op in call.ops if op.tag}


class TagPairing:
    """Finds base's tag for each of raw's as they come. A name may be given many times, and not at all at some places:
    what counts is after which call, then in which module, then how often it was given before."""

    def __init__(self, base_calls: Sequence[Call], modules: Mapping[int, int]) -> None:
        self._by_order = tags_of(base_calls)
        self._modules = modules
        """Module of raw to base's."""
        self._calls: dict[int, int] = {}
        """Call of raw to base's."""
        self._by_place: dict[tuple[str, str, int], list[Call]] = {}
        for tag in sorted(self._by_order.values(), key=lambda tag: tag.occurrence):
            for how, where in (("after", tag.begun - 1), ("in", tag.node)):
                self._by_place.setdefault((_name(tag), how, where), []).append(tag)
        self._seen: Counter[tuple[str, str, int]] = Counter()
        """How many tags of raw were met at a place of base."""
        self._found: dict[int, Call | None] = {}

    def call_paired(self, base: Call, raw: Call) -> None:
        """Two calls belong together."""
        self._calls.setdefault(raw.index, base.index)

    def base_tag(self, tag: Call) -> Call | None:
        """What base marked with the same name."""
        if tag.index not in self._found:
            self._found[tag.index] = self._first_free(tag)
        return self._found[tag.index]

    def _first_free(self, tag: Call) -> Call | None:
        taken = {found.index for found in self._found.values() if found is not None}
        known = False
        for held, at_raws in self._options(tag):
            if held is not None and held.index not in taken and (at_raws or not known or _alike(held, tag)):
                return held
            known = known or at_raws
        return None

    def _options(self, tag: Call) -> list[tuple[Call | None, bool]]:
        """Tags of base that may be meant, and whether it is known that they stand where raw's does."""
        found: list[tuple[Call | None, bool]] = []
        for how, where in (("after", self._calls.get(tag.begun - 1)), ("in", self._modules.get(tag.node))):
            if where is not None:
                place = (_name(tag), how, where)
                there = self._by_place.get(place, [])[self._seen[place] :]
                found.append((there[0] if there else None, how == "after"))
                self._seen[place] += 1
        return [*found, (self._by_order.get(tag_key(tag)), False)]


def _name(tag: Call) -> str:
    return tag.path.rpartition("@")[2]


def _alike(base: Call, raw: Call) -> bool:
    """Whether two may well be the same tensor, marked at different places: where base marks nothing at raw's, another
    place may be meant, or none."""
    for one, other in zip(base.outputs, raw.outputs, strict=False):
        if one.value.shape != other.value.shape:
            return False
        if one.value.overwritten or other.value.overwritten or "released" in (one.value.dtype, other.value.dtype):
            continue
        left, right = one.value.numpy(), other.value.numpy()
        both = np.isfinite(left) & np.isfinite(right)
        gap = left[both].astype(np.complex128) - right[both]
        if np.linalg.norm(gap) > NEAR * np.linalg.norm(left[both].astype(np.complex128)):
            return False
    return True
