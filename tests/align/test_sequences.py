"""Laws of aligning two sequences."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.align import sequences
from padiff.align.sequences import align_sequences

Item = tuple[int, str]
"""Where it stands, what it is."""


def items(text: str) -> list[Item]:
    return list(enumerate(text))


def likeness(one: Item, other: Item) -> float:
    """Equal letters fit best, letters in two cases somewhat, neighbours in the alphabet a little."""
    if one[1] == other[1]:
        return 4.0
    if one[1].lower() == other[1].lower():
        return 2.5
    return 1.0 if abs(ord(one[1].lower()) - ord(other[1].lower())) == 1 else 0.0


def align(left: str, right: str) -> list[tuple[Item, Item]]:
    return align_sequences(items(left), items(right), likeness, lambda item: item[1])


def total(pairs: list[tuple[Item, Item]]) -> float:
    return sum(likeness(one, other) for one, other in pairs)


def best_total(left: str, right: str) -> float:
    """The largest sum there is, by trying everything."""

    @functools.cache
    def best(i: int, j: int) -> float:
        if i == len(left) or j == len(right):
            return 0.0
        here = likeness((i, left[i]), (j, right[j]))
        return max(best(i + 1, j), best(i, j + 1), here + best(i + 1, j + 1) if here else 0.0)

    return best(0, 0)


letters = st.text("aAbBcd", max_size=12)


@given(letters, letters)
def test_pairs_are_in_order_fit_and_are_the_best(left: str, right: str) -> None:
    pairs = align(left, right)
    for (one, other), (next_one, next_other) in itertools.pairwise(pairs):
        assert one[0] < next_one[0]
        assert other[0] < next_other[0]
    assert all(likeness(one, other) > 0 for one, other in pairs)
    assert total(pairs) == best_total(left, right)


@given(letters)
def test_a_sequence_with_itself(text: str) -> None:
    assert align(text, text) == list(zip(items(text), items(text), strict=True))


@given(letters, st.data())
def test_what_is_put_in_stays_out(text: str, data: st.DataObject) -> None:
    """Strangers in one of two equal sequences are the only ones without partner."""
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=4))
    more = text
    for place in sorted(places, reverse=True):
        more = more[:place] + "z" + more[place:]
    pairs = align(text, more)
    assert [one for one, _ in pairs] == items(text)
    assert "".join(other[1] for _, other in pairs) == text


@given(st.text("abcd", min_size=20, max_size=60), st.lists(st.integers(0, 19), max_size=5))
def test_the_band_loses_nothing_near_the_diagonal(text: str, removed: list[int]) -> None:
    other = "".join(letter for i, letter in enumerate(text) if i not in removed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "_CELLS", 0)
        patch.setattr(sequences, "_HALF_BAND", 16)
        pairs = align(text, other)
    assert total(pairs) == best_total(text, other)


@given(st.text("abcd", max_size=40), st.text("abcd", max_size=40))
def test_a_narrow_band_still_gives_pairs_in_order(left: str, right: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "_CELLS", 0)
        patch.setattr(sequences, "_HALF_BAND", 2)
        pairs = align(left, right)
    assert [one[0] for one, _ in pairs] == sorted({one[0] for one, _ in pairs})
    assert [other[0] for _, other in pairs] == sorted({other[0] for _, other in pairs})
    assert all(likeness(one, other) > 0 for one, other in pairs)
