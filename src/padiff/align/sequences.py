"""Order-preserving alignment of two sequences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")

_DP_CELLS = 4_000_000  # above this the middle is cut at items that occur once on both sides


def align_sequences(
    left: Sequence[Item],
    right: Sequence[Item],
    likeness: Callable[[Item, Item], float],
    key: Callable[[Item], Any],
) -> list[tuple[Item, Item]]:
    """Pairs in order with the largest summed likeness; items that fit nothing are left out.

    Equal keys at both ends are paired off first, so that two sequences that are alike cost linear time.
    """
    left_keys: list[Hashable] = [key(item) for item in left]
    right_keys: list[Hashable] = [key(item) for item in right]
    start = 0
    while start < min(len(left), len(right)) and left_keys[start] == right_keys[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left_keys[-1 - end] == right_keys[-1 - end]:
        end += 1
    # An item next to a difference may belong to it: a repeated key at the edge proves nothing.
    if start + end < max(len(left), len(right)):
        start, end = _retreat(left_keys, start, end), end
    middle_left = left[start : len(left) - end]
    middle_right = right[start : len(right) - end]
    pairs = list(zip(left[:start], right[:start], strict=True))
    if len(middle_left) * len(middle_right) <= _DP_CELLS:
        pairs += _best(middle_left, middle_right, likeness)
    else:
        pairs += _greedy(middle_left, middle_right, likeness)
    if end:
        pairs += zip(left[len(left) - end :], right[len(right) - end :], strict=True)
    return [(one, other) for one, other in pairs if likeness(one, other) > 0]


def _retreat(keys: Sequence[Hashable], start: int, end: int) -> int:
    """Hand a run of equal keys before a difference to the slow path, which looks at more than keys."""
    while start > 0 and start < len(keys) - end and keys[start - 1] == keys[start]:
        start -= 1
    return start


def _best(
    left: Sequence[Item], right: Sequence[Item], likeness: Callable[[Item, Item], float]
) -> list[tuple[Item, Item]]:
    rows, columns = len(left), len(right)
    if not rows or not columns:
        return []
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        row, below = best[i], best[i + 1]
        for j in range(columns - 1, -1, -1):
            score = likeness(left[i], right[j])
            taken = below[j + 1] + score if score > 0 else 0.0
            row[j] = max(taken, below[j], row[j + 1])
    pairs: list[tuple[Item, Item]] = []
    i = j = 0
    while i < rows and j < columns:
        score = likeness(left[i], right[j])
        if score > 0 and best[i][j] == best[i + 1][j + 1] + score:
            pairs.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _greedy(
    left: Sequence[Item], right: Sequence[Item], likeness: Callable[[Item, Item], float]
) -> list[tuple[Item, Item]]:
    """For very long stretches: the next item on the right that fits, looked for within a window."""
    pairs: list[tuple[Item, Item]] = []
    position = 0
    for item in left:
        window = range(position, min(position + 64, len(right)))
        found = max(window, key=lambda j: (likeness(item, right[j]), -j), default=None)
        if found is not None and likeness(item, right[found]) > 0:
            pairs.append((item, right[found]))
            position = found + 1
    return pairs
