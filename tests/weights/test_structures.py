"""Models written differently: order, names, wrappers, ties, buffers, the user's own rules."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from padiff import LayerMap
from padiff.align import pair_modules
from tests.weights.models import (
    DIRECTIONS,
    FRAMEWORKS,
    UNTIED,
    arrays,
    assert_holds,
    attention,
    batch_norm,
    bits,
    buffer,
    build,
    copy,
    dropout,
    embedding,
    gelu,
    identity,
    layer_norm,
    linear,
    live,
    neutral,
    parameter,
    relu,
    sync_batch_norm,
    tied,
)

both_ways = pytest.mark.parametrize(("base", "raw"), DIRECTIONS, ids=lambda name: name)


@dataclass(frozen=True)
class Pair:
    """Two models that hold the same in another form, and raw's paths that are called otherwise in base."""

    id: str
    base: Any
    raw: Any
    renamed: dict[str, str] = field(default_factory=dict)


def _renamed(pairs: dict[str, str]) -> dict[str, str]:
    """Module paths of raw to those of base, as paths of their tensors."""
    return {f"{raw}.{name}": f"{base}.{name}" for raw, base in pairs.items() for name in ("weight", "bias")}


TOKENS = {"cls_token": parameter(1, 1, 4), "pos_embed": parameter(1, 5, 4), "mask_token": parameter(1, 1, 4)}
PERCEPTRON = {"fc1": linear(4, 8), "act": gelu(), "fc2": linear(8, 4), "norm": layer_norm(4)}

