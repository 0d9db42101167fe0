"""Why, by the op with which a module's own code starts to go wrong: what it was given, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from padiff.compare.kinds import kind_of
from padiff.compare.layouts import agree_in_any_layout
from padiff.diagnose.causes.arithmetic import leaves_out
from padiff.diagnose.causes.explain import explain
from padiff.diagnose.causes.masks import keep_the_same
from padiff.diagnose.causes.op_options import OF_THEIR_OWN, REDUCTIONS, line_of, options
from padiff.diagnose.likes import Event, Likes
from padiff.diagnose.own_code import Culprit
from padiff.diagnose.scene import Scene
from padiff.diagnose.stages import Stage, stages
from padiff.records import Array, Call, Cause, Slot

_ACTIVATIONS = """
    relu relu6 gelu silu sigmoid tanh softplus leaky_relu elu selu celu hardswish hardsigmoid hardtanh mish glu softmax
    log_softmax log_sigmoid prelu softsign tanhshrink
"""
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
NORMS = frozenset({"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize"})
POOLS = frozenset(f"{how}_pool{n}d" for how in ("max", "avg", "adaptive_avg", "adaptive_max") for n in (1, 2, 3))

SURE = 0.85
GENERIC = frozenset({"operands", "scale", "sign", "offset", "bias", "order", "transposed", "shape", "clamp", "zeroed"})
"""What may be said of many tensors, and follows from what was said of the first."""

TAKING = frozenset({"getitem", "gather", "index_select"})
"""Ops that take from a tensor by places that another holds."""
MOST_MASK = 1 << 20
"""Elements of a tensor that is asked whether it is a mask."""


def causes_of_op(culprit: Culprit) -> tuple[Cause, ...]:
    """What was tried on the first tensors that differ, and what the op itself tells."""
    if culprit.stopped:
        event, other = (culprit.raw, "base") if culprit.stopped == "raw" else (culprit.base, "raw")
        through = "an op" if event is None else f"{event.call.kind}{line_of(event)}"
        text = f"{culprit.stopped} does not follow gradients through {through}, {other} does"
        return (Cause("no gradient", text, 0.96),)
    own = _own_backward(culprit)
    if own is not None:
        return (own,)
    found = list(_tried(culprit))
    found += [cause for cause in _told(culprit) if cause.name not in {one.name for one in found}]
    return tuple(sorted(found, key=lambda cause: -cause.confidence))


def _own_backward(culprit: Culprit) -> Cause | None:
    """A function of the user's that says itself what its gradients are, and says something else."""
    for side, other, event in (("raw", "base", culprit.raw), ("base", "raw", culprit.base)):
        place = "" if event is None else dict(event.call.options).get("backward", "")
        if event is None or not place:
            continue
        name = event.call.kind.removesuffix(".apply")
        text = f"{side}'s {name} has a backward of its own ({place}), and returns other gradients than {other}'s ops do"
        return Cause("own backward", f"{text}; what it returns in forward agrees", 0.96)
    return None


def _tried(culprit: Culprit) -> Iterator[Cause]:
    """What explains the first tensors that differ; further on only what is no mere arithmetic of what is at hand."""
    adding = {event.thing for event in (culprit.base, culprit.raw) if event is not None} & {"add", "sub"}
    seen = list(stages(culprit))
    for place, stage in enumerate(seen):
        later = seen[place + 1 :]
        causes = [
            replace(one, evidence=f"{_words(stage.op)}: {one.evidence}")
            for one in explain(_scene(stage))
            if _tells(one.name, place, bool(adding)) and not (one.name == "mask" and _masked_in_the_end(later))
        ]
        yield from causes
        if any(one.confidence >= SURE for one in causes):
            return


def _masked_in_the_end(later: Sequence[Stage]) -> bool:
    """Whether both sides leave out the same further on: one of them does in two steps what the other does in one."""
    return any(keep_the_same(stage.expected, stage.found) for stage in later)


def _tells(name: str, place: int, adding: bool) -> bool:
    if name.endswith("residual") or name in ("residual scale", "left out"):
        return adding and not place
    return not place or name not in GENERIC


