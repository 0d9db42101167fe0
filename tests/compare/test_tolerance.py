"""What may be written for a tolerance, and the bounds that come with a dtype."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.compare.kinds import kind_of
from padiff.compare.tolerance import allowed_error, as_tolerance, round_up, rounding_bound
from padiff.errors import ArgumentError
from padiff.records import Tolerance

ACCEPTED = [
    ("auto", Tolerance(mode="auto")),
    ("exact", Tolerance(0.0, 0.0, "strict")),
    ((1e-3, 1e-6), Tolerance(1e-3, 1e-6, "strict")),
    ([0, 1], Tolerance(0.0, 1.0, "strict")),
    ((np.float32(0.5), 0), Tolerance(0.5, 0.0, "strict")),
    (Tolerance(1e-2, 0.0, "mean"), Tolerance(1e-2, 0.0, "mean")),
]
REFUSED = [
    "close",
    None,
    1e-3,
    (1e-3,),
    (1e-3, 1e-3, 1e-3),
    (-1e-3, 0),
    (0, -1.0),
    (math.nan, 0),
    (0, math.inf),
    ("1e-3", 0),
    (None, 0),
    (True, 0),
    Tolerance(rtol=-1.0),
    Tolerance(atol=math.nan),
    Tolerance(mode="abs_mean"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("value", "expected"), ACCEPTED, ids=[repr(value) for value, _ in ACCEPTED])
def test_accepts(value, expected):
    assert as_tolerance(value) == expected


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_refuses_and_says_what_came_and_what_is_expected(value):
    with pytest.raises(ArgumentError) as caught:
        as_tolerance(value)
    assert caught.value.message.startswith("tolerance: got ")
    assert repr(value) in caught.value.message
    assert '"auto"' in caught.value.message


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_round_up_is_above_and_has_one_digit(value):
    found = round_up(value)
    assert value < found <= value * 2.01
    assert float(f"{found:.0e}") == found


def test_round_up_of_nothing_is_nothing():
    assert round_up(0.0) == 0.0


@pytest.mark.parametrize(
    ("dtype", "relative"),
    [
        (np.float32, 800 * 2.0**-23),
        (np.float64, 40000 * 2.0**-52),
        (np.complex64, 800 * 2.0**-23),
        (np.float16, 30 * 2.0**-10),
        (ml_dtypes.bfloat16, 30 * 2.0**-7),
        (ml_dtypes.float8_e4m3fn, 2 * 2.0**-3),
        (np.int32, 0.0),
        (np.bool_, 0.0),
    ],
)
def test_rounding_bound_grows_with_base(dtype, relative):
    assert rounding_bound(kind_of(np.dtype(dtype)), 1e6) == pytest.approx(relative * 1e6, rel=1e-3)


def test_rounding_bound_of_zeros_is_some_subnormals():
    assert 0 < rounding_bound(kind_of(np.dtype(np.float32)), 0.0) < 1e-40


@pytest.mark.parametrize("dtype", ["U3", "O", "M8[s]", "V4"])
def test_what_is_no_number_has_no_kind(dtype):
    with pytest.raises(ArgumentError, match="cannot compare arrays of dtype"):
        kind_of(np.dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "narrow", "size", "error", "allowed"),
    [
        ("float32", 2.0**-10, 1e-8, 2e-8, True),  # it was float16 on its way, which has no such number
        ("float32", 2.0**-10, 1e-8, 1e-7, False),
        ("float32", 2.0**-7, 1e-8, 2e-8, False),  # bfloat16 has
        ("float32", 0.0, 1e-8, 2e-8, False),
        (ml_dtypes.bfloat16, 0.0, 1e-37, 1e-37, True),  # where exponents end
        ("float32", 0.0, 1e-37, 1e-37, True),
        ("float32", 0.0, 1e-28, 1e-28, False),
    ],
)
def test_what_is_too_small_for_a_dtype_may_be_lost(
    dtype: str, narrow: float, size: float, error: float, allowed: bool
) -> None:
    tolerance = Tolerance(mode="auto", predicted=0.0, narrow=narrow)
    assert (error <= allowed_error(kind_of(np.dtype(dtype)), tolerance, size)) is allowed
