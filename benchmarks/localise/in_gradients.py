"""Mistakes that forward does not show: gradients scaled, cut off, or wrong at one parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.localise import plant
from benchmarks.localise.bug import Bug, Kind
from benchmarks.localise.either import change_first, is_trained, own_tensors, scaled_gradient
from benchmarks.localise.in_own_code import _feeding, _planting, with_input
from benchmarks.localise.stage import Stage


def _through(name: str, change: Callable[[Any], Any], causes: tuple[str, ...] = ()) -> Kind:
    """Through a module's own code."""

    def run(forward: Any, /, *args: Any, **kwargs: Any) -> Any:
        return change_first(forward(*args, **kwargs), change)[0]

    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls() if stage.source.phase == "both" else []
        for place, call in enumerate(calls):
            if call.path:
                yield Bug(
                    kind=name,
                    place=call.path,
                    expected=stage.expected(call.path),
                    plant=partial(plant.forward_of, stage.modules[call.path], run),
                    watch="gradient",
                    phases=("backward", "gradient"),
                    causes=causes,
                    depth=place / len(calls),
                )

    return places


def _between(name: str, change: Callable[[Any], Any], causes: tuple[str, ...] = ()) -> Kind:
    """On the way into a child, by the code of the module around it."""

    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls() if stage.source.phase == "both" else []
        for place, call in enumerate(calls):
            if call.caller is not None and with_input(stage, call):
                yield Bug(
                    kind=name,
                    place=call.caller,
                    expected=stage.expected(call.caller),
                    plant=_planting(stage, call, _feeding(change)),
                    watch="gradient",
                    watched=call.path,
                    phases=("backward", "gradient"),
                    causes=causes,
                    depth=place / len(calls),
                )

    return places


def of_a_parameter(stage: Stage) -> Iterator[Bug]:
    calls = stage.first_calls() if stage.source.phase == "both" else []
    for place, call in enumerate(calls):
        for tensor in own_tensors(stage.modules[call.path]).values():
            if not is_trained(tensor):
                continue
            owners = stage.owners(tensor)
            yield Bug(
                kind="parameter gradient: times 1.5",
                place=call.path,
                expected=tuple(dict.fromkeys(path for owner in owners for path in stage.expected(owner))),
                plant=partial(plant.gradient_of, tensor, 1.5),
                watch="gradient",
                phases=("gradient",),
                depth=place / len(calls),
            )


KINDS: tuple[Kind, ...] = (
    _through("gradient: times 1.5 through a module", lambda tensor: scaled_gradient(tensor, 1.5)),
    _through("gradient: cut in a module", lambda tensor: tensor.detach(), ("detach", "gradient")),
    _between("gradient: times 1.5 between two modules", lambda tensor: scaled_gradient(tensor, 1.5)),
    _between("gradient: cut between two modules", lambda tensor: tensor.detach(), ("detach", "gradient")),
    of_a_parameter,
)
