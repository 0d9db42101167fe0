"""Laws that hold for any two arrays, and agreement with the plain formulas in double."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from padiff.compare.arrays import compare_arrays
from padiff.compare.tolerance import as_tolerance
from padiff.records import Tolerance

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=6)
TOLERANCES = st.one_of(
    st.just(as_tolerance("auto")),
    st.just(as_tolerance("exact")),
    st.builds(
        Tolerance,
        st.sampled_from([0.0, 1e-7, 1e-3, 0.5]),
        st.sampled_from([0.0, 1e-6, 0.1]),
        st.sampled_from(["mean", "strict"]),
    ),
)


def arrays(dtype, shape, **limits):
    if np.dtype(dtype).kind in "biu":
        return hnp.arrays(dtype, shape)
    elements = st.floats(width=16 if np.dtype(dtype).itemsize == 2 else 32, allow_subnormal=False, **limits)
    return hnp.arrays(np.float32, shape, elements=elements).map(lambda a: a.astype(dtype))


@st.composite
def pairs(draw, **limits):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    base = draw(arrays(dtype, shape, **limits))
    raw = draw(st.one_of(arrays(dtype, shape, **limits), st.just(base)))
    if draw(st.booleans()) and base.dtype.kind != "b":
        with np.errstate(all="ignore"):
            raw = (base * np.asarray(draw(st.sampled_from([1.0, 1.0000002, 1.001, 2.0]))).astype(dtype)).astype(dtype)
    return base, np.asarray(raw)


@given(pairs(), TOLERANCES)
def test_everything_equals_itself(pair, tolerance):
    base, _ = pair
    found = compare_arrays(base, base.copy(), tolerance)
    assert found.verdict == "equal"
    assert found.numbers.max_abs == found.numbers.mean_abs == found.numbers.rmse == 0.0


@given(pairs(), TOLERANCES)
def test_differences_are_symmetric(pair, tolerance):
    base, raw = pair
    there, back = compare_arrays(base, raw, tolerance, detail=True), compare_arrays(raw, base, tolerance, detail=True)
    assert there.numbers.max_abs == back.numbers.max_abs
    assert there.numbers.max_ulp == back.numbers.max_ulp
    assert there.numbers.mean_abs == pytest.approx(back.numbers.mean_abs, rel=1e-6)
    assert there.numbers.cosine == pytest.approx(back.numbers.cosine, abs=1e-5)


@settings(max_examples=300)
@given(pairs(min_value=-1024, max_value=1024), TOLERANCES, st.booleans())
def test_agrees_with_the_plain_formulas(pair, tolerance, detail):
    base, raw = pair
    found = compare_arrays(base, raw, tolerance, detail=detail)
    if base.dtype.kind == "i":
        b, r = base.astype(object).astype(np.longdouble), raw.astype(object).astype(np.longdouble)
    else:
        b, r = base.astype(np.float64), raw.astype(np.float64)
    gap = np.abs(r - b)
    n = found.numbers
    assert n.max_abs == pytest.approx(float(gap.max()), rel=1e-6)
    assert n.mean_abs == pytest.approx(float(gap.mean()), rel=1e-5)
    assert n.base_mean_abs == pytest.approx(float(np.abs(b).mean()), rel=1e-5)
    assert n.rmse == pytest.approx(float(np.sqrt((gap**2).mean())), rel=1e-5)
    assert n.base_rms == pytest.approx(float(np.sqrt((b**2).mean())), rel=1e-5)
    norms = float(np.sqrt((b**2).sum())) * float(np.sqrt((r**2).sum()))
    if norms > 0:
        assert n.cosine == pytest.approx(float((b * r).sum()) / norms, abs=1e-4)
    if tolerance.mode == "strict":
        over = gap > tolerance.atol + tolerance.rtol * np.abs(b)
        assert found.agrees == (not over.any())
        if n.mismatched is not None:
            assert n.mismatched == np.count_nonzero(over)
    if tolerance.mode == "mean":
        allowed = tolerance.atol + tolerance.rtol * np.abs(b).mean()
        assume(abs(gap.mean() - allowed) > 1e-12 * allowed or allowed == 0)
        assert found.agrees == (gap.mean() <= allowed)
    if n.worst is not None:
        assert float(gap[n.worst]) == pytest.approx(float(gap.max()), rel=1e-12)  # integers beyond a double
    assert (found.verdict == "equal") == (gap.max() == 0)


@given(st.floats(1e-6, 1.0), st.sampled_from([np.float32, np.float64]))
def test_mean_bound_is_decided_in_double_next_to_the_bound(rtol, dtype):
    base = np.linspace(1, 2, 1001).astype(dtype)
    raw = base * dtype(1 + rtol)
    b, r = base.astype(np.float64), raw.astype(np.float64)
    exact = float(np.abs(r - b).mean() / np.abs(b).mean())
    assert compare_arrays(base, raw, Tolerance(exact * (1 - 1e-9), 0.0)).verdict == "different"
    assert compare_arrays(base, raw, Tolerance(exact * (1 + 1e-9), 0.0)).verdict == "rounding"


@given(st.floats(1e-9, 1e-3))
def test_cosine_keeps_small_angles(angle):
    base, raw = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    assert 1 - compare_arrays(base, raw, Tolerance()).numbers.cosine == pytest.approx(angle**2 / 2, rel=1e-3, abs=2e-16)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e-12, 1e-6, 1e6, 1e30, 1e300])
@pytest.mark.parametrize("shared", [0.0, math.nan])
def test_cosine_of_vectors_of_very_different_length(scale, shared):
    base, raw = np.array([2.0, 0.0, shared]), np.array([-1.0, 1.0, shared]) * scale
    assert compare_arrays(base, raw, Tolerance()).numbers.cosine == pytest.approx(-(0.5**0.5), rel=1e-9)
