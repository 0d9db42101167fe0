"""One step of a model that its user runs: hooks go on around each call, what they see is held until it is dumped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from padiff.capture.draws import Listener
from padiff.capture.held import Held, HostValue
from padiff.capture.lines import call_model
from padiff.capture.recorder import Recorder
from padiff.capture.state import moved, random_state
from padiff.capture.statistics import RunningStatistics
from padiff.capture.usage import UseWatch
from padiff.engine.randomness import looks_random
from padiff.frameworks.compiled import sealed
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, StepTrace, Usage, Value


class Recording:
    """What a model does from one dump to the next: any number of forwards, and backwards through them."""

    def __init__(
        self, live: LiveTree, nodes: frozenset[int], step: int, statistics: RunningStatistics | None = None
    ) -> None:
        hidden = sealed(live, eager=False)
        self.live, self.nodes, self.step = live, nodes, step
        self._hooked = nodes - (hidden - {0})
        self._compiled = bool(hidden)
        """Whether compiled code hides some of the model."""
        self.afresh = statistics is None
        """Whether running statistics were updated unseen before this step."""
        self._listener = Listener() if looks_random(live) and not hidden else None
        self._unheard = False
        """Whether the model has drawn and nobody listened."""
        self._recorder = Recorder(live, gradients=True, listener=self._listener)
        self.statistics = statistics or RunningStatistics(live)
        self._uses: UseWatch | None = None
        self._loss: Array | None = None
        self._gradients: dict[str, Value | None] | None = None
        """As backward left them: an optimizer clears them before the step is dumped."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model with its hooks on."""
        first, adapter = len(self._recorder.calls), self.live.adapter
        before = random_state(adapter) if self._listener is None else None
        try:
            with ExitStack() as stack:
                if self._uses is None:
                    self._uses = UseWatch(self.live)
                    stack.enter_context(self._uses.watching())
                stack.enter_context(watching_draws(adapter, self._listener))
                stack.enter_context(self._recorder.attached(self._hooked, compiled=self._compiled))
                return call_model(self.live.model, args, kwargs)
        except Exception as error:
            self._explain(error)
            raise
        finally:
            if before is not None and moved(adapter, before, random_state(adapter)):
                self._unheard = True
            for call in self._recorder.calls[first:]:
                if call.parent < 0:
                    self._recorder.part_with(call)

    def backward(self, loss: Any) -> None:
        """Run backward, and keep the gradients it makes."""
        adapter = self.live.adapter
        value = np.array(adapter.to_numpy(loss))
        self._loss = value if self._loss is None else self._loss + value
        with self._recorder.taking_gradients(self._hooked):
            adapter.backward(loss)
        self._gradients = {}
        for path, parameter in self.live.parameters().items():
            gradient = adapter.gradient(parameter)
            self._gradients[path] = None if gradient is None else Held(adapter, adapter.clone(gradient))

    def trace(self) -> StepTrace:
        """What was seen so far; of the gradients of parameters those that backward left, if any was run."""
        return StepTrace(
            self.step,
            tuple(self._recorder.calls),
            dict(self._recorder.gradients),
            None if self._loss is None else HostValue(self._loss),
            self.of_layers(self._gradients or {}),
            ran_backward=self._gradients is not None,
            draws=() if self._listener is None else tuple(self._listener.draws),
        )

    def unseen(self) -> list[tuple[str, str]] | None:
        """Ops that drew where nobody could see it; None where nobody listened, and the model drew."""
        if self._unheard:
            return None
        return [] if self._listener is None else self._listener.unseen

    def usage(self) -> Usage | None:
        """In which order the model used its tensors; None where it was not run."""
        return None if self._uses is None else self._uses.usage()

    def weights(self) -> dict[str, Value]:
        """The parameters as they are now."""
        adapter = self.live.adapter
        return self.of_layers({path: Held(adapter, tensor) for path, tensor in self.live.parameters().items()})

    def gradients(self) -> dict[str, Value | None]:
        """Gradients of the parameters as backward left them; where it was not run here, as they are now."""
        if self._gradients is not None:
            return self.of_layers(self._gradients)
        found: dict[str, Value | None] = {}
        for path, parameter in self.live.parameters().items():
            gradient = self.live.adapter.gradient(parameter)
            found[path] = None if gradient is None else Held(self.live.adapter, gradient)
        return self.of_layers(found)

    def buffers(self) -> dict[str, Value]:
        """The buffers as they are now, in one numeric convention."""
        return self.of_layers(self.statistics.after_step(self._recorder.calls))

    def of_layers(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those that a recorded layer holds, be it under another name."""
        owners = {self.live.tree.nodes[index].path for index in self.nodes}
        tensors = self.live.tensors()
        held = {id(tensor) for path, tensor in tensors.items() if path.rpartition(".")[0] in owners}
        return {path: value for path, value in values.items() if id(tensors[path]) in held}

    def close(self) -> None:
        """Let go of the run."""
        self._recorder.close()

    def _explain(self, error: BaseException) -> None:
        path = self._recorder.raised_in()
        where = "before any layer ran" if path is None else f"in {path or 'the model itself'}"
        add_note = getattr(error, "add_note", None)  # Python 3.11 and later
        if add_note is not None:
            live = self.live
            add_note(f"padiff: raised by {live.tree.name} ({live.adapter.name}) {where}, forward of step {self.step}")