PAIRS = [
    Pair(
        "parameters_in_another_order",
        {**TOKENS, "head": linear(4, 3)},
        {"head": linear(4, 3), **dict(reversed(TOKENS.items()))},
    ),
    Pair(
        "parameters_under_other_names",
        {**TOKENS, "head": linear(4, 3)},
        {
            "positions": parameter(1, 5, 4),
            "first": parameter(1, 1, 4),
            "second": parameter(1, 1, 4),
            "head": linear(4, 3),
        },
        {"positions": "pos_embed", "first": "cls_token", "second": "mask_token"},
    ),
    Pair(
        "parameters_of_a_part",
        {**TOKENS, "patches": linear(6, 4), "head": linear(4, 3)},
        {
            "embeddings": {
                "cls_token": TOKENS["cls_token"],
                "position_embeddings": TOKENS["pos_embed"],
                "mask_token": TOKENS["mask_token"],
                "projection": linear(6, 4),
            },
            "head": linear(4, 3),
        },
        {
            "embeddings.cls_token": "cls_token",
            "embeddings.position_embeddings": "pos_embed",
            "embeddings.mask_token": "mask_token",
            **_renamed({"embeddings.projection": "patches"}),
        },
    ),
    Pair(
        "parameters_under_a_wrapper",
        {**TOKENS, "head": linear(4, 3)},
        {"model": {**TOKENS, "head": linear(4, 3)}},
        {**{f"model.{name}": name for name in TOKENS}, **_renamed({"model.head": "head"})},
    ),
    Pair("layers_in_another_order", PERCEPTRON, dict(reversed(PERCEPTRON.items()))),
    Pair(
        "equal_layers_in_another_order",
        {"query": linear(4, 4), "key": linear(4, 4), "value": linear(4, 4)},
        {"value": linear(4, 4), "query": linear(4, 4), "key": linear(4, 4)},
    ),
    Pair(
        "equal_layers_in_another_order_in_a_container",
        {"query": linear(4, 4), "key": linear(4, 4), "value": linear(4, 4), "out": linear(4, 2)},
        {"inside": {"value": linear(4, 4), "query": linear(4, 4), "key": linear(4, 4)}, "out": linear(4, 2)},
        _renamed({f"inside.{name}": name for name in ("query", "key", "value")}),
    ),
    Pair(
        "other_order_and_other_names",
        {"one": linear(4, 8), "two": linear(8, 2), "norm": layer_norm(4)},
        {"b": linear(8, 2), "n": layer_norm(4), "a": linear(4, 8)},
        _renamed({"a": "one", "b": "two", "n": "norm"}),
    ),
    Pair(
        "sequential_around_parts",
        PERCEPTRON,
        {"fc1": [linear(4, 8)], "act": gelu(), "rest": [linear(8, 4), layer_norm(4)]},
        _renamed({"fc1.0": "fc1", "rest.0": "fc2", "rest.1": "norm"}),
    ),
    Pair(
        "container_nested_twice",
        PERCEPTRON,
        {"model": {"body": {"fc1": linear(4, 8), "act": gelu()}, "fc2": linear(8, 4)}, "norm": layer_norm(4)},
        _renamed({"model.body.fc1": "fc1", "model.fc2": "fc2"}),
    ),
    Pair(
        "containers_on_both_sides",
        {"stem": [linear(4, 8), gelu()], "tail": [linear(8, 4), layer_norm(4)]},
        {"all": [[linear(4, 8)], gelu(), [[linear(8, 4)], {"norm": layer_norm(4)}]]},
        _renamed({"all.0.0": "stem.0", "all.2.0.0": "tail.0", "all.2.1.norm": "tail.1"}),
    ),
    Pair(
        "identities_and_dropout",
        [linear(4, 4), relu(), linear(4, 4), linear(4, 4)],
        [identity(), linear(4, 4), relu(), dropout(0.1), linear(4, 4), identity(), dropout(0.1), linear(4, 4)],
        _renamed({"1": "0", "4": "2", "7": "3"}),
    ),
    Pair(
        "one_layer_and_a_wrapped_one",
        linear(4, 3),
        [linear(4, 3)],
        {"0.weight": "weight", "0.bias": "bias"},
    ),
    Pair(
        "attention_under_other_names",
        {"blocks": [{"attn": attention(4, 2), "norm": layer_norm(4)} for _ in range(2)]},
        {"layers": [{"self_attention": attention(4, 2), "drop": dropout(0.1), "ln": layer_norm(4)} for _ in range(2)]},
    ),
    Pair(
        "buffers",
        {"fc": linear(4, 4), "table": buffer(5, 4), "scale": buffer(1, 5)},
        {"scale": buffer(1, 5), "table": buffer(5, 4), "fc": linear(4, 4)},
    ),
    Pair(
        "buffers_under_other_names",
        {"fc": linear(4, 4), "mean": buffer(3, 1, 1), "std": buffer(3, 1, 1)},
        {"fc": linear(4, 4), "pixel_mean": buffer(3, 1, 1), "pixel_std": buffer(3, 1, 1)},
        {"pixel_mean": "mean", "pixel_std": "std"},
    ),
    Pair(
        "a_parameter_that_is_a_buffer",
        {"fc": linear(4, 4), "positions": parameter(5, 4)},
        {"fc": linear(4, 4), "positions": buffer(5, 4)},
    ),
    Pair(
        "a_buffer_that_is_a_parameter",
        {"fc": linear(4, 4), "positions": buffer(5, 4)},
        {"fc": linear(4, 4), "positions": parameter(5, 4)},
    ),
]


@both_ways
@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case.id)
def test_models_written_differently(case: Pair, base: str, raw: str) -> None:
    base_model, raw_model = build(base, case.base, 1), build(raw, case.raw, 2)
    assert copy(base_model, raw_model)
    if "attention" not in case.id or base == raw:
        assert_holds(base_model, raw_model, case.renamed or _by_order(base_model, raw_model))
    twin = build(base, case.base, 3)
    assert copy(raw_model, twin)
    assert bits(twin) == bits(base_model)


def _by_order(base: Any, raw: Any) -> dict[str, str]:
    """Raw's paths to base's, where the two differ in the names of modules only."""
    ours, theirs = list(arrays(base)), list(arrays(raw))
    return {} if set(ours) == set(theirs) else dict(zip(theirs, ours, strict=True))


