"""What the order of use left over: siblings that make up one unit, then the best fit by shape and name."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from padiff.weights.blocks import AT_HOME, Homes
from padiff.weights.chains import windows
from padiff.weights.fitting import UnitPair, fits, flat, pair_up, parent, score
from padiff.weights.joining import MOST_ADDED, MOST_JOINED, adds, join_score, joins
from padiff.weights.units import Unit
from padiff.weights.words import likeness, numbers_of, words_of


def parts_by_names(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Siblings inside the module that has the name of one unit of the other side, and that make it up."""
    pairs: list[UnitPair] = []
    for parts_of, wholes_of, base_has_parts in ((base, raw, True), (raw, base, False)):
        families = _families(parts_of)
        inside: dict[object, list[list[Unit]]] = defaultdict(list)
        for place, members in families.items():
            steps = place.split(".")
            for key in {_said(".".join(steps[:length])) for length in range(1, len(steps) + 1)}:
                inside[key].append(members)
        names = Counter(_said(whole.label) for whole in wholes_of)
        for whole in wholes_of:
            key = _said(whole.label)
            found = inside[key] if names[key] == 1 else []
            if len(found) != 1 or not 2 <= len(found[0]) <= MOST_ADDED:
                continue
            parts, evidence = tuple(found[0]), "names, shapes add up"
            one, other = (parts, (whole,)) if base_has_parts else ((whole,), parts)
            if joins(parts, whole):
                pairs.append(UnitPair(one, other, evidence, 0.95))
            elif adds(parts, whole):
                pairs.append(UnitPair(one, other, f"{evidence} along the inputs", 0.95, added=True))
    return pairs


