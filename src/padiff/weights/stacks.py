"""Experts as a list on one side, as one tensor with one more axis on the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from padiff.weights.fitting import UnitPair, part_role
from padiff.weights.telling import rest
from padiff.weights.units import Unit
from padiff.weights.words import likeness


def pair_stacks(base: Sequence[Unit], raw: Sequence[Unit]) -> tuple[list[UnitPair], list[Unit], list[Unit]]:
    """Experts as a list on one side, as one tensor with one more axis on the other."""
    pairs: list[UnitPair] = []
    for stacks_of, lists_of, base_is_stack in ((base, raw, True), (raw, base, False)):
        stacks = [u for u in stacks_of if len(u.main.shape) == 3 and u.layer is None and len(u.atoms) == 1]
        if not stacks:
            continue
        families = _families(lists_of)
        taken: set[int] = set()
        for stack in stacks:
            found = _members(stack, families, taken)
            if found:
                taken.update(id(unit) for unit in found)
                evidence = "one axis more, numbered siblings"
                left, right = ((stack,), tuple(found)) if base_is_stack else (tuple(found), (stack,))
                pairs.append(UnitPair(left, right, evidence, 0.9, stacked=True))
    base, raw = rest(base, raw, pairs)
    return pairs, base, raw


def _families(units: Sequence[Unit]) -> dict[tuple[str, ...], list[Unit]]:
    """Matrices whose paths differ in one number, by that path; in the order of the number."""
    found: dict[tuple[str, ...], list[Unit]] = defaultdict(list)
    for unit in units:
        parts = unit.path.split(".")
        if len(unit.main.shape) == 2 and len(unit.atoms) == 1:
            for place, part in enumerate(parts):
                if part.isdigit():
                    siblings = (*parts[:place], "*", *parts[place + 1 :])
                    found[siblings].append(unit)
    for family in found.values():
        family.sort(key=lambda unit: unit.numbers)
    return {key: family for key, family in found.items() if len(family) > 1}


def _members(stack: Unit, families: dict[tuple[str, ...], list[Unit]], taken: set[int]) -> list[Unit]:
    """The siblings, or per sibling the parts in order, that fill a stack; empty when none do."""
    count, rows, columns = stack.main.shape
    best: tuple[float, list[Unit]] = (0.0, [])
    same = {
        key: family
        for key, family in families.items()
        if len(family) == count
        and _outer(family[0].numbers) == stack.numbers
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


def _outer(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers[:-1]