def _scene(stage: Stage) -> Scene:
    def agrees(base: Array, raw: Array) -> bool:
        return stage.bounds.agree(base, lambda tolerance: agree_in_any_layout(base, raw, tolerance))

    return Scene(
        phase="forward",
        role="output",
        base_kind=stage.op.kind,
        raw_kind=stage.op.kind,
        layer=stage.op.kind.rpartition(".")[2],
        expected=stage.expected,
        found=stage.found,
        given=stage.given,
        around=stage.around,
        agrees=agrees,
        narrow=stage.bounds.least.narrow,
    )


def _words(op: Call) -> str:
    line = f" (line {op.stack[-1].line})" if op.stack else ""
    return f"at {op.kind}{line}"


# ------------------------------------------------------------------ what the op tells


def _told(culprit: Culprit) -> Iterator[Cause]:
    base, raw, likes = culprit.base, culprit.raw, culprit.likes
    if likes is None or not all(side.inside.events for side in likes.sides):  # a layer of the framework has no code
        return
    left = [_module(likes, side, event) for side, event in ((0, base), (1, raw))]
    if left[0] and not left[1] and _goes_on_with(culprit.unlike[0], raw):
        name = "missing activation" if base is not None and base.thing in ACTIVATIONS else "left out"
        yield Cause(name, f"base calls {left[0]}, and raw goes on without it", 0.93)
    elif left[1] and not left[0] and _goes_on_with(culprit.unlike[1], base):
        yield Cause("extra module", f"raw calls {left[1]}, which base does not do", 0.9)
    elif base is not None and raw is not None:
        yield from _both(likes, base, raw)
    elif base is not None:
        yield _by_number(base, "base") or Cause(
            _lack(base, "missing"), f"base does {base.words}{line_of(base)}, and raw goes on without it", 0.88
        )
    elif raw is not None:
        yield _by_number(raw, "raw") or Cause(
            _lack(raw, "extra"), f"raw does {raw.words}{line_of(raw)}, which base does not do", 0.88
        )


def _by_number(event: Event, side: str) -> Cause | None:
    """An op with a number, which only one side does."""
    numbers = [value for _, value in event.call.options if type(value) in (int, float)]
    words = {"mul": "multiplies by", "div": "divides by", "add": "adds", "sub": "subtracts"}.get(event.thing)
    if words is None or len(numbers) != 1 or len(event.call.options) != 1 or len(event.call.inputs) != 1:
        return None
    name = "scale" if event.thing in ("mul", "div") else "offset"
    return Cause(name, f"{side} {words} {numbers[0]:.6g}{line_of(event)}, and the other side does not", 0.9)


def _goes_on_with(others: Sequence[Event], event: Event | None) -> bool:
    """Whether one side does, in the place of what the other does first, nothing, or what the other does later."""
    return event is None or any(other.thing == event.thing for other in others)


def _module(likes: Likes, side: int, event: Event | None) -> str:
    """The module inside, without a partner, that it is the call of; nothing where it is an op."""
    owner = "" if event is None or event.call.is_op else event.call.path
    return "" if owner == likes.sides[side].inside.path else owner


def _lack(event: Event, word: str) -> str:
    if event.thing in ACTIVATIONS:
        return f"{word} activation"
    if event.thing in NORMS:
        return f"{word} norm"
    if event.thing == "dropout":
        return "dropout"
    if event.thing == "to" and _rounds(event):
        return "precision"
    if event.thing in ("masked_fill", "tril", "triu") or any(_is_mask(event, slot) for slot in event.call.inputs):
        return "mask"
    return "left out" if word == "missing" else "extra op"


def _rounds(event: Event) -> bool:
    """Whether what an op returns has other digits than what it is given."""
    sizes = [kind_of(slots[0].value.numpy().dtype).eps for slots in (event.call.inputs, event.call.outputs) if slots]
    return len(sizes) == 2 and 0 < min(sizes) < max(sizes)


def _is_mask(event: Event, slot: Slot) -> bool:
    """Whether an op is given it to leave out some of what else it is given."""
    if event.thing not in ("add", "mul") or slot.value.overwritten or math.prod(slot.value.shape) > MOST_MASK:
        return False
    array = slot.value.numpy()
    if array.dtype.kind == "b":
        return True
    if array.dtype.kind != "f" or array.size < 2:
        return False
    if event.thing == "add":
        return leaves_out(array)
    return bool(np.any(array == 0) and np.any(array == 1) and np.all((array == 0) | (array == 1)))


