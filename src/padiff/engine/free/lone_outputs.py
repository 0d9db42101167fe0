"""Outputs that only one of the models returns: no call adds them when raw is fed, and nothing comes before them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from padiff.align import pair_slots
from padiff.compare.arrays import missing
from padiff.diagnose import find_divergence
from padiff.records import Call, Comparison, Divergence, ModuleTree, Slot, StepComparison, Unmatched

Sort = tuple[str, str, str]
"""The classes of two calls, and what raw's is called."""


class LoneOutputs:
    """What calls return and their partners don't, judged when all of them are known."""

    def __init__(self, base_tree: ModuleTree, step: int, *, twins: bool, alike: bool) -> None:
        self._base_tree, self._step, self._twins, self._alike = base_tree, step, twins, alike
        self._lone: list[tuple[str, Comparison, int]] = []
        """Whose it is, what is said of it, and its tensor."""
        self._met: Counter[Sort] = Counter()
        """Calls compared, by the two classes and raw's path."""

    def counted(self, base: Call) -> bool:
        """Whether a tensor that is returned twice is two: a framework's cell may do so with its state, a user's module
        that does has one output more."""
        return self._twins and self._alike and self._base_tree.nodes[base.node].layer is None

    def met(self, base: Call, raw: Call) -> None:
        self._met[base.kind, raw.kind, raw.path] += 1

    def add(self, base: Call, raw: Call, side: str, slot: Slot) -> Unmatched | None:
        """One output that has no partner. Known layers return what they return: theirs is told right away."""
        text = exists_in(side, "output", slot)
        if self._base_tree.nodes[base.node].atomic:
            return unmatched(side, base, raw, text)
        compared = Comparison(
            "forward",
            self._step,
            "output",
            base.path,
            raw.path,
            base.kind,
            raw.kind,
            slot.name,
            missing(text),
            base.index,
            raw.index,
        )
        self._lone.append((side, compared, slot.tensor))
        return None

    def judged(self, base: Sequence[Call] = (), raw: Sequence[Call] = ()) -> tuple[list[Comparison], list[Unmatched]]:
        """One block that returns more than its likes do differs; a class that always returns more merely does so, and
        so does one that returns more wherever it plays the same part in a block: a cache, if it attends to another.
        Where it is called but once, what it returns more is nothing if nobody of all calls takes it."""
        wrong: list[Comparison] = []
        told: list[Unmatched] = []
        if not self._lone:
            return wrong, told
        lone = {(c.raw_call, sort) for _, c, _ in self._lone for sort in _sorts(c.base_kind, c.raw_kind, c.raw_path)}
        calls = Counter(sort for _, sort in lone)
        known: Counter[Sort] = Counter()
        for met, count in self._met.items():
            known.update(dict.fromkeys(_sorts(*met), count))
        for side, one, tensor in self._lone:
            sorts = _sorts(one.base_kind, one.raw_kind, one.raw_path)
            always = [sort for sort in sorts if calls[sort] == known[sort]]
            calls_of, index = (base, one.base_call) if side == "base" else (raw, one.raw_call)
            if any(known[sort] > 1 for sort in always) or (
                sorts[0] in always and (not self._twins or _nobody_takes(tensor, index, calls_of))
            ):
                path, kind = (one.base_path, one.base_kind) if side == "base" else (one.raw_path, one.raw_kind)
                told.append(Unmatched(side, path, kind, one.outcome.message))  # type: ignore[arg-type]
            else:
                wrong.append(one)
        return wrong, told


def _nobody_takes(tensor: int, maker: int, calls: Sequence[Call]) -> bool:
    """Whether no call is given what an inner call returned, and none around that returns it as well."""
    parents = {call.index: call.parent for call in calls}
    if parents.get(maker, -1) < 0:
        return False
    around = set(_upwards(parents[maker], parents))
    return not any(
        slot.tensor == tensor
        for call in calls
        if call.index in around or maker not in _upwards(call.index, parents)
        for slot in (call.outputs if call.index in around else call.inputs)
    )


def _upwards(index: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A call and all around it."""
    while index >= 0:
        yield index
        index = parents[index]


def _sorts(base_kind: str, raw_kind: str, path: str) -> tuple[Sort, Sort]:
    """All calls of two classes; and those of modules that are called the same in whatever block they are in."""
    return (base_kind, raw_kind, "*"), (base_kind, raw_kind, re.sub(r"\d+", "#", path))


def exists_in(side: str, role: str, slot: Slot) -> str:
    return f"{role} {slot.name!r} ({slot.value.dtype}{list(slot.value.shape)}) exists in {side} only"


def unmatched(side: str, base: Call, raw: Call, text: str) -> Unmatched:
    call = base if side == "base" else raw
    return Unmatched(side, call.path, call.kind, text)  # type: ignore[arg-type]


def lone_outputs_of(
    pairs: Sequence[tuple[Call, Call]], base_tree: ModuleTree, step: int, *, twins: bool, alike: bool
) -> tuple[list[Comparison], list[Unmatched]]:
    """Of calls that belong together, when both have run."""
    lone = LoneOutputs(base_tree, step, twins=twins, alike=alike)
    told: list[Unmatched] = []
    for base, raw in pairs:
        lone.met(base, raw)
        counted = lone.counted(base)
        found, *alone = pair_slots(base.outputs, raw.outputs, counted=counted)
        known = {("base", one.tensor) for one, _ in found} | {("raw", other.tensor) for _, other in found}
        for side, slots in zip(("base", "raw"), alone, strict=True):
            for slot in slots:
                if counted or (side, slot.tensor) not in known:
                    one = lone.add(base, raw, side, slot)
                    told += [] if one is None else [one]
    wrong, more = lone.judged(*zip(*pairs, strict=True)) if pairs else ([], [])
    return wrong, [*told, *more]


def with_lone_outputs(
    located: Sequence[Divergence], done: StepComparison, trees: tuple[ModuleTree, ModuleTree]
) -> list[Divergence]:
    """Places that were found by feeding raw, behind the call that returns more or less than its partner: a loss that is
    made of what the other side has not, or a gradient of it, only tells the same."""
    lone = [
        one
        for one in done.comparisons
        if (one.phase, one.role, one.outcome.reason) == ("forward", "output", "structure") and not one.agrees
    ]
    if not located or not lone or located[0].comparison.outcome.reason == "structure":
        return list(located)
    ended = {raw.index: place for place, (_, raw) in enumerate(done.pairs)}
    first = located[0]
    in_forward = first.phase == "forward" and first.role == "output"
    last = ended.get(first.raw_call, len(ended)) if in_forward else len(ended)
    before = [one for one in lone if ended.get(one.raw_call, -1) < last]
    found = find_divergence(replace(done, comparisons=tuple(before)), trees)
    return list(located) if found is None else [found, *located]
