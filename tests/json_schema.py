"""As much of JSON Schema as ours use."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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


def fits(schema: Any, value: Any, whole: Any = None) -> bool:
    """Whether a value is what a schema says; ``whole`` is the schema that holds the definitions."""
    whole = schema if whole is None else whole
    if isinstance(schema, bool):
        return schema
    assert schema.keys() <= KNOWN
    if "$ref" in schema and not fits(whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, whole):
        return False
    if "anyOf" in schema and not any(fits(option, value, whole) for option in schema["anyOf"]):
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
        return all(fits(first[place] if place < len(first) else rest, item, whole) for place, item in enumerate(value))
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        missing = [name for name in schema.get("required", []) if name not in value]
        return not missing and all(fits(properties.get(name, others), item, whole) for name, item in value.items())
    return True
