"""Parts of a model that a compiler has made into something else: hooks inside them do not fire, or change what it
compiles."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from padiff.frameworks.tree import LiveTree

OPENS = frozenset({"torch.compile", "Module.compile", "paddle.jit.to_static"})
"""What can be run in its eager form instead."""


def compiled_parts(live: LiveTree) -> dict[int, str]:
    """Outermost modules that compiled code hides, by node, and by what they were compiled."""
    return _found(live)[0]


def _found(live: LiveTree) -> tuple[dict[int, str], dict[int, str]]:
    return live.once("compiled", _look)


def _look(live: LiveTree) -> tuple[dict[int, str], dict[int, str]]:
    """Outermost compiled modules that nobody sees into, and those that can be run module by module."""
    ask, in_parts = (getattr(live.adapter, name, None) for name in ("compiled", "runs_in_parts"))
    closed: dict[int, str] = {}
    open_ones: dict[int, str] = {}
    inside: set[int] = set()
    for node, module in zip(live.tree.nodes, live.modules if ask is not None else (), strict=False):
        if node.parent in inside:
            inside.add(node.index)
            continue
        how = ask(module) if ask is not None else None
        if how is not None and in_parts is not None and in_parts(module):
            open_ones[node.index] = how
        elif how is not None:
            closed[node.index] = how
            inside.add(node.index)
    return closed, open_ones


def compiled_note(live: LiveTree, side: str, seen_into: bool, *, eager_only: bool = False) -> str | None:
    """What was compared of a model with compiled parts; None for one that has none."""
    closed, open_ones = _found(live)
    if eager_only and closed:
        why = "it draws random numbers for itself as compiled, so all that was compared is its eager form"
        return f"{side} is compiled ({_places(live, closed)}): {why}"
    opens = seen_into and all(how in OPENS for how in closed.values())
    inside = "modules inside were compared in their eager form" if opens else "modules inside were not compared"
    of_graphs = "outputs, gradients and weights are its graph's, and so is what was compared of modules inside"
    of_code = f"outputs, gradients and weights are the compiled code's; {inside}"
    told = [
        f"{side} is compiled ({_places(live, parts)}): {what}"
        for parts, what in ((open_ones, of_graphs), (closed, of_code))
        if parts
    ]
    return "; ".join(told) or None


def _places(live: LiveTree, parts: dict[int, str]) -> str:
    where = ", ".join(live.tree.nodes[index].path or "the whole model" for index in list(parts)[:3])
    return f"{' and '.join(dict.fromkeys(parts.values()))}: {where}"


def compiled_words(live: LiveTree) -> str | None:
    """What a capture sees of a model with compiled parts; None for one that has none."""
    note = compiled_note(live, "", seen_into=False)
    return None if note is None else note.replace("compared", "recorded").strip()


def without_backward(live: LiveTree) -> bool:
    """Whether some compiled part gives no gradients, as it is now."""
    lacks = getattr(live.adapter, "lacks_backward", None)
    return lacks is not None and any(lacks(live.modules[index]) for index in compiled_parts(live))


def sealed(live: LiveTree, *, eager: bool) -> frozenset[int]:
    """Nodes that are not to be hooked: what is in compiled modules; ``eager`` opens what can be."""
    found: set[int] = set()
    for index, how in compiled_parts(live).items():
        if not (eager and how in OPENS):
            found.update(live.tree.subtree(index)[0 if index == 0 else 1 :])
    return frozenset(found)


def is_opaque(live: LiveTree, node: int) -> bool:
    """Whether nobody ever sees what a module's code does: it was compiled into something that has no other form."""
    closed = [index for index, how in compiled_parts(live).items() if how not in OPENS]
    return any(node in live.tree.subtree(index) for index in closed)


def eagerly(live: LiveTree) -> AbstractContextManager[Any]:
    """Inside, what was compiled runs in its eager form, where that can be."""
    if not any(how in OPENS for how in compiled_parts(live).values()):
        return nullcontext()
    context: AbstractContextManager[Any] = live.adapter.eagerly()
    return context
