"""One pair of arrays: verdict, reason, numbers, message."""

import math

import ml_dtypes
import numpy as np
import pytest

from padiff.compare.arrays import compare_arrays, missing
from padiff.compare.tolerance import as_tolerance
from padiff.records import Tolerance

EXACT = as_tolerance("exact")
AUTO = as_tolerance("auto")
MEAN = Tolerance()
STRICT = Tolerance(1e-5, 1e-8, "strict")
MODES = [MEAN, STRICT, EXACT, AUTO]

REALS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
INTS = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.bool_, ml_dtypes.int4]
ALL = [*REALS, *INTS, np.complex64, np.complex128, np.longdouble]


@pytest.mark.parametrize("dtype", ALL, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("tolerance", MODES, ids=str)
def test_each_dtype_equals_itself_and_not_another(dtype, tolerance):
    base = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    same = compare_arrays(base, base.copy(), tolerance)
    assert (same.verdict, same.reason, same.message) == ("equal", None, "equal")
    assert (same.numbers.size, same.numbers.max_abs, same.numbers.cosine) == (6, 0.0, 1.0)
    raw = base.copy()
    raw[1, 1] = 1
    other = compare_arrays(base, raw, tolerance)
    assert (other.verdict, other.reason) == ("different", "values")
    assert (other.numbers.mismatched, other.numbers.max_abs, other.numbers.worst) == (1, 1.0, (1, 1))
    assert (other.numbers.base_worst, other.numbers.raw_worst) == (0, 1)
    assert other.numbers.mean_abs == pytest.approx(1 / 6)
    assert other.numbers.rmse == pytest.approx(6**-0.5)
    assert other.numbers.cosine == pytest.approx(4 / math.sqrt(20))
    assert "\n" not in other.message


@pytest.mark.parametrize("tolerance", MODES, ids=str)
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_empty_arrays_agree(tolerance, shape):
    found = compare_arrays(np.zeros(shape, np.float32), np.zeros(shape, np.float32), tolerance, detail=True)
    assert (found.verdict, found.numbers.size) == ("equal", 0)


@pytest.mark.parametrize("tolerance", MODES, ids=str)
def test_scalars(tolerance):
    one = np.array(1.0, np.float32)
    assert compare_arrays(one, one.copy(), tolerance).verdict == "equal"
    found = compare_arrays(one, np.array(2.5, np.float32), tolerance)
    assert (found.numbers.worst, found.numbers.base_worst, found.numbers.raw_worst) == ((), 1.0, 2.5)
    assert "1 of 1 values differ, largest absolute difference 1.5e+00 (base 1.0, raw 2.5)" in found.message


def test_shape_comes_before_dtype():
    found = compare_arrays(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float64), MEAN)
    assert (found.verdict, found.reason, found.numbers) == ("different", "shape", None)
    assert found.message == "shapes differ: base [2, 3], raw [3, 2]"


def test_missing_is_a_difference_of_structure():
    found = missing("raw has no output 1")
    assert (found.verdict, found.reason, found.message) == ("different", "structure", "raw has no output 1")


VALUES = np.linspace(-3, 3, 50)
DTYPES = [
    (VALUES.astype(np.float16).astype(np.float32), VALUES.astype(np.float16), MEAN, "the values are equal"),
    (VALUES, VALUES.astype(np.float32), STRICT, "the values agree (strict, rtol=1e-05, atol=1e-08)"),
    (VALUES, VALUES.astype(np.float16), MEAN, "the values agree within the rounding of float16"),
    (VALUES.astype(np.float16), VALUES.astype(ml_dtypes.bfloat16), MEAN, "agree within the rounding of bfloat16"),
    (VALUES, VALUES.astype(np.complex64), AUTO, "the values agree (auto)"),
    (np.array([1, 2]), np.array([1, 2], np.int32), EXACT, "the values are equal"),
    (np.array([True, False]), np.array([1.0, 0.0]), EXACT, "the values are equal"),
    (np.array([1, 2]), np.array([1.0, 3.0]), MEAN, "and so do the values: 1 of 2 values differ"),
    (np.array([1.0, 1e6]), np.array([1, np.inf], np.float16), AUTO, "and so do the values: NaN or Inf"),
]


@pytest.mark.parametrize(("base", "raw", "tolerance", "said"), DTYPES, ids=[row[3] for row in DTYPES])
def test_other_dtype_is_a_difference_and_says_what_the_values_do(base, raw, tolerance, said):
    found = compare_arrays(base, raw, tolerance)
    assert (found.verdict, found.reason, found.suggestion) == ("different", "dtype", None)
    assert found.message.startswith(f"dtypes differ: base {base.dtype}, raw {raw.dtype}; ")
    assert said in found.message


