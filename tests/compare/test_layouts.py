"""The same elements in another arrangement are found, stated and brought into raw's shape."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.compare.layouts import compare_arranged
from padiff.records import Array, Tolerance

PICTURE = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype("float32")
ROWS = PICTURE.transpose(0, 2, 3, 1).reshape(2, 20, 3)
HEADS = np.random.default_rng(1).normal(size=(2, 3, 7, 5)).astype("float32")
FILM = np.random.default_rng(2).normal(size=(6, 4, 3, 3)).astype("float32")
PATCHES = PICTURE.reshape(2, 3, 2, 2, 1, 5).transpose(0, 2, 4, 1, 3, 5).reshape(2, 2, 30)
CASES = {
    "a picture as rows of patches": (PICTURE, PATCHES, "base cut into patches of [2, 5]"),
    "rows of patches as a picture": (PATCHES, PICTURE, "base put together from patches of [2, 5]"),
    "patches of all pictures": (PICTURE, PATCHES.reshape(4, 30), "base cut into patches of [2, 5]"),
    "channels last": (PICTURE, PICTURE.transpose(0, 2, 3, 1), "permuted to [0, 2, 3, 1]"),
    "a picture as rows of places": (PICTURE, ROWS, "permuted to [0, 2, 3, 1], reshaped from [2, 3, 4, 5]"),
    "rows of places as a picture": (ROWS, PICTURE, "reshaped from [2, 20, 3], its axes then permuted to [0, 3, 1, 2]"),
    "heads joined": (HEADS, HEADS.transpose(0, 2, 1, 3).reshape(2, 7, 15), "permuted to [0, 2, 1, 3]"),
    "heads apart": (HEADS.transpose(0, 2, 1, 3).reshape(2, 7, 15), HEADS, "permuted to [0, 2, 1, 3]"),
    "frames of all pictures, and their places": (
        HEADS.reshape(6, 7, 5),
        HEADS.transpose(0, 2, 1, 3).reshape(14, 3, 5),
        "parted to [2, 3, 7, 5], its axes then permuted to [0, 2, 1, 3]",
    ),
    "pictures of all frames as rows of places": (
        FILM,
        FILM.reshape(2, 3, 4, 3, 3).transpose(0, 1, 3, 4, 2).reshape(2, 3, 9, 4),
        "parted to [2, 3, 4, 3, 3]",
    ),
    "an axis of one": (HEADS, HEADS[:, None], "reshaped from [2, 3, 7, 5]"),
    "flat": (HEADS, HEADS.reshape(-1), "reshaped from [2, 3, 7, 5]"),
}


@pytest.mark.parametrize(("base", "raw", "stated"), CASES.values(), ids=CASES)
def test_arrangement_is_found_and_stated(base: Array, raw: Array, stated: str) -> None:
    outcome, arranged = compare_arranged(base, raw, Tolerance(mode="auto"))
    assert outcome.verdict == "equal"
    assert stated in outcome.layout
    assert arranged is not None
    np.testing.assert_array_equal(arranged, raw)


@pytest.mark.parametrize(("base", "raw", "stated"), CASES.values(), ids=CASES)
def test_other_values_differ_in_any_arrangement(base: Array, raw: Array, stated: str) -> None:
    wrong = raw.copy()
    wrong.reshape(-1)[3] += 1
    assert not compare_arranged(base, wrong, Tolerance(mode="auto"))[0].agrees


PARTS = {"the last": (HEADS[:, :, 6:], HEADS), "the first two": (HEADS, HEADS[:, :2])}


@pytest.mark.parametrize(("base", "raw"), PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("loosely", [False, True])
def test_a_part_is_no_arrangement(base: Array, raw: Array, loosely: bool) -> None:
    """The last of seven fits all of them when it is repeated; that it is the last says more."""
    outcome, arranged = compare_arranged(base, raw, Tolerance(mode="auto"), loosely=loosely)
    assert (outcome.verdict, outcome.reason, outcome.layout) == ("different", "shape", "")
    assert arranged is None
