"""``create_model``: a model that records what it does and dumps it, and is the model otherwise."""

from __future__ import annotations

import functools
import os
import secrets
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from padiff.autodiff.dump_files import PARTS, Run, write_parts
from padiff.autodiff.dump_root import get_dump_root_path
from padiff.autodiff.lists import Lists, read_class, read_layers
from padiff.autodiff.log import count, say
from padiff.autodiff.mapped_layers import Mapped, found_layers, read_layer_list
from padiff.autodiff.recording import Recording
from padiff.engine.captured.dumping import ranks_here
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_model, module_tree
from padiff.frameworks.tree import LiveTree
from padiff.records import StepTrace
from padiff.store import place

_OWN = frozenset({"model", "name", "framework", "dump_path", "dump_freq"})


def create_model(model: Any, name: str | None = None, dump_freq: int = 1) -> ProxyModel:
    """A proxy of ``model`` that records its runs; every ``dump_freq``-th call of ``try_dump`` writes them.

    ``name`` says where: below ``<dump root>/<name>``. It is the name of the model's class unless given.
    """
    if isinstance(model, ProxyModel):
        model = model.model
    adapter = adapter_of_model(model, "model")
    if name is not None and (not isinstance(name, str) or not name.strip() or name in (".", "..") or _parted(name)):
        raise ArgumentError(f"name is {name!r}, expected the name of a folder, without slashes")
    if not isinstance(dump_freq, int) or isinstance(dump_freq, bool) or dump_freq < 1:
        raise ArgumentError(
            f"dump_freq is {dump_freq!r}, expected a whole number of at least 1", "dump_freq=10 dumps steps 0, 10, 20"
        )
    return ProxyModel(model, name or type(model).__name__, adapter.name, dump_freq)


