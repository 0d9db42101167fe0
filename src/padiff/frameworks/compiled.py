"""Parts of a model that a compiler has made into something else: hooks inside them do not fire, or change what it
compiles."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from padiff.frameworks.tree import LiveTree

OPENS = frozenset({"torch.compile", "Module.compile", "paddle.jit.to_static"})
"""What can be run in its eager form instead."""
WITH_HOOKS = frozenset({"Module.compile"})
"""What takes the hooks of the module itself into what it compiles."""


def compiled_parts(live: LiveTree) -> dict[int, str]:
    """Outermost compiled modules by node, and by what they were compiled."""
    ask = getattr(live.adapter, "compiled", None)
    found: dict[int, str] = {}
    inside: set[int] = set()
    for node, module in zip(live.tree.nodes, live.modules if ask is not None else (), strict=False):
        if node.parent in inside:
            inside.add(node.index)
            continue
        how = ask(module) if ask is not None else None
        if how is not None:
            found[node.index] = how
            inside.add(node.index)
    return found


def compiled_note(live: LiveTree, side: str, seen_into: bool) -> str | None:
    """What was compared of a model with compiled parts; None for one that has none."""
    parts = compiled_parts(live)
    if not parts:
        return None
    where = ", ".join(live.tree.nodes[index].path or "the whole model" for index in list(parts)[:3])
    hows = " and ".join(dict.fromkeys(parts.values()))
    opens = seen_into and all(how in OPENS for how in parts.values())
    inside = "modules inside were compared in their eager form" if opens else "modules inside were not compared"
    return f"{side} is compiled ({hows}: {where}): outputs, gradients and weights are the compiled code's; {inside}"


def without_backward(live: LiveTree) -> bool:
    """Whether some compiled part gives no gradients, as it is now."""
    lacks = getattr(live.adapter, "lacks_backward", None)
    return lacks is not None and any(lacks(live.modules[index]) for index in compiled_parts(live))


def sealed(live: LiveTree, *, eager: bool) -> frozenset[int]:
    """Nodes that are not to be hooked: what is in compiled modules; ``eager`` opens what can be."""
    found: set[int] = set()
    for index, how in compiled_parts(live).items():
        if not (eager and how in OPENS):
            found.update(live.tree.subtree(index)[0 if how in WITH_HOOKS or index == 0 else 1 :])
    return frozenset(found)


def eagerly(live: LiveTree) -> AbstractContextManager[Any]:
    """Inside, what was compiled runs in its eager form, where that can be."""
    if not any(how in OPENS for how in compiled_parts(live).values()):
        return nullcontext()
    context: AbstractContextManager[Any] = live.adapter.eagerly()
    return context
