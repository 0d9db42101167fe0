"""Writes down the ops that a module's own code calls: a few references while the model runs, the rest at its borders.

The framework's own layers are left out unless they are asked for, and what a framework's function does inside counts as
one op. Between two writes no tensor changes, so who is who can be settled later: when a module begins or ends, and
before anything is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from padiff.capture.held import Held
from padiff.capture.op_records import Outputs, Run, Told, Written, op_calls
from padiff.capture.own_functions import BACKWARD
from padiff.capture.seen_tensors import SeenTensors
from padiff.capture.whose_code import END, FUNCTION, LAYER, USER, WRAPPER, WhoseCode
from padiff.frameworks import Adapter
from padiff.frameworks.arguments import options_in, options_of
from padiff.frameworks.lookup import has_code
from padiff.frameworks.protocol import LibraryOp
from padiff.records import FIRST_OP, Call, ModuleNode

_written: Callable[[type[Written], Sequence[Any]], Written] = tuple.__new__
"""A fourth of the time that its own way of being made takes."""
_Pending = tuple[Any, tuple[Any, ...], dict[str, Any] | None, Any, CodeType | Told, int, CodeType | None, int]
"""The op, what it was given and returned, and its place."""
_Place = tuple[CodeType | Told, int, CodeType | None, int]
"""Whose line called an op, in which function of the framework, and which call of such a function that was."""


class Running(Protocol):
    """The recorder, as ops see it."""

    open_calls: list[Any]
    """Calls that have begun and not ended, innermost last; with ``module`` and ``ops``, None for what is not wanted."""
    entered: int


@dataclass(frozen=True)
class WantedOps:
    """Which ops are to be seen."""

    calls: frozenset[int] | None = None
    """In the code of these calls only, by index; None for all."""
    stacks: bool = False
    """Whether all of the user's lines that led to an op are kept, not only the innermost."""
    options: bool = False
    """Whether it is kept what ops were given besides tensors."""
    layers: bool = False
    """Whether those in the code of the framework's own layers are seen, too."""
    functions: bool = False
    """Whether a function with a backward of its own is one op: nothing inside is followed by gradients."""


class Begun:
    """An op that may write, under way."""

    __slots__ = ("inputs", "name", "op", "place")

    def __init__(self, op: Any, name: str, place: _Place, inputs: list[Held]) -> None:
        self.op, self.name, self.place, self.inputs = op, name, place, inputs