@both_ways
@pytest.mark.parametrize("norm", [batch_norm, sync_batch_norm], ids=["plain", "sync"])
def test_running_statistics_travel(base: str, raw: str, norm: Any) -> None:
    base_model, raw_model = build(base, {"bn": norm(3)}, 1), build(raw, {"bn": batch_norm(3)}, 2)
    assert copy(base_model, raw_model)
    statistics = {"torch": ("bn.running_mean", "bn.running_var"), "paddle": ("bn._mean", "bn._variance")}
    for source, target in zip(statistics[base], statistics[raw], strict=True):
        np.testing.assert_array_equal(arrays(raw_model)[target], arrays(base_model)[source])


@both_ways
def test_a_buffer_without_partner_is_listed(base: str, raw: str, capsys: pytest.CaptureFixture[str]) -> None:
    base_model = build(base, {"fc": linear(4, 4), "only_base": buffer(5)}, 1)
    raw_model = build(raw, {"fc": linear(4, 4), "inner": {"only_raw": buffer(2, 3)}}, 2)
    kept = arrays(raw_model)["inner.only_raw"]
    assert copy(base_model, raw_model)
    text = capsys.readouterr().out
    assert "base only_base (buffer)" in text
    assert "raw inner.only_raw (buffer)" in text
    np.testing.assert_array_equal(arrays(raw_model)["inner.only_raw"], kept)


# --- ties


@both_ways
def test_tied_in_both(base: str, raw: str) -> None:
    base_model, raw_model = tied(base, 1), tied(raw, 2)
    assert copy(base_model, raw_model)
    assert_holds(base_model, raw_model)
    assert raw_model.out.weight is raw_model.embed.weight


@both_ways
def test_tied_only_in_base(base: str, raw: str) -> None:
    base_model, raw_model = tied(base, 1), build(raw, UNTIED, 2)
    assert copy(base_model, raw_model)
    assert_holds(base_model, raw_model)
    assert raw_model.out.weight is not raw_model.embed.weight


