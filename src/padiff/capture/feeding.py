"""A run in which every call is given, and hands on, what somebody else says instead of what it would have had."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from padiff.capture.draws import Listener
from padiff.capture.held import Held
from padiff.capture.observers import Observer
from padiff.capture.ops import WantedOps
from padiff.capture.recorder import Recorder
from padiff.capture.scaling import Unscaled, unscaled
from padiff.frameworks import Adapter
from padiff.frameworks.containers import map_leaves
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Slot, Value

See = Callable[[Value], Array | Held | None]
"""Told of a gradient, may return another to be passed on."""


@dataclass(frozen=True)
class Feed:
    """What takes the place of one tensor."""

    value: Array | Held | None
    """None for what it holds already; held where it lies on an accelerator, beside what it takes the place of."""
    see: See | None = None
    """Told of the gradient that comes back to it."""
    tracked: bool = False
    """Whether gradients are followed from here on, also where the model had stopped following them."""


class Feeder(Protocol):
    """Says what calls are fed. Tensors are named by their numbers in the trace of this run."""

    def feed(self, call: Call) -> Mapping[int, Feed]:
        """For a call that begins (it has no outputs yet): what its inputs are replaced by."""
        ...

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        """For a call that has ended: what its outputs are replaced by."""
        ...

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        """For a tensor that the user marked: what it is replaced by."""
        ...


class FeedingRecorder(Recorder):
    """Records one step of one model while a feeder replaces tensors at the borders of calls."""

    def __init__(
        self,
        live: LiveTree,
        feeder: Feeder,
        *,
        gradients: bool,
        hooks: bool,
        observer: Observer | None = None,
        listener: Listener | None = None,
        ops: WantedOps | None = None,
    ) -> None:
        super().__init__(live, gradients=gradients, hooks=hooks, observer=observer, listener=listener, ops=ops)
        self._feeder = feeder
        self._given: list[list[tuple[Any, Any, int]]] = [[]]
        """Per open call: what would have been given, what was, and its version then."""
        self._kept: list[Any] = []
        """Everything replaced: while it lives, no other tensor can take its id."""
        self._feeds: dict[tuple[int, str], Mapping[int, Feed]] = {}
        """By call and role, what was fed: a checkpoint's second run is fed the same."""
        self._unseen: set[tuple[int, str]] = set()
        """Where the gradients of what was fed are seen in the second run only."""
        self._given_again: list[list[tuple[Any, Any, int]]] = []
        self._copy_of: Callable[..., Any] = getattr(live.adapter, "copy_of", None) or partial(_copied, live.adapter)
        self._origins: dict[tuple[int, int], int] = {}
        """Id and version of a substitute to the number of the tensor in whose place it was put."""

    def _enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._mine():
            return None
        super()._enter(module, args, kwargs)
        call = self._begun()
        fed = self._replacements(call, "input", call.inputs, self._feeder.feed(call))
        self._given.append([(old, new, self._adapter.version(new)) for old, new in fed.values()])
        return _exchanged(fed, args, kwargs)

    def _leave(self, module: Any, output: Any) -> Any:
        if not self._mine():
            return None
        super()._leave(module, output)
        for old, new in self._written(self._given.pop()):
            self._about_to_write(old)
            self._adapter.write(old, new)
        call = self.calls[-1]
        fed = self._replacements(call, "output", call.outputs, self._feeder.hand_on(call))
        return _in_place_of(fed, output) if fed else None

    def _marked(self, name: str, value: Any) -> Any:
        call = self._tag(name, value)
        fed = {} if call is None else self._replacements(call, "tag", call.outputs, self._feeder.tagged(call))
        return _in_place_of(fed, value) if fed else value

    def _fail(self, module: Any) -> None:
        before = len(self.open_calls)
        super()._fail(module)
        if len(self.open_calls) < before:
            self._given.pop()

    def _written(self, given: list[tuple[Any, Any, int]]) -> list[tuple[Any, Any]]:
        """What the call has written into in place: whoever else holds it must see it written."""
        return [(old, new) for old, new, version in given if self._adapter.version(new) != version]

    def _replacements(
        self, call: Call, role: str, slots: Sequence[Slot], feeds: Mapping[int, Feed]
    ) -> dict[int, tuple[Any, Any]]:
        """Id of a tensor to itself and its substitute: one passed under several names stays one."""
        found: dict[int, tuple[Any, Any]] = {}
        if feeds:
            self._feeds[call.index, role] = feeds
            if self._suspended():  # gradients are followed in the second run
                self._unseen.add((call.index, role))
                feeds = {tensor: Feed(feed.value) for tensor, feed in feeds.items()}
        for slot in slots:
            feed = feeds.get(slot.tensor)
            if feed is None:
                continue
            tensor = self._live_tensor(slot.value)
            if tensor is None or id(tensor) in found:
                continue
            self._substitute(found, tensor, feed)
            substitute = found[id(tensor)][1]
            self._origins[id(substitute), self._adapter.version(substitute)] = slot.origin
            if self._ops is not None and feed.value is None:
                copy = self.tensors.known(substitute, False)
                self.tensors.bordering.append(copy)
                self.copies[copy.number] = self.copies.get(slot.tensor, slot.tensor)
        return found

    def _substitute(self, found: dict[int, tuple[Any, Any]], tensor: Any, feed: Feed) -> None:
        see = None if feed.see is None else partial(self._seen, feed.see)
        if feed.value is not None:
            substitute = self._adapter.substitute(tensor, _native(feed.value), see, tracked=feed.tracked)
        else:
            substitute = self._copy_of(tensor, see, tracked=feed.tracked)
        found[id(tensor)] = (tensor, substitute)
        self._kept += (tensor, substitute)

    # --- a checkpoint's second run

    def _repeats_matter(self) -> bool:
        return True

    def _enter_again(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [tensor for _, tensor in self._given_tensors(args, kwargs)]
        call = self._again.begins(module, self._node_of[id(module)], given)
        fed = {} if call is None else self._fed_again(call, "input", call.inputs, given)
        self._given_again.append([(old, new, self._adapter.version(new)) for old, new in fed.values()])
        return _exchanged(fed, args, kwargs)

    def _leave_again(self, module: Any, output: Any) -> Any:
        call = self._again.ends(module)
        for old, new in self._written(self._given_again.pop() if self._given_again else []):
            self._adapter.write(old, new)
        if call is None:
            return None
        made = [tensor for _, tensor in self._adapter.flatten(output)]
        self._again.tells(call.outputs, made)
        fed = self._fed_again(call, "output", call.outputs, made)
        return _in_place_of(fed, output) if fed else None

    def _fail_again(self, module: Any) -> None:
        super()._fail_again(module)
        if self._given_again:
            self._given_again.pop()

    def _fed_again(
        self, call: Call, role: str, slots: Sequence[Slot], tensors: Sequence[Any]
    ) -> dict[int, tuple[Any, Any]]:
        feeds = self._feeds.get((call.index, role), {})
        found: dict[int, tuple[Any, Any]] = {}
        for slot, tensor in zip(slots, tensors, strict=False):
            feed = feeds.get(slot.tensor)
            if feed is None or id(tensor) in found:
                continue
            if feed.value is None or self._adapter.shape(tensor) == feed.value.shape:
                told = (call.index, role) in self._unseen
                self._substitute(found, tensor, feed if told else replace(feed, see=None))
        return found

    def _slot(self, name: str, tensor: Any) -> Slot:
        slot = super()._slot(name, tensor)
        origin = self._origins.get((id(tensor), self._adapter.version(tensor)))
        return slot if origin is None else Slot(slot.name, slot.tensor, slot.value, slot.tracked, origin)

    def _seen(self, see: See, gradient: Any) -> Any:
        if not self.log.taking:
            return None
        other = see(unscaled(Held(self._adapter, gradient), self.log.scale))
        if other is None or self.log.scale == 1.0:
            return None if other is None else _native(other)
        array = other.numpy() if isinstance(other, Held) else other
        return array * array.dtype.type(self.log.scale)

    def close(self) -> None:
        super().close()
        self._kept.clear()


class Witness:
    """Feeds every call just what it would have had, to see the gradients at its borders by themselves."""

    def __init__(self, *, copies: bool = True, following: Callable[[], bool] = lambda: True) -> None:
        self._following = following
        """Whether the framework follows gradients at this moment."""
        self.off: set[int] = set()
        """Calls that began while it did not."""
        self._copies = copies
        """Whether backward may write into a gradient that somebody holds."""
        self.contributions: dict[tuple[int, int], Value] = {}
        """(Call, tensor) to the gradient that the call sends back to that input."""
        self.arrivals: dict[int, Value] = {}
        """Tensor to the gradient that arrives at it, once it was returned, from all that uses it."""

    def feed(self, call: Call) -> Mapping[int, Feed]:
        if not self._following():
            self.off.add(call.index)
        return {
            slot.tensor: Feed(None, partial(self._contribution, (call.index, slot.tensor)))
            for slot in call.inputs
            if slot.tracked and not slot.value.overwritten
        }

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        return {
            slot.tensor: Feed(None, partial(self._arrival, slot.tensor))
            for slot in call.outputs
            if slot.tracked and not slot.value.overwritten
        }

    tagged = hand_on

    def _contribution(self, place: tuple[int, int], gradient: Value) -> None:
        self.contributions[place] = self._kept(gradient)

    def _arrival(self, tensor: int, gradient: Value) -> None:
        self.arrivals[tensor] = self._kept(gradient)

    @property
    def overwritten(self) -> bool:
        """Whether somebody wrote into a gradient that was not copied."""
        return any(one.overwritten for seen in (self.contributions, self.arrivals) for one in seen.values())

    def _kept(self, gradient: Value) -> Value:
        if self._copies and isinstance(gradient, (Held, Unscaled)):
            gradient.secure()
        return gradient


def _copied(adapter: Adapter, tensor: Any, see: Callable[[Any], Array | None] | None, *, tracked: bool) -> Any:
    return adapter.substitute(tensor, adapter.to_numpy(tensor), see, tracked=tracked)


def _native(value: Array | Held) -> Any:
    return value.native() if isinstance(value, Held) else value


def _exchanged(fed: Mapping[int, tuple[Any, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with what takes the place of tensors among them; None where nothing does."""
    if not fed:
        return None
    return tuple(_in_place_of(fed, arg) for arg in args), {k: _in_place_of(fed, v) for k, v in kwargs.items()}


def _in_place_of(fed: Mapping[int, tuple[Any, Any]], tree: Any) -> Any:
    found = fed.get(id(tree))  # mostly a lone tensor
    return map_leaves(tree, partial(_exchange, fed)) if found is None else found[1]


def _exchange(fed: Mapping[int, tuple[Any, Any]], leaf: Any) -> Any:
    found = fed.get(id(leaf))
    return leaf if found is None else found[1]
