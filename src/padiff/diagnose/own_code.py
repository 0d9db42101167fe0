"""Inside a module's own code: the op with which it starts to go wrong.

Both sides' ops are known with all that they were given and returned. Tensors of the two are the same when their
elements are, whatever they are called: so code that goes another way to the same result is not accused. From the tensor
that differs one goes back, on each side, through all that has no like on the other, until everything an op was given
has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from padiff.diagnose.arrangements import (
    differing_summand,
    given_in_another_order,
    joining,
    lacks_a_move,
    new_in_another_order,
    turned,
    without_turned,
)
from padiff.diagnose.likes import Event, Inside, Likes, Side
from padiff.diagnose.spelled_out import is_whole, spelled_out
from padiff.records import Slot

LAYERS = frozenset({"linear", "layer_norm", "rms_norm", "conv1d", "conv2d", "conv3d", "index_select"})
MASKING = frozenset({"add", "masked_fill", "where"})


@dataclass(frozen=True)
class Culprit:
    """Where it starts: the op of each side, and where one has none, the op before which it is missing."""

    base: Event | None
    raw: Event | None
    base_next: Event | None = None
    raw_next: Event | None = None
    likes: Likes | None = field(default=None, compare=False, repr=False)
    unlike: tuple[Sequence[Event], Sequence[Event]] = field(default=((), ()), compare=False, repr=False)
    """Each side's ops between what both have and the tensor that differs, in order."""
    stopped: Literal["", "base", "raw"] = ""
    """Backward: the side that does not follow gradients through the op."""

    @property
    def found(self) -> bool:
        return self.base is not None or self.raw is not None


def first_op(base: Inside, raw: Inside) -> Culprit:
    """Where the accused tensors start to differ, in forward; what one side alone does in one op is spelled out."""
    found = closer = _first_of(base, raw)
    spelled = None if _one_for_another(found) else spelled_out((base, raw), found.unlike)
    while spelled is not None:
        closer = _first_of(*spelled)
        found = closer if closer.found and not _lacks_all_of_it(closer) else found
        spelled = spelled_out(spelled, closer.unlike)
    return found


def _one_for_another(culprit: Culprit) -> bool:
    """Whether one op stands in the place of another as a whole: an activation, a norm. A tanh of just what the other is
    given is no step of any."""
    one, other = culprit.base, culprit.raw
    if one is None or other is None or culprit.likes is None:
        return False
    bent = {event.thing for event in (one, other)} & {"tanh"} and _same_given(culprit.likes, one, other)
    return (is_whole(one) and is_whole(other)) or bool(bent and (is_whole(one) or is_whole(other)))


def _lacks_all_of_it(culprit: Culprit) -> bool:
    """Whether a step is named that one side lacks, and it lacks all the others, too: then it lacks the op."""
    side = 0 if culprit.raw is None else 1
    step = (culprit.base, culprit.raw)[side]
    if step is None or not step.part or culprit.likes is None or (culprit.base is not None and culprit.raw is not None):
        return False
    likes = culprit.likes
    steps = [one for one in likes.sides[side].inside.events if one.call.index == step.call.index and not one.moving]
    return not any(likes.like(side, slot.tensor) for one in steps[:-1] for slot in one.call.outputs)


def _first_of(base: Inside, raw: Inside) -> Culprit:
    likes = Likes(Side(base), Side(raw))
    accused = (base.accused, raw.accused)
    bad = _both_unlike(likes, accused)
    return replace(_to_no_effect(likes, _first(likes, accused, bad)), likes=likes, unlike=bad)


def _to_no_effect(likes: Likes, culprit: Culprit) -> Culprit:
    """A side that seems to lack an op may do it with what the other does it with, and to no effect: a factor of one, an
    axis exchanged with itself."""
    done, lacking = (culprit.base, 1) if culprit.raw is None else (culprit.raw, 0)
    if done is None or done.child or (culprit.base is not None and culprit.raw is not None):
        return culprit
    side = likes.sides[lacking]
    given = {other for slot in done.call.inputs for other in likes.like(1 - lacking, slot.tensor)}
    for event in side.inside.events:
        if event.thing != done.thing or event.child or len(event.call.inputs) != len(done.call.inputs):
            continue
        made = {other for slot in event.call.outputs for other in likes.like(lacking, slot.tensor)}
        passed = [slot.tensor for slot in event.call.inputs if slot.tensor in given]
        if any(made & set(likes.like(lacking, tensor)) for tensor in passed):
            return Culprit(event, done) if lacking == 0 else Culprit(done, event)
    return culprit


