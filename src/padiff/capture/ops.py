"""Writes down the ops that a module's own code calls: cheaply while the model runs, as records when its call ends.

The framework's own layers are left out, and what a framework's function does inside counts as one op.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol, overload

from padiff.capture.held import Held
from padiff.frameworks import Adapter
from padiff.frameworks.arguments import Options, options_in, options_of
from padiff.frameworks.lookup import class_of
from padiff.frameworks.protocol import LibraryOp
from padiff.records import FIRST_OP, Call, Frame, ModuleNode, Slot

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
_USER, _FUNCTION, _WRAPPER, _LAYER, _END = range(5)
"""Whose code a frame is: the user's; a function of the framework; what stands around one; one of its layers; padiff's
own, whose ops are nobody's business."""
_ADAPTERS = tuple(f"frameworks{os.sep}{name}.py" for name in ("torch", "paddle"))
_WATCHING = ("_ops.py", f"{os.sep}ops.py", "functions.py", "paddle_builtins.py", *_ADAPTERS)
"""Our own files that stand between an op and who called it."""
_TYPED_IN = ("<stdin>", "<string>", "<ipython")

Seen = tuple[int, Held]
"""Number of a tensor, and the tensor."""


class Running(Protocol):
    """The recorder, as ops see it."""

    open_calls: list[Any]
    """Calls that have begun and not ended, innermost last; with ``module`` and ``ops``, None for what is not wanted."""
    entered: int
    known_tensors: dict[tuple[int, int], tuple[int, Held]]
    """By identity and version."""

    def known(self, tensor: Any, hooked: bool) -> tuple[int, Held]: ...

    def track(self, tensor: Any, seen: tuple[int, Held]) -> None: ...


@dataclass(frozen=True)
class WantedOps:
    """Which ops are to be seen."""

    calls: frozenset[int] | None = None
    """In the code of these calls only, by index; None for all."""
    stacks: bool = False
    """Whether all of the user's lines that led to an op are kept, not only the innermost."""
    options: bool = False
    """Whether it is kept what ops were given besides tensors."""


class Opened:
    """An op that has begun, then one that has ended."""

    __slots__ = (
        "begun",
        "inputs",
        "line",
        "made",
        "name",
        "number",
        "op",
        "options",
        "outer",
        "outputs",
        "several",
        "user",
    )

    number: int
    outputs: list[tuple[str, Seen]]
    made: set[int]

    def __init__(
        self,
        op: Any,
        name: str,
        outer: FrameType | None,
        user: CodeType | tuple[Frame, ...],
        line: int,
        begun: int,
        inputs: list[Seen],
    ) -> None:
        self.op, self.name, self.begun, self.inputs = op, name, begun, inputs
        self.outer: FrameType | CodeType | None = outer
        """The framework's function that the user called; its frame while it may run, its code afterwards."""
        self.user, self.line = user, line
        """The user's code that called it, and the line in it; or all of the user's lines."""
        self.several = False
        self.options: Options = ()
        """What it was given besides tensors, where that is wanted."""


