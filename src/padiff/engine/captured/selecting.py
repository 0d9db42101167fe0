"""Which steps and which modules go into a dump."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from padiff.errors import ArgumentError
from padiff.records import ModuleTree

NO_STEP = "nothing was run while it was captured, or no step that steps= and every= ask for"
"""What to think of a dump without steps."""


def wanted_steps(steps: Any, every: Any) -> Callable[[int], bool]:
    """Whether a step is dumped: ``steps`` is how many, or which; ``every`` takes one of so many."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ArgumentError(
            f"every is {every!r}, expected a whole number of at least 1", "every=100 dumps steps 0, 100, 200"
        )
    if steps is None:
        return lambda step: step % every == 0
    if isinstance(steps, int) and not isinstance(steps, bool):
        if steps < 1:
            raise ArgumentError(f"steps is {steps}, expected a whole number of at least 1, or numbers of steps")
        return lambda step: step < steps and step % every == 0
    if isinstance(steps, Iterable) and not isinstance(steps, str):
        chosen = steps if isinstance(steps, range) else frozenset(steps)
        wrong = [step for step in chosen if not isinstance(step, int) or isinstance(step, bool) or step < 0]
        if wrong:
            raise ArgumentError(f"steps holds {wrong[0]!r}, expected numbers of steps, counted from 0")
        if not chosen:
            raise ArgumentError("steps is empty, expected numbers of steps, counted from 0", "leave it out to dump all")
        return lambda step: step in chosen and step % every == 0
    raise ArgumentError(
        f"steps is a {type(steps).__name__}, expected how many steps, or their numbers",
        "steps=3 dumps the first three, steps=[0, 10] and steps=range(5, 8) those",
    )


def wanted_nodes(only: Any, tree: ModuleTree) -> frozenset[int] | None:
    """The nodes of the modules that ``only`` names, with everything inside them; None for all."""
    if only is None:
        return None
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise ArgumentError(
            f"only is {only!r}, expected a list of paths of modules", 'write it as only=["encoder.layers.3"]'
        )
    nodes = tree.by_path()
    found: set[int] = set()
    for path in only:
        if path not in nodes:
            near = difflib.get_close_matches(str(path), list(nodes), 3)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "paths are the model's own dotted names"
            raise ArgumentError(f"only names {path!r}, which {tree.name} does not have", hint)
        found.update(tree.subtree(nodes[path].index))
    if not found:
        raise ArgumentError("only is empty, expected paths of modules", "leave it out to dump all")
    return frozenset(found)
