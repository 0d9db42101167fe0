"""Tables of positions in another form: angles here, their cosines or sines there, each number once or twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from padiff.records import Array

_MOST = 1 << 22
"""Elements of a tensor that is asked whether it is a table of positions."""
_NEAR = 1e-5
"""How far apart such numbers, of which none is larger than one, lie at most: large angles are rounded in float32."""


def same_angles(base: Array, raw: Array) -> bool:
    """Whether one table holds cosines or sines of the other's angles, or either is the other with each number twice:
    who is given the one can do with it what is done with the other."""
    if max(base.size, raw.size) > _MOST or not (base.dtype.kind == raw.dtype.kind == "f") or not _varies(base, raw):
        return False
    return any(_says(one, other) for one, other in ((base, raw), (raw, base)))


def _varies(*arrays: Array) -> bool:
    return all(one.size and one.ndim and np.isfinite(one).all() and one.min() < one.max() for one in arrays)


def _says(told: Array, known: Array) -> bool:
    """Whether the first is made of the second."""
    ways: list[Callable[[Array], Array]] = [np.cos, np.sin]
    if told.size != known.size:
        ways.append(np.asarray)
    shared = told.ravel()
    return any(
        made.size == shared.size and bool((np.abs(made.ravel() - shared) <= _NEAR * max(1.0, scale)).all())
        for way in ways
        for made in _repeated(way(known.astype(np.float64)), told.size)
        for scale in (float(np.abs(shared).max()),)
    )


def _repeated(table: Array, size: int) -> Iterator[Array]:
    """A table as it is, or with each number twice along its last axis: one after the other, or all, and all again."""
    if table.size == size:
        yield table
    elif 2 * table.size == size:
        yield np.concatenate([table, table], -1)
        yield np.repeat(table, 2, -1)
