"""Runs one model step by step and hands out what each step showed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from padiff.capture.draws import Listener
from padiff.capture.feeding import Feeder, FeedingRecorder
from padiff.capture.held import Held
from padiff.capture.observers import Observer
from padiff.capture.one_step import Arguments, Loss, Probe, Step, Stopped, Where, note
from padiff.capture.ops import WantedOps
from padiff.capture.picks import Picks
from padiff.capture.recorder import Recorder
from padiff.capture.state import (
    SavedBuffers,
    moved,
    preserved,
    put_back,
    random_state,
    restore_random_state,
    saved_buffers,
    spared_collector,
)
from padiff.capture.statistics import RunningStatistics, Update
from padiff.errors import ArgumentError
from padiff.frameworks.compiled import compiled_parts, eagerly, sealed
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Call, StepTrace, Value


class Session:
    """One model under capture, over as many steps as asked for."""

    def __init__(self, live: LiveTree, side: str, nodes: frozenset[int]) -> None:
        self.live = live
        self.side = side
        self.nodes = nodes
        self.loss_outputs: frozenset[str] | None = None
        """Places of the outputs that the default loss goes over; None for all. Set where the models return others."""
        self.probe: Probe | None = None
        """Where the default loss is a projection: of what, and along what. Otherwise it is the mean."""
        self.ops: WantedOps | None = None
        """Which ops are recorded, besides modules, where nothing is fed."""
        self.autocast: str | None = None
        """The dtype that the last run computed in somewhere, narrower than its tensors'."""
        self.on_autocast: Callable[[str, int], None] | None = None
        """Told of it as soon as a run does, with how many of its calls have ended by then."""
        self.converts = True
        """Whether running statistics are handed out in one convention for all frameworks."""
        self.scale = 1.0
        """By what the last loss was multiplied for mixed precision."""
        self._eager = False
        self._last: tuple[int, Arguments] | None = None
        self.repeatable = False
        """Whether a step may be asked to run again."""
        self.stopped: Stopped | None = None
        """The last exception that ended a run half-way."""
        self.keeps: Callable[[Value], Value] | None = None
        """What is kept of gradients of parameters, where not all of it."""
        self.listen: Callable[[], Listener] | None = None
        """Makes who listens to the random draws of a run; None lets the model draw unheard."""
        self.listener: Listener | None = None
        self.picks: Picks | None = None
        """Who is told of what a run picks; None where nobody is."""
        self.gathers_alike = False
        """Whether both models' earlier steps have left the same gradients, but for rounding."""
        """Who listened to the last run."""
        self.deaf = False
        """Whether compiled code of the last run could draw with nobody listening."""
        self.drew = False
        """Whether the framework's generators moved in the last forward."""
        self.drew_ever = False
        """Whether they did in any run since somebody said that they had not."""
        self.spent = 0
        """Thirds of a plain run since somebody began to count: forward is one, backward two."""
        self._randomness: Any = None
        self._statistics: RunningStatistics | None = None
        self._calls: tuple[Call, ...] = ()
        self._inside: tuple[Call, ...] | None = None
        self._drawn_before: Any = None
        self._buffers_before = SavedBuffers()
        self._buffers_kept: SavedBuffers | None = None
        """What they will be when all is over."""
        self._gradients_before: list[tuple[Any, Any]] = []
        """Parameters that held a gradient before the last step, with a copy: steps may gather gradients."""
        self._under_way: Recorder | None = None

    @contextmanager
    def prepared(self, *, training: bool) -> Iterator[None]:
        """Everything but what an optimizer is asked to change is put back afterwards."""
        with preserved(self.live, buffers=not training) as kept:
            self._buffers_kept = None if training else kept
            self._randomness = random_state(self.live.adapter)
            self._statistics = RunningStatistics(self.live, converts=self.converts)
            yield

    def fill_anew(self, fill: Callable[[], None]) -> None:
        """The step that ran last has not been, and the model holds something else from the beginning."""
        self.rewind()
        fill()
        self._statistics = RunningStatistics(self.live, converts=self.converts)
        if self._buffers_kept is not None:
            self._buffers_kept.buffers = saved_buffers(self.live).buffers

    def run(
        self,
        step: int,
        arguments: Arguments,
        *,
        loss_fn: Loss,
        backward: bool,
        observer: Observer | None = None,
        feeder: Feeder | None = None,
        hooks: bool = True,
        ops: WantedOps | None = None,
        between: Callable[[Step], None] | None = None,
    ) -> StepTrace:
        """Forward, loss and, on request, backward of one step; with an observer, tensors are let go as it is told.

        A feeder replaces what calls are given and return; ``hooks`` says whether gradients are recorded, too, ``ops``
        which ops of modules' own code are. ``between`` happens when forward is over."""
        with (
            spared_collector(),
            self.begun(
                step,
                arguments,
                loss_fn=loss_fn,
                backward=backward,
                observer=observer,
                feeder=feeder,
                hooks=hooks,
                ops=ops,
            ) as running,
        ):
            running.forward()
            if between is not None:
                between(running)
            return running.backward()

    @contextmanager
    def begun(
        self,
        step: int,
        arguments: Arguments,
        *,
        loss_fn: Loss,
        backward: bool,
        observer: Observer | None = None,
        feeder: Feeder | None = None,
        hooks: bool = True,
        ops: WantedOps | None = None,
    ) -> Iterator[Step]:
        """The same in two parts, for who has something else to do in between."""
        self.stopped = None
        if self.repeatable:
            self.stand_ready()
        eager = self._eager or feeder is not None
        self._last = (step, arguments)
        gradients = backward and self.live.adapter.grad_enabled()
        listener = self.listener = None if self.listen is None else self.listen()
        if feeder is not None:
            recorder: Recorder = FeedingRecorder(
                self.live, feeder, gradients=gradients, hooks=hooks, listener=listener, ops=ops
            )
        else:
            recorder = Recorder(
                self.live, gradients=gradients, observer=observer, listener=listener, ops=ops or self.ops
            )
        recorder.on_autocast = self.on_autocast
        hidden = sealed(self.live, eager=eager)
        self.deaf = bool(hidden)
        running = Step(self, step, arguments, loss_fn, gradients, recorder, listener, hidden)
        self._under_way = recorder
        try:
            yield running
        except Exception as error:
            stopped = self.stopped_by(error)
            if stopped is not None:
                stopped.trace = running.so_far()
            raise
        finally:
            self.autocast = recorder.autocast
            self._under_way = None
            running.close()

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Inside, what is compiled runs in its eager form, and is seen into."""
        before, self._eager = self._eager, True
        try:
            with eagerly(self.live):
                yield
        finally:
            self._eager = before

    def stopped_by(self, error: Exception) -> Stopped | None:
        """What is known of an exception, where it ended a run of this model half-way."""
        return self.stopped if self.stopped is not None and self.stopped.error is error else None

    def progress(self) -> tuple[int, int] | None:
        """Calls that have ended in the run under way, and in the one before it; None where nothing runs. May be asked
        from another thread."""
        recorder = self._under_way
        return None if recorder is None else (len(recorder.calls), len(self._calls))

    def stand_ready(self) -> None:
        """The step that may run ``again`` begins here, whether or not it runs by itself first."""
        self._drawn_before, self._buffers_before = self._randomness, saved_buffers(self.live)
        self._gradients_before = self._gathered()

    def rewind(self) -> None:
        """The step that ran last has not been, and runs anew."""
        self._randomness = self._drawn_before
        put_back(self.live, self._buffers_before)
        self.clear_gradients()

    @contextmanager
    def again(self, *, anew: bool = False) -> Iterator[None]:
        """Inside, the step that ran last may run again: buffers and random numbers are as they were before it, and so
        are gradients that earlier steps have left, unless it is to run ``anew``.

        Afterwards they are as it left them."""
        with preserved(self.live, buffers=True):
            drawn, seen, drew = self._randomness, self._calls, self.drew
            # What runs inside may start from something else.
            before = self._drawn_before, self._buffers_before, self._gradients_before
            self._randomness = self._drawn_before
            put_back(self.live, self._buffers_before)
            for parameter, gradient in () if anew else self._gradients_before:
                self.live.adapter.set_gradient(parameter, self.live.adapter.clone(gradient))
            try:
                yield
            finally:
                self._randomness, self._calls, self.drew = drawn, seen, drew
                self._drawn_before, self._buffers_before, self._gradients_before = before

    def shaking(self, narrow: float) -> AbstractContextManager[None]:
        """Around runs on shaken numbers, which pick what the last plain run picked; ``narrow`` is the least step."""
        return nullcontext() if self.picks is None else self.picks.shaking(narrow)

    def resumes(self, drawn: Any, buffers: SavedBuffers) -> None:
        """The step that may run again is one that somebody else ran, from these random numbers and buffers."""
        self.repeatable = True
        self._drawn_before, self._buffers_before = drawn, buffers
        self._randomness = random_state(self.live.adapter)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """The model draws its random numbers from where it left off, whatever ran in between."""
        adapter, before = self.live.adapter, self._randomness
        restore_random_state(adapter, before)
        yield
        self._randomness = random_state(adapter)
        self.drew = moved(adapter, before, self._randomness)
        self.drew_ever = self.drew_ever or self.drew

    def draw_like(self, other: Session) -> None:
        """Begin the next step with the generators as another session's last step found them, where both have them."""
        framework = other.live.adapter.name == self.live.adapter.name
        self._randomness = (
            other._drawn_before[0] if framework else self._randomness[0],
            *other._drawn_before[1:],
        )

    def saw(self, calls: tuple[Call, ...]) -> None:
        self._calls = calls

    def optimize(self, step: int, optimizer: Any) -> None:
        """One optimizer step, gradients cleared; a callable does both itself."""
        with self.explained(step, "optimizer", "in the optimizer"):
            if self.live.adapter.is_optimizer(optimizer):
                self.live.adapter.step(optimizer)
            else:
                optimizer()

    def _gathered(self) -> list[tuple[Any, Any]]:
        adapter, found = self.live.adapter, []
        for parameter in self.live.parameters().values():
            gradient = adapter.gradient(parameter)
            if gradient is not None and adapter.to_numpy(gradient).any():
                found.append((parameter, adapter.clone(gradient)))
        return found

    def finish_step(self, optimizer: Any) -> None:
        """Gradients are cleared, unless the user steps and clears: then the next step adds to what is left."""
        if optimizer is None or self.live.adapter.is_optimizer(optimizer):
            self.clear_gradients()

    def leaves_gradients(self) -> bool:
        """Whether something is left that the next step would add to."""
        return any(value is not None and value.numpy().any() for value in self.left_gradients().values())

    def left_gradients(self) -> dict[str, Value | None]:
        """What is left for the next step to add to."""
        adapter = self.live.adapter
        found = {path: adapter.gradient(parameter) for path, parameter in self.live.parameters().items()}
        return {path: None if gradient is None else Held(adapter, gradient) for path, gradient in found.items()}

    def clear_gradients(self) -> None:
        for parameter in self.live.parameters().values():
            self.live.adapter.set_gradient(parameter, None)

    def weights(self) -> dict[str, Value]:
        """Every parameter as it is now, by its first path."""
        return {path: Held(self.live.adapter, tensor) for path, tensor in self.live.parameters().items()}

    def updates(self) -> dict[int, Update]:
        """How the last step updated running statistics, by node."""
        assert self._statistics is not None
        self._inside = self._calls_inside()
        return self._statistics.updates(self._inside)

    def buffers(self, partners: Mapping[int, Update] | None = None) -> dict[str, Value]:
        """Every buffer as the last step left it, in one numeric convention; once per step. ``partners`` says how the
        other model's layers updated theirs."""
        assert self._statistics is not None
        calls, self._inside = self._inside, None
        return self._statistics.after_step(self._calls_inside() if calls is None else calls, partners)

    def buffers_of(self, trace: StepTrace) -> dict[str, Value]:
        """Every buffer as a run that was no step of its own has left it, before they are put back: copies."""
        assert self._statistics is not None
        return self._statistics.copied(trace.calls)

    def _calls_inside(self) -> tuple[Call, ...]:
        """The last step's calls, also those inside compiled parts, as their eager form makes them."""
        if not self.repeatable or self._last is None or not compiled_parts(self.live):
            return self._calls
        try:
            with self.again(), self.eagerly():
                return self.run(*self._last, loss_fn=None, backward=False).calls
        except Exception:  # what cannot run eagerly tells no more than it did
            return self._calls

    def buffers_before(self) -> dict[str, Array]:
        """Every buffer as it was before the last step, where that may be asked to run again."""
        live, node_of = self.live, self.live.node_of()
        return {
            join(live.tree.nodes[node_of[id(module)]].path, name): live.adapter.to_numpy(kept)
            for module, name, _, kept in self._buffers_before.buffers
        }

    def who(self) -> str:
        return f"{self.side} model {self.live.tree.name} ({self.live.adapter.name})"

    @contextmanager
    def explained(self, step: int, where: Where, words: str) -> Iterator[None]:
        try:
            yield
        except ArgumentError:
            raise
        except Exception as error:
            self.stopped = Stopped(error, where)
            note(error, f"padiff: raised by the {self.who()} {words}, step {step}")
            raise
