"""Which call of base belongs to which call of raw: calls of paired modules, occurrence by occurrence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from padiff.align.derived import cut, joined, stretches_given
from padiff.align.gathered import Join, put_together
from padiff.align.gathered import together as gathered
from padiff.align.kin import by_identity, kin_of
from padiff.align.stretches import Cut as Place
from padiff.align.stretches import Stretching, by_the_way, stretched
from padiff.align.tags import TagPairing
from padiff.records import Call, Group, ModulePairs, ModuleTree, Slot, Unmatched, Value

MOST_BEHIND = 64
"""How many calls of base are looked at before the last pair, or after one."""

Derive = Callable[[Mapping[int, Value]], Value | None]


class CallPairing:
    """Finds the base call of a raw call as soon as it happens, and afterwards what stayed alone."""

    def __init__(
        self, base: ModuleTree, raw: ModuleTree, modules: ModulePairs, base_calls: Sequence[Call], *, twins: bool = True
    ) -> None:
        self._trees = {"base": base, "raw": raw}
        self._modules = modules
        self._base_of = by_identity(base, raw, modules)
        twins = (
            twins
            and not any(_bare(base, n) for n in modules.base_alone)
            and not any(_bare(raw, n) for n in modules.raw_alone)
        )
        self._hints = {} if twins else {r: b for r, b in self._base_of.items() if _bare(raw, r) and _bare(base, b)}
        self._base_of = {r: b for r, b in self._base_of.items() if r not in self._hints}
        self._base_nodes = {*self._base_of.values(), *(n for g in modules.groups if len(g.base) > 1 for n in g.base)}
        self._kin = kin_of(base, raw, modules, self._base_of, base_calls)
        self._kin_seen: dict[int, int] = {}
        """Call of raw to how many calls of its kin came before it."""
        self._twins = twins
        self._lone = {"base": _lone(base, modules.base_alone), "raw": _lone(raw, modules.raw_alone)}
        self._order = list(base_calls)
        self._place = {call.index: place for place, call in enumerate(base_calls)}
        self._cursor = -1
        self._found: dict[int, Call] = {}
        """Raw call to base call, for leaves without tensors that were paired by what they returned."""
        self._parts_seen: Counter[tuple[int, int]] = Counter()
        self._base_calls = {(call.node, call.occurrence): call for call in base_calls}
        self._calls = base_calls
        self._tags = TagPairing(base_calls, self._base_of)
        self._group_of = {node: group for group in modules.groups for node in group.raw}
        self._grouped = {"base": {n for g in modules.groups for n in g.base}, "raw": set(self._group_of)}
        self._stretching = Stretching(modules.stretches)
        self._scattered = modules.scattered
        self._gathered = {one.node: one.count for one in modules.gathered}
        self._orders = {one.node: one.occurrences for one in modules.orders}
        self.members: set[int] = set()
        """Base's tensors that others are made of."""
        self.parts: dict[int, tuple[int, ...]] = {}
        """Number of a tensor made of base's tensors to the numbers of these."""
        self.derived: dict[int, Derive] = {}
        """Number of a tensor made of base's tensors to how it is made, given what holds their values."""
        self._together: dict[tuple[tuple[int, ...], Join], int] = {}

    def base_call(self, raw: Call) -> Call | None:
        """The call of base that corresponds to a call of raw; for a group, one made up of the group's."""
        found = self._base_call(raw)
        if found is not None:
            self._tags.call_paired(found, raw)
        return found

    def _base_call(self, raw: Call) -> Call | None:
        group = self._group_of.get(raw.node)
        if group is not None:
            return self._of_group(group, raw)
        if raw.index in self._found:
            return self._found[raw.index]
        node = self._base_of.get(raw.node)
        if node is None:
            return None
        stretch = self._stretching.of(raw)
        if stretch is not None:
            return self._stretching.cut(self._base_calls[node, 0], raw, stretch, self._derive_stretch)
        if raw.node in self._gathered:
            return put_together(self._several(raw), raw, self._derive_together)
        kin = self._kin.get(raw.node)
        if kin is None:
            order = self._orders.get(raw.node, ())
            place = order[raw.occurrence] if raw.occurrence < len(order) else raw.occurrence
            return self._base_calls.get((node, place))
        if raw.index not in self._kin_seen:
            self._kin_seen[raw.index] = kin.seen
            kin.seen += 1
        place = self._kin_seen[raw.index]
        return kin.calls[place] if place < len(kin.calls) else None

    def by_occurrence(self) -> dict[int, int]:
        """Raw's modules to base's, of those whose calls pair as often as they come."""
        return {r: b for r, b in self._base_of.items() if r not in self._kin and r not in self._group_of}

    def cut(self, raw: Call) -> bool:
        """Whether a call is held against a stretch of what base's was given and returned."""
        return self._stretching.of(raw) is not None

    def by_the_way(self, raw: Call, slot: Slot) -> bool:
        """Whether a call on a stretch is given or returns something because of that."""
        stretch = self._stretching.of(raw)
        if stretch is None or raw.node not in self._base_of:
            return False
        return by_the_way(self._base_calls[self._base_of[raw.node], 0], stretch, slot)

    def whole(self, raw: Call) -> Call | None:
        """Base's one call, of a module that raw calls on rows of what that is given."""
        return self._base_calls.get((self._base_of.get(raw.node, -1), 0)) if raw.node in self._scattered else None

    def _derive_stretch(self, tensor: int, cut: Place, shape: tuple[int, ...] | None) -> int:
        """The number of a stretch of one of base's tensors."""
        number = -1 - len(self.derived)
        self.parts[number] = (tensor,)
        self.members.add(tensor)
        self.derived[number] = partial(stretched, tensor, cut, shape)
        return number

    def _several(self, raw: Call) -> list[Call]:
        """Base's calls that raw's one call does what all of them do."""
        node = self._base_of[raw.node]
        return [self._base_calls[node, place] for place in range(self._gathered[raw.node])]

    def _derive_together(self, tensors: tuple[int, ...], join: Join) -> int:
        """The number of some of base's tensors put together."""
        key = (tensors, join)
        if key not in self._together:
            number = self._together[key] = -1 - len(self.derived)
            self.parts[number], self.derived[number] = tensors, partial(gathered, tensors, join)
            self.members.update(tensors)
        return self._together[key]

    def lacking(self, raw: Call) -> bool:
        """Whether base has no module that a call of raw could be held against, not even one of its kind and place that
        it may have been called before, or after."""
        hint = self._hints.get(raw.node)
        if hint is not None and self._trees["base"].nodes[hint].kind.lower() == raw.kind.lower():
            return False
        return raw.node not in self._base_of and raw.node not in self._group_of

    def held(self, base: Call) -> bool:
        """Whether a call of base is one that calls of raw are held against because of their modules."""
        return base.node in self._base_nodes

    def tagged(self, tag: Call) -> Call | None:
        """What base marked with the same name."""
        return self._tags.base_tag(tag)

    def grouped(self, raw: Call) -> bool:
        """Whether a call is held against a group's, or a part of one: then both end at the same place."""
        return raw.node in self._group_of

    def candidates(self, raw: Call) -> list[Call]:
        """For a leaf without tensors in models of different make: base's calls of such leaves since the last pair, then
        those before it beside that pair: the other author may call an activation before its gate, or after."""
        if not self.told_late(raw):
            return []
        found: list[Call] = []
        taken = {call.index for call in self._found.values()}
        for call in self._order[self._cursor + 1 :]:
            if not _bare(self._trees["base"], call.node):
                if not self._trees["base"].nodes[call.node].children:
                    break
                continue
            if call.index not in taken:
                found.append(call)
        return [*found, *(call for call in self._behind() if call.index not in taken)]

    def further(self, raw: Call) -> list[Call]:
        """The same, beside the last pair and after it, with other leaves in between."""
        found: list[Call] = []
        if not self.told_late(raw) or self._cursor < 0:
            return found
        taken = {call.index for call in self._found.values()}
        around = self._order[self._cursor].parent
        for call in self._order[self._cursor + 1 : self._cursor + 1 + MOST_BEHIND]:
            if call.parent == around and call.index not in taken and _bare(self._trees["base"], call.node):
                found.append(call)
        return found

    def told_late(self, raw: Call) -> bool:
        """Whether a call's partner is known only when it has ended, by what it returned."""
        bare = not self._twins and _bare(self._trees["raw"], raw.node)
        return bare and self._base_of.get(raw.node) is None

    def _behind(self) -> list[Call]:
        """Calls of leaves without tensors beside the last pair and before it, the nearest first."""
        found: list[Call] = []
        if self._cursor < 0:
            return found
        around = self._order[self._cursor].parent
        for call in reversed(self._order[max(self._cursor - MOST_BEHIND, 0) : self._cursor + 1]):
            if call.index < around:
                break
            if call.parent == around and _bare(self._trees["base"], call.node):
                found.append(call)
        return found

    @property
    def alike(self) -> bool:
        """Both models call the same leaves under the same modules."""
        return self._twins

    def same_inside(self, base: Call, raw: Call) -> bool:
        """Whether two calls are of classes of one name, whose parts have the same names and classes: one author drew
        the borders of both, however they are wrapped."""
        return base.kind == raw.kind and _parts(self._trees["base"], base) == _parts(self._trees["raw"], raw)

    def sort(self, base: Call, raw: Call) -> Hashable:
        """Equal for pairs of calls of the same two classes with the same parts: the blocks of two models."""
        return base.kind, raw.kind, *(tuple(_parts(self._trees[s], c)) for s, c in (("base", base), ("raw", raw)))

    def bare_of_its_own(self, raw: Call) -> bool:
        """Whether a call of raw is of a leaf without tensors, of a class that nobody knows: place alone paired it."""
        tree = self._trees["raw"]
        return _bare(tree, raw.node) and tree.nodes[raw.node].layer is None

    def varied(self, base: Call, raw: Call) -> bool:
        """Whether one of them is of a known layer with a forward of its own, and a name of its own: it may do more."""
        return base.kind != raw.kind and any(
            self._trees[side].nodes[call.node].varied for side, call in (("base", base), ("raw", raw))
        )

    def adds_up(self, base: Call, raw: Call) -> bool:
        """Whether one of them returns rows of a table, and the other what they add up to."""
        calls = (("base", base), ("raw", raw))
        return {self._trees[side].nodes[call.node].layer for side, call in calls} == {"embedding", "embedding_bag"}

    def looks_up(self, base: Call, raw: Call) -> bool:
        """Whether raw's call returns the rows of a table, and base's what more or fewer of them add up to: code around
        raw's does that."""
        table = self._trees["raw"].nodes[raw.node].layer == "embedding"
        returned = [math.prod(call.outputs[0].value.shape) for call in (base, raw) if call.outputs]
        return table and self.adds_up(base, raw) and len(set(returned)) > 1

    def candidates_after(self, base: Call) -> list[Call]:
        """Calls of leaves without tensors that follow a call of base, up to the next that holds some."""
        found: list[Call] = []
        for call in self._order[self._place.get(base.index, len(self._order)) + 1 :]:
            if _bare(self._trees["base"], call.node):
                found.append(call)
            elif not self._trees["base"].nodes[call.node].children:
                break
        return found

    def lone_beyond(self, base: Call) -> list[tuple[Call, bool]]:
        """Calls of base with tensors that raw has nowhere, around a call or fed by it, each with whether it is around.

        Raw may do at once, with weights made of both, what base does in two: an adapter that was merged, a norm that
        was folded."""
        if not self._lone["base"]:
            return []
        found: list[tuple[Call, bool]] = []
        origins = {slot.origin for slot in base.outputs}

        def fed(call: Call) -> bool:
            return call.index != base.parent and bool(call.inputs) and call.inputs[0].origin in origins

        place = self._place.get(base.index, len(self._order))
        for call in self._order[place + 1 : place + 1 + MOST_BEHIND]:
            if call.node in self._lone["base"] and fed(call):
                found.append((call, False))
        above = self._place_of(base.parent)
        while above is not None and above.node in self._lone["base"]:
            found.append((above, True))
            above = self._place_of(above.parent)
        return found

    def _place_of(self, index: int) -> Call | None:
        place = self._place.get(index)
        return None if place is None else self._order[place]

    def lone_near(self, raw: Call) -> bool:
        """Whether raw has a module with tensors that base has nowhere, around the one that is called or beside it."""
        parent = self._trees["raw"].nodes[raw.node].parent
        if not self._lone["raw"] or parent < 0:
            return False
        lone = self._lone["raw"]
        return parent in lone or any(child in lone for child in self._trees["raw"].nodes[parent].children)

    def hinted(self, raw: Call) -> int | None:
        """The node of base that kind and place in the tree speak for, where calls decide."""
        return self._hints.get(raw.node)

    def pair(self, base: Call, raw: Call) -> None:
        """Take two calls for partners; what base did before is no longer looked at."""
        if _bare(self._trees["raw"], raw.node) and raw.node not in self._base_of:
            self._found[raw.index] = base
        if base.index in self._place and not self._trees["base"].nodes[base.node].children:
            self._cursor = max(self._cursor, self._place[base.index])

    def dealt_with(self, raw: Call) -> list[Call]:
        """Calls of base that no later call of raw will be held against, once this one has been."""
        group = self._group_of.get(raw.node)
        stretch = self._stretching.of(raw)
        if group is None and stretch is not None:
            last = stretch.stop == stretch.whole
            return [self._base_calls[self._base_of[raw.node], 0]] if last and raw.node in self._base_of else []
        if group is None and raw.node in self._gathered and raw.node in self._base_of:
            return self._several(raw)
        if group is None:
            base = self.base_call(raw)
            return [] if base is None else [base]
        if len(group.base) == 1:
            key = (group.base[0], raw.occurrence)
            self._parts_seen[key] += 1
            if self._parts_seen[key] < len(group.raw):
                return []
        found = [self._base_calls.get((node, raw.occurrence)) for node in group.base]
        return [call for call in found if call is not None]

    def _of_group(self, group: Group, raw: Call) -> Call | None:
        found = [self._base_calls.get((node, raw.occurrence)) for node in group.base]
        calls = [call for call in found if call is not None and len(call.outputs) == 1]
        if len(calls) < len(group.base):
            return None
        output = self._grouped_slot(group, raw, [call.outputs[0] for call in calls], group.sizes)
        if output is None:
            return None
        path = " + ".join(call.path for call in calls)
        return replace(calls[0], path=path, inputs=self._group_inputs(group, raw, calls), outputs=(output,))

    def _group_inputs(self, group: Group, raw: Call, calls: Sequence[Call]) -> tuple[Slot, ...]:
        """What a group's calls are given: the same, or each its stretch, as norms and depthwise kernels are."""
        sizes = self._given_sizes(group, raw, calls)
        made = None if sizes is None else self._grouped_slot(group, raw, [call.inputs[0] for call in calls], sizes)
        return calls[0].inputs if made is None else (made, *calls[0].inputs[1:])

    def _given_sizes(self, group: Group, raw: Call, calls: Sequence[Call]) -> tuple[int, ...] | None:
        given = [call.inputs[0].value.shape for call in calls if call.inputs]
        if len(given) < len(calls) or not raw.inputs:
            return None
        if len(calls) > 1 and len({call.inputs[0].tensor for call in calls}) == 1:  # whatever that adds up to
            return None
        return stretches_given(group, given, raw.inputs[0].value.shape, group.raw.index(raw.node))

    def _grouped_slot(self, group: Group, raw: Call, slots: Sequence[Slot], sizes: Sequence[int]) -> Slot | None:
        """Slots of base's calls joined, or the stretch of one that a call of raw has, under a number of its own."""
        number = -1 - len(self.derived)
        tensors = tuple(slot.tensor for slot in slots)
        if len(slots) > 1:
            derive = partial(joined, tensors, group.heads, group.axis)
        else:
            place = group.raw.index(raw.node)
            start = sum(sizes[:place])
            derive = partial(cut, tensors[0], start, start + sizes[place], group.heads, group.axis)
        value = derive({slot.tensor: slot.value for slot in slots})
        if value is None:
            return None
        self.parts[number], self.derived[number] = tensors, derive
        self.members.update(tensors)
        return Slot(slots[0].name, number, value, all(slot.tracked for slot in slots))

    def together(self, raw: Call) -> list[Call] | None:
        """Base's calls that together do what a call of raw does; None where it does but a part of what one does."""
        group = self._group_of.get(raw.node)
        if self.cut(raw):
            return None
        if group is None and raw.node in self._gathered and raw.node in self._base_of:
            return self._several(raw)
        if group is None:
            base = self.base_call(raw)
            return [] if base is None else [base]
        found = [self._base_calls.get((node, raw.occurrence)) for node in group.base]
        calls = [call for call in found if call is not None]
        if len(group.base) == 1 and (not calls or self._given_sizes(group, raw, calls) is None):
            return None
        return calls

    def unmatched(self, raw_calls: Sequence[Call]) -> tuple[Unmatched, ...]:
        """Calls without partner on either side, in order, each with the reason."""
        raw_of = {base: raw for raw, base in self._base_of.items()}
        counts = {"base": Counter(c.node for c in self._calls), "raw": Counter(c.node for c in raw_calls)}
        found: list[Unmatched] = []
        shared = {
            "base": {call.index for kin in self._kin.values() for call in kin.calls[: kin.seen]},
            "raw": {i for i, place in self._kin_seen.items()},
        }
        for side, other, calls, partner_of in (
            ("base", "raw", self._calls, raw_of),
            ("raw", "base", raw_calls, self._base_of),
        ):
            units = self._units(side, partner_of)
            met = {call.index for call in self._found.values()} if side == "base" else set(self._found)
            for call in calls:
                partner = partner_of.get(call.node)
                if call.node in self._grouped[side] or call.index in met or call.index in shared[side]:
                    continue
                if partner is not None and call.occurrence < counts[other][partner]:
                    continue
                if side == "raw" and partner is not None and self.cut(call):
                    continue
                if units[call.node]:
                    why = f"inside {units[call.node]}, which is compared as one"
                elif partner is None:
                    why = f"no module of {other} corresponds"
                else:
                    path = self._trees[other].nodes[partner].path or "(model)"
                    times, partner_times = counts[side][call.node], counts[other][partner]
                    why = f"called {_times(times)}, its partner {path} {_times(partner_times)}"
                found.append(Unmatched(side, call.path, call.kind, why, units[call.node]))  # type: ignore[arg-type]
        return tuple(found)

    def _units(self, side: str, partner_of: dict[int, int]) -> list[str]:
        """Per node the path of the paired layer around it that is matched as one thing, or ""."""
        found: list[str] = []
        for node in self._trees[side].nodes:
            parent = self._trees[side].nodes[node.parent] if node.parent >= 0 else None
            if parent is None:
                found.append("")
            else:
                unit = parent.atomic and parent.index in partner_of
                found.append(found[parent.index] or (parent.path if unit else ""))
        return found


def _lone(tree: ModuleTree, alone: Sequence[int]) -> frozenset[int]:
    """Of modules without partner those that hold tensors, themselves or in others without partner."""
    found: set[int] = set()
    for index in sorted(alone, reverse=True):  # children come after their parents
        node = tree.nodes[index]
        if node.parameters or node.buffers or any(child in found for child in node.children):
            found.add(index)
    return frozenset(found)


def _bare(tree: ModuleTree, node: int) -> bool:
    """A leaf that holds no tensors."""
    found = tree.nodes[node]
    return not found.children and not found.parameters and not found.buffers


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _parts(tree: ModuleTree, call: Call) -> list[tuple[str, str]]:
    """Names and classes of a module's children."""
    children = (tree.nodes[child] for child in tree.nodes[call.node].children)
    return [(child.name, child.layer or child.kind) for child in children]
