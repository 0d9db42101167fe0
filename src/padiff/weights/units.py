"""A model's tensors in units that move together: a layer's weight and bias, one projection of a fused attention."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from padiff.frameworks.layers import Stored
from padiff.frameworks.tree import LiveTree, join
from padiff.records import ModuleNode, Usage
from padiff.weights.list_order import in_list_order
from padiff.weights.rows import Held, rows_of
from padiff.weights.words import numbers_of, words_of

UNKNOWN = "??"
"""Axes of a matrix that nobody says the orientation of."""
_MADE_UP = frozenset({"weight_g", "weight_v"})
_SIZE_AND_DIRECTION = {
    **dict.fromkeys(("weight_g", "g", "original0", "magnitude"), "weight_g"),
    **dict.fromkeys(("weight_v", "v", "original1", "direction"), "weight_v"),
    **dict.fromkeys(("bias", "b"), "bias"),
}
"""What a layer that somebody wrote himself calls the parts of a weight that it keeps so."""
_OWN_NAMES = {
    **dict.fromkeys(("gamma", "g"), "weight"),
    **dict.fromkeys(("beta", "b"), "bias"),
    **dict.fromkeys(("mean", "_mean", "moving_mean"), "running_mean"),
    **dict.fromkeys(("var", "variance", "_variance", "moving_var", "moving_variance"), "running_var"),
}
"""What a norm that somebody wrote himself calls its parts."""
_PLAIN = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked", *_OWN_NAMES})
"""What a layer that somebody wrote himself holds, if it is one unit: a norm, also one whose statistics are frozen."""
_LISTS = frozenset({"parameter_list", "parameter_dict"})
"""Keep tensors for who holds them: each is for itself."""
_RECURRENT = re.compile(r"((?:weight|bias)_(?:ih|hh|hr))_l(\d+)(_reverse)?")


@dataclass(frozen=True)
class Atom:
    """One neutral part of one tensor."""

    held: Held
    axes: str
    """Letters of its axes where known; ``o`` is the axis parts are cut and joined along."""
    start: int
    size: int
    """Stretch of the tensor's ``o`` axis that it takes."""
    parts: int

    @property
    def out_axis(self) -> int:
        return self.axes.index("o") if "o" in self.axes else 0

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Its own shape, in the tensor's layout."""
        full = self.held.spec.shape
        if self.parts == 1:
            return full
        return (*full[: self.out_axis], self.size, *full[self.out_axis + 1 :])

    @functools.cached_property
    def neutral(self) -> tuple[int, ...]:
        """Its shape with a matrix as (out, in); axes of length one that only some frameworks keep are dropped."""
        if len(self.axes) != len(self.shape):
            return self.shape
        if sorted(self.axes) == ["i", "o"]:
            return self.shape[self.axes.index("o")], self.shape[self.axes.index("i")]
        return tuple(size for size, letter in zip(self.shape, self.axes, strict=True) if letter != "1")

    @functools.cached_property
    def matrix(self) -> tuple[int, int] | None:
        """Outputs and inputs of a kernel taken as a matrix: a convolution over all that there is, or over single
        places, is a linear layer to other authors."""
        if self.parts > 1 or len(self.axes) != len(self.shape) or self.axes[:2] not in ("oi", "io"):
            return None
        if len(self.axes) > 2 and self.axes[0] != "o":
            return None
        out = self.shape[self.out_axis]
        return out, math.prod(self.shape) // max(out, 1)


