"""A layer that base calls and raw has, and does not call. Who holds it should have called it: where that module is
given, returns, or has in its hands what base's layer is given, its own code leaves the layer out, and not the code
around it, nor a child that it did call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from padiff.compare.layouts import agree_in_any_layout
from padiff.engine.explaining.scenes import Scenes
from padiff.engine.fed.calls_met import outward, parents_of, used_by_others
from padiff.records import Call, Fault, Slot, Tolerance


def not_called(fault: Fault, scenes: Scenes) -> Fault | None:
    """The fault of the call whose module holds such a layer, inside of raw's call beside base's: of one around the
    blamed one, or inside of that, or of the nearest around it that has a partner; None where there is none."""
    if fault.phase != "forward":
        return None
    calls, parents = {call.index: call for call in scenes.found.calls}, parents_of(scenes.found.calls)
    near = top = fault.raw
    while near.index not in scenes.pairs and near.parent in calls:
        near = calls[near.parent]
    while not _are_beside(fault.base, top, scenes) and top.parent in calls:
        top = calls[top.parent]
    around = outward(fault.raw.index, parents) & {one for one in calls if top.index in outward(one, parents)}
    inside = {
        one.path: one for one in calls.values() if one.index in around or near.index in outward(one.index, parents)
    }
    called = {call.path for call in scenes.found.calls}
    held = [(base, inside.get(_holder(path, called))) for base, path in _idle(fault.base, top, scenes)]
    others = [(base, call) for base, call in held if call is not None and call.index != fault.raw.index]
    leaving = [call for base, call in others if _leaves_out(call, base, scenes)] or _giving(fault, scenes)
    if not leaving:
        return None
    call = min(leaving, key=lambda one: one.index)
    last = [one for one in scenes.found.calls if one.parent == call.index]
    return replace(fault, raw=call, between=True, before=last[-1] if last else None, after=None)


def _giving(fault: Fault, scenes: Scenes) -> list[Call]:
    """The call beside the one around base's blamed one, where that is given what such a layer returns."""
    calls = {call.index: call for call in scenes.found.calls}
    around = next((one for one in scenes.reference.trace.calls if one.index == fault.base.parent), None)
    caller = calls.get(fault.raw.parent)
    while around is not None and caller is not None and not _are_beside(around, caller, scenes):
        caller = calls.get(caller.parent)
    if around is None or caller is None:
        return []
    called = {call.path for call in scenes.found.calls}
    layers = [base for base, path in _idle(around, caller, scenes) if _holder(path, called) == caller.path]
    first = [base for base in layers if _among(base.outputs, fault.base.inputs[:1])]
    return [caller] if any(_leaves_out(caller, base, scenes) for base in first) else []


def _are_beside(base: Call, raw: Call, scenes: Scenes) -> bool:
    partner = scenes.pairs.get(raw.index)
    return partner is not None and partner.index == base.index


def _holder(path: str, called: Collection[str]) -> str:
    """The innermost module around a layer that is called."""
    holder = path.rpartition(".")[0]
    while holder and holder not in called:
        holder = holder.rpartition(".")[0]
    return holder


def _idle(beside: Call, top: Call, scenes: Scenes) -> Iterator[tuple[Call, str]]:
    """Base's calls inside of one of its, with layers that raw never calls: the one that holds their weights, or where
    there are none, each of their kind inside of raw's."""
    homes = {
        source.path.rpartition(".")[0]: entry.path.rpartition(".")[0]
        for entry in scenes.plan.entries
        for source in entry.sources
    }
    base, raw = scenes.job.base.tree, scenes.job.raw.tree
    called, trace = {call.node for call in scenes.found.calls}, scenes.reference.trace
    around = f"{top.path}." if top.path else ""
    idle = [
        one
        for one in raw.nodes
        if one.index not in called
        and one.path.startswith(around)
        and not one.children
        and not used_by_others(one, scenes.found)
    ]
    parents = parents_of(trace.calls)
    for call in trace.calls:
        if beside.index not in outward(call.index, parents):
            continue
        node = base.nodes[call.node]
        for one in idle:
            alike = node.layer is not None and node.layer == one.layer and not (node.parameters or one.parameters)
            if alike or (node.parameters and homes.get(node.path) == one.path):
                yield call, one.path


def _leaves_out(call: Call, base: Call, scenes: Scenes) -> bool:
    """Whether raw's call is given, returns, or has in its hands just what base's layer is given, and goes on from what
    that returns nowhere: its own code may do what the layer does."""
    children = [one for one in scenes.found.calls if one.parent == call.index]
    held = (*call.inputs[:1], *call.outputs[:1], *(slot for one in children for slot in one.outputs[:1]))
    made = (*call.outputs[:1], *(slot for one in children for slot in one.inputs[:1]))
    return _among(base.inputs, held) and not _among(base.outputs, made)


def _among(wanted: Sequence[Slot], slots: Iterable[Slot]) -> bool:
    """Whether the first of some tensors is among others, in whatever layout."""
    if not wanted or wanted[0].value.overwritten:
        return False
    array = wanted[0].value.numpy()
    return any(
        agree_in_any_layout(array, slot.value.numpy(), Tolerance(mode="auto"))
        for slot in slots
        if not slot.value.overwritten
    )
