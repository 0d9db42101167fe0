"""A module's tensors under the rows of the layer tables: what each holds, and how its axes go."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from padiff.frameworks.layers import Stored
from padiff.frameworks.tree import LiveTree, join
from padiff.records import ModuleNode, TensorSpec, WeightSource, record

Rows = Mapping[str, Stored]


@record
class Held:
    """A tensor that a module, or a layer matched as one thing, holds."""

    owner: ModuleNode
    name: str
    """Path relative to the owner."""
    spec: TensorSpec
    role: Literal["parameter", "buffer"]
    stored: Stored | None = None
    """Its row in the layer table, if it has one."""

    @property
    def path(self) -> str:
        return join(self.owner.path, self.name)

    @property
    def lenient(self) -> bool:
        """Whether it may stay without partner: a buffer, or what the table calls one."""
        return self.role == "buffer" or (self.stored is not None and self.stored.role == "buffer")


@record
class Part:
    """One neutral part inside one tensor of base."""

    held: Held
    stored: Stored
    place: int


def tensors_of(live: LiveTree, node: ModuleNode, whole: bool = False) -> list[Held]:
    """Tensors of a module; with ``whole``, those of its children too."""
    found: list[Held] = []
    for index in live.tree.subtree(node.index) if whole else [node.index]:
        inner = live.tree.nodes[index]
        prefix = inner.path.removeprefix(node.path).lstrip(".")
        found += [Held(node, join(prefix, spec.name), spec, "parameter") for spec in inner.parameters]
        found += [Held(node, join(prefix, spec.name), spec, "buffer") for spec in inner.buffers]
    return found


def rows_of(live: LiveTree, node: ModuleNode, rows: Rows, whole: bool) -> list[Held]:
    """A layer's tensors with their rows, each once: of several names, the one the table knows."""
    found: dict[int, Held] = {}
    for held in tensors_of(live, node, whole):
        known = found.get(held.spec.identity)
        if known is None or known.stored is None:
            stored = match_row(rows, held.name)
            if known is None or stored is not None:
                found[held.spec.identity] = Held(held.owner, held.name, held.spec, held.role, stored)
    return list(found.values())


def match_row(rows: Rows, name: str) -> Stored | None:
    """The row for a tensor's name, ``*`` filled in."""
    if name in rows:
        return rows[name]
    for pattern, stored in rows.items():
        if "*" not in pattern:
            continue
        hit = re.fullmatch(re.escape(pattern).replace(r"\*", "(.*)"), name)
        if hit:
            return replace(stored, parts=tuple(part.replace("*", hit.group(1)) for part in stored.parts))
    return None


def parts_of(tensors: Sequence[Held]) -> dict[str, Part]:
    """The neutral parts that tensors hold, by name."""
    found: dict[str, Part] = {}
    for held in tensors:
        if held.stored is not None:
            for place, part in enumerate(held.stored.parts):
                found.setdefault(part, Part(held, held.stored, place))
    return found


def source_of(part: Part, target: Stored) -> tuple[WeightSource, tuple[int, ...]]:
    """The cut and the turn that bring a part of base into raw's layout, and the shape it then has."""
    shape, axes = part.held.spec.shape, part.stored.axes
    start = stop = None
    if len(part.stored.parts) > 1:
        size = shape[part.stored.along] // len(part.stored.parts)
        start, stop = size * part.place, size * (part.place + 1)
        shape = (*shape[: part.stored.along], size, *shape[part.stored.along + 1 :])
    permute = None
    if _spelt_alike(axes, target.axes) and len(axes) == len(shape) and not (axes == target.axes and _has(shape, axes)):
        kept, permute = _order(axes, target.axes)
        shape = tuple([shape[place] for place in kept])
    return WeightSource(part.held.path, permute, part.stored.along, start, stop), shape


def _has(shape: tuple[int, ...], axes: str) -> bool:
    """Whether an axis is there that the row takes to be of length one: a norm over other axes than usual."""
    return any(letter == "1" and n != 1 for letter, n in zip(axes, shape, strict=True))


@functools.lru_cache(maxsize=4096)
def _order(axes: str, wanted: str) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Which axes are kept, in which order, and the turn that brings them there; None where all stay in place."""
    kept = [axes.index(letter) for letter in wanted if letter != "1"]
    order = kept + [place for place, letter in enumerate(axes) if letter == "1"]
    return tuple(kept), None if order == sorted(order) else tuple(order)


@functools.lru_cache(maxsize=4096)
def _spelt_alike(axes: str, others: str) -> bool:
    return bool(axes and others) and sorted(axes.replace("1", "")) == sorted(others.replace("1", ""))


def joined_shape(shapes: Sequence[tuple[int, ...]], stored: Stored) -> tuple[int, ...]:
    """Shape of the parts joined along raw's axis, with raw's axes of length one put in."""
    shape = list(shapes[0])
    if len(shapes) > 1:
        shape[stored.along] = sum(part[stored.along] for part in shapes)
    if "1" in stored.axes and len(shape) == len(stored.axes.replace("1", "")):
        letters = iter(shape)
        return tuple(1 if letter == "1" else next(letters) for letter in stored.axes)
    return tuple(shape)
