"""Kernels that are cut or joined, and the norms that go along with them: a convolution and its norm against two.

base  cv1.conv [16, 8, 1, 1]  cv1.bn [16]
raw   left.conv [8, 8, 1, 1]  left.bn [8]   right.conv [8, 8, 1, 1]  right.bn [8]     or both kernels before both norms
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from padiff.frameworks.tree import join
from padiff.weights.fitting import UnitPair, pair_up, parent
from padiff.weights.joining import channelwise, cut_of, join_score, joins
from padiff.weights.units import Unit


def chain_at(run: Sequence[Unit], wholes: Sequence[Unit], *, base_has_parts: bool) -> list[UnitPair]:
    """Kernels with a norm each that make up a kernel and its norm: each norm after its kernel, or all after all."""
    count = len(run) // 2
    if not follows(wholes[0], wholes[1]):
        return []
    for kernels, norms in ((run[::2], run[1::2]), (run[:count], run[count:])):
        if joins(kernels, wholes[0]) and _go_along(kernels, norms, wholes[1]):
            first = pair_up(kernels, wholes[:1]) if base_has_parts else pair_up(wholes[:1], kernels)
            return [first, _beside(first, kernels, norms, wholes[1], base_has_parts=base_has_parts)]
    return []


def chain_score(pair: UnitPair) -> float:
    """How well parts that make up one belong together."""
    parts, whole = (pair.base, pair.raw[0]) if len(pair.base) > 1 else (pair.raw, pair.base[0])
    return join_score(parts, whole)


def follows(kernel: Unit, norm: Unit) -> bool:
    """Whether a norm is as long as a kernel has outputs."""
    cut = None if len(kernel.main.shape) < 2 else cut_of(kernel.main, kernel.main)
    return cut is not None and len(norm.main.shape) == 1 and norm.main.shape[0] == cut[0]


def _go_along(kernels: Sequence[Unit], norms: Sequence[Unit], whole: Unit) -> bool:
    sized = all(follows(kernel, norm) for kernel, norm in zip(kernels, norms, strict=True))
    one_class = len({norm.node.kind for norm in norms}) == 1
    alike = channelwise(norms, whole) or (one_class and all(u.layer is None for u in (*norms, whole)))
    return sized and alike and all(norm.required == whole.required for norm in norms)


def _beside(
    leader: UnitPair, kernels: Sequence[Unit], norms: Sequence[Unit], norm: Unit, *, base_has_parts: bool
) -> UnitPair:
    ordered = leader.base if base_has_parts else leader.raw
    places = [next(place for place, one in enumerate(kernels) if one is kernel) for kernel in ordered]
    parts = tuple(norms[place] for place in places)
    base, raw = (parts, (norm,)) if base_has_parts else ((norm,), parts)
    return UnitPair(base, raw, leader.evidence, leader.confidence, along=leader.raw[0].path)


def norms_along(pairs: Sequence[UnitPair], base: Sequence[Unit], raw: Sequence[Unit]) -> list[UnitPair]:
    """Of what is left over, the norms that go along with kernels that were joined."""
    found: list[UnitPair] = []
    taken: set[int] = set()
    for pair in pairs:
        if pair.stacked or pair.added or len(pair.base) == len(pair.raw) or pair.along:
            continue
        base_has_parts = len(pair.base) > 1
        parts, whole = (pair.base, pair.raw[0]) if base_has_parts else (pair.raw, pair.base[0])
        left, others = (base, raw) if base_has_parts else (raw, base)
        norm = _norm_of(whole, others, taken)
        norms: list[Unit] = []
        for part in sorted(parts, key=lambda unit: (unit.use, unit.order)):
            own = _norm_of(part, left, taken | {id(one) for one in norms})
            norms += [] if own is None else [own]
        if norm is None or len(norms) < len(parts):
            continue
        kernels = sorted(parts, key=lambda unit: (unit.use, unit.order))
        if _go_along(kernels, norms, norm):
            taken.update(id(unit) for unit in (norm, *norms))
            found.append(_beside(pair, kernels, norms, norm, base_has_parts=base_has_parts))
    return found


def _norm_of(kernel: Unit, left: Sequence[Unit], taken: set[int]) -> Unit | None:
    """The norm of a kernel: the one beside it, else the first that comes after it."""

    def near(unit: Unit) -> tuple[bool, bool, float, int]:
        return parent(unit) != parent(kernel), unit.use < kernel.use, unit.use, unit.order

    fitting = [
        unit for unit in left if id(unit) not in taken and follows(kernel, unit) and not _bias_of_another(unit, kernel)
    ]
    return min(fitting, key=near, default=None)


def _bias_of_another(unit: Unit, kernel: Unit) -> bool:
    """Whether it is the bias of a known layer, and not of this one."""
    bias = unit.main.held.stored is not None and unit.path.endswith(".bias")
    return bias and unit.path != join(kernel.path, "bias")


def windows(units: Sequence[Unit], most: int) -> Iterator[list[Unit]]:
    """All that may be joined of a family: the whole of it, or some in a row."""
    ordered = sorted(units, key=lambda unit: (unit.use, unit.order))
    if 2 <= len(units) <= most:
        yield list(units)
    for count in range(2, min(most, len(ordered) - 1) + 1):
        yield from (ordered[start : start + count] for start in range(len(ordered) - count + 1))
