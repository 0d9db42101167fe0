"""Random draws of a step of a model that somebody else runs: who listens, and what is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from padiff.capture.draws import Listener
from padiff.capture.state import moved, random_state
from padiff.engine.apart.generators import States, moved_since, states
from padiff.engine.captured.dumping import StepSink

if TYPE_CHECKING:
    from padiff.engine.captured.capturing import Capture


class CapturedDraws:
    """Hears what the model draws, call by call, and writes it down; ``extra`` takes what has no place of its own."""

    def __init__(self, capture: Capture, number: int, sink: StepSink, extra: dict[str, Any]) -> None:
        self._capture, self._adapter = capture, capture.live.adapter
        self._number, self._sink, self._extra = number, sink, extra
        self.listener: Listener | None = None
        self.unheard = False
        """Whether the model has drawn and nobody listened."""
        self._told = 0
        """How many draws are written."""
        self._before: Any = None
        self._generators: States = {}
        """Those of numpy and Python, before the call that is running."""

    def begin(self) -> None:
        """Decides who listens in this step; it costs something for every op, so nobody does where none is drawn."""
        capture = self._capture
        if not capture.listens:
            return
        alongside = capture.alongside
        if alongside is not None and alongside.replays(self._number):
            self.listener = alongside.listener(self._number, draws=capture.draws)
        elif capture.draws:
            self.listener = Listener()

    def before_call(self, call: int, using: ExitStack) -> None:
        """The model is called, how often by now; ``using`` is closed when it returns."""
        capture = self._capture
        if not capture.listens:
            return
        if self.listener is None:
            self._before = random_state(self._adapter)
        if capture.alongside is not None and capture.alongside.replays(self._number):
            using.enter_context(capture.alongside.generators(self._number, call))
        self._generators = states()

    def after_call(self, call: int) -> None:
        """Writes what was drawn in the call that ended just now."""
        capture = self._capture
        if not capture.listens:
            return
        if self._generators and (found := moved_since(self._generators)) and capture.keeps_draws:
            self._extra.setdefault("generators", {})[str(call)] = found
        self._generators = {}
        if self.listener is not None:
            self._write(self.listener)
        elif moved(self._adapter, self._before, random_state(self._adapter)):
            self.missed()

    def missed(self) -> None:
        """The model draws, and nobody listened."""
        self.unheard = self._capture.draws = True

    def heard(self, listener: Listener) -> None:
        """The same was drawn once more, and this time somebody listened."""
        self.listener, self.unheard = listener, False
        if self._capture.listens:
            self._write(listener)

    def _write(self, listener: Listener) -> None:
        for draw in listener.draws[self._told :] if self._capture.keeps_draws else ():
            self._sink.step.draw(draw)
        self._told = len(listener.draws)

    def unseen(self) -> Sequence[tuple[str, str]] | None:
        """What drew and could not be seen; None where nobody knows."""
        if not self._capture.keeps_draws or self.unheard:
            return None
        return () if self.listener is None else self.listener.unseen