def _families(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    """Path of a module to the units right in it."""
    found: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        found[parent(unit)].append(unit)
    return found


def _said(label: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return words_of(label), numbers_of(label)


def joined_leftovers(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Siblings that make up one unit of the other side, though something else is used between them."""
    pairs: list[UnitPair] = []
    taken: set[int] = set()
    for parts_of, wholes_of, base_has_parts in ((base, raw, True), (raw, base, False)):
        families = _joinable(parts_of)
        for whole in wholes_of:
            candidates = [
                members
                for members in families
                if not any(id(unit) in taken for unit in (whole, *members)) and joins(members, whole)
            ]
            if not candidates:
                continue
            chosen = max(
                candidates, key=lambda members: join_score(members, whole) + 2 * (members[0].numbers == whole.numbers)
            )
            taken.update(id(unit) for unit in (whole, *chosen))
            pairs.append(pair_up(chosen, [whole]) if base_has_parts else pair_up([whole], chosen))
    return pairs


def _joinable(units: Sequence[Unit]) -> list[list[Unit]]:
    """Siblings of one number of axes; of kernels some in a row, too, and those of one name in modules beside."""
    families: dict[object, list[Unit]] = defaultdict(list)
    for unit in units:
        rank = len(unit.main.shape)
        families[(parent(unit), rank)].append(unit)
        around, _, name = unit.label.rpartition(".")
        if around and rank > 1:
            families[(around.rpartition(".")[0], name, rank)].append(unit)
    found: list[list[Unit]] = []
    for members in families.values():
        if len(members[0].main.shape) > 2:
            found += windows(members, MOST_JOINED)
        elif 2 <= len(members) <= MOST_JOINED:
            found.append(members)
    return found


def added_leftovers(base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Siblings that together do what one unit of the other side does, each with a stretch of the inputs."""
    pairs: list[UnitPair] = []
    for parts_of, wholes_of, base_has_parts in ((base, raw, True), (raw, base, False)):
        families = _families(parts_of)
        open_ = [members for members in families.values() if 2 <= len(members) <= MOST_ADDED]
        for whole in wholes_of:
            fitting = [members for members in open_ if adds(members, whole)]
            if not fitting:
                continue
            chosen = max(fitting, key=lambda members: join_score(members, whole))
            named = likeness(parent(chosen[0]), whole.label)
            if named < 0.3 and len(fitting) > 1:
                continue
            open_.remove(chosen)
            parts, evidence = tuple(chosen), "shapes add up along the inputs, names"
            one, other = (parts, (whole,)) if base_has_parts else ((whole,), parts)
            pairs.append(UnitPair(one, other, evidence, 0.95, added=True))
    return pairs


def single_leftovers(base: Sequence[Unit], raw: Sequence[Unit], known: Sequence[UnitPair] = ()) -> list[UnitPair]:
    """The best fit first; a name, or being the only one that fits, must speak for it. What lies in a block whose other
    tensors, as is ``known``, come from the other's block belongs there rather than into a block beside it."""
    homes = Homes(known) if known and len(base) > 1 < len(raw) else None
    options = [
        (score(one, two) + (AT_HOME if at_home else 0.0), i, j, at_home)
        for i, one in enumerate(base)
        for j, two in enumerate(raw)
        if fits(one, two)
        for at_home in (homes is not None and homes.shared(one, two),)
    ]
    alone = _only(options) | _only([option for option in options if option[3]])
    pairs: list[UnitPair] = []
    done_base: set[int] = set()
    done_raw: set[int] = set()
    for _, i, j, _ in sorted(options, key=lambda option: (-option[0], option[1], option[2])):
        if i in done_base or j in done_raw:
            continue
        named = likeness(base[i].label, raw[j].label)
        only = (i, j) in alone
        if named < 0.3 and not only:
            continue
        done_base.add(i)
        done_raw.add(j)
        evidence = "shape" + (", names" if named >= 0.3 else "") + (", the only one that fits" if only else "")
        pairs.append(UnitPair((base[i],), (raw[j],), evidence, 0.95 if named >= 0.5 or only else 0.7))
    return pairs


def _only(options: Sequence[tuple[float, int, int, bool]]) -> set[tuple[int, int]]:
    """Those that have no other option."""
    by_base, by_raw = Counter(i for _, i, _, _ in options), Counter(j for _, _, j, _ in options)
    return {(i, j) for _, i, j, _ in options if by_base[i] == 1 and by_raw[j] == 1}


def beside_partners(pairs: Sequence[UnitPair], base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Buffers of one name, in modules whose other tensors are partners."""
    homes = {(one.node.index, two.node.index) for pair in pairs for one in pair.base for two in pair.raw}
    named: dict[str, list[Unit]] = defaultdict(list)
    for unit in raw:
        named[unit.path.rpartition(".")[2]].append(unit)
    found: list[UnitPair] = []
    for one in base:
        alike = [two for two in named[one.path.rpartition(".")[2]] if (one.node.index, two.node.index) in homes]
        if len(alike) == 1 and fits(one, alike[0]):
            found.append(UnitPair((one,), (alike[0],), "name, the module's other tensors", 1.0))
    return found


def frozen_and_buffers(
    base: Sequence[Unit],
    raw: Sequence[Unit],
    frozen: tuple[Callable[[Unit], bool], Callable[[Unit], bool]],
    unmade: Callable[[Unit, Unit], bool],
) -> list[UnitPair]:
    """A parameter that nobody trains here may be a buffer there: the only ones of their shape that are left, in use. An
    embedding's, where raw's buffer is ``unmade``: a table that raw makes itself is compared with what is looked up."""
    sides: list[dict[tuple[int, ...], list[Unit]]] = []
    for units in (base, raw):
        by_shape: dict[tuple[int, ...], list[Unit]] = defaultdict(list)
        for unit in units:
            shape = flat(unit.main.shape)
            if unit.layer in (None, "embedding") and len(unit.atoms) == 1 and unit.use < math.inf and len(shape) > 1:
                by_shape[shape].append(unit)
        sides.append(by_shape)
    found: list[UnitPair] = []
    for shape, ones in sides[0].items():
        others = sides[1].get(shape, ())
        if len(ones) != 1 or len(others) != 1 or ones[0].main.held.role == others[0].main.held.role:
            continue
        of_base = bool(ones[0].required)
        kept = frozen[0](ones[0]) if of_base else frozen[1](others[0])
        if ones[0].layer == "embedding":
            kept = kept and unmade(ones[0], others[0])
        if kept and ones[0].atoms.keys() == others[0].atoms.keys():
            found.append(UnitPair((ones[0],), (others[0],), "shape, a parameter that is not trained", 0.9))
    return found
