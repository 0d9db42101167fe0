"""The user's own lines on the stack: what lies between the call of the model and whatever is going on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from padiff.records import Frame

_OWN_FOLDER = str(Path(__file__).parents[1])
_DEMO_FOLDER = str(Path(__file__).parents[1] / "demo")  # written as a user would


def call_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the model; walking up the stack for the user's lines ends here."""
    return model(*args, **kwargs)


BOUNDARY = call_model.__code__


class UserLines:
    """Tells the user's code from the frameworks' and from padiff's."""

    def __init__(self, packages: Iterable[str]) -> None:
        # Up to the separator: paddlenlp's folder begins as paddle's does.
        self.foreign = tuple(folder + os.sep for folder in (*packages, _OWN_FOLDER))
        self._known: dict[str, bool] = {}
        self._frames: dict[tuple[int, int], tuple[CodeType, Frame | None]] = {}
        """Places that were passed before, by code and line; None for those that are not the user's."""
        self._outside: FrameType | None = None
        """Where walking up the stack ends, if not where padiff calls the model."""

    def begin_here(self) -> None:
        """Somebody else calls the model, from the first of their lines up the stack."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._is_user_code(frame.f_code.co_filename):
            frame = frame.f_back
        self._outside = frame

    def begin_at_the_model(self) -> None:
        """Padiff calls the model again."""
        self._outside = None

    def stack(self, module: Any = None) -> tuple[Frame, ...]:
        """Frames of the user's code from here out to the call of the model, outermost first. Where a module is called,
        a ``__call__`` of its own is not who calls it."""
        found: list[Frame] = []
        frames = self._frames
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code is BOUNDARY or frame is self._outside:
                break
            place = (id(code), frame.f_lineno)
            seen = frames.get(place)
            if seen is None:
                mine = self._is_user_code(code.co_filename)
                seen = (code, Frame(code.co_filename, frame.f_lineno, code.co_name) if mine else None)
                frames[place] = seen
            if seen[1] is not None and (code.co_name != "__call__" or not _belongs_to(module, frame)):
                found.append(seen[1])
            frame = frame.f_back
        found.reverse()
        return tuple(found)

    def _is_user_code(self, filename: str) -> bool:
        known = self._known.get(filename)
        if known is None:
            foreign = filename.startswith((*self.foreign, "<"))
            known = self._known[filename] = not foreign or filename.startswith(_DEMO_FOLDER)
        return known


def _belongs_to(module: Any, frame: FrameType) -> bool:
    return module is not None and frame.f_locals.get("self") is module
