"""A module tree and the facts of a run as JSON, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from padiff.errors import ArgumentError
from padiff.records import ModuleNode, ModuleTree, TensorSpec
from padiff.store import strict
from padiff.store.facts import Facts
from padiff.store.strict import Malformed

_FACTS = frozenset(field.name for field in dataclasses.fields(Facts))
_NODE = frozenset({"path", "kind", "parent", "identity", "text"})
_NODE_MORE = frozenset({"layer", "parameters", "buffers", "atomic", "varied"})
_SPEC = frozenset({"name", "shape", "dtype", "identity"})


def encode_tree(tree: ModuleTree) -> dict[str, Any]:
    """Nodes in order, without what follows from the others: index and children."""
    identities: dict[int, int] = {}

    def number(identity: int) -> int:
        """Only whether two are equal means something: small numbers say as much."""
        return identities.setdefault(identity, len(identities))

    for place, node in enumerate(tree.nodes):
        if node.index != place or not (0 <= node.parent < place or node.parent == -1 == place - 1):
            raise ArgumentError(
                f"tree: node {place} ({node.path!r}) does not come after its parent, node {node.parent}"
            )
    nodes = [_encode_node(node, number) for node in tree.nodes]
    return {"framework": tree.framework, "name": tree.name, "nodes": nodes}


def decode_tree(value: Any) -> ModuleTree:
    table = strict.table(value, "tree", frozenset({"framework", "name", "nodes"}))
    rows = strict.array(table["nodes"], "nodes")
    if not rows:
        raise Malformed("the tree has no node")
    nodes = [_decode_node(index, row) for index, row in enumerate(rows)]
    children: list[list[int]] = [[] for _ in nodes]
    for node in nodes[1:]:
        children[node.parent].append(node.index)
    nodes = [dataclasses.replace(node, children=tuple(children[node.index])) for node in nodes]
    return ModuleTree(strict.text(table["framework"], "framework"), strict.text(table["name"], "name"), tuple(nodes))


def _encode_node(node: ModuleNode, number: Callable[[int], int]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": node.path,
        "kind": node.kind,
        "parent": node.parent,
        "identity": number(node.identity),
        "text": node.line,
    }
    if node.layer is not None:
        row["layer"] = node.layer
    for role, specs in (("parameters", node.parameters), ("buffers", node.buffers)):
        if specs:
            row[role] = [_encode_spec(spec, number) for spec in specs]
    if node.atomic:
        row["atomic"] = True
    if node.varied:
        row["varied"] = True
    return row


def _decode_node(index: int, value: Any) -> ModuleNode:
    row = strict.table(value, "a node", _NODE, _NODE_MORE)
    # A parent comes before its children: so the tree has no loops, and one root.
    parent = strict.integer(row["parent"], "parent", -1 if index == 0 else 0, index - 1)
    return ModuleNode(
        index=index,
        path=strict.text(row["path"], "path"),
        kind=strict.text(row["kind"], "kind"),
        layer=strict.optional_text(row.get("layer"), "layer"),
        parent=parent,
        children=(),
        parameters=_decode_specs(row.get("parameters", [])),
        buffers=_decode_specs(row.get("buffers", [])),
        identity=strict.integer(row["identity"], "identity"),
        text=strict.text(row["text"], "text"),
        atomic=strict.boolean(row.get("atomic", False), "atomic"),
        varied=strict.boolean(row.get("varied", False), "varied"),
    )


def _encode_spec(spec: TensorSpec, number: Callable[[int], int]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "identity": number(spec.identity),
    }
    if spec.computed:
        row["computed"] = True
    return row


def _decode_specs(value: Any) -> tuple[TensorSpec, ...]:
    found = []
    for item in strict.array(value, "parameters"):
        row = strict.table(item, "a parameter", _SPEC, frozenset({"computed"}))
        found.append(
            TensorSpec(
                name=strict.text(row["name"], "name"),
                shape=decode_shape(row["shape"]),
                dtype=strict.text(row["dtype"], "dtype"),
                identity=strict.integer(row["identity"], "identity"),
                computed=strict.boolean(row.get("computed", False), "computed"),
            )
        )
    return tuple(found)


def decode_shape(value: Any) -> tuple[int, ...]:
    return tuple(strict.integer(axis, "shape") for axis in strict.array(value, "shape"))


def decode_facts(value: Any) -> Facts:
    table = strict.table(value, "facts", _FACTS)
    numbers = {name: strict.integer(table[name], name) for name in ("rank", "ranks")}
    texts = {name: strict.text(table[name], name) for name in _FACTS - numbers.keys()}
    return Facts(**texts, **numbers)  # type: ignore[arg-type]
