"""Models that ``torch.jit`` made: their code is a graph of its own language, which nobody can step into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def order_of_use(module: torch.jit.ScriptModule) -> list[Any]:
    """All tensors, those first that the code uses first."""
    try:
        graph = module.inlined_graph
    except RuntimeError:  # a module without a forward
        return []
    tensors: dict[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    paths = {next(graph.inputs()).debugName(): ""}
    used = dict.fromkeys(path for path in _read(graph, paths) if path in tensors)
    return [tensors[path] for path in used]


def _read(block: Any, paths: dict[str, str]) -> Iterator[str]:
    """Paths of what ops take, in their order; ``paths`` knows what each attribute's value is called."""
    for node in block.nodes():
        if node.kind() == "prim::GetAttr":
            owner = paths.get(next(node.inputs()).debugName())
            if owner is not None:
                name = node.s("name")
                paths[node.output().debugName()] = f"{owner}.{name}" if owner else name
            continue
        for value in node.inputs():
            if value.debugName() in paths:
                yield paths[value.debugName()]
        for inner in node.blocks():
            yield from _read(inner, paths)
