"""In which order a running model first uses its tensors: what the order of definition cannot tell."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from typing import Any

from padiff.capture.draws import Steady
from padiff.capture.recorder import call_model
from padiff.capture.session import Arguments, floating
from padiff.capture.state import preserved
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Usage


def first_use(live: LiveTree, arguments: Arguments) -> Usage:
    """Run forward once and see what is used when.

    A tensor counts as used when an op takes it; failing that, and for one under several names, when its module
    is called.
    """
    adapter = live.adapter
    paths: dict[int, list[str]] = {}
    for path, tensor in live.tensors().items():
        paths.setdefault(id(tensor), []).append(path)
    owned: dict[int, list[str]] = {}
    for node, module in zip(live.tree.nodes, live.modules, strict=True):
        own = (*adapter.own_parameters(module), *adapter.own_buffers(module))
        owned.setdefault(id(module), []).extend(join(node.path, name) for name, _ in own)
    read: dict[str, int] = {}
    called: dict[str, int] = {}
    calls: dict[int, int] = {}
    made: dict[int, int] = {}
    ready: dict[int, int] = {}
    times: Counter[int] = Counter()
    seen: dict[tuple[int, int], int] = {}
    kept: list[Any] = []  # while they are held, nobody else gets their memory
    node_of = live.node_of()
    clock = 0

    def tick() -> int:
        nonlocal clock
        clock += 1
        return clock

    def on_read(tensor: Any) -> None:
        for path in paths.get(id(tensor), ()):
            read.setdefault(path, tick())

    def on_enter(module: Any, args: Any, kwargs: Any) -> None:
        node = node_of[id(module)]
        times[node] += 1
        if node not in calls:
            given = [tensor for _, tensor in adapter.flatten((args, kwargs))]
            kept.extend(given)
            keys = [(adapter.storage(tensor), adapter.version(tensor)) for tensor in given]
            calls[node] = now = tick()
            if keys:
                ready[node] = max(seen.setdefault(key, now) for key in keys)
        for path in owned.get(id(module), ()):
            called.setdefault(path, tick())

    def on_leave(module: Any, output: Any) -> None:
        if adapter.is_tensor(output):
            made.setdefault(node_of[id(module)], math.prod(adapter.shape(output)))

    with ExitStack() as stack:
        stack.enter_context(preserved(live, buffers=True))
        modules = {id(module): module for module in live.modules}
        handles = adapter.attach(modules.values(), on_enter, on_leave, lambda *_: None)
        for handle in handles:
            stack.callback(handle.remove)
        stack.enter_context(adapter.watch_reads(on_read))
        stack.enter_context(adapter.no_grad())
        stack.enter_context(watching_draws(adapter, Steady()))
        output = call_model(live.model, arguments.args, dict(arguments.kwargs))
        outputs = [(name, adapter.to_numpy(adapter.clone(tensor))) for name, tensor in floating(adapter, output)]
    tied = {path for same in paths.values() if len(same) > 1 for path in same}
    first = {path: rank for path, rank in read.items() if path not in tied or path not in called}
    used = {**called, **first}
    for same in paths.values():  # a layer may keep its tensors a second time where they are never called for
        known = [used[path] for path in same if path in used]
        for path in same if known else ():
            used.setdefault(path, min(known))
    return Usage(used, calls, made, ready, times, tuple(outputs))
