"""One step of a model that somebody else runs: what it is given, what it returns, what it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from padiff.capture.held import Held
from padiff.capture.recorder import Recorder
from padiff.capture.scaling import unscaled
from padiff.capture.statistics import RunningStatistics
from padiff.capture.usage import UseWatch
from padiff.engine.captured.captured_draws import CapturedDraws
from padiff.engine.captured.captured_noise import CapturedNoise
from padiff.engine.captured.dumping import StepSink, plain_settings
from padiff.engine.explaining.moments import MOMENTS, few_of
from padiff.frameworks.containers import map_leaves
from padiff.frameworks.protocol import Handle
from padiff.frameworks.settings import optimizer_moments_of, optimizer_settings_of
from padiff.records import StepTrace, Value
from padiff.store import Seen

if TYPE_CHECKING:
    from padiff.engine.captured.capturing import Capture

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
        self._uses: UseWatch | None = None
        self._using = ExitStack()
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._extra: dict[str, Any] = {}
        if sink is not None:
            self._draws = CapturedDraws(capture, number, sink, self._extra)
            self._noise = CapturedNoise(capture, number, sink, self._extra, first=first)
            self._recorder = Recorder(
                self._live, gradients=self._adapter.grad_enabled(), observer=self._noise.samples, ops=capture.ops
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
            self._draws.begin()
            self._recorder = self._recording()
            self._follow_statistics()
            self._before_first(args, kwargs)
        self._draws.before_call(self._calls, self._using)
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
        self._draws.after_call(self._calls)
        self._using.close()
        if self._uses is not None:
            self._uses.leave(self._live.model, output)
        return self._recorder.end(output)

    def _recording(self) -> Recorder:
        capture, listener, samples = self._capture, self._draws.listener, self._noise.samples
        along = capture.alongside
        fed = None if along is None else along.recorder(self.number, samples, listener, capture.ops)
        if fed is not None or listener is None:
            return fed or self._recorder
        gradients = self._adapter.grad_enabled()
        return Recorder(self._live, gradients=gradients, observer=samples, listener=listener, ops=capture.ops)

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
        self._noise.begin(args, kwargs, self._draws.listener)

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
            self._noise.made(path, unscaled(Held(self._adapter, gradient), self._recorder.log.scale))

    def _of_output(self, name: str, call: int, gradient: Any) -> None:
        if self._capture.busy:
            return
        self._saw_backward()
        if call == 1:
            self._noise.came_back(name, unscaled(Held(self._adapter, gradient), self._recorder.log.scale))

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
        self._take_gradients()
        with self._lifted():
            self._rehearse()
        self._noise.before_update(self._gradients)

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
        noise = self._noise.with_drift(self._gradients, self._calls)
        weights = None
        if capture.trained:
            weights, capture.trained = self._dumped(self._held(parameters)), False
        if capture.optimizer is not None:
            self._extra["optimizer"] = plain_settings(optimizer_settings_of(self._adapter, capture.optimizer))
            self._write_moments(sink, capture.optimizer)
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
            local=self._noise.local,
            fed=self._noise.fed,
            usage=None if self._uses is None else self._uses.usage(),
            unseen=self._draws.unseen(),
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
        return {} if alongside is None else alongside.ending(self.number, sink, self._draws.listener)

    def _rehearse(self) -> None:
        self._noise.rehearse(self._gradients, self._calls, self._recorder, self._draws)

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