class ProxyModel:
    """Records a model. What it has not itself (``parameters()``, ``train()``, a layer) is the model's."""

    def __init__(self, model: Any, name: str, framework: str, dump_freq: int) -> None:
        self.model = model
        self.name = name
        self.framework = framework
        self.dump_freq = dump_freq
        self.dump_path = str(Path(get_dump_root_path()) / name)
        """The folder that all dumps of this model go below."""
        self._lists = Lists()
        self._mapped = Mapped()
        self._count = 0
        """How often ``try_dump`` was called: the number of the step that is running."""
        self._recording: Recording | None = None
        self._last: Recording | None = None
        self._identity = secrets.token_hex(8)
        _ALIVE[self._identity] = self

    # --- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; on steps that will be dumped, record what it does."""
        if self._count % self.dump_freq:
            return self.model(*args, **kwargs)
        return self._recorded().call(args, kwargs)

    forward = __call__

    def backward(self, loss: Any) -> None:
        """Run backward from ``loss``; on steps that will be dumped, record the gradients."""
        adapter = adapter_of_model(self.model, "model")
        if not adapter.is_tensor(loss):
            raise ArgumentError(f"loss is a {type(loss).__name__}, expected a {adapter.name} tensor")
        if self._count % self.dump_freq:
            adapter.backward(loss)
        else:
            self._recorded().backward(loss)

    @property
    def report(self) -> StepTrace:
        """What was recorded since the last dump, or since ``clear_report``."""
        return StepTrace(self._count, (), {}, None, {}) if self._recording is None else self._recording.trace()

    def clear_report(self) -> None:
        """Forget what was recorded since the last dump."""
        if self._recording is not None:
            self._recording.close()
            self._last, self._recording = self._recording, None

    # --- dumping

    def try_dump(self, path: str | os.PathLike[str] | None = None) -> None:
        """Count a step; if it is one to be dumped, write all that was recorded. What was recorded is forgotten.

        By default it goes to ``<dump_path>/step_<n>/rank_<r>``, with steps counted from 0.
        """
        if self._count % self.dump_freq == 0:
            self._dump(path, PARTS)
        self.clear_report()
        self._count += 1

    def dump_report(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the calls that were recorded, with their tensors and gradients."""
        if self._recording is None:
            raise ArgumentError(
                f"dump_report: nothing of {self.name} has been recorded since the last dump",
                f"call the model first, on a step whose number divides by dump_freq={self.dump_freq}",
            )
        self._dump(path, ("report",))

    def dump_params(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write weights and gradients of the parameters."""
        self._dump(path, ("weights", "grads"))

    def dump_weights(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the parameters and buffers as they are."""
        self._dump(path, ("weights",))

    def dump_grads(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write the gradients of the parameters: those that ``backward`` left, else those that are there."""
        self._dump(path, ("grads",))

    def _dump(self, path: str | os.PathLike[str] | None, parts: Iterable[str]) -> None:
        if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
            raise ArgumentError(f"path is {path!r}, expected the path of a folder")
        recording = self._recording or Recording(*self._seen(), self._count)
        rank, _ = ranks_here(recording.live.adapter)
        to = place(self.dump_path, self._count, rank) if path is None else Path(path)
        write_parts(recording, to, parts, self._run(recording.live))

    # --- which layers

    def update_black_list(self, layers: Any, mode: str = "all") -> None:
        """Leave layers out: themselves (``self``), what is inside them (``sublayers``), or both (``all``)."""
        self._lists.black += read_layers(live_proxy(self), layers, mode, "update_black_list")

    def update_white_list(self, layers: Any, mode: str = "self") -> None:
        """Record these layers only, whatever the black list says."""
        self._lists.white = [
            *(self._lists.white or ()),
            *read_layers(live_proxy(self), layers, mode, "update_white_list"),
        ]

    def update_black_list_with_class(self, layer_class: Any, mode: str = "all") -> None:
        """Leave out all layers of a class, or of one of several."""
        self._lists.black += self._of_class(layer_class, mode, "update_black_list_with_class")

    def update_white_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """Record the layers of a class only, or of one of several, whatever the black list says."""
        found = self._of_class(layer_class, mode, "update_white_list_with_class")
        self._lists.white = [*(self._lists.white or ()), *found]

    def set_layer_map(self, layers: Any) -> None:
        """Say which layers correspond to the other model's: the first to its first, the second to its second, ..."""
        self._mapped = Mapped(read_layer_list(live_proxy(self), layers))

    def auto_layer_map(self, model_place: str) -> bool:
        """Set the layer map to the layers that are matched as one thing, as ``"base"`` or as ``"raw"``; print them."""
        live = live_proxy(self)
        self._mapped = Mapped(found_layers(live, model_place), chosen=False)
        say(f"auto_layer_map: {self.name} ({self.framework}) as {model_place} model")
        kinds = {node.path: node.kind for node in live.tree.nodes}
        for path in self._mapped.paths(live):
            say(f"    {path or '(model)'} ({kinds[path]})")
        say(f"    {count(len(self._mapped.layers), 'layer')} mapped")
        return True

    # --- the model itself

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "model" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self.model, name)
        if isinstance(found, types.MethodType) and found.__self__ is self.model:
            return functools.partial(_as_proxy, self, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.model, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.model)})

    def __getitem__(self, key: Any) -> Any:
        return self.model[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.model)

    def __len__(self) -> int:
        return len(self.model)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"ProxyModel({self.name!r}, framework={self.framework!r}, dump_freq={self.dump_freq})\n{self.model!r}"

    # --- inside

    def _recorded(self) -> Recording:
        """What the running step is recorded in."""
        if self._recording is None:
            live, nodes = self._seen()
            last = self._last
            seen = None
            if last is not None and last.step >= self._count - 1 and _same(last.live, live):
                live, seen = last.live, last.statistics
                live.forget()
            self._recording = Recording(live, nodes, self._count, seen)
        return self._recording

    def _seen(self) -> tuple[LiveTree, frozenset[int]]:
        live = live_proxy(self)
        return live, self._lists.recorded(live)

    def _of_class(self, layer_class: Any, mode: Any, call: str) -> list[tuple[Any, str]]:
        found = read_class(live_proxy(self), layer_class, mode, call)
        if not found:
            say(f"{call}: {self.name} has no layer of that class")
        return found

    def _run(self, live: LiveTree) -> Run:
        others = frozenset(identity for identity, other in _ALIVE.items() if other.model is not self.model)
        return Run(self._identity, self._mapped.paths(live), self._mapped.chosen, others)


_ALIVE: WeakValueDictionary[str, ProxyModel] = WeakValueDictionary()


@dataclass(frozen=True)
class LiveProxy(LiveTree):
    """A model with what its proxy was told about it."""

    lists: Lists = field(default_factory=Lists, compare=False)
    mapped: Mapped = field(default_factory=Mapped, compare=False)
    dump_path: str = ""
    run: Run | None = field(default=None, compare=False)


def live_proxy(proxy: ProxyModel) -> LiveProxy:
    """The model of a proxy as it is now, under the proxy's name."""
    live = module_tree(adapter_of_model(proxy.model, "model"), proxy.model, proxy.name)
    return LiveProxy(
        *(live.adapter, live.model, live.tree, live.modules),
        lists=proxy._lists,
        mapped=proxy._mapped,
        dump_path=proxy.dump_path,
        run=proxy._run(live),
    )


def _as_proxy(proxy: ProxyModel, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Methods such as ``train()`` and ``to()`` return the model: here, its proxy."""
    found = method(*args, **kwargs)
    return proxy if found is proxy.model else found


def _parted(name: str) -> bool:
    return any(mark in name for mark in ("/", "\\", "\0"))


def _same(one: LiveTree, other: LiveTree) -> bool:
    """The same modules, holding the same tensors."""
    return [id(module) for module in one.modules] == [id(module) for module in other.modules] and all(
        (mine.parameters, mine.buffers) == (theirs.parameters, theirs.buffers)
        for mine, theirs in zip(one.tree.nodes, other.tree.nodes, strict=True)
    )