NAN, INF = math.nan, math.inf
NONFINITE = [
    (1.0, 1.0, True),
    (NAN, NAN, True),
    (INF, INF, True),
    (-INF, -INF, True),
    (NAN, 1.0, False),
    (1.0, NAN, False),
    (INF, 1.0, False),
    (1.0, -INF, False),
    (INF, -INF, False),
    (INF, NAN, False),
    (NAN, -INF, False),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.complex64, np.longdouble])
@pytest.mark.parametrize("tolerance", MODES, ids=str)
@pytest.mark.parametrize(("base", "raw", "agrees"), NONFINITE)
def test_nonfinite(base, raw, agrees, tolerance, dtype):
    left, right = np.array([[2, 2], [3, base]], dtype), np.array([[2, 2], [3, raw]], dtype)
    found = compare_arrays(left, right, tolerance)
    assert (found.verdict, found.reason) == (("equal", None) if agrees else ("different", "nonfinite"))
    assert found.numbers.size == 4
    if not agrees:
        bad = [int(not math.isfinite(side)) for side in (base, raw)]
        assert (
            f"{bad[0]} in base, {bad[1]} in raw, of 4 values, the first that differs at [1, 1] (base" in found.message
        )
        assert found.numbers.max_abs == 0.0
    if not (math.isfinite(base) and math.isfinite(raw)):
        assert found.numbers.base_mean_abs == pytest.approx(7 / 3)


def test_shared_nonfinite_does_not_hide_a_difference():
    base = np.array([NAN, INF, 1.0, 2.0], np.float32)
    raw = np.array([NAN, INF, 1.0, 3.0], np.float32)
    found = compare_arrays(base, raw, MEAN)
    assert (found.reason, found.numbers.worst, found.numbers.mismatched) == ("values", (3,), 1)
    assert (found.numbers.mean_abs, found.numbers.max_ulp) == (0.5, 1 << 22)


