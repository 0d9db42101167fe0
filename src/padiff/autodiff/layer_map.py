"""What a user of the documented door says about matching: pairs of layers, and layers to leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from padiff.align import pair_modules
from padiff.autodiff.log import count, say
from padiff.autodiff.roles import by_position, live_model
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_model
from padiff.frameworks.tree import LiveTree
from padiff.records import Rules


class LayerMap:
    """Pairs of layers in ``map`` (``{layer of one model: layer of the other}``) and layers to ignore."""

    def __init__(self) -> None:
        self.map: dict[Any, Any] = {}
        self._ignored: list[Any] = []
        self._ignored_whole: list[Any] = []

    def __repr__(self) -> str:
        ignored = len(self._ignored) + len(self._ignored_whole)
        return f"LayerMap({count(len(self.map), 'pair')}, {ignored} ignored)"

    def ignore(self, layer: Any) -> None:
        """Leave this layer out; what is inside it still counts."""
        adapter_of_model(layer, "layer")
        self._ignored.append(layer)

    def ignore_recursively(self, layer: Any) -> None:
        """Leave this layer out with everything inside it."""
        adapter_of_model(layer, "layer")
        self._ignored_whole.append(layer)

    ignore_recursivly = ignore_recursively  # the documented spelling

    def ignore_class(self, model: Any, cls: type) -> None:
        """Leave out every layer of ``model`` that is an instance of ``cls``."""
        if not isinstance(cls, type):
            raise ArgumentError(f"cls is {cls!r}, expected a class, e.g. torch.nn.Dropout")
        live = live_model(model, "model")
        self._ignored += [module for module in live.modules if isinstance(module, cls)]

    def auto(self, first: Any, second: Any) -> LayerMap:
        """Find the layers of two models that hold the same thing in another form, and print what was found."""
        base, raw = by_position(first, second)
        pairs = pair_modules(base.tree, raw.tree, self.rules(base, raw), inside=True)
        found = [(b, r) for b, r in pairs.pairs if base.tree.nodes[b].atomic or raw.tree.nodes[r].atomic]
        say(f"LayerMap.auto: {base.tree.name} ({base.adapter.name}) and {raw.tree.name} ({raw.adapter.name})")
        for b, r in found:
            left, right = base.tree.nodes[b], raw.tree.nodes[r]
            say(f"    {left.path or '(model)'} ({left.kind})  <->  {right.path or '(model)'} ({right.kind})")
            self.map[base.modules[b]] = raw.modules[r]
        others = len(pairs.pairs) - len(found)
        say(f"    {count(len(found), 'layer')} mapped, {count(others, 'other')} correspond by themselves")
        for side, live, alone, mapped in (
            ("base", base, pairs.base_alone, [b for b, _ in found]),
            ("raw", raw, pairs.raw_alone, [r for _, r in found]),
        ):
            inside = {inner for index in mapped for inner in live.tree.subtree(index)}
            for index in alone:
                node = live.tree.nodes[index]
                if node.parameters and index not in inside:
                    say(f"    {side} {node.path} ({node.kind}) has parameters and no partner")
        return self

    def _pairs(self) -> Mapping[Any, Any]:
        if not isinstance(self.map, Mapping):
            raise ArgumentError(
                f"layer_map: its map is a {type(self.map).__name__}, expected a dict {{layer: layer of the other}}"
            )
        return self.map

    def rules(self, base: LiveTree, raw: LiveTree, *, skip_parameterless: bool = False) -> Rules:
        """The same as paths of the two models at hand."""
        return Rules(
            pairs=tuple(self._pair(one, other, base, raw) for one, other in self._pairs().items()),
            base_skip=self._skipped(base),
            raw_skip=self._skipped(raw),
            skip_parameterless=skip_parameterless,
        )

    def _pair(self, one: Any, other: Any, base: LiveTree, raw: LiveTree) -> tuple[str, str]:
        for left, right in ((one, other), (other, one)):
            base_index, raw_index = base.node_of().get(id(left)), raw.node_of().get(id(right))
            if base_index is not None and raw_index is not None:
                return base.tree.nodes[base_index].path, raw.tree.nodes[raw_index].path
        raise ArgumentError(
            f"layer_map: {type(one).__name__} and {type(other).__name__} are a pair, expected one layer of each model",
            "map layer objects taken from the very models that are compared: {model_a.attn: model_b.attn}",
        )

    def _skipped(self, live: LiveTree) -> frozenset[str]:
        found: set[str] = set()
        for index, module in enumerate(live.modules):
            if any(module is other for other in self._ignored):
                found.add(live.tree.nodes[index].path)
            if any(module is other for other in self._ignored_whole):
                found.update(live.tree.nodes[inner].path for inner in live.tree.subtree(index))
        return frozenset(found)


def as_layer_map(value: Any) -> LayerMap:
    """A LayerMap from what ``layer_map=`` was given."""
    if value is None:
        return LayerMap()
    if isinstance(value, LayerMap):
        return value
    if isinstance(value, Mapping):
        found = LayerMap()
        found.map = dict(value)
        return found
    raise ArgumentError(
        f"layer_map is a {type(value).__name__}, expected a LayerMap or a dict {{layer of one: layer of the other}}"
    )
