"""One step of a model that somebody else runs: what it is given, what it returns, what it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from padiff.capture.draws import Listener
from padiff.capture.held import Held
from padiff.capture.recorder import Recorder
from padiff.capture.scaling import unscaled
from padiff.capture.state import moved, random_state
from padiff.capture.statistics import RunningStatistics
from padiff.capture.usage import UseWatch
from padiff.compare.measure import rms
from padiff.engine.drift import UNCERTAIN, uncertain_part
from padiff.engine.dumping import StepSink, plain_settings
from padiff.engine.generators import States, moved_since, states
from padiff.engine.local import Key, Reference
from padiff.engine.moments import MOMENTS, few_of
from padiff.engine.rehearsal import Rehearsal, Samples, most_held, repeatable, sampled
from padiff.engine.stored import numbered_slots
from padiff.frameworks.containers import map_leaves
from padiff.frameworks.protocol import Handle
from padiff.frameworks.settings import optimizer_moments_of, optimizer_settings_of
from padiff.records import Array, Noise, StepTrace, Value
from padiff.report.progress import stages
from padiff.store import Seen

if TYPE_CHECKING:
    from padiff.engine.capturing import Capture

T = TypeVar("T")


class Running:
    """One step under way; ``sink`` is None for one that is only counted."""

    def __init__(self, capture: Capture, number: int, sink: StepSink | None, *, first: bool) -> None:
        self._capture, self._live, self._adapter = capture, capture.live, capture.live.adapter
        self.number, self.sink, self._first = number, sink, first
        self.loss: Any = None
        self.stepped = False
        """Whether the optimizer has."""
        self._backward = False
        self._waits = False
        """Whether backward may still start from what was returned."""
        self._calls = 0
        self._handles: list[Handle] = []
        self._gradients: dict[str, Held] = {}
        self._made: dict[str, Array] = {}
        """Samples of the gradients that backward makes, where an optimizer may be given others."""
        self._rehearsal: Rehearsal | None = None
        self._rehearsed = False
        self._noise: Noise | None = None
        self._local: Mapping[Key, float] = {}
        self._fed: Noise | None = None
        self._before: dict[str, Array] = {}
        """Parameters before the optimizer's step."""
        self._uses: UseWatch | None = None
        self._using = ExitStack()
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._extra: dict[str, Any] = {}
        self._listener: Listener | None = None
        self._told = 0
        """How many draws are written."""
        self._unheard = False
        """Whether the model has drawn and nobody listened."""
        self._drawn_before: Any = None
        self._generators: States = {}
        """Those of numpy and Python, before the call that is running."""
        if sink is not None:
            self._samples = Samples(sink, kept=capture.calibrates)
            self._recorder = Recorder(
                self._live, gradients=self._adapter.grad_enabled(), observer=self._samples, ops=capture.ops
            )

    @property
    def over(self) -> bool:
        """Whether the next call of the model begins another step."""
        if not self._waits:
            return True
        return self._backward if self._capture.optimizer is None else self.stepped

    # --- calls

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._calls += 1
        given = None
        alongside = self._capture.alongside
        if alongside is not None:
            with self._capture.alone():
                given = alongside.given(self.number, self._calls - 1, args, kwargs)
            args, kwargs = given or (args, kwargs)
        if self.sink is None:
            return given
        if self._calls == 1:
            self._listener = self._who_listens()
            self._recorder = self._recording()
            self._follow_statistics()
            self._before_first(args, kwargs)
        self._before_drawing()
        changed = self._recorder.begin(args, kwargs)
        if self._calls == 1:
            self._arguments = self._seen(args, kwargs)
            if self._first:
                self._uses = UseWatch(self._live)
                self._uses.enter(self._live.model, args, kwargs)
                self._using.enter_context(self._uses.watching(but=self._live.model))
        return changed or given

    def leave(self, output: Any) -> Any:
        adapter = self._adapter
        tracked = [tensor for _, tensor in adapter.flatten(output) if adapter.requires_grad(tensor)]
        self._waits |= bool(tracked) and adapter.grad_enabled() and adapter.is_training(self._live.model)
        if self.sink is None:
            if self._capture.optimizer is None:  # what counts steps, and nothing else
                for tensor in tracked:
                    adapter.on_gradient(tensor, self._saw_backward)
            return None
        changed = self._left(output)
        if self._arguments is not None:
            self.sink.step.arguments(self._arguments)
            self._arguments = None
        self._follow(output)
        return changed

    def _left(self, output: Any) -> Any:
        """The model has returned: what watched it goes, in the order in which it came."""
        self._write_draws(self._listener)
        self._using.close()
        if self._uses is not None:
            self._uses.leave(self._live.model, output)
        return self._recorder.end(output)

    # --- random draws

    def _who_listens(self) -> Listener | None:
        """To what the model draws in this step; it costs something for every op, so nobody does where none is drawn."""
        capture = self._capture
        if not capture.listens:
            return None
        alongside = capture.alongside
        if alongside is not None and alongside.replays(self.number):
            return alongside.listener(self.number, draws=capture.draws)
        return Listener() if capture.draws else None

    def _before_drawing(self) -> None:
        capture = self._capture
        if not capture.listens:
            return
        if self._listener is None:
            self._drawn_before = random_state(self._adapter)
        if capture.alongside is not None and capture.alongside.replays(self.number):
            self._using.enter_context(capture.alongside.generators(self.number, self._calls))
        self._generators = states()

    def _recording(self) -> Recorder:
        capture, listener = self._capture, self._listener
        along = capture.alongside
        fed = None if along is None else along.recorder(self.number, self._samples, listener, capture.ops)
        if fed is not None or listener is None:
            return fed or self._recorder
        gradients = self._adapter.grad_enabled()
        return Recorder(self._live, gradients=gradients, observer=self._samples, listener=listener, ops=capture.ops)

    def _write_draws(self, listener: Listener | None) -> None:
        """What was drawn in the call that ended just now."""
        capture = self._capture
        if not capture.listens or self.sink is None:
            return
        if self._generators and (found := moved_since(self._generators)) and capture.keeps_draws:
            self._extra.setdefault("generators", {})[str(self._calls)] = found
        self._generators = {}
        if listener is None:
            if moved(self._adapter, self._drawn_before, random_state(self._adapter)):
                self._unheard = capture.draws = True
            return
        for draw in listener.draws[self._told :] if capture.keeps_draws else ():
            self.sink.step.draw(draw)
        self._told = len(listener.draws)

    def paused(self) -> AbstractContextManager[None]:
        """Inside, another's runs of the model are not recorded."""
        return nullcontext() if self.sink is None else self._recorder.paused()

    def broken(self) -> None:
        self._using.close()
        if self.sink is not None:
            self._recorder.broken()
        self.close()

    def _before_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the step starts from."""
        assert self.sink is not None
        adapter = self._adapter
        if self._capture.optimizer is None:
            # See the gradients of parameters as backward makes them: they may be cleared before the step ends.
            for path, parameter in self._live.parameters().items():
                self._keep(adapter.on_gradient(parameter, partial(self._of_parameter, path)))
        elif self._capture.calibrates:
            # What backward makes of them: until the optimizer steps, somebody may clip or unscale, or have added up.
            for path, parameter in self._live.parameters().items():
                self._keep(adapter.on_gradient(parameter, partial(self._made_of_parameter, path)))
        if self._first:
            self.sink.step.before(self._dumped(self._held(self._live.parameters())), self._held(self._live.buffers()))
        if self._capture.calibrates and repeatable((*args, *kwargs.values()), adapter.is_tensor):
            moves = adapter.grad_enabled() and self._capture.optimizer is None
            self._rehearsal = Rehearsal(
                self._live, args, kwargs, weights=moves, listener=self._listener, ops=self._capture.ops
            )
            self.sink.bordered = self._first and self._capture.holds

    def _seen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model was given, tensors by their numbers in the trace."""

        def number(leaf: Any) -> Any:
            return Seen(self._recorder.tensors.number_of(leaf)) if self._adapter.is_tensor(leaf) else leaf

        return tuple(map_leaves(arg, number) for arg in args), {k: map_leaves(v, number) for k, v in kwargs.items()}

    # --- gradients

    def _follow(self, output: Any) -> None:
        """See backward start from what the model returned."""
        for name, tensor in self._adapter.flatten(output):
            if self._adapter.requires_grad(tensor):
                self._keep(self._adapter.on_gradient(tensor, partial(self._of_output, name, self._calls)))

    def _keep(self, handle: Handle | None) -> None:
        if handle is not None:
            self._handles.append(handle)

    def _of_parameter(self, path: str, gradient: Any) -> None:
        """Of several backward passes, the sum."""
        if self._capture.busy:
            return
        self._saw_backward()
        adapter = self._adapter
        known, scale = self._gradients.get(path), self._recorder.log.scale
        if known is None and scale == 1.0:
            held = Held(adapter, adapter.clone(gradient))
        else:
            found = np.array(unscaled(Held(adapter, gradient), scale).numpy())
            total = found if known is None else np.add(known.numpy(), found)
            held = Held(adapter, adapter.to_native(total, like=self._live.model))
        self._gradients[path] = held

    def _made_of_parameter(self, path: str, gradient: Any) -> None:
        if not self._capture.busy:
            few = sampled(unscaled(Held(self._adapter, gradient), self._recorder.log.scale))
            self._made[path] = self._made[path] + few if path in self._made else few

    def _of_output(self, name: str, call: int, gradient: Any) -> None:
        if self._capture.busy:
            return
        self._saw_backward()
        if call == 1 and self._rehearsal is not None and name not in self._rehearsal.gradients:
            found = unscaled(Held(self._adapter, gradient), self._recorder.log.scale)
            self._rehearsal.gradients[name] = np.array(found.numpy())

    def scaled(self, factor: float) -> None:
        """The loss was multiplied for mixed precision: gradients are seen as they would be without."""
        if self.sink is not None and not self._capture.busy:
            self._recorder.log.scale = factor

    def _saw_backward(self, _: Any = None) -> None:
        if not self._capture.busy:
            self._backward = True
            self._capture.trained = True

    # --- the end

    def before_update(self) -> None:
        """The optimizer is about to step: gradients are what it will see."""
        if self.sink is None or self.stepped:
            return
        self._recorder.turn_away()
        adapter = self._adapter
        self._take_gradients()
        with self._lifted():
            self._rehearse()
        if self._noise is not None:
            parameters = self._live.parameters()
            self._before = {p: np.array(adapter.to_numpy(parameters[p])) for p in self._gradients}

    def _take_gradients(self) -> None:
        """What the parameters hold now."""
        adapter = self._adapter
        for path, parameter in self._live.parameters().items():
            gradient = adapter.gradient(parameter)
            if gradient is not None:
                self._gradients[path] = Held(adapter, adapter.clone(gradient))
                self._backward = True

    @contextmanager
    def _lifted(self) -> Iterator[None]:
        """Inside, the parameters have no gradients: they are held here already, and need not be a second time."""
        adapter, parameters = self._adapter, self._live.parameters()
        for path in self._gradients:
            adapter.set_gradient(parameters[path], None)
        try:
            yield
        finally:
            for path, held in self._gradients.items():
                adapter.set_gradient(parameters[path], adapter.clone(held.live()))

    def finish(self) -> None:
        """Write what the step left."""
        sink, capture = self.sink, self._capture
        if sink is None:
            return
        self._recorder.turn_away()
        unstepped = capture.optimizer is not None and not self.stepped and self._backward
        if unstepped:  # skipped by a scaler, or the block ends before
            self._extra["optimizer_stepped"] = False
            self._take_gradients()
        with self._lifted() if unstepped else nullcontext():
            self._rehearse()
        parameters = self._live.parameters()
        known = self._backward and bool(self._gradients or not unstepped)  # cleared before anybody looked
        gradients = {path: self._gradients.get(path) for path in parameters} if known else {}
        calls = self._recorder.seen()
        if self.loss is not None:
            sink.step.loss(self.loss)
        noise = self._with_drift()
        weights = None
        if capture.trained:
            weights, capture.trained = self._dumped(self._held(parameters)), False
        if capture.optimizer is not None:
            self._extra["optimizer"] = plain_settings(optimizer_settings_of(self._adapter, capture.optimizer))
            self._write_moments(sink, capture.optimizer)
        unseen: Sequence[tuple[str, str]] | None = None
        if capture.keeps_draws and not self._unheard:
            unseen = () if self._listener is None else self._listener.unseen
        assert capture.statistics is not None
        buffers = self._dumped(capture.statistics.after_step(calls))
        if self._recorder.autocast is not None:
            self._extra["autocast"] = self._recorder.autocast
        if capture.statistics.unseen:
            self._extra["statistics_unseen"] = True
        sink.end(
            StepTrace(self.number, calls, {}, None, self._dumped(gradients), self._backward),
            weights=weights,
            buffers=buffers,
            noise=noise,
            local=self._local,
            fed=self._fed,
            usage=None if self._uses is None else self._uses.usage(),
            unseen=unseen,
            extra={**self._extra, **self._from_base(sink), "calls_of_the_model": self._calls},
        )

    def _write_moments(self, sink: StepSink, optimizer: Any) -> None:
        """What the optimizer remembers for its next steps."""
        if not self.stepped:
            return
        parameters = self._dumped(self._live.parameters())
        sizes = {path: math.prod(self._adapter.shape(tensor)) for path, tensor in parameters.items()}
        moments = optimizer_moments_of(self._adapter, optimizer, self._live.parameters())
        kept = few_of(sizes, sum(1 for name in MOMENTS if moments.get(name)))
        found = {
            name: self._held({path: tensor for path, tensor in moments[name].items() if path in kept})
            for name in MOMENTS
            if moments.get(name)
        }
        if any(found.values()):
            sink.step.moments(found)

    def _from_base(self, sink: StepSink) -> dict[str, Any]:
        alongside = self._capture.alongside
        return {} if alongside is None else alongside.ending(self.number, sink, self._listener)

    def _rehearse(self) -> None:
        """Run the step again, shaken, while its weights are at hand."""
        rehearsal = self._rehearsal
        if rehearsal is None or self._rehearsed or self.sink is None:
            return
        self._rehearsed = True
        with stages(self._capture.progress) as shown:
            shown.now(f"calibrating step {self.number}")
            self._calibrate(rehearsal)

    def _calibrate(self, rehearsal: Rehearsal) -> None:
        assert self.sink is not None
        if self._unheard and self._calls == 1:
            heard = rehearsal.listened(self.number)
            if heard is not None:
                self._listener, self._unheard = heard, False
                self._write_draws(heard)
        rehearsal.find_start(self.number)
        backward, drift = bool(rehearsal.gradients), self._capture.drift
        if self._calls > 1:
            rehearsal.alone(self.number, self._samples, backward=backward)
        else:
            kept = {path: sampled(held) for path, held in self._gradients.items()}
            self._samples.parameters.update(kept | self._made)
        self._noise = rehearsal.noise(self.number, self._samples, drift, backward=backward)
        if self._noise is None:
            self._extra["repeats"] = False
            if self._listener is None:  # it may draw from a generator of its own
                self._unheard = self._capture.draws = True
            return
        self._noise = self._as_stepped(self._noise)
        if self._first and self._capture.holds and self._calls == 1 and self._samples.nbytes <= most_held():
            found = rehearsal.reference(self.number, drift, backward=backward)
            if found is not None:
                self._write_reference(*found)

    def _write_reference(self, reference: Reference, fed: Noise | None) -> None:
        """Gradients at the borders of calls, and the numbers they go by, which are not those of the trace."""
        assert self.sink is not None
        numbers: list[list[int]] = []
        same: dict[int, int] = {}
        if len(reference.trace.calls) != len(self._recorder.calls):
            return
        for mine, other in zip(self._recorder.calls, reference.trace.calls, strict=True):
            slots, others = numbered_slots(mine), numbered_slots(other)
            if mine.node != other.node or len(slots) != len(others):
                return
            numbers.append([slot.tensor for slot in others])
            same.update({b.tensor: a.tensor for a, b in zip(slots, others, strict=True)})
        self._local, self._fed = reference.noise, None if fed is None else self._as_stepped(fed)
        self._extra["reference"] = numbers
        self.sink.step.borders(reference.contributions, reference.arrivals, same)

    def _as_stepped(self, noise: Noise) -> Noise:
        """The same for the gradients that the optimizer is given: smaller ones where somebody clips, or unscales."""
        found = dict(noise.parameters)
        for path, made in self._made.items():
            size = rms(made)
            if path in found and path in self._gradients and size > 0:
                found[path] *= min(1.0, rms(sampled(self._gradients[path])) / size)
        return replace(noise, parameters=found)

    def _with_drift(self) -> Noise | None:
        """The prediction, with what the step of an optimizer makes of it."""
        noise, capture, rehearsal = self._noise, self._capture, self._rehearsal
        if noise is None or rehearsal is None or not self._gradients:
            return noise
        weights: dict[str, float] = {}
        for path, parameter in self._live.parameters().items():
            before = self._before.get(path, rehearsal.weight_before(path))
            if before is None or path not in self._gradients or path not in noise.parameters:
                continue
            moved = self._adapter.to_numpy(parameter).astype(np.float64) - before
            gradient, unsure = self._gradients[path].numpy(), self._calls * noise.parameters[path]
            earlier = capture.drift.get(path, 0.0)
            weights[path] = uncertain_part(moved, gradient, UNCERTAIN * unsure) + earlier
            steps = self.number - capture.steps[-1] if capture.steps else 1
            capture.drift[path] = steps * uncertain_part(moved, gradient, unsure) + earlier
        return replace(noise, weights=weights)

    def _follow_statistics(self) -> None:
        """Running statistics can be told in one convention as long as every update is seen."""
        capture = self._capture
        if capture.statistics is None or capture.steps[-1:] != [self.number - 1]:
            capture.statistics = RunningStatistics(self._live)
            self._extra["statistics_from_here"] = True

    def _held(self, tensors: Mapping[str, Any]) -> dict[str, Value]:
        return {path: Held(self._adapter, tensor) for path, tensor in tensors.items()}

    def _dumped(self, values: Mapping[str, T]) -> dict[str, T]:
        """Those of the modules that are dumped."""
        only = self._capture.only
        if only is None:
            return dict(values)
        owners = {node.path for node in self._live.tree.nodes if node.index in only}
        return {path: value for path, value in values.items() if path.rpartition(".")[0] in owners}

    def close(self) -> None:
        self._using.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._gradients.clear()
        if self.sink is not None:
            self._recorder.close()