class OpLog:
    """The ops of one run."""

    def __init__(self, running: Running, adapter: Adapter, wanted: WantedOps, foreign: tuple[str, ...]) -> None:
        self.wanted = wanted
        self._running, self._adapter = running, adapter
        self._is_tensor, self._version = adapter.is_tensor, adapter.version
        self._foreign = foreign
        self._layers = tuple(folder + os.sep for folder in adapter.layer_folders())
        self._wrappers = frozenset(adapter.wrapper_files())
        self._kinds: dict[int, tuple[int, CodeType]] = {}
        """By identity: a code object's own hash takes longer than all the rest."""
        self._inside = 0
        """How many watched functions are under way: what they call is theirs."""
        self._numbered = FIRST_OP
        self._writers: dict[int, Opened] = {}
        """Memory to the op that wrote into it last."""

    def wants(self, index: int, module: Any) -> bool:
        """Whether the ops of a call that begins are to be seen."""
        if self.wanted.calls is not None and index not in self.wanted.calls:
            return False
        return class_of(self._adapter, module).__module__.partition(".")[0] != self._adapter.name

    # --- while the model runs

    def begin(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "") -> Opened | None:
        running = self._running
        opened = running.open_calls[-1]
        if opened.ops is None or self._inside:
            return None
        kinds, outer = self._kinds, None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code))
            kind = known[0] if known is not None else self._kind(code)
            if kind == _USER:
                if type(op) is LibraryOp and code.co_name == op:  # generated, and not the user's
                    frame = frame.f_back
                    continue
                break
            if kind == _FUNCTION:
                outer = frame
            elif kind == _END or (kind == _LAYER and frame.f_locals.get("self") is not opened.module):
                return None
            frame = frame.f_back
        if frame is None:
            return None
        inputs: list[Seen] = []
        is_tensor, version, seen = self._is_tensor, self._version, running.known_tensors
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if is_tensor(argument):
                found = seen.get((id(argument), version(argument)))
                if found is None or not found[1].tracked:
                    found = self._first_given(argument, found)
                inputs.append(found)
            elif type(argument) in (list, tuple):
                inputs += [self._first_given(one, None) for one in argument if is_tensor(one)]
        if self.wanted.stacks:
            begun = Opened(op, name, outer, self._stack(frame), 0, running.entered, inputs)
        else:
            begun = Opened(op, name, outer, frame.f_code, frame.f_lineno, running.entered, inputs)
        if self.wanted.options:
            begun.options = options_of(op, args, kwargs) if outer is None else options_in(outer)
        return begun

    def end(self, opened: Opened, output: Any, args: tuple[Any, ...]) -> None:
        seen: list[Opened] | None = self._running.open_calls[-1].ops
        if seen is None:
            return
        known = self._running.known
        if self._is_tensor(output):
            made = known(output, True)
            if made in opened.inputs:  # a cast to its own dtype
                return
            opened.outputs = [("", made)]
        elif output is not None:
            opened.outputs = [(name, known(tensor, True)) for name, tensor in self._adapter.flatten(output)]
            if all(one in opened.inputs for _, one in opened.outputs):
                return
        elif args and opened.inputs and self._is_tensor(args[0]) and opened.inputs[0][1].written:
            opened.outputs = [("", known(args[0], True))]  # an item set in place
        else:
            return
        if (args and output is args[0]) or output is None:
            self._writers[self._adapter.storage(args[0])] = opened
        if seen:
            last = seen[-1]
            if last.outer is not None and last.outer is opened.outer:
                _join(last, opened)
                return
            last.outer = getattr(last.outer, "f_code", None)
        opened.number = self._numbered
        self._numbered += 1
        seen.append(opened)

    def _first_given(self, tensor: Any, found: Seen | None) -> Seen:
        """A tensor that is not known as it is now, or not known to take part in backward.

        Where an op has written into its memory, through a view or whatever name, the op made it. What comes out of a
        function with a backward of its own takes part from then on."""
        if found is None:
            found = self._running.known(tensor, False)
            self.first_seen(tensor, found)
        if not found[1].tracked:
            self._running.track(tensor, found)
        return found

    def first_seen(self, tensor: Any, seen: Seen) -> None:
        """A tensor that no op returned, as it is now: an op may have written it."""
        storage = self._adapter.storage(tensor) if self._writers else 0
        writer = self._writers.get(storage)
        if writer is not None and any(one[1].storage() == storage for _, one in writer.outputs):  # still there
            writer.outputs.append(("written", seen))

    def whole(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the user wants to see as one op, under a name of its own."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            opened = self.begin(function, args, kwargs, name)
            if opened is None:
                return function(*args, **kwargs)
            opened.outer = None
            self._inside += 1
            try:
                output = function(*args, **kwargs)
            finally:
                self._inside -= 1
            self.end(opened, output, args)
            return output

        return watched

    def _kind(self, code: CodeType) -> int:
        kind = self._kind_of(code.co_filename)
        self._kinds[id(code)] = kind, code
        return kind

    def _kind_of(self, name: str) -> int:
        if name.startswith(_OWN_FOLDER + os.sep) and not name.startswith(f"{_OWN_FOLDER}{os.sep}demo"):
            return _WRAPPER if name.endswith(_WATCHING) else _END
        if name.startswith(self._layers):
            return _LAYER
        if name in self._wrappers:
            return _WRAPPER
        if name.startswith(self._foreign):
            return _FUNCTION
        return _WRAPPER if name.startswith("<") and not name.startswith(_TYPED_IN) else _USER

    def _stack(self, frame: FrameType | None) -> tuple[Frame, ...]:
        found: list[Frame] = []
        while frame is not None:
            known = self._kinds.get(id(frame.f_code))
            kind = known[0] if known is not None else self._kind(frame.f_code)
            if kind == _END:
                break
            if kind == _USER:
                found.append(_frame(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(found))

    # --- when a call ends

    def later(self, seen: list[Opened], index: int, node: ModuleNode) -> Sequence[Call]:
        """The ops of a call as records, made when somebody asks."""
        seen[-1].outer = getattr(seen[-1].outer, "f_code", None)
        return _Later(functools.partial(self._built, seen, index, node), len(seen))

    def _built(self, seen: list[Opened], index: int, node: ModuleNode) -> list[Call]:
        """The ops of a call as records."""
        found: list[Call] = []
        times: Counter[str] = Counter()
        names: dict[Any, tuple[str, str]] = {}
        path = node.path
        for one in seen:
            key = (one.name, one.op, id(one.outer), one.several)
            named = names.get(key)
            if named is None:
                function = one.outer if isinstance(one.outer, CodeType) else None
                kind = one.name or self._adapter.op_name(one.op, function, one.several)
                named = names[key] = (kind, short_name(kind))
            kind, short = named
            occurrence = times[short]
            times[short] += 1
            again = f"#{occurrence}" if occurrence else ""
            found.append(
                Call(
                    index=one.number,
                    parent=index,
                    node=node.index,
                    path=f"{path}/{short}{again}",
                    kind=kind,
                    occurrence=occurrence,
                    inputs=tuple([Slot(str(n), *given, given[1].tracked) for n, given in enumerate(one.inputs)]),
                    outputs=tuple([Slot(name, *made, made[1].tracked) for name, made in one.outputs]),
                    stack=one.user if isinstance(one.user, tuple) else (_frame(one.user, one.line),),
                    begun=one.begun,
                    options=one.options,
                )
            )
        return found


class _Later(Sequence[Call]):
    """Calls that are made when they are first looked at."""

    def __init__(self, make: Callable[[], list[Call]], length: int) -> None:
        self._make: Callable[[], list[Call]] | None = make
        self._calls: list[Call] = []
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Call: ...

    @overload
    def __getitem__(self, place: slice) -> list[Call]: ...

    def __getitem__(self, place: int | slice) -> Call | list[Call]:
        return self._all()[place]

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all())

    def _all(self) -> list[Call]:
        if self._make is not None:
            self._calls, self._make = self._make(), None
        return self._calls


def _join(first: Opened, more: Opened) -> None:
    """Two ops that one function of the framework runs are one op, which returns what the last of them does."""
    if not first.several:
        first.several, first.made = True, set()
    first.made.update(one[0] for _, one in first.outputs)
    known = first.made | {one[0] for one in first.inputs}
    first.inputs += [one for one in more.inputs if one[0] not in known]
    first.outputs = more.outputs


def short_name(kind: str) -> str:
    """The last part of an op's name, without the underscores of operators: ``matmul``, ``getitem``."""
    last = kind.rpartition(".")[2]
    if last == "default" and kind.count(".") > 1:  # an overload of a library's op
        last = kind.split(".")[-2]
    return last.strip("_") or last


def _frame(code: CodeType, line: int) -> Frame:
    return Frame(code.co_filename, line, code.co_name)
