"""The published JSON schema, made from the records themselves: ``python -m padiff.report.published`` prints it."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from typing import Any, Literal

from padiff.records import Divergence
from padiff.report.plain import ODD, hints, members
from padiff.report.record import SCHEMA, Report


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of what ``to_json`` writes."""
    known: dict[str, Any] = {"number": {"anyOf": [{"type": "number"}, {"enum": list(ODD)}]}}
    top = _record(Report, known)
    first = {
        "format": {"const": "padiff-report"},
        "schema": {"const": SCHEMA},
        "aligned": {"type": "boolean"},
        "divergence": {"anyOf": [_of(Divergence, known), {"type": "null"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A report of padiff",
        "description": "Members that are not required are left out where they hold their default.",
        **top,
        "properties": {**first, **top["properties"]},
        "required": [*first, *top["properties"]],
        "$defs": dict(sorted(known.items())),
    }


def _record(kind: type, known: dict[str, Any]) -> dict[str, Any]:
    types_of = hints(kind)
    return {
        "type": "object",
        "properties": {name: _of(types_of[name], known) for name, _ in members(kind)},
        "required": [name for name, default in members(kind) if default is dataclasses.MISSING],
        "additionalProperties": False,
    }


def _of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        known["value"] = {"type": ["null", "boolean", "number", "string", "array"], "items": {"$ref": "#/$defs/value"}}
        return {"$ref": "#/$defs/value"}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in known:
            known[kind.__name__] = {}
            known[kind.__name__] = _record(kind, known)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [{"type": "null"} if one is type(None) else _of(one, known) for one in inner]}
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return {"type": "array", "items": _of(inner[0], known)}
        fixed = [_of(one, known) for one in inner]
        return {"type": "array", "prefixItems": fixed, "minItems": len(fixed), "maxItems": len(fixed)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _of(inner[1], known)}
    if kind is float:
        return {"$ref": "#/$defs/number"}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[kind]}


def text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