def _both(likes: Likes, base: Event, raw: Event) -> Iterator[Cause]:
    told_at_once = _places(base, raw) or _bent_otherwise(likes, base, raw)
    if told_at_once is not None:
        yield told_at_once
        return
    if base.thing != raw.thing:
        numbers = [one for one in (_by_number(base, "base"), _by_number(raw, "raw")) if one is not None]
        if len(numbers) == 1 and (base.moving or raw.moving):  # the other side only goes on
            yield numbers[0]
            return
        text = f"base does {base.words} where raw does {raw.words}"
        yield Cause(_change(base.thing, raw.thing), text, 0.8)
        return
    ours, theirs = base.call.inputs, raw.call.inputs
    alike = len(ours) == len(theirs) and all(
        other.tensor in likes.of(0, one.tensor) for one, other in zip(ours, theirs, strict=True)
    )
    if alike:
        yield from options(base, raw)
        shapes = next(((a, b) for a, b in zip(_shapes(ours), _shapes(theirs), strict=True) if a != b), None)
        if shapes is not None:
            text = f"{base.words} is given the same numbers as {shapes[0]} in base and as {shapes[1]} in raw"
            yield Cause("head order" if base.thing == "split" else "shape", text, 0.85)
        return
    for cause in options(base, raw):
        if cause.name in OF_THEIR_OWN:
            yield cause
            return
    yield from _gate_order(likes, ours, theirs)
    mine = [set(likes.of(0, slot.tensor)) for slot in ours]
    if len(ours) == len(theirs) and all(any(slot.tensor in same for same in mine) for slot in theirs):
        name = "order" if base.thing in ("cat", "stack") else "operands"
        yield Cause(name, f"{base.words} is given the same tensors in another order", 0.9)
        return
    number = _number_before(likes, 0, base, raw) or _number_before(likes, 1, raw, base)
    if number is not None:
        yield number
        return
    masks = _other_mask(likes, base, raw)
    if masks is not None:
        yield masks
        return
    told = [_names(likes, side, event) for side, event in ((0, base), (1, raw))]
    if told[0] != told[1]:
        yield Cause("operands", f"base gives {base.words} {told[0]}, raw {told[1]}", 0.7, tested=False)
        return
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        moves = [_moves(likes, side, slot.tensor) for side, slot in ((0, one), (1, other))]
        if other.tensor not in likes.of(0, one.tensor) and moves[0] != moves[1]:
            yield _moved(_name(likes, 0, ours[place].tensor), *moves)
            return


def _places(base: Event, raw: Event) -> Cause | None:
    """Both take from a tensor by places, and other ones."""
    if base.thing not in TAKING or raw.thing not in TAKING:
        return None
    found = [[slot for slot in event.call.inputs if slot.value.dtype.startswith("int")] for event in (base, raw)]
    if [len(one) for one in found] != [1, 1] or any(one[0].value.overwritten for one in found):
        return None
    ours, theirs = (one[0].value.numpy().reshape(-1) for one in found)
    if ours.size != theirs.size or np.array_equal(ours, theirs):
        return None
    first = int(np.argmax(ours != theirs))
    told = f"at {first}, {theirs[first]} in raw and {ours[first]} in base"
    return Cause("index", f"{raw.call.kind}{line_of(raw)} takes other places: {told}", 0.92)


def _bent_otherwise(likes: Likes, base: Event, raw: Event) -> Cause | None:
    """One side's op is a step of an activation that is spelled out, and the other side bends the same otherwise."""
    for side, event in ((0, base), (1, raw)):
        word = event.call.kind.rpartition(".")[2]
        if not event.part or word not in ACTIVATIONS:
            continue
        for slot in event.call.inputs:
            same = set(likes.of(side, slot.tensor))
            for other in likes.sides[1 - side].inside.events:
                bends = other.thing in ACTIVATIONS and other.thing != word
                if bends and any(one.tensor in same for one in other.call.inputs):
                    words = (word, other.thing) if side == 0 else (other.thing, word)
                    text = f"of {_name(likes, side, slot.tensor)}, base takes {words[0]} and raw {words[1]}"
                    return Cause("activation", text, 0.92)
    return None


