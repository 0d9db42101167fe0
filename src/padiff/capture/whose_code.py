"""Tells whose code a frame on the stack is, when an op is called: by its file, once for each function."""

from __future__ import annotations

import os
from pathlib import Path
from types import CodeType, FrameType

from padiff.frameworks import Adapter
from padiff.records import Frame

USER, FUNCTION, WRAPPER, LAYER, END = range(5)
"""The user's; a function of the framework; what stands around one; one of its layers; padiff's own, whose ops are
nobody's business."""

_OWN_FOLDER = str(Path(__file__).parents[1])
_WATCHING = frozenset(
    str(Path(_OWN_FOLDER, room, f"{name}.py"))
    for room, names in {
        "capture": ("ops", "functions", "own_functions"),
        "frameworks": (
            *("torch", "torch_ops", "torch_writes", "torch_compiled"),
            *("paddle", "paddle_ops", "paddle_builtins", "cancelling_ops", "listener"),
        ),
    }.items()
    for name in names
)
"""Our own files that stand between an op and who called it. What others do, such as to draw for a model, is ours."""
_TYPED_IN = ("<stdin>", "<string>", "<ipython")


class WhoseCode:
    """Remembers whose a function is, by its code."""

    def __init__(self, adapter: Adapter, foreign: tuple[str, ...]) -> None:
        self.known: dict[int, int] = {}
        """By identity: a code object's own hash takes longer than all the rest."""
        self._kept: list[CodeType] = []
        self._foreign = foreign
        self._layers = tuple(folder + os.sep for folder in adapter.layer_folders())
        self._wrappers = frozenset(adapter.wrapper_files())

    def of(self, code: CodeType) -> int:
        kind = self.known.get(id(code))
        if kind is None:
            kind = self.known[id(code)] = self._of_file(code.co_filename)
            self._kept.append(code)
        return kind

    def _of_file(self, name: str) -> int:
        if name.startswith(_OWN_FOLDER + os.sep) and not name.startswith(f"{_OWN_FOLDER}{os.sep}demo"):
            return WRAPPER if name in _WATCHING else END
        if name.startswith(self._layers):
            return LAYER
        if name in self._wrappers:
            return WRAPPER
        if name.startswith(self._foreign):
            return FUNCTION
        return WRAPPER if name.startswith("<") and not name.startswith(_TYPED_IN) else USER

    def stack(self, frame: FrameType | None) -> tuple[Frame, ...]:
        """The user's lines from the outermost down to this frame, which counts whosever it is."""
        found: list[Frame] = []
        here = frame
        while frame is not None:
            kind = self.of(frame.f_code)
            if kind == END:
                break
            if kind == USER or frame is here:
                found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(reversed(found))


def line_at(code: CodeType, instruction: int) -> int:
    """The line of an instruction: asking a frame for its line takes longer than keeping where it is."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