class OpLog:
    """The ops of one run."""

    def __init__(
        self, running: Running, tensors: SeenTensors, adapter: Adapter, wanted: WantedOps, foreign: tuple[str, ...]
    ) -> None:
        self.run = Run()
        self.wanted, self._told = wanted, wanted.stacks or wanted.options
        self._plainly = not (self._told or wanted.layers)
        """Whether an op's line is all that matters, and a framework's layer is never whose op it is."""
        self._running, self._tensors, self._adapter = running, tensors, adapter
        self._tensor_type, self._version = adapter.tensor_type, adapter.version
        self._transforming: Callable[[], object] = getattr(adapter, "transforming", bool)
        self._whose = WhoseCode(adapter, foreign)
        self._kinds = self._whose.known
        self._pending: list[_Pending] = []
        self._frame: FrameType | None = None
        """The framework's function that ran the last op. No older one is kept: that takes as long as all the rest."""
        self._functions = 0
        """How many of them were seen."""
        self._last = 0
        """Which of them ran the last op that was written down, 0 for none: what else it runs is the same op."""
        self._inside = 0
        """How many watched functions are under way: what they call is theirs."""
        self._numbered = FIRST_OP
        self._writers: dict[int, Written] = {}
        """Memory to the op that wrote into it last."""

    def wants(self, index: int, module: Any) -> bool:
        """Whether the ops of a call that begins are to be seen."""
        if self.wanted.calls is not None and index not in self.wanted.calls:
            return False
        return self.wanted.layers or has_code(self._adapter, module)

    # --- while the model runs

    def seen(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any, frame: FrameType
    ) -> None:
        """An op that writes nothing has ended."""
        if self._running.open_calls[-1].ops is None or self._inside or self._transforming():
            return
        if self._plainly:  # nearly always the user's line, or a function that it calls
            code = frame.f_code
            kind = self._kinds.get(id(code))
            if kind == USER:
                self._pending.append((op, args, kwargs, output, code, frame.f_lasti, None, 0))
                return
            above = frame.f_back
            if above is not None and kind in (WRAPPER, FUNCTION):
                code = above.f_code
                if self._kinds.get(id(code)) == USER:
                    function, which = (frame.f_code, self._which(frame)) if kind == FUNCTION else (None, 0)
                    self._pending.append((op, args, kwargs, output, code, above.f_lasti, function, which))
                    return
        place = self._place(op, args, kwargs, frame)
        if place is not None:
            self._pending.append((op, args, kwargs, output, *place))

    def _place(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, frame: FrameType) -> _Place | None:
        """Who called an op; None where that is nobody's business."""
        layers = self.wanted.layers
        module = self._running.open_calls[-1].module
        here: FrameType | None = frame
        outer = None
        while here is not None:
            code = here.f_code
            kind = self._kinds.get(id(code))
            if kind is None:
                kind = self._whose.of(code)
            if kind == USER:
                if type(op) is LibraryOp and code.co_name == op:  # generated, and not the user's
                    here = here.f_back
                    continue
                break
            if kind == END:
                return None
            if layers and kind in (LAYER, FUNCTION) and here.f_locals.get("self") is module:
                break
            if kind == FUNCTION:
                outer = here
            here = here.f_back  # a layer of the framework that is no call of its own was made on the spot
        if here is None:
            return None
        if self._told:
            options = options_of(op, args, kwargs or {}) if outer is None else options_in(outer)
            lines = self._whose.stack(here)
            where: CodeType | Told = Told(lines if self.wanted.stacks else lines[-1:], options)
        else:
            where = here.f_code
        instruction = 0 if self._told else here.f_lasti
        if outer is None:
            return where, instruction, None, 0
        return where, instruction, outer.f_code, self._which(outer)

    def _which(self, frame: FrameType) -> int:
        """The number of a call of a framework's function."""
        if frame is not self._frame:
            self._frame = frame
            self._functions += 1
        return self._functions

    def begin(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType, name: str = ""
    ) -> Begun | None:
        """An op that may write begins."""
        self.settle()
        if self._running.open_calls[-1].ops is None or self._inside or self._transforming():
            return None
        place = self._place(op, args, kwargs, frame)
        return None if place is None else Begun(op, name, place, self._given(args, kwargs))

    def end(self, begun: Begun, output: Any, args: tuple[Any, ...]) -> None:
        """It has ended."""
        seen: list[Written] | None = self._running.open_calls[-1].ops
        if seen is None:
            return
        self.settle()
        if output is None:
            first = begun.inputs[0] if args and begun.inputs and isinstance(args[0], self._tensor_type) else None
            if first is None or not first.written:
                return
            outputs: Outputs = [("", self._tensors.known(args[0], True))]  # an item set in place
        else:
            outputs = made = self._made(output)
            if all(one in begun.inputs for _, one in made):
                return
        written = self._write(seen, begun.op, begun.name, begun.place, begun.inputs, outputs)
        if (args and output is args[0]) or output is None:
            self._writers[self._adapter.storage(args[0])] = written

    # --- who is who

    def settle(self) -> None:
        """Give numbers to what the ops so far were given and returned, and follow its gradients."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        running, tensor_type, version = self._running, self._tensor_type, self._version
        known, first_sight = self._tensors.by_id, self._tensors.first_sight
        seen, begun, number, last = running.open_calls[-1].ops, running.entered, self._numbered, self._last
        now: dict[int, Held] = {}
        """Whom we have met here: nobody changes before all this is settled."""
        for op, args, kwargs, output, where, instruction, function, which in pending:
            inputs: list[Held] = []
            for argument in (*args, *kwargs.values()) if kwargs else args:
                found = now.get(id(argument))
                if found is not None:
                    inputs.append(found)
                elif isinstance(argument, tensor_type):
                    found = now[id(argument)] = self._first_given(argument)
                    inputs.append(found)
                elif type(argument) in (list, tuple):
                    inputs += [self._first_given(one) for one in argument if isinstance(one, tensor_type)]
            outputs: Outputs
            if isinstance(output, tensor_type):
                key, current = id(output), version(output)
                found = known.get(key)
                if found is None or found.version != current:
                    outputs = now[key] = first_sight(output, current, True)
                else:
                    outputs = self._tensors.known(output, True)
                    if outputs in inputs:  # a cast to its own dtype
                        continue
            else:
                outputs = made = self._made(output)
                if all(one in inputs for _, one in made):
                    continue
            if which and which == last and seen:
                seen[-1] = seen[-1].and_then(inputs, outputs)
                continue
            last = which
            seen.append(_written(Written, (number, op, "", function, where, instruction, begun, inputs, outputs, None)))
            number += 1
        self._numbered, self._last = number, last
        self._tensors.hook_those_seen()

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Held]:
        """The tensors that an op is given, as they are now."""
        found: list[Held] = []
        for argument in (*args, *kwargs.values()) if kwargs else args:
            several = argument if type(argument) in (list, tuple) else (argument,)
            found += [self._first_given(one) for one in several if isinstance(one, self._tensor_type)]
        return found

    def _made(self, output: Any) -> list[tuple[str, Held]]:
        known = self._tensors.known
        if isinstance(output, self._tensor_type):
            return [("", known(output, True))]
        return [(name, known(tensor, True)) for name, tensor in self._adapter.flatten(output)]

    def _write(
        self,
        seen: list[Written],
        op: Any,
        name: str,
        place: _Place,
        inputs: list[Held],
        outputs: Outputs,
    ) -> Written:
        where, instruction, function, which = place
        if which and which == self._last and seen:
            seen[-1] = seen[-1].and_then(inputs, outputs)
            return seen[-1]
        self._last = which
        begun = self._running.entered
        seen.append(Written(self._numbered, op, name, function, where, instruction, begun, inputs, outputs))
        self._numbered += 1
        return seen[-1]

    def _first_given(self, tensor: Any) -> Held:
        """A tensor that may not be known as it is now, or not be known to take part in backward.

        Where an op has written into its memory, through a view or whatever name, the op made it. What comes out of a
        function with a backward of its own takes part from then on."""
        found, version = self._tensors.by_id.get(id(tensor)), self._version(tensor)
        if found is None or found.version != version:
            found = self._tensors.first_sight(tensor, version, False)
            self.first_seen(tensor, found)
        if not found.tracked:
            self._tensors.track(tensor, found)
        return found

    def first_seen(self, tensor: Any, seen: Held) -> None:
        """A tensor that no op returned, as it is now: an op may have written it."""
        storage = self._adapter.storage(tensor) if self._writers else 0
        writer = self._writers.get(storage)
        if writer is not None and any(one.storage() == storage for _, one in writer.made_here):  # still there
            assert isinstance(writer.outputs, list)
            writer.outputs.append(("written", seen))

    def whole(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the user wants to see as one op, under a name of its own."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            begun = self.begin(function, args, kwargs, sys._getframe(1), name)
            if begun is None:
                return function(*args, **kwargs)
            where, instruction, _, _ = begun.place
            begun.place = (where, instruction, None, 0)
            self._inside += 1
            try:
                output = function(*args, **kwargs)
            finally:
                self._inside -= 1
            self.end(begun, output, args)
            return output

        return watched

    def by_its_backward(self, name: str, function: Callable[..., Any], backward: str) -> Callable[..., Any]:
        """A function with a backward of its own as one op, unless it calls modules: then what is inside tells more."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            begun = self.begin(function, args, kwargs, sys._getframe(1), name)
            if begun is None:
                return function(*args, **kwargs)
            seen, entered = self._running.open_calls[-1].ops, self._running.entered
            before = len(seen)
            output = function(*args, **kwargs)
            self.settle()
            if self._running.entered == entered:
                del seen[before:]
                for _, tensor in self._adapter.flatten(output):
                    self._first_given(tensor)  # it takes part in backward from now on
                where, instruction, _, _ = begun.place
                if isinstance(where, Told):
                    where = where._replace(options=(*where.options, (BACKWARD, backward)))
                begun.place = (where, instruction, None, 0)
                self.end(begun, output, args)
            return output

        return watched

    # --- when a call ends

    def later(self, written: list[Written], index: int, node: ModuleNode) -> Sequence[Call]:
        """The ops of a call as records, made when somebody asks."""
        self._last, self._frame = 0, None
        return op_calls(self._adapter, self.run, written, index, node)