@dataclass(frozen=True)
class Unit:
    """Tensors that belong together, under the neutral names of what they are."""

    node: ModuleNode
    path: str
    """Where it is: the module's path, with the part's or parameter's name where it is less than the module."""
    layer: str | None
    atoms: Mapping[str, Atom]
    label: str = ""
    """The path without the positions that wrappers around a single module add: what names are read from."""
    use: float = math.inf
    """When it was first used; infinite when it never was."""
    order: int = 0
    values: tuple[float, float] | None = None
    """Its least and greatest element, the same in every layout; None where they say nothing."""
    made: int = 0
    """Number of elements its module returned when it first ran; 0 where unknown."""
    in_all: int = 0
    """The same of all its calls: one author may call it once for two pictures, the other once for each."""
    ready: int = 0
    """When what its module was first given was there; 0 where unknown. Equal where it is the same tensor."""
    strides: frozenset[int] = frozenset()
    """Of a convolution."""
    numbers: tuple[int, ...] = field(default=())
    """Its places in lists, from the outside in."""
    counted: tuple[int, ...] = field(default=())
    """The same, and where it is in none, in lists whose members have names that count."""

    @functools.cached_property
    def main(self) -> Atom:
        return self.atoms.get("weight") or self.atoms.get("weight_v") or next(iter(self.atoms.values()))

    @functools.cached_property
    def required(self) -> frozenset[str]:
        return frozenset(role for role, atom in self.atoms.items() if not atom.held.lenient)


def units_of(live: LiveTree, usage: Usage, *, values: bool = False) -> list[Unit]:
    """All units of a model in order of first use, those never used last, in definition order; with the ``values`` that
    tell them apart, for which all of a model's numbers are read."""
    use, tensors = usage.tensors, live.tensors()
    found = [
        replace(
            unit,
            values=_extremes(live, unit, tensors) if values else None,
            use=_first(unit, use),
            order=place,
            made=_of(unit, usage.made),
            in_all=_of(unit, usage.in_all),
            ready=_of(unit, usage.ready),
        )
        for place, unit in enumerate(live.once("units", _at_rest))
    ]
    return in_list_order(sorted(found, key=lambda unit: (unit.use, unit.order)))


def _at_rest(live: LiveTree) -> list[Unit]:
    """As far as nothing has to run for it, in definition order."""
    found: list[Unit] = []
    hidden: set[int] = set()
    for node in live.tree.nodes:
        if node.parent in hidden:
            hidden.add(node.index)
            continue
        if node.atomic:
            hidden.add(node.index)
        found += _units_of_node(live, node)
    return _with_biases_beside(_oriented(found))


def _units_of_node(live: LiveTree, node: ModuleNode) -> list[Unit]:
    spec = live.layer_spec(node.index)
    if spec is not None and spec.layer in _LISTS:
        spec = None
    groups: dict[tuple[str, str], dict[str, Atom]] = defaultdict(dict)
    plain = rows_of(live, node, {}, whole=False)
    plain_pair = {held.name for held in plain} <= _PLAIN
    learnt = {held.name for held in plain if held.role == "parameter"}
    made_up = _made_up(plain) if spec is None and not node.children else {}
    for held in rows_of(live, node, spec.stored if spec else {}, whole=node.atomic):
        stored = held.stored
        if stored is None and held.name in made_up:
            axes = UNKNOWN if len(held.spec.shape) == 2 else ""
            groups[("", "")][made_up[held.name]] = Atom(held, axes, 0, _out(held.spec.shape, 0), 1)
            continue
        if stored is None:
            role = _OWN_NAMES.get(held.name, held.name)
            beside = learnt and role in ("weight", "bias") and held.name not in learnt  # a weight that is learnt
            name = "" if plain_pair and spec is None and not beside else held.name
            axes = UNKNOWN if len(held.spec.shape) == 2 and (plain_pair or held.role == "parameter") else ""
            groups[(name, "" if not name else held.name)][role if not name else "weight"] = Atom(
                held, axes, 0, _out(held.spec.shape, 0), 1
            )
            continue
        for place, part in enumerate(stored.parts):
            prefix, _, role = part.rpartition(".")
            if recurrent := _RECURRENT.fullmatch(role):
                prefix, role = f"l{recurrent[2]}", recurrent[1] + (recurrent[3] or "")
            groups[(prefix, "")][role] = _atom(held, stored, place)
    if set(groups) == {("l0", "")}:
        groups = {("", ""): groups[("l0", "")]}
    units = []
    for (prefix, _), atoms in groups.items():
        stacked = spec is not None and bool(re.fullmatch(r"l\d+", prefix))  # one of several recurrent layers
        layer = None
        if spec and any(a.held.stored for a in atoms.values()):
            layer = "linear" if prefix and not stacked else spec.layer
        owner = _owner(live, node, atoms) if prefix and spec and not stacked else node
        path = owner.path if owner is not node else join(node.path, prefix) if prefix else node.path
        label = _label(live, owner) + path.removeprefix(owner.path)
        numbers = numbers_of(label)
        counted = numbers or _named_places(live, owner)
        label, strides = label.lstrip("."), _strides(owner) if (layer or "").startswith("conv") else frozenset()
        units.append(Unit(owner, path, layer, dict(atoms), label, strides=strides, numbers=numbers, counted=counted))
    return units


