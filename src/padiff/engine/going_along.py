"""How far raw's numbers go along with base's inside a place, where what it returns is wrong whatever is chosen.

A layout that is not base's shows in the first thing that is made of it; a fault of the code shows later. So of several
ways to fill raw, the one by which most of what is computed there is also computed in base is the likeliest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from padiff.capture.draws import Steady
from padiff.capture.feeding import Feed
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.session import Session
from padiff.engine.prints import Prints, told_apart
from padiff.engine.scenes import Reached
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, Fault, StepTrace, Value


class _UpTo:
    """Feeds nothing, keeps what is computed inside a place, and ends the run with its first call."""

    def __init__(self, place: str) -> None:
        self._place, self.prints = place, Prints()

    def feed(self, call: Call) -> Mapping[int, Feed]:
        return {}

    tagged = feed

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        if not self._place or call.path == self._place or call.path.startswith(f"{self._place}."):
            for value in _values(call):
                self.prints.add(value.numpy())
        if call.path == self._place or call.parent < 0:
            raise Reached
        return {}


def _values(call: Call) -> Iterator[Value]:
    for one in (*call.ops, call):
        yield from (slot.value for slot in told_apart(one.outputs))


def made_inside(live: LiveTree, arguments: Arguments, place: str) -> Prints:
    """What a model computes in the first call of a module, up to which it runs; nothing is left behind."""
    session = Session(live, "base", frozenset(range(len(live.modules))))
    watching = _UpTo(_called(live, place))
    steady = watching_draws(live.adapter, Steady())
    with session.prepared(training=False), live.adapter.no_grad(), steady, suppress(Reached):
        session.run(0, arguments, loss_fn=None, backward=False, feeder=watching, hooks=False, ops=WantedOps())
    return watching.prints


def _called(live: LiveTree, place: str) -> str:
    """The innermost module around a place that is called: a list is not."""
    nodes = live.tree.by_path()
    while place and (place not in nodes or _is_list(live, place)):
        place = place.rpartition(".")[0]
    return place


def _is_list(live: LiveTree, place: str) -> bool:
    return live.tree.by_path()[place].layer in ("module_list", "module_dict")


def best_of(base: Prints, raws: Sequence[Prints]) -> int | None:
    """Which of several shares most with base, if it shares more than the first does."""
    shared = [one.shared(base) for one in raws]
    best = max(range(len(raws)), key=lambda place: shared[place])
    return best if shared[best] > shared[0] else None


def ending_elsewhere(doubts: Sequence[Fault], base: StepTrace) -> frozenset[int]:
    """Raw calls that returned something else than base's, but something that base computes as well: they end elsewhere,
    and are right. ``base`` ran with its ops watched."""
    known = Prints()
    for call in base.calls:
        for value in _values(call):
            known.add(value.numpy())
    return frozenset(
        one.raw.index for one in doubts if one.found is not None and known.hold(one.found) and not _slight(one)
    )


def _slight(doubt: Fault) -> bool:
    """Whether it returned base's own output but for so little that no numbers are told apart by it: an eps."""
    own = Prints()
    if doubt.expected is not None:
        own.add(doubt.expected)
    return doubt.found is not None and own.hold(doubt.found)
