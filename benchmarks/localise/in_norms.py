"""Mistakes in a norm's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.localise import plant
from benchmarks.localise.bug import FAINT, Bug, Kind
from benchmarks.localise.stage import Stage

EPS = ("eps", "_epsilon", "epsilon", "variance_epsilon")
MOMENTUM = ("momentum", "_momentum")


def _kind(name: str, attributes: tuple[str, ...], change: Callable[[float], float], **more: Any) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls()
        for place, call in enumerate(calls):
            module = stage.modules[call.path]
            held = vars(module)
            found = next((key for key in attributes if isinstance(held.get(key), float)), None)
            if found is None or "norm" not in type(module).__name__.lower():
                continue
            if attributes is MOMENTUM and not module.training:
                continue
            yield Bug(
                kind=name,
                place=call.path,
                expected=stage.expected(call.path),
                plant=_planting(module, found, change(held[found])),
                depth=place / len(calls),
                **more,
            )

    return places


def _planting(module: Any, name: str, value: float) -> Callable[[], Any]:
    return lambda: plant.attribute(module, name, value)


KINDS: tuple[Kind, ...] = (
    _kind("norm: eps ten times", EPS, lambda eps: eps * 10, causes=("eps",), floor=FAINT),
    _kind("norm: eps 1e-3", EPS, lambda eps: 1e-3, causes=("eps",), floor=FAINT),
    _kind(
        "norm: momentum",
        MOMENTUM,
        lambda momentum: (momentum + 0.2) % 1.0,
        causes=("momentum",),
        watch="buffer",
        phases=("buffer",),
    ),
)
