"""Each fault is named rightly, and none of the others is; what nothing known explains stays unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from padiff.diagnose.causes import differing_settings, explain
from padiff.diagnose.causes.explain import ALIKE, FIRST, MASKS, STEP, UNLIKE, WHOLE, _asked
from padiff.diagnose.causes.functions import erf
from padiff.diagnose.causes.settings import by_settings
from padiff.diagnose.causes.trial import Trial
from padiff.records import Cause, DrawGap
from tests.diagnose.faults import FAULTS, agrees, scene


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FAULTS)
def test_first_cause(name: str, seed: int) -> None:
    causes, maker = FAULTS[name]
    rng = np.random.default_rng(seed)
    found = explain(scene(maker(rng), rng))
    if causes:
        assert found, "no cause"
        assert found[0].name in causes, "\n".join(map(str, found))
    else:
        assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("name", [name for name, (causes, _) in FAULTS.items() if causes])
def test_agreeing_tensors_have_no_cause(name: str) -> None:
    """The same place without its fault: rounding alone must not be explained away."""
    rng = np.random.default_rng(7)
    fields = FAULTS[name][1](rng) | {"repeats": lambda: True}
    right = {"found": fields["expected"], "raw_settings": fields.get("base_settings", {}), "draws": ()}
    weights = {"raw_weights": fields.get("base_weights", {}), "raw_ties": fields.get("base_ties", {})}
    assert explain(scene(fields | right | weights, rng)) == ()


def test_every_finder_speaks_up_somewhere() -> None:
    """Settings are tried on real modules; every other function finds something in one of the faults."""
    silent = {*FIRST, *MASKS, *UNLIKE, *WHOLE, *STEP, *ALIKE} - {by_settings}
    for _, maker in FAULTS.values():
        rng = np.random.default_rng(0)
        with np.errstate(all="ignore"):
            trial = Trial(scene(maker(rng), rng))
            silent -= {finder for finder in _asked(trial) if finder in silent and any(finder(trial))}
    assert {finder.__name__ for finder in silent} == set()


def first(fields: dict[str, Any]) -> Cause:
    return explain(scene(fields, np.random.default_rng(0)))[0]


def test_evidence_says_what_was_tried() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6, 16))
    cause = first({"expected": x, "found": x / 4.0, "base_settings": {"head_dim": 16}})
    assert str(cause) == "scale: every output of raw is base's times 0.25 (1/4 or 1/sqrt(head_dim))"
    assert json.loads(json.dumps(cause.to_dict())) == {
        "name": "scale",
        "evidence": cause.evidence,
        "confidence": 0.9,
        "tested": True,
    }
    cause = first({"expected": x, "found": 0.8 * x, "base_settings": {"p": 0.2}, "raw_settings": {"p": 0.2}})
    assert str(cause).startswith("dropout: every output of raw is base's times 0.8 (1 - p of 0.2")
    cause = first({"expected": x + 1, "found": x})
    assert str(cause) == "offset: every value of base is raw's plus 1"


def test_settings_are_tried_one_by_one_then_together() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8))
    asked: list[dict[str, Any]] = []

    def run(settings: Mapping[str, Any]) -> Any:
        return (x * settings["a"] ** 2 + settings["b"] * np.sin(7 * x)).astype(np.float32)

    def place(raw: dict[str, Any]) -> tuple[Cause, ...]:
        base = {"a": 1.0, "b": 2.0, "c": 5}

        def retry(changes: Mapping[str, Any]) -> Any:
            asked.append(dict(changes))
            return run(raw | changes)

        fields = {"expected": run(base), "found": run(raw), "base_settings": base, "raw_settings": raw, "retry": retry}
        return explain(scene(fields, np.random.default_rng(0)))

    assert str(place({"a": 3.0, "b": 2.0, "c": 6})[0]) == (
        "a: a is 3.0 in raw and 1.0 in base; with base's value the outputs agree"
    )
    assert asked[:2] == [{"a": 1.0}, {"c": 5}]
    found = place({"a": 3.0, "b": 4.0, "c": 6})[0]
    assert found.name == "a and b"
    assert "a is 3.0 in raw and 1.0 in base; b is 4.0 in raw and 2.0 in base" in found.evidence


def test_a_setting_that_does_not_explain_is_no_cause() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8))
    fields = {"expected": x, "found": x + 0.1 * np.random.default_rng(1).normal(size=x.shape)}
    settings = {"base_settings": {"eps": 1e-5}, "raw_settings": {"eps": 1e-6}}
    again = fields["found"].astype(np.float32)
    assert explain(scene(fields | settings | {"retry": lambda changes: again}, np.random.default_rng(0))) == ()
    assert explain(scene(fields | settings, np.random.default_rng(0))) == ()


def test_a_module_that_cannot_run_with_other_settings_tells_nothing() -> None:
    def retry(changes: Mapping[str, Any]) -> Any:
        raise RuntimeError("no such kernel")

    x = np.random.default_rng(0).normal(size=(5, 8))
    fields = {"expected": x, "found": 2 * x, "base_settings": {"a": 1}, "raw_settings": {"a": 2}, "retry": retry}
    assert [cause.name for cause in explain(scene(fields, np.random.default_rng(0)))] == ["scale"]


def test_kernels_wider_than_the_picture_are_not_tried() -> None:
    tried: list[Mapping[str, Any]] = []

    def retry(changes: Mapping[str, Any]) -> Any:
        tried.append(dict(changes))
        return x.astype(np.float32) if len(changes) == 2 else None

    x = np.random.default_rng(0).normal(size=(2, 4, 2, 2))
    fields: dict[str, Any] = {"expected": x, "found": np.abs(x[::-1]) + 3, "given": {"input 0": x}, "retry": retry}
    fields["base_settings"] = {"kernel_size": (3, 3), "padding": 1, "dilation": (1, 1)}
    fields["raw_settings"] = {"kernel_size": (3, 3), "padding": 2, "dilation": (2, 2)}
    assert explain(scene(fields, np.random.default_rng(0)))[0].name == "padding and dilation"
    assert {"padding": 1} not in tried and {"dilation": (1, 1)} in tried


def test_differing_settings() -> None:
    base = {"eps": 1e-5, "stride": (2, 2), "p": 0.1, "mode": "bilinear", "align_corners": None, "only": 1, "name": "a"}
    raw = {"eps": 1e-6, "stride": 2, "p": 0.1, "mode": "nearest", "align_corners": False, "name": "b", "training": True}
    assert differing_settings(base, raw) == (("eps", 1e-5, 1e-6), ("mode", "bilinear", "nearest"))
    assert differing_settings({"training": False}, {"training": True}) == (("training", False, True),)
    assert differing_settings({"a": None, "b": (1, 2), "c": 0}, {"a": 0.5, "b": (1, 3), "c": False}) == (
        ("a", None, 0.5),
        ("b", (1, 2), (1, 3)),
    )


def test_nondeterminism_comes_first() -> None:
    x = np.random.default_rng(0).normal(size=(5, 8))
    found = explain(scene({"expected": x, "found": -x, "repeats": lambda: False}, np.random.default_rng(0)))
    assert [cause.name for cause in found[:2]] == ["nondeterminism", "sign"]


def test_a_draw_that_cannot_come_out_otherwise_is_no_cause() -> None:
    """A layer that base drops with a chance of zero, and raw never."""
    x = np.random.default_rng(0).normal(size=(5, 8))
    for keeps, names in (((0.0, None), ["sign"]), ((0.1, None), ["dropout", "sign"])):
        gap = DrawGap("base only", "layers", "", "a mask", "", masked=True, keeps=keeps)
        found = explain(scene({"expected": x, "found": -x, "draws": (gap,)}, np.random.default_rng(0)))
        assert [cause.name for cause in found] == names


def test_erf_is_exact_enough() -> None:
    import math

    x = np.linspace(-7, 7, 3001)
    assert np.abs(erf(x) - [math.erf(v) for v in x]).max() < 1e-10


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_small_tensors_prove_nothing(size: int) -> None:
    """A number fitted to a few elements always fits."""
    one, other = np.random.default_rng(3).normal(size=(2, size))
    fields = {"expected": one, "found": other, "given": {"x": np.random.default_rng(4).normal(size=size)}}
    assert explain(scene(fields, np.random.default_rng(0))) == ()


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (np.zeros((3, 4)), np.zeros((3, 4))),
        (np.zeros((3, 4)), np.full((3, 4), np.nan)),
        (np.ones((3, 4), dtype=bool), np.zeros((3, 4), dtype=bool)),
        (np.ones((3, 4), dtype=np.complex64), np.zeros((3, 4), dtype=np.complex64)),
        (np.float32(3), np.float32(4)),
        (np.zeros((0, 4)), np.zeros((3, 4))),
        (np.full((6, 6), 3e38), np.full((6, 6), -3e38)),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object)),
    ],
    ids=["zeros", "nan", "bool", "complex", "scalar", "empty", "huge", "objects"],
)
def test_odd_tensors_do_not_raise(expected: Any, found: Any) -> None:
    explain(scene({"expected": np.asarray(expected), "found": np.asarray(found)}, np.random.default_rng(0)))


@pytest.mark.parametrize("shape", [(64, 256, 768), (1, 4096, 4096), (8, 96, 128, 128), (20_000_000,), (2, 8_000_000)])
def test_large_tensors_are_cut(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    h = rng.normal(size=shape).astype(np.float32)
    whole = scene({"expected": x + h, "found": h, "given": {"x": x}, "around": {"h": h}}, rng)
    trial = Trial(whole)
    assert trial.expected.size <= 4 * (1 << 20)
    assert all(array.size == trial.expected.size for array in trial.at_hand.values())
    assert explain(whole)[0].name == "missing residual"


def test_a_fault_at_the_end_of_a_large_tensor_is_looked_at() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 64, 128)).astype(np.float32)
    h = rng.normal(size=(400, 64, 128)).astype(np.float32)
    expected, found = x + h, x + h
    found[399] = h[399]
    made = scene({"expected": expected, "found": found, "given": {"x": x}}, rng)
    trial = Trial(made)
    assert trial.expected.shape == (128, 64, 128)
    assert np.array_equal(trial.found[-1].astype(np.float32), h[399])
    assert np.array_equal(trial.cut(x)[-1], x[399])


def test_agrees_of_the_tests_is_not_lax() -> None:
    x = np.random.default_rng(0).normal(size=(50, 50))
    assert agrees(x, x * (1 + 1e-7))
    assert not agrees(x, x * (1 + 1e-5))


def loosely(base: Any, raw: Any) -> bool:
    """Fifty times as much as rounding makes."""
    if base.shape != raw.shape or not np.array_equal(np.isfinite(base), np.isfinite(raw)):
        return False
    finite = np.isfinite(base)
    one, other = base[finite].astype(np.float64), raw[finite].astype(np.float64)
    return not one.size or bool(np.sqrt(np.mean((one - other) ** 2)) <= 1e-4 * np.sqrt(np.mean(one**2)) + 1e-30)


@pytest.mark.parametrize("name", FAULTS)
def test_a_loose_tolerance_claims_nothing_wrong(name: str) -> None:
    causes, maker = FAULTS[name]
    rng = np.random.default_rng(11)
    made = scene(maker(rng) | {"agrees": loosely}, rng)
    found = explain(made)
    if not loosely(made.expected, made.found):
        assert not found or found[0].name in causes, "\n".join(map(str, found))