def _strides(node: ModuleNode) -> frozenset[int]:
    found = node.built_with.get("stride", ())
    return frozenset(found if isinstance(found, (list, tuple)) else (found,))


def _made_up(own: Sequence[Held]) -> dict[str, str]:
    """A module's own tensors to what they are, where they are a weight's size and direction, and maybe a bias; empty
    where it holds anything else."""
    roles = {held.name: _SIZE_AND_DIRECTION.get(held.name, "") for held in own}
    shapes = {roles[held.name]: held.spec.shape for held in own}
    if len(shapes) < len(own) or not _MADE_UP <= set(shapes) <= {*_MADE_UP, "bias"}:
        return {}
    size, direction = math.prod(shapes["weight_g"]), shapes["weight_v"]
    return roles if len(direction) > 1 and size in direction else {}


def _label(live: LiveTree, node: ModuleNode) -> str:
    names: list[str] = []
    while node.parent >= 0:
        parent = live.tree.nodes[node.parent]
        if not (node.name.isdigit() and len(parent.children) == 1 and parent.parent >= 0):
            names.append(node.name)
        node = parent
    return ".".join(reversed(names))


def _named_places(live: LiveTree, node: ModuleNode) -> tuple[int, ...]:
    """Its places in lists whose members, which hold others, have names that count: ``layers.encoder_layer_0``."""
    found: list[int] = []
    while node.parent >= 0:
        siblings = [live.tree.nodes[child] for child in live.tree.nodes[node.parent].children]
        counted = {one.name: re.fullmatch(r"(.*\D)(\d+)", one.name) for one in siblings if one.children}
        numbers = {name: int(match[2]) for name, match in counted.items() if match is not None}
        stems = {match[1] for match in counted.values() if match is not None}
        if len(numbers) == len(siblings) > 1 and len(stems) == 1:
            found.append(sorted(numbers.values()).index(numbers[node.name]))
        node = live.tree.nodes[node.parent]
    return tuple(reversed(found))


def _owner(live: LiveTree, node: ModuleNode, atoms: Mapping[str, Atom]) -> ModuleNode:
    """The module inside a layer matched as one thing that holds a part whole, if there is one: ``attn.q_proj``."""
    owners = {atom.held.path.rpartition(".")[0] for atom in atoms.values()}
    if len(owners) != 1 or any(atom.parts > 1 for atom in atoms.values()):
        return node
    return live.tree.by_path().get(owners.pop(), node)


def _atom(held: Held, stored: Stored, place: int) -> Atom:
    axes = stored.axes if len(stored.axes) == len(held.spec.shape) else ""
    parts = len(stored.parts)
    axis = axes.index("o") if "o" in axes else stored.along
    size = _out(held.spec.shape, axis) // parts
    return Atom(held, axes, size * place, size, parts)


def _out(shape: Sequence[int], axis: int) -> int:
    return shape[axis] if axis < len(shape) else 1


