"""What does not fit: False, nothing written, and a message with both sides and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff.errors import ArgumentError
from padiff.weights import special as special_init
from padiff.weights.dtypes import loses, narrows
from padiff.weights.special import add_special_init
from tests.weights.models import (
    DIRECTIONS,
    FRAMEWORKS,
    UNTIED,
    arrays,
    attention,
    bits,
    build,
    conv,
    copy,
    embedding,
    layer_norm,
    linear,
    neutral,
    parameter,
    tied,
)

HERE = "<--- *** HERE ***"


@dataclass(frozen=True)
class Misfit:
    """Two models that don't fit, and what the log has to say."""

    id: str
    base: Any
    raw: Any
    says: tuple[str, ...]
    """Patterns, found in the log once its lines are joined."""


MISFITS = [
    Misfit(
        "sizes_of_a_layer",
        {"one": linear(3, 5), "two": linear(5, 7)},
        {"one": linear(3, 5), "two": linear(5, 6)},
        (r"base_model\)\.two\.weight`", r"raw_model\)\.two\.weight`", r"\[(5, 7|7, 5)\]", r"\[(5, 6|6, 5)\]", "sizes"),
    ),
    Misfit(
        "sizes_of_a_parameter",
        {"token": parameter(1, 4), "fc": linear(4, 4)},
        {"token": parameter(1, 5), "fc": linear(4, 4)},
        (r"base_model\)\.token`", r"raw_model\)\.token`", r"\[1, 4\]", r"\[1, 5\]", "LayerMap"),
    ),
    Misfit(
        "sizes_in_attention",
        {"attention": attention(6, 2, kdim=4, vdim=5)},
        {"attention": attention(6, 2, kdim=4, vdim=3)},
        (r"base_model\)\.attention\.v_proj", r"raw_model\)\.attention\.v_proj", r"\[(6, 5|5, 6)\]", r"\[(6, 3|3, 6)\]"),
    ),
    Misfit(
        "sizes_far_from_square",
        {"conv": conv(2, 4, (3, 5))},
        {"conv": conv(2, 4, (5, 3))},
        (r"base_model\)\.conv\.weight`", r"raw_model\)\.conv\.weight`", r"\[4, 2, 3, 5\]", r"\[4, 2, 5, 3\]"),
    ),
    Misfit(
        "layer_only_in_base",
        {"one": linear(3, 5), "norm": layer_norm(5), "two": linear(5, 7)},
        {"one": linear(3, 5), "two": linear(5, 7)},
        (
            r"base_model\)\.norm`",
            r"raw_model\)`",
            r"no module of raw corresponds to norm",
            r"weight \[5\]",
            "same order",
        ),
    ),
    Misfit(
        "layer_only_in_raw",
        {"one": linear(3, 5), "two": linear(5, 7)},
        {"one": linear(3, 5), "two": linear(5, 7), "three": linear(7, 9)},
        (r"base_model\)`", r"raw_model\)\.three`", r"no module of base corresponds to three", r"\[(7, 9|9, 7)\]"),
    ),
    Misfit(
        "layer_of_another_kind",
        {"part": {"one": linear(3, 5), "two": linear(5, 7)}},
        {"part": {"one": linear(3, 5), "two": embedding(9, 4)}},
        (r"base_model\)\.part\.two", r"raw_model\)\.part", "two"),
    ),
    Misfit(
        "bias_only_in_base",
        {"fc": linear(3, 5)},
        {"fc": linear(3, 5, bias=False)},
        (r"base_model\)\.fc\.bias`", r"raw_model\)\.fc`", r"shape \[5\]", "has no partner", "add_special_init"),
    ),
    Misfit(
        "bias_only_in_raw",
        {"fc": linear(3, 5, bias=False)},
        {"fc": linear(3, 5)},
        (r"base_model\)\.fc`", r"raw_model\)\.fc\.bias`", r"shape \[5\]", "has no partner"),
    ),
    Misfit(
        "parameter_only_in_base",
        {"token": parameter(1, 4), "fc": linear(4, 4)},
        {"fc": linear(4, 4)},
        (r"base_model\)\.token`", r"raw_model\)`", r"shape \[1, 4\]", "has no partner"),
    ),
    Misfit(
        "parameter_only_in_raw",
        {"fc": linear(4, 4)},
        {"fc": linear(4, 4), "inner": {"token": parameter(1, 4)}},
        (r"base_model\)`", r"raw_model\)\.inner`", r"token \[1, 4\]"),
    ),
]