def _gate_order(likes: Likes, ours: Sequence[Slot], theirs: Sequence[Slot]) -> Iterator[Cause]:
    """What raw's op is given is another part than base's, of what one op of base does step by step: another gate."""
    made = likes.sides[0].maker
    for one, other in zip(ours, theirs, strict=False):
        right = made.get(one.tensor)
        others = [made[tensor] for tensor in likes.of(1, other.tensor) if tensor in made]
        if right is None or not right.part or one.tensor in likes.of(1, other.tensor):
            continue
        wrong = next((event for event in others if event.part and event.call.index == right.call.index), None)
        if wrong is not None and wrong.part != right.part and "gate" in f"{wrong.part} {right.part}":
            text = f"raw takes the {wrong.part} of {right.call.kind} where base takes the {right.part}"
            yield Cause("gate order", text, 0.94)
            return


def _number_before(likes: Likes, side: int, event: Event, other: Event) -> Cause | None:
    """What one side's op is given is what the other's is, but for a number."""
    theirs = {slot.tensor for slot in other.call.inputs}
    for slot in event.call.inputs:
        maker = likes.sides[side].maker.get(slot.tensor)
        if maker is None or maker.child or len(maker.call.inputs) != 1:
            continue
        if theirs & set(likes.of(side, maker.call.inputs[0].tensor)):
            return _by_number(maker, ("base", "raw")[side])
    return None


def _shapes(slots: tuple[Slot, ...]) -> list[list[int]]:
    return [list(slot.value.shape) for slot in slots]


def _moved(name: str, base: list[str], raw: list[str]) -> Cause:
    """The same tensor, put elsewhere in another way."""
    words = [", ".join(moves) or "nothing" for moves in (base, raw)]
    text = f"{name} is put elsewhere by {words[0]} in base and by {words[1]} in raw"
    if "split" in (*base, *raw):
        return Cause("head order", text, 0.8, tested=False)
    turned = [[move for move in moves if move != "transpose"] for moves in (base, raw)]
    return Cause("transposed" if turned[0] == turned[1] else "order", text, 0.75, tested=False)


def _change(base: str, raw: str) -> str:
    for name, things in (("activation", ACTIVATIONS), ("reduction", REDUCTIONS | POOLS), ("norm kind", NORMS)):
        if base in things and raw in things:
            return name
    return "other op"


def _other_mask(likes: Likes, base: Event, raw: Event) -> Cause | None:
    """All that two ops are given is alike but for one mask each."""
    ours, theirs = base.call.inputs, raw.call.inputs
    alike = {(one.tensor, other.tensor) for one in ours for other in theirs if other.tensor in likes.of(0, one.tensor)}
    left = [slot for slot in ours if all(slot.tensor != one for one, _ in alike)]
    right = [slot for slot in theirs if all(slot.tensor != other for _, other in alike)]
    if len(left) != 1 or len(right) != 1 or not _is_mask(base, left[0]) or not _is_mask(raw, right[0]):
        return None
    told = [_name(likes, side, slot.tensor) for side, slot in ((0, left[0]), (1, right[0]))]
    text = f"base leaves out what {told[0]} says, raw what {told[1]} says, and the two are not the same"
    return Cause("mask", text, 0.88)


def _names(likes: Likes, side: int, event: Event) -> str:
    """What an op was given, by what made it, wherever that was put in between."""
    return " and ".join(_name(likes, side, slot.tensor) for slot in event.call.inputs) or "nothing"


def _name(likes: Likes, side: int, tensor: int) -> str:
    *_, tensor = (tensor, *(maker.call.inputs[0].tensor for maker in _movers(likes, side, tensor)))
    same = ((likes.sides[1 - side], other) for other in likes.of(side, tensor))
    for own, one in ((likes.sides[side], tensor), *same):  # what raw is fed is base's, and has its maker there
        given = next((slot.name for slot in own.inside.given if slot.tensor == one), None)
        if given is not None:
            return f"its input {given}".strip()
        maker = own.maker.get(one)
        if maker is not None:
            place = next(n for n, made in enumerate(maker.call.outputs) if made.tensor == one)
            return f"what {maker.call.path} returned{f' [{place}]' if place else ''}"
    return "a tensor it holds"


def _movers(likes: Likes, side: int, tensor: int) -> list[Event]:
    """The ops that only put a tensor elsewhere, from the last to the first."""
    own = likes.sides[side]
    found: list[Event] = []
    maker = own.maker.get(tensor)
    while maker is not None and maker.moving and not maker.child and len(maker.call.inputs) == 1:
        found.append(maker)
        maker = own.maker.get(maker.call.inputs[0].tensor)
    return found


def _moves(likes: Likes, side: int, tensor: int) -> list[str]:
    return [maker.thing for maker in reversed(_movers(likes, side, tensor))]
