"""What modules keep in attributes of their own: a table computed once, a cache by device, the last hidden state.

No framework knows of it, and a model that runs again would go on with what its last run left, graph and all.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from padiff.frameworks import Adapter

KNOWN = frozenset({"_parameters", "_buffers", "_modules", "_sub_layers"})
"""What the frameworks keep for themselves."""
_DEEP = 3
"""How far tensors are looked for in what is kept: by device, by length, a pair of them."""
_CONTAINERS = frozenset({dict, list})
_PLAIN = (int, float, str, tuple, type(None))
_ABSENT = object()

Container = dict[Any, Any] | list[Any]
SavedAttributes = list[tuple[Container, Container]]
"""Where modules keep things, and a copy: by name, and what they keep there in containers."""


def saved_attributes(modules: Iterable[Any]) -> SavedAttributes:
    """What modules keep now; references, no copies of tensors."""
    found: SavedAttributes = []
    for own in {id(one): one for one in (getattr(module, "__dict__", {}) for module in modules)}.values():
        found.append((own, dict(own)))
        for name, kept in own.items():
            if type(kept) in _CONTAINERS and name not in KNOWN:
                _copied(kept, found, _DEEP)
    return found


def _copied(kept: Any, found: SavedAttributes, deep: int) -> None:
    if type(kept) in _CONTAINERS and deep:
        found.append((kept, kept.copy()))
        for inside in kept.values() if type(kept) is dict else kept:
            _copied(inside, found, deep - 1)


def put_attributes_back(adapter: Adapter, saved: SavedAttributes) -> None:
    """Tensors that have come, gone or changed since are as they were, and beside them what may tell of which they are:
    for how long a table was made. Whatever else a module counts or keeps stays."""
    for own, before in saved:
        if isinstance(own, dict) and isinstance(before, dict):
            _put_names_back(adapter, own, before)
        elif isinstance(own, list) and isinstance(before, list) and _other(adapter, own, before):
            own[:] = before


def _put_names_back(adapter: Adapter, own: dict[Any, Any], before: dict[Any, Any]) -> None:
    if len(own) == len(before) and all(map(operator.is_, own.values(), before.values())) and [*own] == [*before]:
        return  # nearly always
    names = (name for name in [*own, *(name for name in before if name not in own)] if name not in KNOWN)
    sides = {name: (own.get(name, _ABSENT), before.get(name, _ABSENT)) for name in names}
    changed = {name: pair for name, pair in sides.items() if pair[0] is not pair[1]}
    tensors = {name for name, pair in changed.items() if any(_holds(adapter, one) for one in pair)}
    for name, (now, then) in changed.items():
        if name not in tensors and not (tensors and isinstance(now, _PLAIN) and isinstance(then, _PLAIN)):
            continue
        if then is _ABSENT:
            del own[name]
        else:
            own[name] = then


def _other(adapter: Adapter, own: list[Any], before: list[Any]) -> bool:
    """Whether a list holds other tensors than before."""
    changed = len(own) != len(before) or any(now is not then for now, then in zip(own, before, strict=True))
    return changed and (_holds(adapter, own) or _holds(adapter, before))


def _holds(adapter: Adapter, value: Any, deep: int = _DEEP) -> bool:
    """Whether something is a tensor, or plainly holds one."""
    if isinstance(value, (dict, list, tuple)):
        inside = value.values() if isinstance(value, dict) else value
        return deep > 0 and any(_holds(adapter, one, deep - 1) for one in inside)
    return bool(adapter.is_tensor(value))
