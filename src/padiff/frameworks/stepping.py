"""The optimizer behind a function of the user's that steps and clears."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from padiff.frameworks.protocol import Adapter


def optimizer_in(adapter: Adapter, thing: Any) -> Any | None:
    """The optimizer itself, or the only one that a function plainly knows: what it encloses, is bound to, is given, or
    calls by a global name. None where there is none, or there are several."""
    found = {id(one): one for one in _known(thing) if adapter.is_optimizer(one)}
    return next(iter(found.values())) if len(found) == 1 else None


def _known(thing: Any) -> Iterator[Any]:
    yield thing
    if isinstance(thing, functools.partial):
        yield from (*thing.args, *thing.keywords.values())
        thing = thing.func
    owner = getattr(thing, "__self__", None)
    if owner is not None:
        yield owner
        yield from vars(owner).values() if hasattr(owner, "__dict__") else ()
    function = getattr(thing, "__func__", thing)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for cell in function.__closure__ or ():
        if _filled(cell):
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
