"""What the user says about weights: where a tensor of raw comes from, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, TensorSpec, WeightEntry, WeightSource

Function = Callable[[Mapping[str, Array]], Array]


@dataclass(frozen=True)
class Transpose:
    """Base's tensor with its axes reversed, or in the given order."""

    source: str
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Split:
    """One of several equal stretches of base's tensor along an axis."""

    source: str
    index: int
    parts: int
    axis: int = 0


@dataclass(frozen=True)
class Concat:
    """Several of base's tensors one after the other along an axis."""

    sources: tuple[str | Transpose | Split, ...]
    axis: int = 0


Rule = str | Transpose | Split | Concat | Function


def transpose(source: str, axes: tuple[int, ...] | None = None) -> Transpose:
    """A rule: base's tensor ``source`` with its axes reversed, or permuted to ``axes``."""
    return Transpose(source, axes)


def split(source: str, index: int, parts: int, axis: int = 0) -> Split:
    """A rule: stretch ``index`` of ``parts`` equal ones of base's tensor ``source`` along ``axis``."""
    return Split(source, index, parts, axis)


def concat(*sources: str | Transpose | Split, axis: int = 0) -> Concat:
    """A rule: base's tensors joined along ``axis``."""
    return Concat(sources, axis)


def entries_of(rules: Mapping[str, Rule], base: LiveTree, raw: LiveTree) -> list[WeightEntry]:
    """The entries that rules about tensors say; a rule that names no tensor of raw, or none of base, is an error."""
    base_specs, raw_specs = _specs(base), _specs(raw)
    found: dict[str, WeightEntry] = {}
    for pattern, rule in rules.items():
        hits = [(path, match) for path in raw_specs if (match := _pattern(pattern).fullmatch(path))]
        if not hits:
            raise ArgumentError(f"rules: raw has no tensor that {pattern!r} names", _near(pattern, raw_specs))
        for path, match in hits:
            found[path] = _entry(path, raw_specs[path], rule, match.groups(), base_specs)
    return list(found.values())


def names_tensor(pattern: str, raw: LiveTree) -> bool:
    """Whether a rule's key is about tensors of raw."""
    return any(_pattern(pattern).fullmatch(path) for path in _specs(raw))


def _entry(
    path: str, spec: TensorSpec, rule: Rule, stars: tuple[str, ...], base: Mapping[str, TensorSpec]
) -> WeightEntry:
    if callable(rule) and not isinstance(rule, (str, Transpose, Split, Concat)):
        return WeightEntry(path, "parameter", (), spec.shape, evidence="rule (a function)", function=rule)
    parts = rule.sources if isinstance(rule, Concat) else (rule,)
    axis = rule.axis if isinstance(rule, Concat) else 0
    sources = tuple(_source(part, stars, base, path, spec) for part in parts)
    shape = _shape(sources, axis, base)
    if shape != spec.shape:
        raise ArgumentError(
            f"rules: {path!r} of raw has shape {list(spec.shape)}, its rule gives {list(shape)}",
            "padiff.transpose(...), padiff.split(...) and padiff.concat(..., axis=...) bring shapes together",
        )
    return WeightEntry(path, "parameter", sources, spec.shape, axis, evidence="rule")


def _source(
    part: Any, stars: tuple[str, ...], base: Mapping[str, TensorSpec], path: str, target: TensorSpec
) -> WeightSource:
    name = part if isinstance(part, str) else getattr(part, "source", None)
    if not isinstance(name, str):
        raise ArgumentError(
            f"rules: the rule for {path!r} is {part!r}, expected a path of base, padiff.transpose(...), "
            "padiff.split(...), padiff.concat(...) or a function"
        )
    for star in stars:
        name = name.replace("*", star, 1)
    if name not in base:
        raise ArgumentError(f"rules: base has no tensor {name!r}", _near(name, base))
    shape = base[name].shape
    if isinstance(part, Transpose):
        order = tuple(reversed(range(len(shape)))) if part.axes is None else tuple(part.axes)
        return WeightSource(name, order)
    if isinstance(part, Split):
        if not 0 <= part.index < part.parts or shape[part.axis] % part.parts:
            raise ArgumentError(f"rules: {name!r} of shape {list(shape)} has no part {part.index} of {part.parts}")
        size = shape[part.axis] // part.parts
        return WeightSource(name, None, part.axis, size * part.index, size * (part.index + 1))
    turned = shape != target.shape and shape[::-1] == target.shape
    return WeightSource(name, tuple(reversed(range(len(shape)))) if turned else None)


def _shape(sources: tuple[WeightSource, ...], axis: int, base: Mapping[str, TensorSpec]) -> tuple[int, ...]:
    shapes = []
    for source in sources:
        shape = list(base[source.path].shape)
        if source.start is not None and source.stop is not None:
            shape[source.axis] = source.stop - source.start
        shapes.append([shape[place] for place in source.permute] if source.permute else shape)
    joined = list(shapes[0])
    for shape in shapes[1:]:
        joined[axis] += shape[axis]
    return tuple(joined)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", r"([^.]+)"))


def _specs(live: LiveTree) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for node in live.tree.nodes:
        for spec in (*node.parameters, *node.buffers):
            found[join(node.path, spec.name)] = spec
    return found


def _near(name: str, known: Mapping[str, Any]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f"near to it are {', '.join(near)}" if near else "paths are as in the model's state dict"
