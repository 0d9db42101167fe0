"""Order-preserving alignment of two sequences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Row = Callable[[Item, int, int], "list[float]"]

_CELLS = 250_000  # above this only a band around the diagonal is looked at
_HALF_BAND = 48


def align_sequences(
    left: Sequence[Item],
    right: Sequence[Item],
    likeness: Callable[[Item, Item], float],
    key: Callable[[Item], Hashable],
    row: Row[Item] | None = None,
) -> list[tuple[Item, Item]]:
    """Pairs in order with the largest summed likeness; items that fit nothing are left out.

    Items of equal keys must fit each other as well as either fits anything: they are paired off at both ends
    without a look at the rest, so that two sequences that are alike cost linear time. ``row`` says the likeness of one
    item with a stretch of the right ones, where that is faster than one by one.
    """
    left_keys, right_keys = [key(item) for item in left], [key(item) for item in right]
    shorter = min(len(left), len(right))
    start = 0
    while start < shorter and left_keys[start] == right_keys[start]:
        start += 1
    end = 0
    while end < shorter - start and left_keys[-1 - end] == right_keys[-1 - end]:
        end += 1
    left_end, right_end = len(left) - end, len(right) - end

    def between(one: Item, first: int, last: int) -> list[float]:
        if row is not None:
            return row(one, start + first, start + last)
        return [likeness(one, other) for other in right[start + first : start + last]]

    return [
        *((one, other) for one, other in zip(left[:start], right[:start], strict=True) if likeness(one, other) > 0),
        *_best(left[start:left_end], right[start:right_end], between),
        *((one, other) for one, other in zip(left[left_end:], right[right_end:], strict=True) if likeness(one, other)),
    ]


def _best(left: Sequence[Item], right: Sequence[Item], row_of: Row[Item]) -> list[tuple[Item, Item]]:
    """By dynamic programming from the ends; of two ways that are equally good, the one that pairs earlier items."""
    if not left or not right:
        return []
    bands = _bands(len(left), len(right))
    scores: list[list[float]] = [[] for _ in left]
    best = [*([] for _ in left), [0.0] * (len(right) + 1)]
    for i in range(len(left) - 1, -1, -1):
        (start, stop), below = bands[i], _Row(best[i + 1], bands[i + 1][0])
        scores[i] = row_of(left[i], start, stop)
        reached = below.at(stop)
        row = [reached]
        for j in range(stop - 1, start - 1, -1):
            score = scores[i][j - start]
            taken = below.at(j + 1) + score if score > 0 else 0.0
            reached = max(taken, below.at(j), reached)
            row.append(reached)
        best[i] = row[::-1]
    return _follow(left, right, best, scores, bands)


class _Row:
    """The best sums from one row on, by column; before its band they are what they are where it begins."""

    def __init__(self, values: list[float], start: int) -> None:
        self._values, self._start = values, start

    def at(self, column: int) -> float:
        return self._values[max(column - self._start, 0)]


def _bands(rows: int, columns: int) -> list[tuple[int, int]]:
    """Per row the columns looked at: all of them, or a band around the diagonal where that would be too many.

    One more row than there are items, for the end; neither edge ever goes back.
    """
    if rows * columns <= _CELLS:
        return [(0, columns)] * (rows + 1)
    half = max(_HALF_BAND, min(abs(rows - columns) + 1, 4 * _CELLS // rows))
    centres = [row * columns // rows for row in range(rows)]
    return [*((max(0, centre - half), min(columns, centre + half)) for centre in centres), (0, columns)]


def _follow(
    left: Sequence[Item],
    right: Sequence[Item],
    best: list[list[float]],
    scores: list[list[float]],
    bands: list[tuple[int, int]],
) -> list[tuple[Item, Item]]:
    pairs: list[tuple[Item, Item]] = []
    i = j = 0
    while i < len(left):
        start, stop = bands[i]
        j = max(j, start)
        here, below = best[i][j - start], _Row(best[i + 1], bands[i + 1][0])
        score = scores[i][j - start] if j < stop else 0.0
        if score > 0 and here == below.at(j + 1) + score:
            pairs.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif here == below.at(j):
            i += 1
        else:
            j += 1
    return pairs
