"""How far raw's numbers go along with base's inside a place, where what it returns is wrong whatever is chosen.

A layout that is not base's shows in the first thing that is made of it; a fault of the code shows later. So of several
ways to fill raw, the one by which most of what is computed there is also computed in base is the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from padiff.capture.draws import Steady
from padiff.capture.feeding import Feed
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.session import Session
from padiff.engine.explaining.scenes import Reached
from padiff.engine.fed.prints import Prints, told_apart
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.protocol import Adapter
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, Fault, StepTrace, Value


class _Inside:
    """Feeds nothing, keeps what is computed inside of the first calls of some places, and ends the run with the last of
    them."""

    def __init__(self, places: Iterable[str]) -> None:
        self.prints = {place: Prints() for place in places}
        self._left = set(self.prints)

    def feed(self, call: Call) -> Mapping[int, Feed]:
        return {}

    tagged = feed

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        for place in self._left:
            if not place or call.path == place or call.path.startswith(f"{place}."):
                for value in _values(call):
                    self.prints[place].add(value.numpy())
        self.ended(call.path)
        if not self._left or call.parent < 0:
            raise Reached
        return {}

    def ended(self, path: str) -> None:
        """A call of a module has ended."""
        self._left.discard(path)


class _EachWay(_Inside):
    """The same of calls that are made of each module, one after the other, before the one that the model makes."""

    def __init__(self, places: Iterable[str]) -> None:
        super().__init__(places)
        self.trying = ""

    def ended(self, path: str) -> None:
        if path != self.trying:
            super().ended(path)

    def tried(self, place: str) -> Prints:
        """What was computed since the last time."""
        found, self.prints[place] = self.prints[place], Prints()
        return found


def _values(call: Call) -> Iterator[Value]:
    for one in (*call.ops, call):
        yield from (slot.value for slot in told_apart(one.outputs))


def made_inside(live: LiveTree, arguments: Arguments, places: Iterable[str]) -> Mapping[str, Prints]:
    """What a model computes in the first calls of modules, up to which it runs; nothing is left behind."""
    watching = _Inside(places)
    _run_with(live, arguments, watching)
    return watching.prints


def _run_with(live: LiveTree, arguments: Arguments, watching: _Inside) -> None:
    session = Session(live, "base", frozenset(range(len(live.modules))))
    steady = watching_draws(live.adapter, Steady())
    with session.prepared(training=False), live.adapter.no_grad(), steady, suppress(Reached):
        session.run(0, arguments, loss_fn=None, backward=False, feeder=watching, hooks=False, ops=WantedOps())


def each_way(
    live: LiveTree,
    arguments: Arguments,
    base: Mapping[str, Prints],
    ways: Mapping[str, Sequence[Callable[[], None]]],
) -> dict[str, int]:
    """By module, which of the ``ways`` to fill it has it compute most of what ``base`` does there, where one does more
    than all others: each module is called by itself with each of them, in one run of the model, and goes on with it."""
    watching, found = _EachWay(ways), dict[str, int]()
    paths = live.tree.by_path()
    places = {id(live.modules[paths[place].index]): place for place in ways}

    def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = places.pop(id(module), "")
        if not place:
            return
        watching.trying, made = place, []
        for fill in ways[place]:
            fill()
            called_on_copies(live.adapter, module, args, kwargs)
            made.append(watching.tried(place))
        watching.trying = ""
        shared = [one.shared(base[place]) for one in made]
        best = shared.index(max(shared))
        ways[place][best]()
        if shared.count(shared[best]) == 1:
            found[place] = best

    with ExitStack() as stack:
        modules = [module for module in live.modules if id(module) in places]
        for handle in live.adapter.attach(modules, enter, lambda *_: None, lambda *_: None):
            stack.callback(handle.remove)
        _run_with(live, arguments, watching)
    return found


def called_on_copies(adapter: Adapter, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a module returns by itself, on copies of what it is given."""

    @once_each
    def copied(leaf: Any) -> Any:
        return adapter.clone(leaf) if adapter.is_tensor(leaf) else leaf

    return module(
        *(map_leaves(one, copied) for one in args),
        **{name: map_leaves(one, copied) for name, one in kwargs.items()},
    )


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
