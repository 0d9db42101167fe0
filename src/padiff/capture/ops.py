"""Writes down the ops that a module's own code calls: cheaply while the model runs, as records when its call ends.

The framework's own layers are left out, and what a framework's function does inside counts as one op.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from padiff.capture.held import Held
from padiff.frameworks import Adapter
from padiff.records import FIRST_OP, Call, Frame, ModuleNode, Slot

_OWN_FOLDER = str(Path(__file__).resolve().parents[1])
_USER, _FUNCTION, _WRAPPER, _LAYER, _END = range(5)
"""Whose code a frame is: the user's; a function of the framework; what stands around one; one of its layers; padiff's
own, whose ops are nobody's business."""
_WATCHING = ("_ops.py", f"{os.sep}ops.py", "functions.py", "paddle_builtins.py")
"""Our own files that stand between an op and who called it."""
_TYPED_IN = ("<stdin>", "<string>", "<ipython")

Seen = tuple[int, Held, bool]
"""Number of a tensor, the tensor, whether it takes part in backward."""


@dataclass(frozen=True)
class WantedOps:
    """Which ops are to be seen."""

    calls: frozenset[int] | None = None
    """In the code of these calls only, by index; None for all."""
    stacks: bool = False
    """Whether all of the user's lines that led to an op are kept, not only the innermost."""


class Opened:
    """An op that has begun, then one that has ended."""

    __slots__ = ("begun", "function", "inputs", "made", "name", "op", "outer", "outputs", "several", "stack")

    def __init__(
        self, op: Any, name: str, outer: FrameType | None, stack: tuple[Frame, ...], begun: int, inputs: list[Seen]
    ) -> None:
        self.op, self.name, self.outer, self.stack, self.begun, self.inputs = op, name, outer, stack, begun, inputs
        self.function: CodeType | None = None if outer is None else outer.f_code
        self.outputs: list[tuple[str, Seen]] = []
        self.made: set[int] = set()
        self.several = False


class OpLog:
    """The ops of one run. ``known`` gives a tensor's number, ``top`` the module that runs and its list of ops."""

    def __init__(
        self,
        adapter: Adapter,
        wanted: WantedOps,
        known: Callable[[Any, bool], tuple[int, Held]],
        top: Callable[[], tuple[Any, list[Opened] | None, int]],
        foreign: tuple[str, ...],
    ) -> None:
        self.wanted = wanted
        self._adapter, self._known, self._top = adapter, known, top
        self._foreign = foreign
        self._layers = tuple(folder + os.sep for folder in adapter.layer_folders())
        self._wrappers = frozenset(adapter.wrapper_files())
        self._kinds: dict[CodeType, int] = {}
        self._thread = threading.get_ident()
        self._inside = 0
        """How many watched functions are under way: what they call is theirs."""
        self._numbered = 0

    def wants(self, index: int, module: Any) -> bool:
        """Whether the ops of a call that begins are to be seen."""
        if self.wanted.calls is not None and index not in self.wanted.calls:
            return False
        return type(module).__module__.partition(".")[0] != self._adapter.name

    # --- while the model runs

    def begin(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opened | None:
        return None if self._inside else self._begin(op, "", args, kwargs)

    def _begin(self, op: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opened | None:
        module, seen, begun = self._top()
        if seen is None or threading.get_ident() != self._thread:
            return None
        kinds, outer = self._kinds, None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(code)
            if kind is None:
                kind = kinds[code] = self._kind(code)
            if kind == _USER:
                break
            if kind == _FUNCTION:
                outer = frame
            elif kind == _END or (kind == _LAYER and frame.f_locals.get("self") is not module):
                return None
            frame = frame.f_back
        if frame is None:
            return None
        inputs: list[Seen] = []
        is_tensor = self._adapter.is_tensor
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if is_tensor(argument):
                inputs.append(self._seen(argument, False))
            elif type(argument) in (list, tuple):
                inputs += [self._seen(one, False) for one in argument if is_tensor(one)]
        stack = self._stack(frame) if self.wanted.stacks else (_frame(frame),)
        return Opened(op, name, outer, stack, begun, inputs)

    def end(self, opened: Opened, output: Any, args: tuple[Any, ...]) -> None:
        _, seen, _ = self._top()
        if seen is None:
            return
        if self._adapter.is_tensor(output):
            opened.outputs = [("", self._seen(output, True))]
        elif output is not None:
            found = self._adapter.flatten(output)
            opened.outputs = [(name, self._seen(tensor, True)) for name, tensor in found]
        elif args and opened.inputs and self._adapter.is_tensor(args[0]) and opened.inputs[0][1].written:
            opened.outputs = [("", self._seen(args[0], True))]  # an item set in place
        given = {one[0] for one in opened.inputs}
        if all(one[0] in given for _, one in opened.outputs):  # nothing, or what it was given: a cast to the same dtype
            return
        last = seen[-1] if seen else None
        if last is not None and last.outer is not None and last.outer is opened.outer:
            last.made.update(one[0] for _, one in last.outputs)
            known = last.made | {one[0] for one in last.inputs}
            last.inputs += [one for one in opened.inputs if one[0] not in known]
            last.outputs, last.several = opened.outputs, True
            return
        if last is not None:
            last.outer = None
        seen.append(opened)

    def whole(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the user wants to see as one op, under a name of its own."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            opened = None if self._inside else self._begin(function, name, args, kwargs)
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

    def _seen(self, tensor: Any, hooked: bool) -> Seen:
        number, held = self._known(tensor, hooked)
        return number, held, self._adapter.requires_grad(tensor)

    def _kind(self, code: CodeType) -> int:
        name = code.co_filename
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
            kind = self._kinds.get(frame.f_code)
            if kind is None:
                kind = self._kinds[frame.f_code] = self._kind(frame.f_code)
            if kind == _END:
                break
            if kind == _USER:
                found.append(_frame(frame))
            frame = frame.f_back
        return tuple(reversed(found))

    # --- when a call ends

    def number(self) -> int:
        """The next number for an op or a tag."""
        self._numbered += 1
        return FIRST_OP + self._numbered - 1

    def built(self, seen: list[Opened], index: int, node: ModuleNode) -> list[Call]:
        """The ops of a call as records."""
        found: list[Call] = []
        times: Counter[str] = Counter()
        for one in seen:
            one.outer = None
            kind = one.name or self._adapter.op_name(one.op, one.function, one.several)
            short = short_name(kind)
            occurrence = times[short]
            times[short] += 1
            again = f"#{occurrence}" if occurrence else ""
            found.append(
                Call(
                    index=self.number(),
                    parent=index,
                    node=node.index,
                    path=f"{node.path}/{short}{again}",
                    kind=kind,
                    occurrence=occurrence,
                    inputs=tuple(Slot(str(place), *given) for place, given in enumerate(one.inputs)),
                    outputs=tuple(Slot(name, *made) for name, made in one.outputs),
                    stack=one.stack,
                    begun=one.begun,
                )
            )
        return found


def short_name(kind: str) -> str:
    """The last part of an op's name, without the underscores of operators: ``matmul``, ``getitem``."""
    last = kind.rpartition(".")[2]
    if last == "default" and kind.count(".") > 1:  # an overload of a library's op
        last = kind.split(".")[-2]
    return last.strip("_") or last


def _frame(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(code.co_filename, frame.f_lineno, code.co_name)
