"""What two ops that are given the same tensors are given besides: another axis, another mode, another number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from padiff.diagnose.causes.settings import NAMES, same_setting
from padiff.diagnose.likes import Event
from padiff.records import Cause

REDUCTIONS = frozenset({"mean", "sum", "max", "min", "prod", "var", "std", "norm", "logsumexp"})
BY_THING = {
    "mul": "scale",
    "div": "scale",
    "add": "offset",
    "sub": "offset",
    "pow": "exponent",
    "roll": "off by one",
    "getitem": "slice",
    "transpose": "transposed",
    "reshape": "shape",
    "cat": "axis",
    "stack": "axis",
    "split": "split",
    "softmax": "axis",
    "clip": "clamp",
    "to": "precision",
    "tril": "mask off by one",
    "triu": "mask off by one",
    "masked_fill": "mask",
    "repeat_interleave": "head order",
} | dict.fromkeys(REDUCTIONS, "axis")
"""What another value means where the argument's own name says little."""
WORDLESS = frozenset({"value", "other", "input", "self", "key", "index", "dims", "dim0", "dim1", "size", "diagonal"})
_SILENT = frozenset(
    {"name", "out", "device", "inplace", "stacklevel", "_stacklevel", "training", "align_mode", "layout"}
)
OF_THEIR_OWN = frozenset({"reduction"})
"""Causes that hold whatever the tensors are."""
_SHARED = frozenset(
    [
        "dim",
        "reduction",
        "mode",
        "p",
        "eps",
        "keepdim",
        "ignore_index",
        "label_smoothing",
        "alpha",
        "align_corners",
        "padding_mode",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "ceil_mode",
    ]
)
"""Arguments that mean the same under these names in all frameworks."""

_SWITCHES = frozenset({"antialias"})
"""Arguments that only some frameworks have; the others do without."""


def line_of(event: Event) -> str:
    return f" in line {event.call.stack[-1].line}" if event.call.stack and not event.part else ""


def options(base: Event, raw: Event) -> Iterator[Cause]:
    """The same op with the same tensors: what else it was given."""
    if base.call.kind != raw.call.kind:
        yield from _numbers(base, raw)
        yield from _of_two_frameworks(base, raw)
        return
    ours, theirs = dict(base.call.options), dict(raw.call.options)
    for name in {**ours, **theirs}:
        if name in _SILENT or (name in ours and name in theirs and same_setting(ours[name], theirs[name])):
            continue
        one, other = (_value(own, name) for own in (ours, theirs))
        besides = ", and the same tensors" if base.call.inputs else ""
        text = f"{base.call.kind}{line_of(raw)} is given {name} {other} in raw and {one} in base{besides}"
        values = (ours.get(name), theirs.get(name))
        yield Cause(_option_name(name, base.thing, values), text, 0.92)


def _of_two_frameworks(base: Event, raw: Event) -> Iterator[Cause]:
    """Arguments that both name alike, and places that both count alike."""
    ours, theirs = dict(base.call.options), dict(raw.call.options)
    found = [(name, ours[name], theirs[name]) for name in ours if name in theirs and name in _SHARED]
    if base.thing == raw.thing == "getitem" and len(ours) == len(theirs) == 1:
        found.append(("index", *ours.values(), *theirs.values()))
    if base.thing == raw.thing == "pad" and "pad" in ours and "pad" in theirs:
        found.append(("pad", ours["pad"], theirs["pad"]))
    switched = _SWITCHES & (ours.keys() | theirs.keys())
    found += [(name, ours.get(name, False), theirs.get(name, False)) for name in switched]
    for name, one, other in found:
        if one is not None and other is not None and not _same(base, raw, name, one, other):
            told = "padding" if name == "pad" else _option_name(name, base.thing, (one, other))
            text = f"{raw.call.kind}{line_of(raw)} is given {name} {other!r} in raw and {one!r} in base"
            yield Cause(told, text, 0.92)


def _same(base: Event, raw: Event, name: str, one: Any, other: Any) -> bool:
    if name == "pad":
        return bool(_without_nothing(one) == _without_nothing(other))
    counted = name in ("dim", "index")
    return same_setting(
        *(_counted(event, name, value) if counted else value for event, value in ((base, one), (raw, other)))
    )


def _counted(event: Event, name: str, value: Any) -> Any:
    """Axes, or places along them, counted from the first."""
    shape = event.call.inputs[0].value.shape if event.call.inputs else ()
    places = value if isinstance(value, tuple) else (value,)
    sizes = (len(shape),) * len(places) if name == "dim" else shape
    if len(places) > len(sizes) or "..." in places:
        return value
    found = [
        place + size if type(place) is int and place < 0 else place for place, size in zip(places, sizes, strict=False)
    ]
    while name == "index" and found and found[-1] in ("::", ":"):  # all there is
        found.pop()
    return tuple(found)


def _without_nothing(pad: Any) -> Any:
    """Without the axes at the end to which nothing is added."""
    found = list(pad) if isinstance(pad, tuple) else [pad]
    while len(found) > 1 and not any(found[-2:]):
        del found[-2:]
    return found


def _numbers(base: Event, raw: Event) -> Iterator[Cause]:
    """The same of two frameworks, which name their arguments otherwise: the one number that each was given."""
    values = [[value for _, value in event.call.options if type(value) in (int, float)] for event in (base, raw)]
    if base.thing not in ("add", "sub", "mul", "div", "pow", "clip") or [len(one) for one in values] != [1, 1]:
        return
    (one,), (other,) = values
    if one != other:
        text = f"{raw.call.kind}{line_of(raw)} is given {other!r} in raw and {one!r} in base, and the same tensors"
        yield Cause(_option_name("other", base.thing, (one, other)), text, 0.92)


def _value(options: dict[str, Any], name: str) -> str:
    return repr(options[name]) if name in options else "not at all"


def _tiny(values: tuple[Any, Any]) -> bool:
    """Whether both are what is added so that nothing is divided by zero."""
    return all(type(value) is float and 0 <= value <= 0.1 for value in values) and min(values) <= 1e-3


def _option_name(name: str, thing: str, values: tuple[Any, Any]) -> str:
    if name == "dtype":
        return "softmax dtype" if thing in ("softmax", "log_softmax") else "precision"
    wordless = name.isdigit() or name in WORDLESS or thing == "clip"  # whichever of its bounds it is
    if wordless and thing in ("add", "clip") and _tiny(values):
        return "eps"
    if wordless:
        return BY_THING.get(thing, thing)
    return "interpolation" if (thing, name) == ("interpolate", "mode") else NAMES.get(name, name)
