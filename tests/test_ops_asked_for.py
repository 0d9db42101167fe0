"""Ops of the framework's own layers are compared where they are asked for."""

from __future__ import annotations

from typing import Any

import pytest

import padiff
from padiff.align import same_thing
from padiff.errors import ArgumentError
from tests.own_code import batch as own_batch
from tests.own_code import model
from tests.test_planted import PLANTS, twins
from tests.twins import PAIRS, batch

BLOCK = ["norm/layer_norm", "fc1/linear", "act/gelu", "fc2/linear", "one/linear", "two/linear"]


def ops(result: Any, phase: str = "forward") -> list[str]:
    return [one.raw_path for one in result.comparisons if one.phase == phase and "/" in one.raw_path]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_layers_of_the_framework(base: str, raw: str) -> None:
    one, other = twins(base, raw)
    own = padiff.compare(one, other, batch(), level="op")
    every = padiff.compare(one, other, batch(), level="op", ops="all")
    assert own.aligned and every.aligned
    assert ops(own) == [f"blocks.{n}/{op}" for n in range(3) for op in ("add", "tanh")]
    first = [path.removeprefix("blocks.0.") for path in ops(every) if path.startswith("blocks.0.")]
    assert first == BLOCK
    assert set(ops(own)) < set(ops(every))
    assert {"embed/linear", "head/linear", "bn/batch_norm"} <= set(ops(every))
    things = {same_thing(one.raw_kind) for one in every.comparisons if "/" in one.raw_path}
    assert things == {"layer_norm", "linear", "gelu", "batch_norm", "add", "tanh"}


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_layer_that_differs_is_named_with_its_op(base: str, raw: str) -> None:
    one, other = twins(base, raw)
    plant = next(plant for plant in PLANTS if plant.name == "eps")
    plant.do(other)
    plain = padiff.compare(one, other, batch(), weights="keep").divergence
    found = padiff.compare(one, other, batch(), level="op", ops="all", weights="keep").divergence
    assert plain is not None and plain.op is None
    assert found is not None and found.raw_path == plant.path == plain.raw_path
    assert found.op is not None
    assert (same_thing(found.op.base), same_thing(found.op.raw)) == ("layer_norm", "layer_norm")
    assert found.op.raw_line is not None and "layer_norm(" in found.op.raw_line.text


def test_asked_for_with_ops_only() -> None:
    with pytest.raises(ArgumentError, match="ops is \"all\", but level is 'module': no op would be compared"):
        padiff.compare(model("torch"), model("torch"), own_batch(), ops="all")
    with pytest.raises(ArgumentError, match="ops is 'every', expected 'own' or 'all'"):
        padiff.compare(model("torch"), model("torch"), own_batch(), level="op", ops="every")  # type: ignore[arg-type]
