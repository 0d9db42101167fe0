"""What stands in the way of a copy, in words: the fact with both sides, then the hint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from padiff.records import ModuleNode, WeightEntry, WeightProblem
from padiff.weights.rows import Held

HINT_MAP = "a LayerMap pairs modules by hand: layer_map.map = {base_module: raw_module}, or layer_map.ignore(module)"
HINT_SPECIAL = "add_special_init(...) fills a pair of layers with a function of your own"
HINT_ORDER = "check that both models define the same layers in the same order"

_MOST_LISTED = 6

Place = tuple[ModuleNode, str]
"""A module and the path to print with it, of the module itself or of one of its tensors."""


def unequal_shapes(base: Held, raw: Held, would_be: tuple[int, ...]) -> WeightProblem:
    shape = base.spec.shape
    layout = f" (in raw's layout {list(would_be)})" if would_be != shape else ""
    return _problem(
        (base.owner, base.path),
        (raw.owner, raw.path),
        f"shape {list(shape)} of base{layout} does not fit shape {list(raw.spec.shape)} of raw",
        "check that both layers are built with the same sizes and defined in the same order; " + HINT_MAP,
    )


def narrowing(base: Held, raw: Held) -> WeightProblem:
    return _problem(
        (base.owner, base.path),
        (raw.owner, raw.path),
        f"{base.spec.dtype} of base, shape {list(base.spec.shape)}, does not fit into {raw.spec.dtype} of raw, "
        f"shape {list(raw.spec.shape)}, without loss",
        "cast one of the models first, so that both hold the same dtype",
    )


def no_tensor(side: str, held: Held, other: ModuleNode) -> WeightProblem:
    """A parameter of a paired module that its partner does not have."""
    of = "raw" if side == "base" else "base"
    own = (held.owner, held.path)
    return _sides(
        side,
        own,
        (other, other.path),
        f"{held.role} {held.path} of {side}, shape {list(held.spec.shape)}, has no partner: {no_such(held, of, other)}",
        f"give both layers the same parameters (bias, affine, ...); {HINT_SPECIAL}",
    )


def no_tensors(side: str, tensors: Sequence[tuple[Held, ModuleNode]]) -> WeightProblem:
    """Parameters of paired modules that their partners do not have, all of them in one."""
    held, other = tensors[0]
    found = no_tensor(side, held, other)
    if len(tensors) == 1:
        return found
    named = ", ".join(f"{one.path} {list(one.spec.shape)}" for one, _ in tensors[1 : 1 + _MOST_LISTED])
    more = f" and {len(tensors) - 1 - _MOST_LISTED} more" if len(tensors) > 1 + _MOST_LISTED else ""
    return replace(found, message=f"{found.message}; the same is true of {named}{more}")


def no_such(held: Held, of: str, other: ModuleNode) -> str:
    module = f"{of} module {other.path or '(model)'} ({other.kind})"
    sized = [spec.shape for spec in (*other.parameters, *other.buffers) if spec.name == held.name]
    if sized and math.prod(sized[0]) != math.prod(held.spec.shape):
        return f"{held.name} of {module} has shape {list(sized[0])}, which does not fit"
    return f"{module} has no such {held.role}"


def no_module(
    side: str, node: ModuleNode, tensors: Sequence[Held], near: ModuleNode, others: Sequence[ModuleNode]
) -> WeightProblem:
    """A module with parameters that corresponds to nothing; ``near`` is where the other model would have it."""
    of = "raw" if side == "base" else "base"
    shapes = ", ".join(f"{held.name} {list(held.spec.shape)}" for held in tensors[:_MOST_LISTED])
    if len(tensors) > _MOST_LISTED:
        shapes += f" and {len(tensors) - _MOST_LISTED} more"
    place = f"; {of} would have it in {near.path} ({near.kind})" if near.path else ""
    waiting = ", ".join(f"{other.path or '(model)'} ({other.kind})" for other in others[:3])
    also = f"; {of} has without partner: {waiting}" if waiting else ""
    return _sides(
        side,
        (node, node.path),
        (near, near.path),
        f"no module of {of} corresponds to {node.path or '(model)'} ({node.kind}) of {side}; "
        f"its parameters: {shapes}{place}{also}",
        f"{HINT_ORDER}; {HINT_MAP}",
    )


def tied_apart(base: ModuleNode, raw: ModuleNode, entry: WeightEntry, other: WeightEntry) -> WeightProblem:
    """Two paths of raw are one tensor, but base has two tensors that differ for them."""
    return _problem(
        (base, entry.sources[0].path),
        (raw, entry.path),
        f"raw ties {other.path} and {entry.path}, shape {list(entry.shape)}, but base fills them from two tensors "
        f"that differ, {other.sources[0].path} and {entry.sources[0].path}",
        "tie them in base as well, or untie them in raw",
    )


def _sides(side: str, own: Place, other: Place, message: str, hint: str) -> WeightProblem:
    return _problem(own, other, message, hint) if side == "base" else _problem(other, own, message, hint)


def _problem(base: Place, raw: Place, message: str, hint: str) -> WeightProblem:
    (base_node, base_path), (raw_node, raw_path) = base, raw
    return WeightProblem(
        base_path, raw_path, base_node.line, raw_node.line, message, hint, base_node.index, raw_node.index
    )
