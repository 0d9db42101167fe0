"""Experts as a list on one side, as one tensor with one more axis on the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from padiff.weights.fitting import UnitPair, part_role
from padiff.weights.telling import rest
from padiff.weights.units import Unit, halves
from padiff.weights.words import canonical, likeness, numbers_of


def pair_stacks(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Experts as a list on one side, as one tensor with one more axis on the other; their biases likewise."""
    pairs: list[UnitPair] = []
    for stacks_of, lists_of, base_is_stack in ((base, raw, True), (raw, base, False)):
        stacks = [u for u in stacks_of if len(u.main.shape) == 3 and u.layer is None and len(u.atoms) == 1]
        if not stacks:
            continue
        families = _families(lists_of)
        outer = (_common(stacks_of), _common(lists_of))
        taken: set[int] = set()
        for stack in stacks:
            found = _members(stack, families, taken, outer)
            biases = _biases(found, stack, stacks_of, taken)
            if not found or biases is None:
                continue
            taken.update(id(unit) for unit in (*found, *biases))
            halved = [halves(unit) for unit in found]
            pairs.append(_stacked(stack, [half[0] for half in halved], base_is_stack))
            pairs += [_stacked(one, [half[1] for half in halved], base_is_stack) for one in biases]
        stacks_of, lists_of = rest(stacks_of, lists_of, pairs)
        lists_of = [unit for unit in lists_of if id(unit) not in taken]
        base, raw = (stacks_of, lists_of) if base_is_stack else (lists_of, stacks_of)
    return pairs, list(base), list(raw)


def _stacked(stack: Unit, members: Sequence[Unit], base_is_stack: bool) -> UnitPair:
    left, right = ((stack,), tuple(members)) if base_is_stack else (tuple(members), (stack,))
    counted = _counted(members)
    which = "numbered siblings" if counted else "siblings in the order they are defined in"
    return UnitPair(left, right, f"one axis more, {which}", 0.9 if counted else 0.6, stacked=True)


def _biases(members: Sequence[Unit], stack: Unit, units: Sequence[Unit], taken: Collection[int]) -> list[Unit] | None:
    """The stack that the biases of some layers fill, beside the one that their weights do; none where they have none,
    and None where they have some for which there is no such stack."""
    held = [unit.atoms["bias"] for unit in members if "bias" in unit.atoms]
    if not held:
        return []
    count = stack.main.shape[0]
    wanted = (count, len(members) // count * held[0].shape[0])
    fitting = [
        unit
        for unit in units
        if unit.main.shape == wanted and unit.node.index == stack.node.index and len(unit.atoms) == 1
        if unit.layer is None and id(unit) not in taken
    ]
    if not fitting or len(held) < len(members):
        return None
    return [max(fitting, key=lambda unit: (likeness(unit.label, stack.label), -abs(unit.order - stack.order)))]


def _families(units: Sequence[Unit]) -> dict[tuple[str, ...], list[Unit]]:
    """Matrices whose paths differ in one number, or in the name of an expert, by that path; in order."""
    found: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        parts = unit.path.split(".")
        if len(unit.main.shape) == 2 and set(unit.atoms) <= {"weight", "bias"}:
            for place, part in enumerate(parts):
                named = place > 0 and canonical(parts[place - 1]) == "expert"
                if part.isdigit() or named:
                    siblings = (*parts[:place], "*", *parts[place + 1 :])
                    found[siblings].append(unit)
    for key, family in found.items():
        place = key.index("*")
        family.sort(key=lambda unit: _rank(unit, place))
    return {key: family for key, family in found.items() if len(family) > 1}


def _rank(unit: Unit, place: int) -> tuple[int, str, int]:
    """By number or letter, else as defined."""
    name = unit.path.split(".")[place]
    return int(name) if name.isdigit() else 0, name if len(name) == 1 else "", unit.order


def _counted(members: Sequence[Unit]) -> bool:
    """Numbers or letters say which comes first."""
    paths = zip(*(unit.path.split(".") for unit in members), strict=True)
    return any(len(set(names)) > 1 and all(n.isdigit() or len(n) == 1 for n in names) for names in paths)


def _common(units: Sequence[Unit]) -> int:
    """How many numbers all of a model's units have in common: those of wrappers."""
    shortest = min((unit.numbers for unit in units), key=len, default=())
    return next((n for n in range(len(shortest), 0, -1) if all(u.numbers[:n] == shortest[:n] for u in units)), 0)


def _at_one_place(key: tuple[str, ...], outer: int, numbers: tuple[int, ...]) -> bool:
    """Whether a family is in the block of a stack; where an expert keeps a layer (in a sequence) says nothing."""
    star = key.index("*")
    around, inside = numbers_of(".".join(key[:star]))[outer:], numbers_of(".".join(key[star:]))
    return numbers in (around, (*around, *inside))


def _members(
    stack: Unit, families: dict[tuple[str, ...], list[Unit]], taken: set[int], outer: tuple[int, int]
) -> list[Unit]:
    """The siblings, or per sibling the parts in order, that fill a stack; empty when none do."""
    count, rows, columns = stack.main.shape
    best: tuple[float, list[Unit]] = (0.0, [])
    same = {
        key: family
        for key, family in families.items()
        if len(family) == count
        and _at_one_place(key, outer[1], stack.numbers[outer[0] :])
        and not any(id(unit) in taken for unit in family)
    }
    for key, family in same.items():
        out, into = family[0].main.neutral
        value = 1.0 + 3 * likeness(".".join(key[:-1]), stack.path) + likeness(key[-1], stack.path.rpartition(".")[2])
        if {out, into} == {rows, columns} or (out, into) in ((rows, columns), (columns, rows)):
            best = max(best, (value, family), key=lambda option: option[0])
        for other_key, other in same.items():
            if other_key[:-1] != key[:-1] or other is family or other[0].main.neutral != (out, into):
                continue
            if {2 * out, into} == {rows, columns} and part_role(family[0]) == "gate" and part_role(other[0]) == "fc1":
                both = [unit for pair in zip(family, other, strict=True) for unit in pair]
                best = max(best, (value + 1.0, both), key=lambda option: option[0])
    return best[1]
