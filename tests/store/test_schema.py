"""The published JSON Schema and what is written agree."""

from __future__ import annotations

import copy
import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.json_schema import fits
from tests.store.sketches import write

SCHEMA = json.loads(importlib.resources.files("padiff.store").joinpath("schema/dump-1.schema.json").read_bytes())


def documents(path: Path) -> list[Any]:
    return [json.loads(file.read_bytes()) for file in sorted(path.glob("*.json"))]


@pytest.mark.parametrize("kind", ["full", "stats", "hash"])
def test_what_is_written_fits(kind: Any, tmp_path: Path) -> None:
    found = documents(write(tmp_path / "run", kind))
    assert len(found) == 3
    for document in found:
        assert fits(SCHEMA, document)


def test_the_library_agrees(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for document in documents(write(tmp_path / "run")):
        validator.validate(document)


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "a member more": lambda index, step: index.update(x=1),
    "a member less": lambda index, step: index.pop("facts"),
    "another schema": lambda index, step: index.update(schema=2),
    "a place outside": lambda index, step: index["shards"][0].update(file="../tensors-00000.safetensors"),
    "a bad digest": lambda index, step: index["steps"][0].update(digest="x" * 32),
    "a text for a number": lambda index, step: index["shards"][0].update(size="12"),
    "no node": lambda index, step: index["tree"].update(nodes=[]),
    "a slot too long": lambda index, step: step["calls"][0]["inputs"][0].extend([True, True]),
    "a negative tensor": lambda index, step: step["tensors"].__setitem__(0, -1),
    "a gradient alone": lambda index, step: step["gradients"].append([1]),
    "an unknown argument": lambda index, step: step["arguments"]["args"].append({"set": []}),
    "an op without a mark": lambda index, step: step["calls"][3]["ops"][0].update(name="matmul"),
    "an op in an op": lambda index, step: step["calls"][3]["ops"][0].update(ops=[]),
    "a draw without numbers": lambda index, step: step["draws"][0].pop("value"),
    "a draw of words": lambda index, step: step["draws"][0].update(chance="half"),
    "half of what is unseen": lambda index, step: step["unseen"].append(["aten.mystery"]),
    "a list of moments": lambda index, step: step.update(moments=[]),
    "an unknown loss": lambda index, step: step["tensors"].append({"dtype": "f", "shape": [], "lost": "x"}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_fit(name: str, tmp_path: Path) -> None:
    index, step, _ = documents(write(tmp_path / "run"))
    before = copy.deepcopy((index, step))
    WRONG[name](index, step)
    assert (index, step) != before
    assert not (fits(SCHEMA, index) and fits(SCHEMA, step))


def test_every_member_of_the_schema_is_written(tmp_path: Path) -> None:
    """Nothing is published that no dump has: the sketch uses all there is, but what only odd runs have."""
    index, step, _ = documents(write(tmp_path / "run"))
    assert SCHEMA["$defs"]["index"]["properties"].keys() == index.keys()
    assert SCHEMA["$defs"]["step"]["properties"].keys() == step.keys()
