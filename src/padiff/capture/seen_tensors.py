"""Which tensor is which in a run: their numbers, who is told of their gradients, and copies before they are written."""

from __future__ import annotations

from typing import Any

from padiff.capture.held import Held
from padiff.frameworks import Adapter
from padiff.frameworks.protocol import Follow, Handle
from padiff.records import Slot


class SeenTensors:
    """The tensors of one run, numbered in the order in which they are first seen. One that was written is another."""

    def __init__(self, adapter: Adapter, follow: Follow, *, gradients: bool, hooks: bool) -> None:
        self._adapter = adapter
        self._requires_grad = adapter.requires_grad
        self._follow = follow
        self.followed = gradients
        """Whether gradients matter."""
        self._hooks = gradients and hooks
        """Whether somebody is told of them."""
        self.count = 0
        self.by_id: dict[int, Held] = {}
        """By identity; which one it is now, its version says."""
        self.owned: list[tuple[int, Held]] | None = None
        """Where those first seen now are noted, by identity; None where nobody lets go of them before the end."""
        self.hooked: dict[int, Handle | None] = {}
        """Tensors whose gradient will be told, with what takes the hook off."""
        self._waiting: list[tuple[Any, Held]] = []
        """Tensors whose gradient is to be told and is not yet."""
        self._unhooked: set[int] = set()
        """Tensors that only ops were given so far, by number: nobody asked for their gradients."""
        self.bordering: list[Held] = []
        """What was seen at the borders of calls, where ops are watched, too; and what was overwritten unseen."""
        self.copying = False
        """Whether all are copied at once, since nobody will see them written."""
        self._originals: list[Any] = []
        """What was copied: while it lives, no other tensor can take its id."""
        self._unindexed: list[Held] = []
        self._by_storage: dict[int, list[Held]] = {}

    # --- who is who

    def known(self, tensor: Any, hooked: bool) -> Held:
        """A tensor as it is now; ``hooked`` says whether its gradient is asked for."""
        known = self.by_id.get(id(tensor))
        version = self._adapter.version(tensor)
        if known is None or known.version != version:
            held = self.first_sight(tensor, version, hooked)
            self.hook_those_seen()
            return held
        if hooked and known.number in self._unhooked:
            self._unhooked.discard(known.number)
            self.hook(tensor, known)
        return known

    def first_sight(self, tensor: Any, version: int, hooked: bool) -> Held:
        """A tensor that was not seen as it is now. Whoever sees several asks for their gradients at once afterwards."""
        held = Held(self._adapter, tensor, version)
        held.tracked = False
        if self.copying:
            held.secure()
            self._originals.append(tensor)
        held.number = number = self.count
        self.count = number + 1
        key = id(tensor)
        before = self.by_id.setdefault(key, held)
        if before is not held:
            self.bordering.append(before)
            self.by_id[key] = held
        self._unindexed.append(held)
        if self.owned is not None:
            self.owned.append((key, held))
        if hooked and self._hooks:
            self._waiting.append((tensor, held))
        elif self.followed and self._requires_grad(tensor):
            held.tracked = True
            if self._hooks:
                self._unhooked.add(number)
        return held

    def number_of(self, tensor: Any) -> int:
        """The number of a tensor that was seen as it is now; -1 for one that was not."""
        known = self.by_id.get(id(tensor))
        return -1 if known is None or known.version != self._adapter.version(tensor) else known.number

    def forget(self, key: int, held: Held) -> None:
        """A tensor is no longer what it was under this identity."""
        if self.by_id.get(key) is held:
            del self.by_id[key]

    # --- gradients

    def hook(self, tensor: Any, seen: Held) -> None:
        """Have the gradient of a tensor told, once."""
        if seen.number in self.hooked:
            return
        if not self._hooks:
            self.hooked[seen.number] = None
            return
        self._follow(((tensor, seen),), self.hooked)

    def hook_those_seen(self) -> None:
        """Have the gradients told of tensors first seen lately."""
        if self._waiting:
            self._follow(self._waiting, self.hooked)
            self._waiting.clear()

    def track(self, tensor: Any, seen: Held) -> None:
        """A tensor that did not take part in backward when it was first seen: perhaps it does now."""
        if self.followed and self._requires_grad(tensor):
            seen.tracked = True
            if self._hooks and seen.number not in self._unhooked:
                self.hook(tensor, seen)

    # --- writes

    def about_to_write(self, tensor: Any) -> None:
        """Copy whatever was seen of the memory that a tensor reads."""
        for held in self._unindexed:
            storage = held.storage()
            if storage is not None:
                self._by_storage.setdefault(storage, []).append(held)
        self._unindexed.clear()
        written = self._by_storage.pop(self._adapter.storage(tensor), ())
        first = next((held for held in written if held.live() is not None), None)
        if first is not None:
            self._keep_told(first)
        for held in written:
            self.forget(id(held.live()), held)
            held.secure()

    def _keep_told(self, first: Held) -> None:
        """What was first seen of some memory is what all others that read it were made of: its gradient is theirs."""
        ask = getattr(self._adapter, "before_written", None)
        handle = self.hooked.get(first.number)
        if ask is not None and handle is not None:
            self.hooked[first.number] = ask(first.live(), handle)

    def part_with(self, slots: tuple[Slot, ...]) -> None:
        """Copy some: they go back to somebody who may write into them unseen."""
        theirs = {id(slot.value): slot.value for slot in slots}
        for key, held in list(self.by_id.items()):
            if id(held) in theirs:
                del self.by_id[key]
                held.secure()

    # --- the end

    def unhook(self) -> None:
        """Take the gradient hooks off; which tensors had one is still known."""
        self._originals.clear()
        for handle in self.hooked.values():
            if handle is not None:
                handle.remove()
        self.hooked = dict.fromkeys(self.hooked)

    def let_go(self) -> None:
        """Let go of the autograd graph at the borders of calls; what was seen stays."""
        for held in self.bordering:
            held.detach()
        self.bordering.clear()
        self.by_id.clear()
        self._by_storage.clear()
        self._unindexed.clear()