def log_of(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, in one line."""
    text = capsys.readouterr().out
    assert all(line.startswith("[AutoDiff]") for line in text.splitlines())
    return re.sub(r"\s+", " ", text.replace("[AutoDiff]", ""))


def assert_refused(base: Any, raw: Any, says: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    before, own = bits(raw), bits(base)
    assert copy(base, raw) is False
    assert bits(raw) == before
    assert bits(base) == own
    text = log_of(capsys)
    for pattern in (*says, r"Failed !!!", "hint"):
        assert re.search(pattern, text), f"{pattern!r} is not in the log:\n{text}"
    assert text.count(HERE) >= 2, "one of the trees shows no place"


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
@pytest.mark.parametrize("case", MISFITS, ids=lambda case: case.id)
def test_misfits_are_refused(case: Misfit, base: str, raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(build(base, case.base, 1), build(raw, case.raw, 2), case.says, capsys)


# --- dtypes


def cast(model: Any, dtype: str) -> Any:
    return model.to(getattr(torch, dtype)) if isinstance(model, torch.nn.Module) else model.to(dtype=dtype)


NET = {"one": linear(3, 5), "two": linear(5, 7)}


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
@pytest.mark.parametrize(
    ("from_dtype", "to_dtype"),
    [("float32", "float16"), ("float32", "bfloat16"), ("float64", "float32"), ("float16", "bfloat16")],
)
def test_narrowing_is_refused(
    base: str, raw: str, from_dtype: str, to_dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base_model, raw_model = cast(build(base, NET, 1), from_dtype), cast(build(raw, NET, 2), to_dtype)
    says = (r"base_model\)\.one\.weight`", r"raw_model\)\.one\.weight`", f"{from_dtype} of base", f"{to_dtype} of raw")
    assert_refused(base_model, raw_model, (*says, r"\[3, 5\]|\[5, 3\]", "cast"), capsys)


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
@pytest.mark.parametrize(("from_dtype", "to_dtype"), [("float16", "float32"), ("bfloat16", "float32")])
def test_widening_is_exact(base: str, raw: str, from_dtype: str, to_dtype: str) -> None:
    base_model, raw_model = cast(build(base, NET, 1), from_dtype), cast(build(raw, NET, 2), to_dtype)
    assert copy(base_model, raw_model)
    expected = neutral(base_model)
    for path, array in neutral(raw_model).items():
        assert str(array.dtype) == to_dtype
        np.testing.assert_array_equal(array, expected[path].astype(to_dtype))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("float32", "float32", False),
        ("float32", "float64", False),
        ("float64", "float32", True),
        ("float32", "bfloat16", True),
        ("bfloat16", "float16", True),
        ("float16", "bfloat16", True),
        ("float32", "int64", True),
        ("int64", "float32", True),
        ("int8", "float16", False),
        ("int16", "bfloat16", True),
        ("int32", "float64", False),
        ("bool", "bfloat16", False),
        ("bool", "int64", False),
        ("int64", "int32", True),
        ("uint8", "int8", True),
        ("complex64", "float32", True),
        ("complex64", "complex128", False),
        ("float32", "complex64", False),
        ("float32", "no_such_dtype", True),
    ],
)
def test_narrows(source: str, target: str, expected: bool) -> None:
    assert narrows(source, target) is expected


def test_integers_narrow_only_when_their_values_do() -> None:
    assert not loses("int64", "int32", lambda: np.array([0, 511]))
    assert loses("int64", "int32", lambda: np.array([0, 2**40]))
    assert not loses("int64", "int32", lambda: np.zeros(0, np.int64))
    assert not loses("int64", "float64", lambda: np.array([-(2**53), 33]))
    assert loses("int64", "float64", lambda: np.array([2**53 + 1]))
    assert not loses("int64", "bfloat16", lambda: np.arange(257))
    assert loses("int64", "bfloat16", lambda: np.arange(258))
    assert loses("float32", "float16", lambda: np.zeros(3, np.float32)), "floats are judged by their dtype"


# --- tied tensors


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
def test_tied_only_in_raw(base: str, raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    base_model = build(base, UNTIED, 1)
    says = (
        r"base_model\)\.out\.weight`",
        r"raw_model\)\.out\.weight`",
        "ties embed.weight and out.weight",
        r"\[6, 4\]",
    )
    assert_refused(base_model, tied(raw, 2), says, capsys)


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
def test_tied_only_in_raw_but_equal_in_base(base: str, raw: str) -> None:
    base_model = build(base, UNTIED, 1)
    table = arrays(base_model)["embed.weight"]
    if base == "torch":
        base_model.out.weight.data.copy_(torch.from_numpy(table))
    else:
        base_model.out.weight.set_value(table)
    raw_model = tied(raw, 2)
    assert copy(base_model, raw_model)
    np.testing.assert_array_equal(arrays(raw_model)["embed.weight"], table)


# --- functions of the user's own


@pytest.fixture
def own_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rules registered in a test end with it."""
    monkeypatch.setattr(special_init, "_functions", {})
    yield


def set_value(tensor: Any, value: Any) -> None:
    if isinstance(tensor, torch.Tensor):
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(value))
    else:
        tensor.set_value(paddle.full(tensor.shape, float(value)))


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
def test_own_function_wins_over_the_table(base: str, raw: str) -> None:
    calls = []

    def fill(base_layer: Any, raw_layer: Any) -> None:
        calls.append((base_layer, raw_layer))
        set_value(raw_layer.weight, 7.0)

    add_special_init(base, "Linear", raw, "Linear", fill)
    base_model, raw_model = build(base, NET, 1), build(raw, NET, 2)
    biases = {path: array for path, array in arrays(raw_model).items() if path.endswith("bias")}
    assert copy(base_model, raw_model)
    assert calls == [(base_model.one, raw_model.one), (base_model.two, raw_model.two)]
    after = arrays(raw_model)
    assert (after["one.weight"] == 7).all()
    assert (after["two.weight"] == 7).all()
    for path, array in biases.items():
        np.testing.assert_array_equal(after[path], array)


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
def test_own_function_fills_what_no_table_does(base: str, raw: str) -> None:
    add_special_init(
        base, "Embedding", raw, "Linear", lambda one, other: set_value(other.weight, float(arrays(one)["weight"][0, 0]))
    )
    base_model = build(base, {"table": embedding(6, 4)}, 1)
    raw_model = build(raw, {"table": linear(6, 4)}, 2)
    assert copy(base_model, raw_model, {base_model.table: raw_model.table})
    assert (arrays(raw_model)["table.weight"] == arrays(base_model)["table.weight"][0, 0]).all()