def test_nonfinite_parts_of_complex_numbers():
    base = np.array([complex(NAN, 1), complex(1, INF)], np.complex64)
    assert compare_arrays(base, base.copy(), MEAN).verdict == "equal"
    found = compare_arrays(base, np.array([complex(NAN, 1), complex(1, -INF)], np.complex64), MEAN)
    assert (found.reason, "at [1]" in found.message) == ("nonfinite", True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tolerance", MODES, ids=str)
def test_the_largest_numbers_are_finite(dtype, tolerance):
    mask = np.full(1000, np.finfo(dtype).min, dtype)
    mask[::2] = 0
    assert compare_arrays(mask, mask.copy(), tolerance).verdict == "equal"
    raw = mask.copy()
    raw[1] = np.nextafter(raw[1], 0)
    found = compare_arrays(mask, raw, tolerance)
    assert found.verdict == ("different" if tolerance == EXACT else "rounding")
    assert math.isfinite(found.numbers.base_rms) and math.isfinite(found.numbers.base_mean_abs)
    assert compare_arrays(mask, -mask, tolerance).reason == "values"


@pytest.mark.parametrize(("dtype", "tiny"), [(np.float32, 1e-30), (np.float64, 1e-200), (np.float32, 1e-41)])
def test_tiny_numbers_are_not_lost(dtype, tiny):
    base = np.full(100, tiny, dtype)
    found = compare_arrays(base, base * dtype(2), AUTO)
    assert found.verdict == "different"
    assert found.numbers.rmse == pytest.approx(float(base[0]), rel=1e-5)


EXTREMES = [
    (np.int64, -(2**63), 2**63 - 1, 2.0**64),
    (np.int64, 2**63 - 1, 2**63 - 2, 1.0),
    (np.int64, -(2**63), -(2**63) + 1, 1.0),
    (np.uint64, 0, 2**64 - 1, 2.0**64),
    (np.uint64, 2**64 - 1, 2**64 - 2, 1.0),
    (np.int32, -(2**31), 2**31 - 1, 2.0**32 - 1),
    (np.uint8, 0, 255, 255.0),
    (np.int8, -128, 127, 255.0),
]


@pytest.mark.parametrize(("dtype", "base", "raw", "gap"), EXTREMES)
def test_integers_do_not_overflow(dtype, base, raw, gap):
    for tolerance in (EXACT, AUTO):
        found = compare_arrays(np.array([base, 1], dtype), np.array([raw, 1], dtype), tolerance)
        assert (found.verdict, found.numbers.max_abs, found.numbers.mean_abs) == ("different", gap, gap / 2)
        assert (found.numbers.base_worst, found.numbers.raw_worst, found.numbers.max_ulp) == (base, raw, None)


def test_complex_differences_are_lengths():
    found = compare_arrays(np.array([1 + 1j, 2j]), np.array([4 + 5j, 2j]), Tolerance(0.0, 4.9, "strict"))
    assert (found.numbers.max_abs, found.numbers.mismatched, found.numbers.base_worst) == (5.0, 1, 1 + 1j)


def test_errors_of_opposite_sign_do_not_cancel():
    base = np.ones(1000, np.float32)
    raw = base + np.where(np.arange(1000) % 2, 0.5, -0.5).astype(np.float32)
    found = compare_arrays(base, raw, Tolerance(0.4, 0.0, "mean"))
    assert (found.verdict, found.numbers.mean_abs, found.allowed) == ("different", 0.5, 0.4)
    assert compare_arrays(base, raw, Tolerance(0.5, 0.0, "mean")).verdict == "rounding"


def test_detail_is_given_on_request_and_on_difference():
    base = np.array([0.0, 1.0, 2.0], np.float32)
    raw = np.nextafter(base, np.float32(9))
    quick = compare_arrays(base, raw, STRICT)
    assert (quick.verdict, quick.numbers.mismatched, quick.numbers.worst) == ("rounding", None, None)
    full = compare_arrays(base, raw, STRICT, detail=True)
    assert (full.verdict, full.numbers.mismatched, full.numbers.worst, full.numbers.max_ulp) == ("rounding", 0, (2,), 1)


def test_max_rel_leaves_zeros_out_unless_all_are():
    assert compare_arrays(np.array([0.0, 2.0]), np.array([1.0, 3.0]), EXACT).numbers.max_rel == 0.5
    assert compare_arrays(np.zeros(2), np.array([1.0, 0.0]), EXACT).numbers.max_rel == math.inf


MESSAGES = [
    (MEAN, "1 of 4 values differ, largest absolute difference 5.0e-01 at [1, 0] (base 2.0, raw 2.5), "
     "mean error 1.2e-01, allowed 1.3e-07 (mean, rtol=1e-07, atol=0)"),
    (STRICT, "1 of 4 values differ, largest absolute difference 5.0e-01 at [1, 0] (base 2.0, raw 2.5), "
     "allowed 2.0e-05 there (strict, rtol=1e-05, atol=1e-08)"),
    (AUTO, "1 of 4 values differ, largest absolute difference 5.0e-01 at [1, 0] (base 2.0, raw 2.5), "
     "rms error 2.5e-01, allowed 1.4e-04 (auto)"),
]  # fmt: skip


@pytest.mark.parametrize(("tolerance", "message"), MESSAGES, ids=["mean", "strict", "auto"])
def test_message_says_how_many_how_much_where_and_what_was_allowed(tolerance, message):
    base = np.array([[1.0, 0.2], [2.0, -2.0]], np.float32)
    raw = base.copy()
    raw[1, 0] = 2.5
    assert compare_arrays(base, raw, tolerance).message == message


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_message_shows_values_in_the_digits_of_their_dtype(dtype):
    assert "(base 0.1, raw 0.3)" in compare_arrays(np.array([0.1], dtype), np.array([0.3], dtype), MEAN).message


def test_strict_message_names_the_place_that_is_over_when_the_largest_is_not():
    found = compare_arrays(np.array([1000.0, 1.0]), np.array([1001.0, 1.5]), Tolerance(0.01, 0.0, "strict"))
    assert found.message == (
        "1 of 2 values differ, largest absolute difference 1.0e+00 at [0] (base 1000.0, raw 1001.0), "
        "furthest over its bound at [1] (base 1.0, raw 1.5), allowed 1.0e-02 (strict, rtol=0.01, atol=0)"
    )
    assert (found.numbers.worst, found.allowed) == ((0,), 0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "tolerance",
    [Tolerance(1e-18, 0.0, "mean"), Tolerance(0.0, 0.0, "strict"), Tolerance(0.0, 1e-18, "strict")],
    ids=str,
)
@pytest.mark.parametrize("zeros", [False, True])
def test_rounding_noise_gets_a_suggestion_that_holds(dtype, tolerance, zeros):
    rng = np.random.default_rng(3)
    base = rng.standard_normal(5000)
    noise = 3 * float(ml_dtypes.finfo(dtype).eps) * rng.standard_normal(5000)
    raw = base * (1 + noise)
    if zeros:
        base[::10], raw[::10] = 0.0, noise[::10]
    base, raw = base.astype(dtype), raw.astype(dtype)
    found = compare_arrays(base, raw, tolerance)
    assert found.verdict == "different"
    assert found.suggestion is not None and found.suggestion.mode == tolerance.mode
    by_atol = zeros and tolerance.mode == "strict"
    kept = (found.suggestion.rtol, tolerance.rtol) if by_atol else (found.suggestion.atol, tolerance.atol)
    assert kept[0] == kept[1]
    assert compare_arrays(base, raw, found.suggestion).verdict == "rounding"


@pytest.mark.parametrize("tolerance", MODES, ids=str)
def test_a_real_difference_gets_no_suggestion(tolerance):
    base = np.linspace(1, 2, 100, dtype=np.float32)
    assert compare_arrays(base, base + np.float32(0.1), tolerance).suggestion is None
    assert compare_arrays(np.arange(9), np.arange(9) + 1, tolerance).suggestion is None
