"""The published JSON Schema and what is written agree."""

from __future__ import annotations

import copy
import importlib.resources
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.sketches import write

SCHEMA = json.loads(importlib.resources.files("padiff.store").joinpath("schema/dump-1.schema.json").read_bytes())
TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}
KNOWN = {"$schema", "$defs", "$ref", "title", "description", "type", "enum", "const", "anyOf", "pattern"} | {
    *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("minimum", "maximum"),
}


def fits(schema: Any, value: Any) -> bool:
    """As much of JSON Schema as ours uses."""
    if isinstance(schema, bool):
        return schema
    assert schema.keys() <= KNOWN
    if "$ref" in schema and not fits(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], value):
        return False
    if "anyOf" in schema and not any(fits(option, value) for option in schema["anyOf"]):
        return False
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(TYPES[name](value) for name in types):
        return False
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    if TYPES["number"](value):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        return all(fits(first[place] if place < len(first) else rest, item) for place, item in enumerate(value))
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        missing = [name for name in schema.get("required", []) if name not in value]
        return not missing and all(fits(properties.get(name, others), item) for name, item in value.items())
    return True


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
