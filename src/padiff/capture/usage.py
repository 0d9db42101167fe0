"""In which order a running model first uses its tensors: what the order of definition cannot tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from padiff.capture.draws import Steady
from padiff.capture.lines import call_model
from padiff.capture.one_step import Arguments, floating
from padiff.capture.state import preserved
from padiff.frameworks.compiled import sealed
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Usage


class UseWatch:
    """Sees what a running model uses when.

    A tensor counts as used when an op takes it; failing that, and for one under several names, when its module
    is called. The first round counts.
    """

    def __init__(self, live: LiveTree) -> None:
        self._live, self._adapter = live, live.adapter
        self._paths: dict[int, list[str]] = {}
        for path, tensor in live.tensors().items():
            self._paths.setdefault(id(tensor), []).append(path)
        self._owned: dict[int, list[str]] = {}
        for node, module in zip(live.tree.nodes, live.modules, strict=True):
            own = (*self._adapter.own_parameters(module), *self._adapter.own_buffers(module))
            self._owned.setdefault(id(module), []).extend(join(node.path, name) for name, _ in own)
        self._read: dict[str, int] = {}
        self._called: dict[str, int] = {}
        self._calls: dict[int, int] = {}
        self._given: dict[int, int] = {}
        self._made: dict[int, int] = {}
        self._in_all: Counter[int] = Counter()
        self._ready: dict[int, int] = {}
        self._times: Counter[int] = Counter()
        self._seen: dict[tuple[int, int], int] = {}
        self._kept: list[Any] = []  # while they are held, nobody else gets their memory
        self._node_of = live.node_of()
        self._clock = 0
        self._sees = True
        self._order_of_use: Callable[[Any], Iterable[Any]] = getattr(live.adapter, "order_of_use", _nobody_tells)

    @contextmanager
    def watching(self, but: Any = None, *, eager: bool = False) -> Iterator[None]:
        """Inside, calls and reads are seen; of one that is running already, only what it reads and calls.

        ``eager`` says that what is compiled runs in its eager form; otherwise nothing in there is looked at."""
        hidden = frozenset() if eager else sealed(self._live, eager=False)
        modules = {id(m): m for index, m in enumerate(self._live.modules) if index not in hidden or index == 0}
        modules.pop(id(but), None)
        with ExitStack() as stack:
            for handle in self._adapter.attach(modules.values(), self.enter, self.leave, lambda *_: None):
                stack.callback(handle.remove)
            if not hidden:
                stack.enter_context(self._adapter.watch_reads(self._on_read))
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is seen."""
        before, self._sees = self._sees, False
        try:
            yield
        finally:
            self._sees = before

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _on_read(self, tensor: Any) -> None:
        if not self._sees:
            return
        for path in self._paths.get(id(tensor), ()):
            self._read.setdefault(path, self._tick())

    def enter(self, module: Any, args: Any, kwargs: Any) -> None:
        if not self._sees:
            return
        adapter, node = self._adapter, self._node_of[id(module)]
        self._times[node] += 1
        if node not in self._calls:
            given = [tensor for _, tensor in adapter.flatten((args, kwargs))]
            self._kept.extend(given)
            keys = [(adapter.storage(tensor), adapter.version(tensor)) for tensor in given]
            self._calls[node] = now = self._tick()
            if keys:
                self._given[node] = math.prod(adapter.shape(given[0]))
                self._ready[node] = max(self._seen.setdefault(key, now) for key in keys)
        for tensor in self._order_of_use(module):
            self._on_read(tensor)
        for path in self._owned.get(id(module), ()):
            self._called.setdefault(path, self._tick())

    def leave(self, module: Any, output: Any) -> None:
        if self._sees and self._adapter.is_tensor(output):
            node, made = self._node_of[id(module)], math.prod(self._adapter.shape(output))
            self._made.setdefault(node, made)
            self._in_all[node] += made

    @property
    def read(self) -> Collection[str]:
        """Paths of the tensors that ops have taken so far."""
        return self._read.keys()

    def goes_on_as_defined(self) -> None:
        """Whatever was not used so far counts as used from here on, in the order of definition."""
        for node, module in zip(self._live.tree.nodes, self._live.modules, strict=True):
            self._calls.setdefault(node.index, self._tick())
            for path in self._owned.get(id(module), ()):
                self._called.setdefault(path, self._tick())

    def usage(self, outputs: tuple[tuple[str, Array], ...] = ()) -> Usage:
        """What was seen."""
        self._kept.clear()
        tied = {path for same in self._paths.values() if len(same) > 1 for path in same}
        first = {path: rank for path, rank in self._read.items() if path not in tied or path not in self._called}
        used = {**self._called, **first}
        for same in self._paths.values():  # a layer may keep its tensors a second time where they are never called for
            known = [used[path] for path in same if path in used]
            for path in same if known else ():
                used.setdefault(path, min(known))
        return Usage(used, self._calls, self._made, self._ready, self._times, outputs, self._given, self._in_all)


def _nobody_tells(module: Any) -> Iterable[Any]:
    return ()


def used_as_defined(live: LiveTree) -> Usage:
    """How a model uses its tensors if it does in the order in which it defines them."""
    watch = UseWatch(live)
    watch.goes_on_as_defined()
    return watch.usage()


def first_use(live: LiveTree, arguments: Arguments) -> tuple[Usage, Exception | None]:
    """Run forward once and see what is used when; nothing is left behind.

    What a model raises half-way is handed out with what it used before; the rest is taken to follow as defined."""
    adapter = live.adapter
    watch = UseWatch(live)
    try:
        with (
            preserved(live, buffers=True),
            watch.watching(eager=True),
            adapter.no_grad(),
            watching_draws(adapter, Steady()),
        ):
            output = call_model(live.model, arguments.args, dict(arguments.kwargs))
            outputs = [(name, adapter.to_numpy(adapter.clone(tensor))) for name, tensor in floating(adapter, output)]
    except Exception as error:
        watch.goes_on_as_defined()
        return watch.usage(), error
    return watch.usage(tuple(outputs)), None