def _both_unlike(likes: Likes, accused: tuple[int, int]) -> tuple[list[Event], list[Event]]:
    return _unlike(0, likes, accused[0], accused[1]), _unlike(1, likes, accused[1], accused[0])


def _first(likes: Likes, accused: tuple[int, int], bad: tuple[list[Event], list[Event]]) -> Culprit:
    firsts = [joining(side, likes, accused, bad) or _lively(side, likes, bad[side]) for side in (0, 1)]
    pair = _pair(likes, *firsts, strictly=True)
    beyond: list[list[Event]] = [[], []]
    if not likes.turned and all(firsts) and (_pair_turned(likes, *pair) if pair else turned(likes, *bad)):
        likes.turned = True
        return _first(likes, accused, _both_unlike(likes, accused))
    if pair is None and all(firsts):
        beyond = [_firsts(side, likes, bad[side], moved=True) for side in (0, 1)]
        pair = _pair(likes, *beyond, strictly=False)
        if pair is not None and not lacks_a_move(likes, pair, (firsts[0][0], firsts[1][0]), bad):
            return _constants(likes, *pair)
        pair = None
    if pair is not None:
        return _constants(likes, *pair)
    one, other = (found[0] if found else None for found in firsts)
    if one is not None and other is None:
        other = _instead(likes, 0, one, accused, bad[0])
    elif other is not None and one is None:
        one = _instead(likes, 1, other, accused, bad[1])
    if one is not None and other is not None:
        summand = differing_summand(likes, *bad)
        if summand is not None:
            return Culprit(*summand)
        for mine, theirs in ((one, other), *zip(*beyond, strict=False)):
            if mine.thing != theirs.thing and not (mine.moving and theirs.moving) and _same_two(likes, mine, theirs):
                return Culprit(mine, theirs)
        one, other = _where_it_joins(likes, 0, one, other, bad[0]), _where_it_joins(likes, 1, other, one, bad[1])
        deeper = _differing_input(likes, one, other)
        if deeper is not None and deeper != accused:
            found = _first(likes, deeper, _both_unlike(likes, deeper))
            if found.found:
                return found
    told = _placed(likes, _told(likes, one, other, bad), accused)
    return told if told.base is None or told.raw is None else _constants(likes, told.base, told.raw)


def _pair_turned(likes: Likes, base: Event, raw: Event) -> bool:
    return new_in_another_order(likes, base, raw) or given_in_another_order(likes, base, raw)


def _where_it_joins(likes: Likes, side: int, first: Event, other: Event, bad: Sequence[Event]) -> Event:
    """What one side does with the tensor that the other goes on with, where ``first`` begins a branch that only joins
    it: a rotation that is added, a gate."""
    own = likes.sides[side]
    given = {mine for slot in other.call.inputs for mine in likes.like(1 - side, slot.tensor)}
    users = [event for event in bad if any(slot.tensor in given for slot in event.call.inputs)]
    if not users or first in users or any(slot.tensor in given for slot in first.call.inputs):
        return first
    joining = users[0]
    return joining if own.place[id(first)] < own.place[id(joining)] and len(joining.call.inputs) > 1 else first


def _differing_input(likes: Likes, base: Event, raw: Event) -> tuple[int, int] | None:
    """Of two ops that do the same, the only inputs at one place that are not the same."""
    if base.thing != raw.thing or len(base.call.inputs) != len(raw.call.inputs):
        return None
    pairs = [(one.tensor, other.tensor) for one, other in zip(base.call.inputs, raw.call.inputs, strict=True)]
    unlike = [pair for pair in pairs if pair[1] not in likes.like(0, pair[0])]
    return unlike[0] if len(unlike) == 1 and len(pairs) > 1 else None


def _same_two(likes: Likes, base: Event, raw: Event) -> bool:
    """Whether two ops were given the same two tensors, or more, in whatever order of axes."""
    ours, theirs = ([slot.tensor for slot in event.call.inputs] for event in (base, raw))
    if len(ours) < 2 or len(ours) != len(theirs) or base.child or raw.child:
        return False
    return all(any(likes.in_any_order(0, mine, other) for other in theirs) for mine in ours)


def _placed(likes: Likes, culprit: Culprit, accused: tuple[int, int]) -> Culprit:
    """Where a side lacks an op and nothing comes after: what it does with what the other moves, or what makes the
    tensor that differs."""
    base, raw = (
        _goes_on(likes, side, (culprit.raw, culprit.base)[side], accused[side])
        or (None if one is None or one.child or one.moving else one)
        for side, one in enumerate(_makers(likes, accused))
    )
    if culprit.raw is None and culprit.raw_next is None and culprit.base is not None:
        return replace(culprit, raw_next=raw)
    if culprit.base is None and culprit.base_next is None and culprit.raw is not None:
        return replace(culprit, base_next=base)
    return culprit


