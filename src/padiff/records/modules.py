"""Records of a model's modules: the tree, what the user rules about it, how it is used, which belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from padiff.records.plain import PlainData, record
from padiff.records.values import Array, TensorSpec


@record
class ModuleNode(PlainData):
    """One module of a model, under one of its paths."""

    index: int
    path: str
    kind: str
    """The class name."""
    layer: str | None
    """The framework-neutral name of a known layer (``linear``, ``conv2d``), else None."""
    parent: int
    """Index of the parent node; -1 for the model itself."""
    children: tuple[int, ...]
    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    identity: int
    """Two nodes with one identity are one module under two paths."""
    text: str | Callable[[], str]
    """How the framework prints it, in one line, or what says so when somebody asks."""
    atomic: bool = False
    """A layer that is matched as one thing although it has children (attention, LSTM)."""
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    """What it was built with, under the names all frameworks share, or what says so when somebody asks."""

    varied: bool = False
    """A known layer whose forward is not the framework's: an embedding of a class that scales what it looks up."""

    @property
    def built_with(self) -> Mapping[str, Any]:
        return self.settings() if callable(self.settings) else self.settings

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def line(self) -> str:
        return self.text if isinstance(self.text, str) else self.text()


@dataclass(frozen=True)
class ModuleTree(PlainData):
    """All modules of a model in definition order; node 0 is the model."""

    framework: str
    name: str
    nodes: tuple[ModuleNode, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Where and how the model runs, as its framework says it: version, device, threads, precision."""

    def by_path(self) -> dict[str, ModuleNode]:
        return {node.path: node for node in self.nodes}

    def subtree(self, index: int) -> list[int]:
        """The node and everything below it, in definition order."""
        found, pending = [], [index]
        while pending:
            current = pending.pop()
            found.append(current)
            pending.extend(reversed(self.nodes[current].children))
        return found


@dataclass(frozen=True)
class Rules(PlainData):
    """What the user says about matching, as paths."""

    pairs: tuple[tuple[str, str], ...] = ()
    """(base path, raw path) of modules that belong together; what is below them is left alone."""
    base_skip: frozenset[str] = frozenset()
    raw_skip: frozenset[str] = frozenset()
    """Paths of modules that are neither matched nor compared."""
    base_only: frozenset[str] | None = None
    raw_only: frozenset[str] | None = None
    """Where given: paths of the only modules that are matched and compared."""
    alike: frozenset[tuple[str, str]] = frozenset()
    """Classes of base and raw whose instances belong together, in order."""
    skip_parameterless: bool = False
    """Leave out modules that have no parameter, neither themselves nor below."""


@record
class Group(PlainData):
    """Modules of which several on one side do what one does on the other: query, key, value and a fused one."""

    base: tuple[int, ...]
    raw: tuple[int, ...]
    sizes: tuple[int, ...]
    """How much of the fused output each of the several makes up, in order."""
    heads: int = 0
    """Where not 0: the fused output is laid out head by head, each head with all parts."""
    axis: int = -1
    """Axis of base's outputs along which they are cut or joined."""


@dataclass(frozen=True)
class Usage(PlainData):
    """When a running model first used each tensor, by path, and first called each module, by node; empty if not run."""

    tensors: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[int, int] = field(default_factory=dict)
    made: Mapping[int, int] = field(default_factory=dict)
    """Node to the number of elements its first call returned, where that was one tensor."""
    ready: Mapping[int, int] = field(default_factory=dict)
    """Node to when the last of what its first call was given had first been seen, on the clock of ``calls``: what
    was there before another module was called does not depend on that module."""
    times: Mapping[int, int] = field(default_factory=dict)
    """Node to how often it was called."""
    outputs: tuple[tuple[str, Array], ...] = ()
    """The floating tensors that the model returned, with their places in what it returned."""
    given: Mapping[int, int] = field(default_factory=dict)
    """Node to the number of elements of the first tensor its first call was given."""
    in_all: Mapping[int, int] = field(default_factory=dict)
    """Node to the number of elements all its calls returned together, where each returned one tensor."""


@dataclass(frozen=True)
class Anchors(PlainData):
    """What is known of the modules from their tensors and from a first run, before they are paired."""

    pairs: tuple[tuple[int, int], ...] = ()
    groups: tuple[Group, ...] = ()
    base_holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    raw_holds: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Node to numbers of the parts it holds; equal numbers on both sides are filled one from the other."""
    base_order: Mapping[int, int] = field(default_factory=dict)
    raw_order: Mapping[int, int] = field(default_factory=dict)
    """Node to the rank of its first call."""


@dataclass(frozen=True)
class Stretch(PlainData):
    """Which part of what base's one call is given and returns belongs to one of raw's calls."""

    node: int
    """Of raw."""
    occurrence: int
    axis: int
    start: int
    stop: int
    whole: int
    """The length of base's."""
    single: bool = False
    """One place each, whose axis raw's tensors don't have."""


@dataclass(frozen=True)
class Gathered(PlainData):
    """A module that raw calls once with all that base's several calls are given."""

    node: int
    """Of raw."""
    count: int
    """Of base's calls."""


@dataclass(frozen=True)
class Order(PlainData):
    """Which of base's calls of a module belongs to each of raw's, where the two call it in another order."""

    node: int
    """Of raw."""
    occurrences: tuple[int, ...]
    """Of base's calls, by that of raw's."""


@dataclass(frozen=True)
class ModulePairs(PlainData):
    """Which node of base belongs to which node of raw."""

    pairs: tuple[tuple[int, int], ...]
    base_alone: tuple[int, ...]
    raw_alone: tuple[int, ...]
    groups: tuple[Group, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    """Calls of raw that do together what one of base does; known once both have run."""
    gathered: tuple[Gathered, ...] = ()
    """Modules of raw of which one call does what several of base do; known once both have run."""
    orders: tuple[Order, ...] = ()
    """Modules whose calls belong together in another order; known once both have run."""
    scattered: frozenset[int] = frozenset()
    """Nodes of raw that are called on rows of what base's one call is given, in whatever order; known once both have
    run."""

    def cut(self) -> frozenset[int]:
        """Nodes of raw that one side calls often on stretches of what the other's one call is given."""
        return frozenset({*(one.node for one in self.stretches), *(one.node for one in self.gathered)})

    def recorded(self, side: int) -> frozenset[int]:
        """Nodes of base (0) or raw whose calls are recorded: all that may pair, and those that stay alone, so that they
        are listed."""
        return frozenset({pair[side] for pair in self.pairs} | set((self.base_alone, self.raw_alone)[side]) | {0})

    def base_of(self) -> dict[int, int]:
        return {raw: base for base, raw in self.pairs}