@pytest.mark.usefixtures("own_rules")
@pytest.mark.parametrize("raw", FRAMEWORKS)
@pytest.mark.parametrize("replaces", [False, True], ids=["writes", "replaces"])
def test_own_function_that_raises_half_way(raw: str, replaces: bool, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def fill(base_layer: Any, raw_layer: Any) -> None:
        calls.append(raw_layer)
        if replaces:
            raw_layer.weight = parameter(2, 2)(raw)
        else:
            set_value(raw_layer.weight, 7.0)
        if len(calls) == 2:
            raise ValueError("the second layer is odd")

    add_special_init("torch", "Linear", raw, "Linear", fill)
    base_model, raw_model = (
        build("torch", NET | {"norm": layer_norm(7)}, 1),
        build(raw, NET | {"norm": layer_norm(7)}, 2),
    )
    before, weight = bits(raw_model), raw_model.one.weight
    assert copy(base_model, raw_model) is False
    assert bits(raw_model) == before
    assert raw_model.one.weight is weight
    assert "the second layer is odd" in log_of(capsys)


def test_a_base_that_cannot_be_read_leaves_raw_alone() -> None:
    base_model, raw_model = build("torch", NET, 1), build("torch", NET, 2)
    base_model.two.weight = torch.nn.Parameter(torch.empty(7, 5, device="meta"))
    before = bits(raw_model)
    with pytest.raises(ArgumentError, match="the weight of a Linear of the model is on the device meta"):
        copy(base_model, raw_model)
    assert bits(raw_model) == before


# --- values


@pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)
def test_a_square_linear_is_turned(base: str, raw: str) -> None:
    base_model, raw_model = build(base, linear(4, 4), 1), build(raw, linear(4, 4), 2)
    assert copy(base_model, raw_model)
    weight = arrays(base_model)["weight"]
    assert not np.array_equal(weight, weight.T)
    np.testing.assert_array_equal(arrays(raw_model)["weight"], weight if base == raw else weight.T)