def _goes_on(likes: Likes, side: int, moved: Event | None, accused: int) -> Event | None:
    """The first thing that a side does, on the way to the accused tensor, with what the other only moves elsewhere."""
    if moved is None or not moved.moving or len(moved.call.inputs) != 1:
        return None
    own, like = likes.sides[side], set(likes.of(1 - side, moved.call.inputs[0].tensor))
    found: Event | None = None
    todo = [accused]
    for tensor in todo:  # grows
        maker = own.maker.get(tensor)
        given = [] if maker is None or maker.child else [slot.tensor for slot in maker.call.inputs]
        found = maker if like.intersection(given) else found
        todo += [one for one in given if one not in todo]
    return found


def _instead(likes: Likes, side: int, first: Event, accused: tuple[int, int], bad: Sequence[Event]) -> Event | None:
    """Where the accused tensor of the other side is one that this side has elsewhere (a sine for a cosine): what the
    other side does with what ``first`` was given. None where it does nothing with it: there it is missing."""
    sides, unlike = likes.sides, {id(event) for event in bad}
    one, other = sides[side].maker.get(accused[side]), sides[1 - side].maker.get(accused[1 - side])
    while one is not None and other is not None and not other.child:
        if one is first:
            base, raw = (one, other) if side == 0 else (other, one)
            stands_for = one.thing == other.thing or not (one.moving or other.moving)
            return other if stands_for and _same_given(likes, base, raw) else None
        if one.thing != other.thing or len(one.call.inputs) != len(other.call.inputs):
            return None
        for mine, theirs in zip(one.call.inputs, other.call.inputs, strict=True):
            maker = sides[side].maker.get(mine.tensor)
            if maker is not None and id(maker) in unlike:
                one, other = maker, sides[1 - side].maker.get(theirs.tensor)
                break
        else:
            return None
    return None


def _constants(likes: Likes, base: Event, raw: Event) -> Culprit:
    """The same thing done on both sides with another mask: it starts where the mask is made."""
    own: list[list[int]] = []
    for side, event in enumerate((base, raw)):
        given = [slot.tensor for slot in event.call.inputs if slot.tensor in likes.sides[side].constants]
        own.append([tensor for tensor in given if not likes.of(side, tensor)])
    if len(own[0]) == 1 and len(own[1]) == 1:
        accused = (own[0][0], own[1][0])
        found = _first(likes, accused, _both_unlike(likes, accused))
        if found.base is not None and found.raw is not None:
            alike = found.base.thing == found.raw.thing or _same_two(likes, found.base, found.raw)
            return found if alike or _makers(likes, accused) == (found.base, found.raw) else Culprit(base, raw)
    return Culprit(base, raw)


def _makers(likes: Likes, tensors: tuple[int, int]) -> tuple[Event | None, Event | None]:
    return likes.sides[0].maker.get(tensors[0]), likes.sides[1].maker.get(tensors[1])


def _unlike(side: int, likes: Likes, accused: int, partner: int) -> list[Event]:
    """The ops between what both sides have and the accused tensor, in order; ``partner`` is accused on the other side,
    and known to be another."""
    own = likes.sides[side]
    found: dict[int, Event] = {}
    todo, seen = [accused], {accused}
    while todo:
        tensor = todo.pop()
        same = set(likes.like(side, tensor)) - ({partner} if tensor == accused else set())
        if own.was_given(tensor) or same:
            continue
        maker = own.maker[tensor]
        found[id(maker)] = maker
        for slot in maker.call.inputs:
            if slot.tensor not in seen:
                seen.add(slot.tensor)
                todo.append(slot.tensor)
    return sorted(found.values(), key=lambda event: own.place[id(event)])


def _firsts(side: int, likes: Likes, bad: Sequence[Event], *, moved: bool = False) -> list[Event]:
    """Those of them that were given nothing but what both sides have, and constants; of constants only where there is
    nothing else. With ``moved``, numbers that were only put elsewhere count as what both have."""
    own = likes.sides[side]
    elsewhere: set[int] = set()

    def known(slot: Slot) -> bool:
        tensor = slot.tensor
        return own.was_given(tensor) or tensor in own.constants or tensor in elsewhere or bool(likes.like(side, tensor))

    found: list[Event] = []
    for event in bad:
        if not all(known(slot) for slot in event.call.inputs):
            continue
        if moved and event.moving:
            elsewhere.update(slot.tensor for slot in event.call.outputs)
        else:
            found.append(event)
    lively = [event for event in found if any(slot.tensor not in own.constants for slot in event.call.outputs)]
    if lively or moved:
        return lively or found
    made = {slot.tensor for event in bad for slot in event.call.outputs}
    return [event for event in found if not any(slot.tensor in made for slot in event.call.inputs)] or found


