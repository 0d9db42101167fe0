"""A layer that base calls and raw has, and does not call. Who holds it should have called it: where that module returns
what base's layer was given, its own code ends too early, and not the code around it is to blame."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from padiff.compare.layouts import agree_in_any_layout
from padiff.engine.calls_met import outward, parents_of
from padiff.engine.scenes import Scenes
from padiff.records import Call, Fault, Tolerance


def not_called(fault: Fault, scenes: Scenes) -> Fault | None:
    """The fault of the call inside of the blamed one whose module holds such a layer; None where there is none."""
    if fault.phase != "forward" or not scenes.plan.entries:
        return None
    parents = parents_of(scenes.found.calls)
    inside = {
        call.path: call
        for call in scenes.found.calls
        if call.index != fault.raw.index and fault.raw.index in outward(call.index, parents)
    }
    held = [(base, inside.get(_holder(path, inside))) for base, path in _idle(fault, scenes)]
    early = [call for base, call in held if call is not None and _returns_what_is_given(call, base)]
    if not early:
        return None
    call = min(early, key=lambda one: one.index)
    last = [one for one in scenes.found.calls if one.parent == call.index]
    return replace(fault, raw=call, between=True, before=last[-1] if last else None, after=None)


def _holder(path: str, called: Collection[str]) -> str:
    """The innermost module around a layer that is called."""
    holder = path.rpartition(".")[0]
    while holder and holder not in called:
        holder = holder.rpartition(".")[0]
    return holder


def _idle(fault: Fault, scenes: Scenes) -> Iterator[tuple[Call, str]]:
    """Base's calls inside of the one beside the blamed, of layers whose weights fill a layer that raw never calls."""
    homes = {
        source.path.rpartition(".")[0]: entry.path.rpartition(".")[0]
        for entry in scenes.plan.entries
        for source in entry.sources
    }
    called = {call.path for call in scenes.found.calls}
    trace = scenes.reference.trace
    parents = parents_of(trace.calls)
    for base in trace.calls:
        home = homes.get(base.path)
        if home and home not in called and fault.base.index in outward(base.index, parents):
            yield base, home


def _returns_what_is_given(call: Call, base: Call) -> bool:
    """Whether raw's call returns just what base's layer is given."""
    if not call.outputs or not base.inputs:
        return False
    one, other = base.inputs[0].value, call.outputs[0].value
    if one.overwritten or other.overwritten:
        return False
    return agree_in_any_layout(one.numpy(), other.numpy(), Tolerance(mode="auto"))
