"""What a model, and some of its modules, return in one run that leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from padiff.capture.draws import Steady
from padiff.capture.lines import call_model
from padiff.capture.one_step import Arguments, floating
from padiff.capture.state import preserved
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.tree import LiveTree
from padiff.records import Array


def returned(
    live: LiveTree, arguments: Arguments, places: Sequence[str]
) -> tuple[list[tuple[str, Array]], dict[str, Array]]:
    """The model's floating outputs with their places, and by path the first one of each place's first call.

    A place that is no module, or none that is called, stands for the innermost called module around it.
    """
    adapter = live.adapter
    paths = live.tree.by_path()
    watched: dict[int, Any] = {}
    for place in places:
        while place:
            if place in paths:
                watched[id(live.modules[paths[place].index])] = live.modules[paths[place].index]
            place = place.rpartition(".")[0]
    made: dict[int, Array] = {}

    def leave(module: Any, output: Any) -> None:
        tensors = floating(adapter, output) if id(module) not in made else []
        if tensors:
            made[id(module)] = adapter.to_numpy(adapter.clone(tensors[0][1]))

    with ExitStack() as stack:
        stack.enter_context(preserved(live, buffers=True))
        for handle in adapter.attach(watched.values(), lambda *_: None, leave, lambda *_: None):
            stack.callback(handle.remove)
        stack.enter_context(adapter.no_grad())
        stack.enter_context(watching_draws(adapter, Steady()))
        output = call_model(live.model, arguments.args, dict(arguments.kwargs))
        outputs = [(name, adapter.to_numpy(adapter.clone(tensor))) for name, tensor in floating(adapter, output)]
    found: dict[str, Array] = {}
    for place in places:
        inner = place
        while inner and (inner not in paths or id(live.modules[paths[inner].index]) not in made):
            inner = inner.rpartition(".")[0]
        if inner:
            found[place] = made[id(live.modules[paths[inner].index])]
    return outputs, found