def _oriented(units: list[Unit]) -> list[Unit]:
    """Settle which axis of an unknown matrix is the output: by its bias, else by its class's other instances."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for unit in units:
        axes = _axes_by_bias(unit)
        if axes:
            votes[unit.node.kind][axes] += 1
    found = []
    for unit in units:
        atom = unit.atoms.get("weight")
        if atom is None or atom.axes != UNKNOWN:
            found.append(unit)
            continue
        axes = _axes_by_bias(unit) or (votes[unit.node.kind].most_common(1) or [(UNKNOWN, 0)])[0][0]
        atoms = {**unit.atoms, "weight": replace(atom, axes=axes, size=_out(atom.held.spec.shape, axes.find("o") % 2))}
        found.append(replace(unit, atoms=atoms))
    return found


def _axes_by_bias(unit: Unit) -> str:
    weight, bias = unit.atoms.get("weight"), unit.atoms.get("bias")
    if weight is None or bias is None or weight.axes != UNKNOWN or len(bias.held.spec.shape) != 1:
        return ""
    rows, columns = weight.held.spec.shape
    length = bias.held.spec.shape[0]
    if rows == columns:
        return ""
    return "oi" if length == rows else "io" if length == columns else ""


def _extremes(live: LiveTree, unit: Unit, tensors: Mapping[str, Any]) -> tuple[float, float] | None:
    """A fresh norm's ones or a bias of zeros tell nothing; neither does a part of a fused tensor, or one element."""
    atom = unit.main
    if atom.parts > 1 or math.prod(atom.shape) < 2 or not atom.held.spec.dtype.startswith(("float", "bfloat")):
        return None
    array = live.adapter.to_numpy(tensors[atom.held.path])
    least, greatest = float(array.min()), float(array.max())
    return None if least == greatest or not math.isfinite(least + greatest) else (least, greatest)


def _of(unit: Unit, returned: Mapping[int, int]) -> int:
    """What a module of its own returned; a tensor that a larger module keeps says nothing of the kind, and a table
    may be looked up once for a whole batch."""
    own = unit.path == unit.node.path and not unit.node.children and unit.layer not in (None, "embedding")
    return returned.get(unit.node.index, 0) if own else 0


def _first(unit: Unit, use: Mapping[str, int]) -> float:
    return min((use.get(atom.held.path, math.inf) for atom in unit.atoms.values()), default=math.inf)


def _with_biases_beside(units: list[Unit]) -> list[Unit]:
    """A fused projection whose module keeps the biases of its parts itself (``q_bias``, ``v_bias``), in its parts."""
    beside: dict[int, dict[str, Unit]] = defaultdict(dict)
    for unit in units:
        name = re.fullmatch(r"([qkv])_?bias", unit.path.rpartition(".")[2])
        if name and unit.layer is None and len(unit.main.shape) == 1 and len(unit.atoms) == 1:
            beside[unit.node.index][name[1]] = unit
    found: list[Unit] = []
    gone: set[int] = set()
    for unit in units:
        biases = beside.get(unit.node.index) or beside.get(unit.node.parent, {})
        fused = set(unit.atoms) == {"weight"} and "qkv" in words_of(unit.label) and len(unit.main.shape) == 2
        sizes = {bias.main.shape[0] for bias in biases.values()}
        if not fused or sizes != {unit.main.neutral[0] // 3}:
            found.append(unit)
            continue
        gone.update(id(bias) for bias in biases.values())
        size = unit.main.neutral[0] // 3
        for place, part in enumerate("qkv"):
            atoms = {"weight": replace(unit.main, start=place * size, size=size, parts=3)}
            if part in biases:
                atoms["bias"] = biases[part].main
            path, label = join(unit.path, part), join(unit.label, part)
            found.append(replace(unit, path=path, label=label, layer="linear", atoms=atoms))
    return [unit for unit in found if id(unit) not in gone]


def halves(unit: Unit) -> list[Unit]:
    """A layer's weight and its bias each for itself: a bias may be kept elsewhere, by a module that holds nothing else,
    or be left out. So may what makes up a weight, its size and its direction."""
    roles = set(unit.atoms)
    made_up = _MADE_UP if roles >= _MADE_UP else frozenset()
    if not roles & {"bias", *made_up} or not roles <= {"weight", "bias", *made_up}:
        return [unit]
    parts = []
    for role, atom in sorted(unit.atoms.items(), key=lambda item: item[0] != "weight"):
        if role == "weight":
            parts.append(replace(unit, atoms={"weight": atom}))
            continue
        path, label = f"{unit.path}.{role}".lstrip("."), f"{unit.label}_{role}".lstrip("_")
        parts.append(replace(unit, path=path, label=label, atoms={"weight": atom}, values=None, made=0, layer=None))
    return parts