def _lively(side: int, likes: Likes, bad: Sequence[Event]) -> list[Event]:
    return without_turned(likes, side, _firsts(side, likes, bad), bad)


def _pair(likes: Likes, base: Sequence[Event], raw: Sequence[Event], *, strictly: bool) -> tuple[Event, Event] | None:
    """Two that do the same thing; ``strictly``, with the same tensors."""
    for one in base:
        for other in raw:
            if one.thing == other.thing and (not strictly or _same_given(likes, one, other)):
                return one, other
    return None


def _same_given(likes: Likes, base: Event, raw: Event) -> bool:
    if len(base.call.inputs) != len(raw.call.inputs):
        return False
    theirs = {slot.tensor for slot in raw.call.inputs}
    for slot in base.call.inputs:
        same = likes.like(0, slot.tensor)
        if same and not theirs & set(same):
            return False
    return True


def _told(likes: Likes, base: Event | None, raw: Event | None, bad: tuple[Sequence[Event], Sequence[Event]]) -> Culprit:
    """One op on each side that differ, or one that the other side lacks: there, what should come after it comes. Where
    that may be said of both, the side that does more of them has one too many."""
    if base is None or raw is None:
        return Culprit(base, raw)
    missing, extra = _comes_later(likes, 1, raw, bad[0]), _comes_later(likes, 0, base, bad[1])
    if not missing and not extra:
        missing = _sort(likes.sides[1], raw) in _after(likes.sides[0], base)
        extra = _sort(likes.sides[0], base) in _after(likes.sides[1], raw)
    if missing and extra:
        missing, extra = len(bad[0]) > len(bad[1]), len(bad[0]) < len(bad[1])
    if missing and not extra:
        return Culprit(base, None, raw_next=raw)
    if extra and not missing:
        return Culprit(None, raw, base_next=base)
    if raw.moving and not base.moving and _takes_of(likes, raw, base, 1):
        return Culprit(base, None, raw_next=raw)
    if base.moving and not raw.moving and _takes_of(likes, base, raw, 0):
        return Culprit(None, raw, base_next=base)
    return Culprit(base, raw)


def _takes_of(likes: Likes, mover: Event, other: Event, side: int) -> bool:
    """Whether an op of one side only moves elsewhere what the other's makes new numbers of: then it does not stand for
    that."""
    if mover.child or other.child or len(mover.call.inputs) != 1:
        return False
    same = set(likes.of(side, mover.call.inputs[0].tensor))
    return any(slot.tensor in same for slot in other.call.inputs)


def _comes_later(likes: Likes, side: int, event: Event, others: Sequence[Event]) -> bool:
    """Whether the other side does the same thing further on: with one tensor that is the same, and one that has become
    another by then."""
    given = event.call.inputs
    for other in others:
        theirs = other.call.inputs
        if other.thing != event.thing or len(theirs) != len(given) or len(given) < 2:
            continue
        same = [two.tensor in likes.of(side, one.tensor) for one, two in zip(given, theirs, strict=True)]
        if (
            any(same)
            and not all(same)
            and all(alike or not likes.of(1 - side, two.tensor) for alike, two in zip(same, theirs, strict=True))
        ):
            return True
    return False


def _sort(side: Side, event: Event) -> tuple[str, int]:
    """What an op does, and with how many tensors; masking is one thing, however it is written, and of a layer's own
    tensors its call does not tell."""
    given = event.call.inputs
    if event.thing in MASKING and any(slot.tensor in side.constants or side.masks(slot.tensor) for slot in given):
        return "mask", 2
    if event.thing in LAYERS:
        return event.thing, 1
    return event.thing, len(given)


def _after(side: Side, event: Event) -> set[tuple[str, int]]:
    """What is done next with what an op returns, wherever it is put in between, and whatever leaves it as it is."""
    found: set[tuple[str, int]] = set()
    todo, seen = [event], {id(event)}
    while todo:
        for slot in todo.pop().call.outputs:
            for user in side.users.get(slot.tensor, ()):
                found.add(_sort(side, user))
                if (user.moving or side.passes_on(user, slot.tensor)) and id(user) not in seen:
                    seen.add(id(user))
                    todo.append(user)
    return found
