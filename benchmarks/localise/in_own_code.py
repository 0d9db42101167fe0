"""Mistakes in a module's own code between its children: what it feeds them, what it leaves out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.localise import plant
from benchmarks.localise.bug import Bug, Kind
from benchmarks.localise.either import change_first, is_floating, is_tensor, roll
from benchmarks.localise.in_outputs import SCALE, channel_zeroed, rounded, scaled, sequence_or_picture, shifted
from benchmarks.localise.stage import Stage
from benchmarks.localise.watch import Seen

Wanted = Callable[[Stage, Seen], bool]


def with_input(stage: Stage, call: Seen) -> bool:
    return bool(call.inputs) and call.inputs[0].ndim > 0


def with_sequence(stage: Stage, call: Seen) -> bool:
    return with_input(stage, call) and sequence_or_picture(stage, call) and call.inputs[0].ndim >= 3


def same_shape(stage: Stage, call: Seen) -> bool:
    """Leaving it out, or calling it twice, is possible and makes a difference."""
    fits = call.lone and with_input(stage, call) and call.inputs[0].shape == call.outputs[0].shape
    return fits and not call.passes_through


def with_mask(stage: Stage, call: Seen) -> bool:
    return any(_is_mask(values) for values in call.inputs)


def _is_mask(values: np.ndarray) -> bool:
    """Added to scores: zero, or very negative."""
    return bool(values.ndim >= 2 and values.size and ((values == 0) | (values <= -1e4)).all() and values.min() < 0)


def _feeding(change: Callable[[Any], Any]) -> plant.Run:
    def run(child: Any, /, *args: Any, **kwargs: Any) -> Any:
        args, done = change_first(args, change)
        if not done:
            kwargs, _ = change_first(kwargs, change)
        return child(*args, **kwargs)

    return run


def _masking(change: Callable[[Any], Any]) -> plant.Run:
    def wanted(tensor: Any) -> bool:
        return is_floating(tensor) and _is_mask(tensor.detach().numpy())

    def run(child: Any, /, *args: Any, **kwargs: Any) -> Any:
        args, done = change_first(args, change, wanted)
        if not done:
            kwargs, _ = change_first(kwargs, change, wanted)
        return child(*args, **kwargs)

    return run


def _off_by_one(mask: Any) -> Any:
    """Every row sees one place more."""
    return roll(mask, 1, mask.ndim - 1)


def left_out(child: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The child is not called."""
    return next(one for one in (*args, *kwargs.values()) if is_tensor(one))


def twice(child: Any, /, *args: Any, **kwargs: Any) -> Any:
    output = child(*args, **kwargs)
    return child(output, *args[1:], **kwargs) if args else output


def _kind(
    name: str, run: plant.Run, wanted: Wanted, causes: tuple[str, ...] = (), own_output: bool = False, **more: Any
) -> Kind:
    def places(stage: Stage) -> Iterator[Bug]:
        calls = stage.first_calls()
        for place, call in enumerate(calls):
            if call.caller is None or not wanted(stage, call):
                continue
            yield Bug(
                kind=name,
                place=call.caller,
                expected=stage.expected(call.caller),
                plant=_planting(stage, call, run),
                watched=call.caller if own_output else call.path,
                causes=causes,
                depth=place / len(calls),
                **more,
            )

    return places


def _planting(stage: Stage, call: Seen, run: plant.Run) -> Callable[[], Any]:
    above, _, name = call.path.rpartition(".")
    assert call.caller is not None
    return lambda: plant.fed(stage.modules[call.caller or ""], stage.modules[above], name, run)


def _mask(name: str, change: Callable[[Any], Any]) -> Kind:
    """A wrong mask is the fault of who made it. Where base's is of another make (no mask, or one of True), the numbers
    cannot be held against each other, and the module that puts it on its scores is a right answer as well."""

    def places(stage: Stage) -> Iterator[Bug]:
        for bug in _kind(name, _masking(change), with_mask, ("mask",))(stage):
            call = next(one for one in stage.calls if one.path == bug.watched)
            mask = next((values for values in call.inputs if _is_mask(values)), None)
            if mask is not None and not stage.partners.given(mask):
                user = next((path for path in _scoring(stage) if (path + ".").startswith(call.path + ".")), None)
                if user is not None:
                    bug = replace(bug, expected=tuple(dict.fromkeys((*bug.expected, *stage.expected(user)))))
            yield bug

    return places


def _scoring(stage: Stage) -> list[str]:
    """Modules whose own code turns scores into weights, in order."""
    from benchmarks.localise.in_functions import users

    found = {**users(stage)["softmax"], **users(stage)["attention"]}
    return [call.path for call in stage.first_calls() if call.path in found]