@both_ways
def test_a_tied_head_that_the_other_computes_from_the_embedding(
    base: str, raw: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base_model, raw_model = tied(base, 1), build(raw, {"embed": embedding(6, 4), "body": linear(4, 4)}, 2)
    assert copy(base_model, raw_model)
    assert_holds(base_model, raw_model)
    assert "base out.weight (parameter): it is one tensor with embed.weight" in capsys.readouterr().out
    assert copy(raw_model, tied(base, 3))


def test_a_tied_linear_head_of_torch() -> None:
    base_model = build("torch", {"embed": embedding(6, 4), "head": linear(4, 6, bias=False)}, 1)
    base_model.head.weight = base_model.embed.weight
    raw_model = build("paddle", {"embed": embedding(6, 4), "head": linear(4, 6, bias=False)}, 2)
    assert copy(base_model, raw_model)
    np.testing.assert_array_equal(arrays(raw_model)["head.weight"].T, arrays(base_model)["embed.weight"])
    np.testing.assert_array_equal(arrays(raw_model)["embed.weight"], arrays(base_model)["embed.weight"])


SHARED = {"one": linear(4, 4), "two": linear(4, 4), "end": linear(4, 2)}


def shared(framework: str, seed: int) -> Any:
    model = build(framework, SHARED, seed)
    model.two = model.one
    return model


@both_ways
def test_a_module_under_two_names(base: str, raw: str) -> None:
    for raw_model in (shared(raw, 2), build(raw, SHARED, 3)):
        base_model = shared(base, 1)
        assert copy(base_model, raw_model)
        assert_holds(base_model, raw_model)
    once = build(raw, {"one": linear(4, 4), "end": linear(4, 2)}, 4)
    assert copy(shared(base, 1), once)
    assert_holds(shared(base, 1), once)


@both_ways
def test_a_module_under_two_names_only_in_raw(base: str, raw: str) -> None:
    raw_model = shared(raw, 2)
    before = bits(raw_model)
    assert not copy(build(base, SHARED, 1), raw_model)
    assert bits(raw_model) == before


@both_ways
def test_a_module_that_is_never_called(base: str, raw: str) -> None:
    unused = {"body": linear(4, 4), "unused": {"spare": linear(4, 4), "table": parameter(3)}}
    base_model, raw_model = build(base, unused, 1), build(raw, unused, 2)
    assert copy(base_model, raw_model)
    assert_holds(base_model, raw_model)


# --- the user's rules

TWO_HEADS = {"body": linear(4, 4), "first": linear(4, 4), "second": linear(4, 4)}


@both_ways
@pytest.mark.parametrize("form", ["map", "map turned round", "dict", "dict turned round"])
def test_a_layer_map_pairs(base: str, raw: str, form: str) -> None:
    base_model, raw_model = build(base, TWO_HEADS, 1), build(raw, TWO_HEADS, 2)
    pairs = {base_model.first: raw_model.second, base_model.second: raw_model.first}
    if "turned" in form:
        pairs = {other: one for one, other in pairs.items()}
    rules: Any = pairs
    if "map" in form:
        rules = LayerMap()
        rules.map = pairs
    assert copy(base_model, raw_model, rules)
    assert_holds(base_model, raw_model, _renamed({"first": "second", "second": "first"}))


@both_ways
def test_a_layer_map_pairs_what_is_inside(base: str, raw: str) -> None:
    what = {"left": {"a": linear(4, 4), "b": linear(4, 4)}, "right": {"a": linear(4, 4), "b": linear(4, 4)}}
    base_model, raw_model = build(base, what, 1), build(raw, what, 2)
    assert copy(base_model, raw_model, {base_model.left: raw_model.right, base_model.right: raw_model.left})
    swapped = {"left.a": "right.a", "left.b": "right.b", "right.a": "left.a", "right.b": "left.b"}
    assert_holds(base_model, raw_model, _renamed(swapped))


@both_ways
@pytest.mark.parametrize("recursively", ["ignore_recursively", "ignore_recursivly"])
def test_what_is_ignored_needs_no_partner(base: str, raw: str, recursively: str) -> None:
    more = TWO_HEADS | {"extra": {"deep": {"fc": linear(4, 9)}, "token": parameter(3)}, "norm": layer_norm(5)}
    base_model, raw_model = build(base, TWO_HEADS, 1), build(raw, more, 2)
    kept = {path: array for path, array in arrays(raw_model).items() if path.startswith(("extra", "norm"))}
    assert not copy(base_model, raw_model)
    rules = LayerMap()
    rules.ignore(raw_model.norm)
    getattr(rules, recursively)(raw_model.extra)
    assert copy(base_model, raw_model, rules)
    after = arrays(raw_model)
    for path, array in kept.items():
        np.testing.assert_array_equal(after[path], array)
    np.testing.assert_array_equal(after["first.bias"], arrays(base_model)["first.bias"])


@both_ways
def test_ignoring_a_module_leaves_what_is_inside(base: str, raw: str) -> None:
    what = {"part": {"fc": linear(4, 4), "token": parameter(3)}}
    base_model, raw_model = build(base, what, 1), build(raw, what, 2)
    rules = LayerMap()
    rules.ignore(base_model.part)
    rules.ignore(raw_model.part)
    token = arrays(raw_model)["part.token"]
    assert copy(base_model, raw_model, rules)
    np.testing.assert_array_equal(arrays(raw_model)["part.token"], token)
    np.testing.assert_array_equal(neutral(raw_model)["part.fc.weight"], neutral(base_model)["part.fc.weight"])


@both_ways
def test_ignoring_a_class(base: str, raw: str) -> None:
    base_model = build(base, {"fc": linear(4, 4), "norm": layer_norm(4), "out": linear(4, 2)}, 1)
    raw_model = build(raw, {"fc": linear(4, 4), "out": linear(4, 2)}, 2)
    rules = LayerMap()
    rules.ignore_class(base_model, type(base_model.norm))
    assert copy(base_model, raw_model, rules)
    assert_holds(base_model, raw_model)


# --- pairing, seen from outside


@both_ways
def test_wrappers_stay_alone_and_are_listed(base: str, raw: str) -> None:
    base_tree = live(build(base, PERCEPTRON)).tree
    raw_tree = live(
        build(
            raw,
            {
                "fc1": [linear(4, 8)],
                "act": gelu(),
                "skip": identity(),
                "rest": {"fc2": linear(8, 4), "norm": layer_norm(4)},
            },
        )
    ).tree
    found = pair_modules(base_tree, raw_tree)
    paths = {base_tree.nodes[one].path: raw_tree.nodes[other].path for one, other in found.pairs}
    assert paths == {"": "", "fc1": "fc1.0", "act": "act", "fc2": "rest.fc2", "norm": "rest.norm"}
    assert found.base_alone == ()
    assert [raw_tree.nodes[index].path for index in found.raw_alone] == ["fc1", "skip", "rest"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_large_model_pairs_quickly(framework: str) -> None:
    block = {"norm": layer_norm(2), "fc": [linear(2, 2), gelu(), linear(2, 2)]}
    other = {"ln": layer_norm(2), "drop": dropout(0.1), "up": linear(2, 2), "act": gelu(), "down": [linear(2, 2)]}
    base_model = build(framework, {"blocks": [block] * 330})
    raw_model = build(framework, {"head": identity(), "layers": [other] * 330})
    base_tree, raw_tree = live(base_model).tree, live(raw_model).tree
    assert min(len(base_tree.nodes), len(raw_tree.nodes)) > 1900
    start = time.process_time()
    found = pair_modules(base_tree, raw_tree)
    assert time.process_time() - start < 10
    paths = {base_tree.nodes[one].path: raw_tree.nodes[two].path for one, two in found.pairs}
    for index in (0, 17, 329):
        expected = {"": "", ".norm": ".ln", ".fc.0": ".up", ".fc.1": ".act", ".fc.2": ".down.0"}
        for one, two in expected.items():
            assert paths[f"blocks.{index}{one}"] == f"layers.{index}{two}"


def test_copying_within_one_model_object() -> None:
    model = build("torch", PERCEPTRON, 1)
    before = bits(model)
    assert copy(model, model)
    assert bits(model) == before


def test_frozen_and_gradient_carrying_tensors_are_filled() -> None:
    base_model, raw_model = build("torch", PERCEPTRON, 1), build("torch", PERCEPTRON, 2)
    raw_model.fc1.weight.requires_grad_(False)
    raw_model.fc2(torch.ones(1, 8)).sum().backward()
    assert copy(base_model, raw_model)
    assert_holds(base_model, raw_model)
    assert not raw_model.fc1.weight.requires_grad
    assert raw_model.fc2.weight.requires_grad
    assert raw_model.fc2.weight.grad is not None


COMPUTED = {
    "left out of saved states": buffer(5, 4, persistent=False),
    "integers": buffer(5, 4, dtype="int64"),
}


@pytest.mark.parametrize("frameworks", DIRECTIONS, ids="-".join)
@pytest.mark.parametrize("what", COMPUTED)
def test_what_raw_computes_itself_is_not_written(frameworks: tuple[str, str], what: str) -> None:
    """A wrong mask or table of angles would be made right by the copy, and nobody would ever know."""
    parts = {"fc": linear(4, 4), "table": COMPUTED[what]}
    base, raw = build(frameworks[0], parts, 1), build(frameworks[1], parts, 2)
    before = arrays(raw)["table"]
    assert copy(base, raw)
    assert np.array_equal(arrays(raw)["table"], before)
