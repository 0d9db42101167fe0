"""What both models do in a comparison, into dumps, while they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from padiff.capture.observers import Observer
from padiff.capture.session import Session
from padiff.engine.captured.dumping import StepSink, TraceWriter
from padiff.records import Array, Call, StepTrace, Value


class Keeper:
    """One model's steps on their way into a dump; without a writer, nowhere."""

    def __init__(self, writer: TraceWriter | None = None) -> None:
        self._writer = writer
        self._sink: StepSink | None = None
        self._trace: StepTrace | None = None

    @property
    def writes(self) -> bool:
        """Whether anything is kept at all."""
        return self._writer is not None

    def beside(self, step: int, observer: Observer) -> Observer:
        """An observer that is told of everything before another one is."""
        if self._writer is None:
            return observer
        self._sink = self._writer.begin(step)
        return _Both(self._sink, observer)

    def ran(self, trace: StepTrace) -> None:
        """The model has run; what it did was observed, or is all in the trace."""
        if self._writer is None:
            return
        if self._sink is None:
            self._sink = self._writer.begin(trace.step)
            for call in trace.calls:
                self._sink.on_call(call)
            for number, gradient in trace.gradients.items():
                self._sink.on_gradient(number, gradient)
        if trace.parameter_gradients:
            self._sink.step.parameter_gradients(trace.parameter_gradients)  # an optimizer will clear them
        self._trace = replace(trace, parameter_gradients={})

    def end(self, session: Session, buffers: Mapping[str, Value] | None = None) -> None:
        """The step is over: what it left is written, and it is done. Buffers are read unless they are given."""
        if self._sink is not None and self._trace is not None:
            left = session.buffers() if buffers is None else buffers
            self._sink.end(self._trace, weights=session.weights(), buffers=left)
        self._sink = self._trace = None


@dataclass(frozen=True)
class Keeping:
    """Both models' keepers."""

    base: Keeper
    raw: Keeper


class _Both:
    def __init__(self, first: Observer, second: Observer) -> None:
        self._first, self._second = first, second

    def on_call(self, call: Call) -> None:
        self._first.on_call(call)
        self._second.on_call(call)

    def on_gradient(self, tensor: int, gradient: Value) -> Array | None:
        self._first.on_gradient(tensor, gradient)
        return self._second.on_gradient(tensor, gradient)

    def on_tag(self, tag: Call) -> None:
        self._first.on_tag(tag)
        self._second.on_tag(tag)

    def before_write(self) -> None:
        self._first.before_write()
        self._second.before_write()
