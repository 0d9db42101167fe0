"""Shapes that hold the same in fewer axes."""

from __future__ import annotations

from collections.abc import Sequence


def merged_axes(many: Sequence[int], few: Sequence[int]) -> int | None:
    """How many of the first axes of ``many`` become ``few`` when neighbours are merged: three of ``[48, 4, 12]`` become
    ``[48, 48]``; None where they don't."""
    place = 0
    for size in few:
        product = 1
        while product < size and place < len(many):
            product *= many[place]
            place += 1
        if product != size:
            return None
    return place
