"""Models as sketches: plain descriptions that become module trees, with no framework around."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from padiff.records import ModuleNode, ModuleTree, TensorSpec

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sketch:
    """A module; ``tag`` stays the same whatever is done to its name and place."""

    tag: int
    kind: str
    layer: str | None = None
    shapes: Shapes = ()
    children: tuple[tuple[str, Sketch], ...] = ()
    atomic: bool = False

    def everything(self) -> Iterator[Sketch]:
        yield self
        for _, child in self.children:
            yield from child.everything()


@dataclass
class _Numbers:
    """Identities of modules and tensors."""

    count: Iterator[int] = field(default_factory=lambda: itertools.count(1000))


def tree_of(sketch: Sketch, framework: str = "torch") -> tuple[ModuleTree, list[int]]:
    """The tree, and by node index the tag of its sketch."""
    nodes: list[ModuleNode] = []
    tags: list[int] = []
    numbers = _Numbers().count

    def visit(one: Sketch, path: str, parent: int) -> int:
        index = len(nodes)
        specs = tuple(TensorSpec(f"p{i}", shape, "float32", next(numbers)) for i, shape in enumerate(one.shapes))
        node = ModuleNode(
            index, path, one.kind, one.layer, parent, (), specs, (), next(numbers), f"{one.kind}()", one.atomic
        )
        nodes.append(node)
        tags.append(one.tag)
        children = tuple(visit(child, f"{path}.{name}".lstrip("."), index) for name, child in one.children)
        nodes[index] = replace(node, children=children)
        return index

    visit(sketch, "", -1)
    return ModuleTree(framework, "Net", tuple(nodes)), tags


LEAVES: list[tuple[str, str | None, Shapes]] = [
    ("Linear", "linear", ((3, 5), (5,))),
    ("Linear", "linear", ((4, 4), (4,))),
    ("Conv2d", "conv2d", ((4, 2, 3, 3),)),
    ("LayerNorm", "layer_norm", ((4,), (4,))),
    ("ReLU", "relu", ()),
    ("GELU", "gelu", ()),
    ("Dropout", "dropout", ()),
    ("Own", None, ((2, 7),)),
    ("Rotate", None, ()),
]
NAMES = ["fc", "norm", "act", "body", "0", "1", "2", "proj"]
KINDS = ["Block", "Stage", "Head"]


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    """A model of up to some thirty modules, three levels deep."""
    tags = itertools.count()

    def module(depth: int) -> Sketch:
        if depth > 0 and (depth == 3 or draw(st.booleans())):
            kind, layer, shapes = draw(st.sampled_from(LEAVES))
            return Sketch(next(tags), kind, layer, shapes)
        tag = next(tags)
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
        shapes = draw(st.sampled_from([(), (), ((1, 6),)]))
        children = tuple((name, module(depth + 1)) for name in names)
        return Sketch(tag, draw(st.sampled_from(KINDS)), None, shapes, children)

    return module(0)


def renamed(sketch: Sketch, name: Callable[[], str]) -> Sketch:
    """The same model, every module under a new name."""
    return replace(sketch, children=tuple((name(), renamed(child, name)) for _, child in sketch.children))


def wrapped(sketch: Sketch, draw: Callable[[], int]) -> Sketch:
    """The same model with wrappers around some modules: beside their name (1), or in place of it (2)."""
    children = []
    for name, child in sketch.children:
        inner = wrapped(child, draw)
        match draw():
            case 1:
                children.append(("wrapper", Sketch(-1, "Wrapper", None, (), ((name, inner),))))
            case 2:
                children.append((name, Sketch(-1, "Sequential", "sequential", (), (("inner", inner),))))
            case _:
                children.append((name, inner))
    # A module has no two children of one name.
    names = [name for name, _ in children]
    unique = [(f"{name}_{i}" if name in names[:i] else name, child) for i, (name, child) in enumerate(children)]
    return replace(sketch, children=tuple(unique))


def with_shared_wrapper(sketch: Sketch, start: int, stop: int) -> Sketch:
    """The model's children from ``start`` to ``stop`` moved into a container of their own."""
    inside = sketch.children[start:stop]
    if not inside:
        return sketch
    container = ("container", Sketch(-1, "Container", None, (), inside))
    return replace(sketch, children=(*sketch.children[:start], container, *sketch.children[stop:]))