# ------------------------------------------------------------------ residuals


def residual_at_end(stage: Stage) -> Iterator[Bug]:
    """A module returns what a child returned without what led around it."""
    calls = stage.first_calls()
    inside: dict[str, list[Seen]] = defaultdict(list)
    for call in calls:
        if call.caller is not None:
            inside[call.caller].append(call)
    for place, call in enumerate(calls):
        children = inside[call.path]
        for child in reversed(children):
            if _is_sum(call.outputs[0], child.outputs[0], _led_around(call, child, children)):
                yield Bug(
                    kind="residual: missing at the end",
                    place=call.path,
                    expected=stage.expected(call.path),
                    plant=_without_residual(stage, call, child),
                    causes=("residual", "skip"),
                    depth=place / len(calls),
                )
                break


def residual_between(stage: Stage) -> Iterator[Bug]:
    """A child is fed what another returned without what led around it."""
    calls = stage.first_calls()
    inside: dict[str, list[Seen]] = defaultdict(list)
    for place, call in enumerate(calls):
        if call.caller is None:
            continue
        earlier = inside[call.caller]
        around = next((one for one in calls if one.path == call.caller), None)
        for child in reversed(earlier) if call.inputs and around is not None else ():
            if _is_sum(call.inputs[0], child.outputs[0], _led_around(around, child, earlier)):
                yield Bug(
                    kind="residual: missing between two children",
                    place=call.caller,
                    expected=stage.expected(call.caller),
                    plant=_fed_without_residual(stage, call, child),
                    watch="input",
                    watched=call.path,
                    causes=("residual", "skip"),
                    depth=place / len(calls),
                )
                break
        earlier.append(call)


def _led_around(call: Seen, child: Seen, children: list[Seen]) -> list[np.ndarray]:
    """What a module had at hand besides what the child returned."""
    others = [one for other in children if other is not child for one in (*other.inputs, *other.outputs)]
    return [*call.inputs, *others]


def _is_sum(total: np.ndarray, part: np.ndarray, others: list[np.ndarray]) -> bool:
    return total.shape == part.shape and any(
        other.shape == part.shape
        and np.abs(other).max(initial=0.0) > 0
        and np.allclose(part + other, total, rtol=1e-4, atol=1e-5 * float(np.abs(total).max()))
        for other in others
    )


def _keeping(kept: list[Any]) -> plant.Run:
    def run(child: Any, /, *args: Any, **kwargs: Any) -> Any:
        output = child(*args, **kwargs)
        kept.clear()
        change_first(output, lambda tensor: kept.append(tensor) or tensor)
        return output

    return run


def _without_residual(stage: Stage, call: Seen, child: Seen) -> Callable[[], Any]:
    @contextmanager
    def planted() -> Iterator[None]:
        kept: list[Any] = []

        def run(forward: Any, /, *args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            return change_first(output, lambda tensor: kept[0] if kept else tensor)[0]

        with _planting(stage, child, _keeping(kept))(), plant.forward_of(stage.modules[call.path], run):
            yield

    return planted


def _fed_without_residual(stage: Stage, call: Seen, child: Seen) -> Callable[[], Any]:
    @contextmanager
    def planted() -> Iterator[None]:
        kept: list[Any] = []
        with ExitStack() as stack:
            stack.enter_context(_planting(stage, child, _keeping(kept))())
            change = _feeding(lambda tensor: kept[0] if kept else tensor)
            stack.enter_context(_planting(stage, call, change)())
            yield

    return planted


KINDS: tuple[Kind, ...] = (
    _kind("fed: times 1.01", _feeding(scaled(1.01)), with_input, SCALE, watch="input"),
    _kind("fed: negated", _feeding(scaled(-1.0)), with_input, (*SCALE, "sign"), watch="input"),
    _kind(
        "fed: shifted by one",
        _feeding(shifted),
        with_sequence,
        ("shift", "roll", "position", "off by one"),
        watch="input",
    ),
    _kind("fed: one channel zero", _feeding(channel_zeroed), with_input, watch="input"),
    _kind(
        "fed: rounded to bfloat16",
        _feeding(rounded),
        with_input,
        ("precision", "bfloat16", "rounded"),
        watch="input",
        floor=5e-4,
    ),
    _mask("mask: ignored", lambda mask: mask * 0.0),
    _mask("mask: off by one", _off_by_one),
    _kind("own code: a child left out", left_out, same_shape, own_output=True),
    _kind("own code: a child called twice", twice, same_shape, own_output=True),
    residual_at_end,
    residual_between,
)
