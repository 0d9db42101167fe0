"""Turns what hooks see into calls: who called whom with which tensors, in order."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from padiff.capture.draws import Listener
from padiff.capture.functions import watched_functions
from padiff.capture.gradient_log import GradientLog, following
from padiff.capture.held import Held
from padiff.capture.lines import BOUNDARY, UserLines, call_model
from padiff.capture.observers import Late, Observer
from padiff.capture.op_records import Written
from padiff.capture.ops import OpLog, WantedOps
from padiff.capture.own_functions import watched_own_functions
from padiff.capture.recomputing import SecondRun, in_custom_function
from padiff.capture.scaling import unscaled
from padiff.capture.seen_tensors import SeenTensors
from padiff.capture.tags import listening
from padiff.frameworks import Adapter
from padiff.frameworks.compiled import sealed
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.protocol import Handle
from padiff.frameworks.tree import LiveTree
from padiff.records import FIRST_OP, Array, Call, Frame, Slot, Value

_NOBODY = -1
"""No thread has this number."""
_PLAIN = (type(None), bool, int, float, str)


@dataclass(slots=True)
class _Open:
    """A call that has begun and not ended."""

    index: int
    node: int
    module: Any
    occurrence: int
    inputs: tuple[Slot, ...]
    stack: tuple[Frame, ...]
    first_tensor: int
    ops: list[Written] | None = None
    """What its own code has called so far; None where nobody wants to know."""
    tags: list[tuple[int, Call]] = field(default_factory=list)
    """What its own code has tagged, and how many ops came before."""
    owned: list[tuple[int, Held]] = field(default_factory=list)
    """Tensors first seen in its own code: between its children, or returned by them. By identity."""


class Recorder:
    """Records one step of one model. With an observer, no tensor is held longer than it may be asked for."""

    def __init__(
        self,
        live: LiveTree,
        *,
        gradients: bool,
        observer: Observer | None = None,
        hooks: bool = True,
        listener: Listener | None = None,
        ops: WantedOps | None = None,
    ) -> None:
        self._listener = listener
        self.calls: list[Call] = []
        self._live = live
        self._adapter: Adapter = live.adapter
        self.log = GradientLog(live.adapter)
        self.gradients: Mapping[int, Value] = self.log
        follow = self.log.follow() if observer is None else following(live.adapter, _Telling(self))
        self.tensors = SeenTensors(live.adapter, follow, gradients=gradients, hooks=hooks)
        self._node_of = live.node_of()
        self._observer = observer
        self._lets_go = observer is not None and not isinstance(observer, Late)
        self.open_calls: list[_Open] = [_Open(-1, -1, None, 0, (), (), 0)]
        self._own_from(self.open_calls[0])
        self.entered = 0
        self._occurrences: Counter[int] = Counter()
        self._raised: str | None = None
        self._let_go = False
        """Whether backward has run through the graph."""
        self.autocast: str | None = None
        """The dtype that ops were computed in somewhere, narrower than their tensors'."""
        self.on_autocast: Callable[[str, int], None] | None = None
        """Told of that dtype when a call is first made in it, with how many calls have ended by then."""
        self._autocast_dtype = getattr(live.adapter, "autocast_dtype", _nothing)
        self._transforming = getattr(live.adapter, "transforming", _nothing)
        self._again = SecondRun(live.adapter, self.tensors)
        self._thread = threading.get_ident()
        self._lines = UserLines(live.adapter.package_folders())
        if listener is not None:
            listener.lines = self._lines.stack
        self._tagged: Counter[str] = Counter()
        self.copies: dict[int, int] = {}
        """Where ops are watched: tensors that were put in the place of others, unchanged, to those."""
        self._ops: OpLog | None = None
        if ops is not None and hasattr(live.adapter, "watch_ops"):
            self._ops = OpLog(self, self.tensors, live.adapter, ops, self._lines.foreign)
        self._attachment = ExitStack()
        self._hidden: Callable[[], AbstractContextManager[Any]] = getattr(live.adapter, "unseen", nullcontext)

    @contextmanager
    def attached(self, nodes: frozenset[int], but: Any = None, *, compiled: bool = False) -> Iterator[None]:
        """Hooks on the modules of ``nodes``, one left out; off again afterwards, whatever happens.

        Among ``compiled`` parts writes are not watched, since that would be compiled, too: values are copied."""
        modules = {id(self._live.modules[index]): self._live.modules[index] for index in sorted(nodes)}
        modules.pop(id(but), None)
        with ExitStack() as stack:
            stack.enter_context(_removed(self._adapter.attach(modules.values(), self._enter, self._leave, self._fail)))
            self.tensors.copying = compiled
            if compiled:
                yield
                return
            stack.enter_context(listening(self))
            if self._ops is None:
                stack.enter_context(self._adapter.watch_writes(self._about_to_write))
            else:
                stack.enter_context(watched_functions(self._ops.whole))
                if self._ops.wanted.functions:
                    stack.enter_context(watched_own_functions(self._adapter, self._ops.by_its_backward))
                stack.enter_context(self._adapter.watch_ops(self._ops, self._about_to_write))
            yield

    def call_by_hand(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a model that must not be hooked itself, and record its call."""
        model = self._live.model
        args, kwargs = self._enter(model, args, kwargs) or (args, kwargs)
        try:
            output = call_model(model, args, kwargs)
        except Exception:
            self._fail(model)
            raise
        changed = self._leave(model, output)
        return output if changed is None else changed

    # --- calls of the model that somebody else makes: a training loop, a trainer

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model is called: hooks go on. Says what it is to be given instead, if anything."""
        self._attachment.close()
        self._thread = threading.get_ident()
        self.log.taking = False
        self._lines.begin_here()
        nodes, hidden = self._nodes_inside()
        self._attachment.enter_context(watching_draws(self._adapter, None if hidden else self._listener))
        self._attachment.enter_context(self.attached(nodes, but=self._live.model, compiled=hidden))
        return self._enter(self._live.model, args, kwargs)

    def end(self, output: Any) -> Any:
        """The model has returned: hooks come off, and gradients count from now on."""
        changed = self._leave(self._live.model, output)
        self._leave_alone()
        if self._repeats_matter():
            self._attachment.enter_context(self._watching_repeats(self._nodes_inside()[0]))
        if self._listener is not None and self._listener.repeats:
            listener = self._attachment.enter_context(self._listener.in_backward())
            self._attachment.enter_context(watching_draws(self._adapter, listener))
        self.log.taking = True
        return changed

    def turn_away(self) -> None:
        """Backward is over, as far as the model goes: nothing runs again, nothing is listened to."""
        self._attachment.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, whatever runs is not what is recorded."""
        before = self._thread, self.log.taking
        self._thread, self.log.taking = _NOBODY, False
        try:
            yield
        finally:
            self._thread, self.log.taking = before

    def _nodes_inside(self) -> tuple[frozenset[int], bool]:
        """Modules of the model that can be hooked, and whether compiled code hides others."""
        hidden = sealed(self._live, eager=False)
        return frozenset(range(1, len(self._live.modules))) - hidden, bool(hidden)

    def broken(self) -> None:
        """The model has raised: hooks come off."""
        self._fail(self._live.model)
        self._leave_alone()

    def _leave_alone(self) -> None:
        self._attachment.close()
        self._lines.begin_at_the_model()

    @contextmanager
    def taking_gradients(self, nodes: frozenset[int]) -> Iterator[None]:
        """Gradients count in here only: a forward or a loss may run backward passes of its own."""
        with self._watching_repeats(nodes):
            self.log.taking = True
            try:
                yield
                self._let_go = True
            finally:
                self.log.taking = False

    @contextmanager
    def _watching_repeats(self, nodes: frozenset[int]) -> Iterator[None]:
        """Inside, a checkpoint's second run is seen."""
        attach = getattr(self._adapter, "attach_in_backward", None)
        with ExitStack() as stack:
            if attach is not None and self._repeats_matter():
                self._again.starts(self.calls)
                modules = {id(self._live.modules[index]): self._live.modules[index] for index in sorted(nodes)}
                hooks = attach(modules.values(), self._enter_again, self._leave_again, self._fail_again)
                stack.enter_context(_removed(hooks))
            yield

    @property
    def plain_backward(self) -> bool:
        """Whether backward will only follow gradients: no checkpoint waits to run again, and the loss is not scaled."""
        return not self._again.assumed and self.log.scale == 1.0

    def _repeats_matter(self) -> bool:
        """Whether anything is to be seen in a checkpoint's second run."""
        return bool(self._again.assumed)

    def seen(self) -> tuple[Call, ...]:
        """All calls; once backward has run, with what is known now of the tensors that it followed."""
        return self._again.settled(self.calls)

    def raised_in(self) -> str | None:
        """After an exception, the path of the innermost module it left; None when none had begun."""
        return self._raised

    # --- called by the hooks

    def _enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._mine():
            return
        node = self._node_of[id(module)]
        if self.autocast is None:
            self.autocast = self._autocast_dtype()
            if self.autocast is not None and self.on_autocast is not None:
                self.on_autocast(self.autocast, len(self.calls))
        self._settle_ops()
        inputs = self._slots(args, kwargs)
        stack = self._lines.stack(module)
        opened = _Open(self.entered, node, module, self._occurrences[node], inputs, stack, self.tensors.count)
        if self._ops is not None and self._ops.wants(self.entered, module):
            opened.ops = []
        self.entered += 1
        self._occurrences[node] += 1
        self.open_calls.append(opened)
        self._own_from(opened)
        if self._listener is not None:
            self._listener.entered(self._begun())

    def _leave(self, module: Any, output: Any) -> Any:
        if not self._mine():
            return
        self._raised = None
        self._settle_ops()
        opened = self.open_calls.pop()
        parent = self.open_calls[-1]
        self._own_from(parent)
        inside = (opened.first_tensor, self.tensors.count)
        outputs = tuple([self._slot(name, tensor) for name, tensor in self._adapter.flatten(output)])
        node = self._live.tree.nodes[opened.node]
        if self._repeats_matter():
            self._again.may_repeat(opened.index, opened.node, opened.inputs)
        call = Call(
            index=opened.index,
            parent=parent.index,
            node=opened.node,
            path=node.path,
            kind=node.kind,
            occurrence=opened.occurrence,
            inputs=opened.inputs,
            outputs=outputs,
            tensors=inside,
            stack=opened.stack,
            ops=self._ops_of(opened),
        )
        self.calls.append(call)
        if self._listener is not None:
            self._listener.left(call)
        if self._observer is not None:
            self._observer.on_call(call)
        self._hand_over(opened, parent, call)

    def _begun(self) -> Call:
        """The call that began last."""
        opened = self.open_calls[-1]
        node = self._live.tree.nodes[opened.node]
        return Call(
            index=opened.index,
            parent=self.open_calls[-2].index,
            node=opened.node,
            path=node.path,
            kind=node.kind,
            occurrence=opened.occurrence,
            inputs=opened.inputs,
            outputs=(),
            stack=opened.stack,
        )

    def _fail(self, module: Any) -> None:
        """The user's code may catch the exception and go on: the call is taken off like one that ended."""
        if self._mine() and len(self.open_calls) > 1 and self.open_calls[-1].module is module:
            self._settle_ops()
            opened = self.open_calls.pop()
            self._own_from(self.open_calls[-1])
            if self._raised is None:
                self._raised = self._live.tree.nodes[opened.node].path

    def _own_from(self, opened: _Open) -> None:
        """What is first seen now is seen in this call's own code."""
        if self._lets_go:
            self.tensors.owned = opened.owned

    def _hand_over(self, opened: _Open, parent: _Open, call: Call) -> None:
        """What the call returns, or somebody keeps, now belongs to its parent; the rest nobody will see again."""
        if not self._lets_go:
            return
        returned = {id(slot.value) for slot in call.outputs}
        within = parent.index >= 0
        for key, held in opened.owned:
            if id(held) in returned or (within and held.wanted):
                parent.owned.append((key, held))
            else:
                self.tensors.forget(key, held)
                held.release()

    def _settle_ops(self) -> None:
        if self._ops is not None:
            self._ops.settle()

    def _ops_of(self, opened: _Open) -> Sequence[Call]:
        later: Sequence[Call] = ()
        if opened.ops and self._ops is not None:
            later = self._ops.later(opened.ops, opened.index, self._live.tree.nodes[opened.node])
        if not opened.tags:
            return later
        found = list(later)
        for place, tag in reversed(opened.tags):
            found.insert(place, tag)
        return tuple(found)

    def tagged(self, name: str, value: Any) -> Any:
        """The user marks a tensor, and goes on with what is returned."""
        with self._hidden():  # we are in the model's own code, and what is done here is not its doing
            return self._marked(name, value)

    def _marked(self, name: str, value: Any) -> Any:
        self._tag(name, value)
        return value

    def _tag(self, name: str, value: Any) -> Call | None:
        opened = self.open_calls[-1]
        if not self._mine() or opened.index < 0:
            return None
        self._settle_ops()
        slots = tuple(self._slot(place, tensor) for place, tensor in self._adapter.flatten(value))
        if not slots:
            return None
        node = self._live.tree.nodes[opened.node]
        call = Call(
            index=FIRST_OP - 1 - sum(self._tagged.values()),
            parent=opened.index,
            node=opened.node,
            path=f"{node.path}@{name}",
            kind="tag",
            occurrence=self._tagged[name],
            inputs=opened.inputs,
            outputs=slots,
            stack=self._lines.stack(),
            begun=self.entered,
            tag=True,
        )
        self._tagged[name] += 1
        opened.tags.append((len(opened.ops or ()), call))
        if self._observer is not None:
            self._observer.on_tag(call)
        return call

    def _about_to_write(self, tensor: Any) -> None:
        if not self._mine():
            return
        self._settle_ops()
        if self._observer is not None:
            self._observer.before_write()
        self.tensors.about_to_write(tensor)

    def on_gradient(self, number: int, gradient: Any) -> Array | None:
        """For the observer, which may have something to say to it."""
        if not self.log.taking or self._observer is None:
            return None
        scale = self.log.scale
        other = self._observer.on_gradient(number, unscaled(Held(self._adapter, gradient), scale))
        return other if other is None or scale == 1.0 else other * other.dtype.type(scale)

    def _mine(self) -> bool:
        """Whether this is the thread that runs the model, and what it runs can be looked at."""
        return threading.get_ident() == self._thread and not self._transforming()

    # --- tensors

    def _slots(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Slot, ...]:
        return tuple([self._slot(name, tensor) for name, tensor in self._given_tensors(args, kwargs)])

    def _given_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """The tensors among the arguments of a call, with their places."""
        found: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = [(str(place), value) for place, value in enumerate(args)]
        if kwargs:
            named.extend(kwargs.items())
        for name, value in named:
            if self._adapter.is_tensor(value):
                found.append((name, value))
            elif not isinstance(value, _PLAIN):
                found.extend((f"{name}.{inner}", t) for inner, t in self._adapter.flatten(value))
        return found

    def _slot(self, name: str, tensor: Any) -> Slot:
        tensors = self.tensors
        before = tensors.count
        known = tensors.known(tensor, True)
        if self._ops is not None:
            tensors.bordering.append(known)
            if tensors.count > before:
                self._ops.first_seen(tensor, known)
        tracked = tensors.followed and self._adapter.requires_grad(tensor)
        if tracked:
            if known.number not in tensors.hooked:
                tensors.hook(tensor, known)
        elif tensors.followed and self._suspended() and self._floating(tensor):
            self._again.assumed.add(known.number)
            tracked = True
        return Slot(name, known.number, known, tracked)

    def _suspended(self) -> bool:
        """Whether this is a checkpoint's first run, in which nothing is followed."""
        return not self._adapter.grad_enabled() and in_custom_function(BOUNDARY)

    def _floating(self, tensor: Any) -> bool:
        return self._adapter.dtype(tensor).startswith(("float", "bfloat"))

    # --- a checkpoint's second run

    def _enter_again(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [tensor for _, tensor in self._given_tensors(args, kwargs)]
        self._again.begins(module, self._node_of[id(module)], given)

    def _leave_again(self, module: Any, output: Any) -> Any:
        call = self._again.ends(module)
        if call is not None:
            self._again.tells(call.outputs, [tensor for _, tensor in self._adapter.flatten(output)])
        return None

    def _fail_again(self, module: Any) -> None:
        self._again.ends(module)

    def _live_tensor(self, value: Value) -> Any | None:
        """The framework's tensor behind a value of a slot; None where only a copy is left."""
        return value.live() if isinstance(value, Held) else None

    def part_with(self, call: Call) -> None:
        """Copy what a call was given and returned: it goes back to somebody who may write into it unseen."""
        self.tensors.part_with((*call.inputs, *call.outputs))

    def close(self) -> None:
        """Take the gradient hooks off and let go of the autograd graph; what was seen stays."""
        self._attachment.close()
        self._leave_alone()
        self.log.taking = False
        self.tensors.unhook()
        if self._ops is not None:
            self._ops.run.over = True
        if self._ops is None or self._ops.wanted.calls is not None:  # of some calls: nobody may ever look at them
            self.tensors.bordering += self.tensors.by_id.values()
        elif self._let_go:  # what ops made lets go when they are looked at, and such a graph holds nothing any more
            self.tensors.bordering.clear()
        self.tensors.let_go()
        self._ops = None  # it knows the recorder, too: neither would go before the collector comes


class _Telling:
    """Between a gradient's hook and the recorder, which it does not keep, as ``GradientLog`` does not."""

    __slots__ = ("_whom",)

    def __init__(self, whom: Recorder) -> None:
        self._whom = weakref.ref(whom)

    def __call__(self, number: int, gradient: Any) -> Array | None:
        recorder = self._whom()
        return None if recorder is None else recorder.on_gradient(number, gradient)


@contextmanager
def _removed(handles: Iterable[Handle]) -> Iterator[None]:
    """Inside, hooks that are put on as they are asked for are on; also what is on when one cannot be comes off."""
    held: list[Handle] = []
    try:
        held.extend(handles)
        yield
    finally:
        for handle in held:
            handle.remove()


def _nothing() -> None:
    return None
