"""Runs one model step by step and hands out what each step showed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from padiff.capture.held import Held
from padiff.capture.recorder import Observer, Recorder, call_model
from padiff.capture.state import preserved, random_state, restore_random_state, spared_collector
from padiff.capture.statistics import RunningStatistics
from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, StepTrace, Value


@dataclass(frozen=True)
class Arguments:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Session:
    """One model under capture, over as many steps as asked for."""

    def __init__(self, live: LiveTree, side: str, nodes: frozenset[int]) -> None:
        self.live = live
        self.side = side
        self._nodes = nodes
        self._randomness: Any = None
        self._statistics: RunningStatistics | None = None
        self._calls: tuple[Call, ...] = ()

    @contextmanager
    def prepared(self, *, training: bool) -> Iterator[None]:
        """Everything but what an optimizer is asked to change is put back afterwards."""
        with preserved(self.live, buffers=not training):
            self._randomness = random_state(self.live.adapter)
            self._statistics = RunningStatistics(self.live)
            yield

    def run(
        self,
        step: int,
        arguments: Arguments,
        *,
        loss_fn: Callable[[Any], Any] | None,
        backward: bool,
        observer: Observer | None = None,
        keep: bool = True,
    ) -> StepTrace:
        """Forward, loss and, on request, backward of one step."""
        adapter = self.live.adapter
        backward = backward and adapter.grad_enabled()
        recorder = Recorder(self.live, gradients=backward, observer=observer, keep=keep)
        restore_random_state(adapter, self._randomness)
        with spared_collector(), recorder.attached(self._nodes):
            output = self._forward(recorder, step, arguments)
            loss = self._loss(step, output, loss_fn, wanted=backward)
            held_loss = None if loss is None else Held(adapter, loss)
            if loss is not None and backward and adapter.requires_grad(loss):
                with self._explained(step, "in backward"):
                    adapter.backward(loss)
            del output, loss
        self._randomness = random_state(adapter)
        if held_loss is not None:
            held_loss.detach()
        self._calls = tuple(recorder.calls)
        return StepTrace(
            step=step,
            calls=self._calls,
            gradients=recorder.gradients,
            loss=held_loss,
            parameter_gradients=self._parameter_gradients() if backward else {},
        )

    def optimize(self, step: int, optimizer: Any) -> None:
        """One optimizer step, gradients cleared; a callable does both itself."""
        with self._explained(step, "in the optimizer"):
            if self.live.adapter.is_optimizer(optimizer):
                self.live.adapter.step(optimizer)
            else:
                optimizer()

    def clear_gradients(self) -> None:
        for parameter in self.live.parameters().values():
            self.live.adapter.set_gradient(parameter, None)

    def weights(self) -> dict[str, Value]:
        """Every parameter as it is now, by its first path."""
        return {path: Held(self.live.adapter, tensor) for path, tensor in self.live.parameters().items()}

    def buffers(self) -> dict[str, Value]:
        """Every buffer as the last step left it, in one numeric convention; once per step."""
        assert self._statistics is not None
        return self._statistics.after_step(self._calls)

    def _parameter_gradients(self) -> dict[str, Value | None]:
        adapter = self.live.adapter
        found: dict[str, Value | None] = {}
        for path, parameter in self.live.parameters().items():
            gradient = adapter.gradient(parameter)
            found[path] = None if gradient is None else Held(adapter, gradient)
        return found

    def _forward(self, recorder: Recorder, step: int, arguments: Arguments) -> Any:
        try:
            return call_model(self.live.model, arguments.args, dict(arguments.kwargs))
        except Exception as error:
            path = recorder.raised_in()
            where = "before any layer ran" if path is None else f"in {path or 'the model itself'}"
            _note(error, f"padiff: raised by the {self._who()} {where}, forward of step {step}")
            raise

    def _loss(self, step: int, output: Any, loss_fn: Callable[[Any], Any] | None, *, wanted: bool) -> Any:
        adapter = self.live.adapter
        if loss_fn is None:
            if not wanted:
                return None
            floating = [t for _, t in adapter.flatten(output) if adapter.dtype(t).startswith(("float", "bfloat"))]
            return adapter.mean_loss(floating) if floating else None
        with self._explained(step, "in the loss function"):
            loss = loss_fn(output)
        if not adapter.is_tensor(loss):
            raise ArgumentError(
                f"loss_fns: the loss of the {self._who()} returned {type(loss).__name__}, expected one {adapter.name} "
                "tensor holding a single number",
                "return the loss itself, e.g. lambda out: criterion(out, label)",
            )
        if any(size != 1 for size in adapter.shape(loss)):
            raise ArgumentError(
                f"loss_fns: the loss of the {self._who()} returned a tensor of shape {list(adapter.shape(loss))}, "
                "expected a scalar",
                "reduce it, e.g. with .mean()",
            )
        return loss

    @contextmanager
    def _explained(self, step: int, where: str) -> Iterator[None]:
        try:
            yield
        except ArgumentError:
            raise
        except Exception as error:
            _note(error, f"padiff: raised by the {self._who()} {where}, step {step}")
            raise

    def _who(self) -> str:
        return f"{self.side} model {self.live.tree.name} ({self.live.adapter.name})"


def check_arguments(live: LiveTree, side: str, arguments: Arguments) -> None:
    """Hold what was given against the signature of forward, before anything runs."""
    try:
        signature = inspect.signature(live.adapter.forward_signature(live.model))
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments.args, **arguments.kwargs)
    except TypeError as error:
        given = [f"argument {place}" for place in range(len(arguments.args))] + [repr(k) for k in arguments.kwargs]
        raise ArgumentError(
            f"inputs: the {side} model {live.tree.name} cannot be called with {', '.join(given) or 'nothing'}: "
            f"{error}; its signature is forward{signature}",
            "name the inputs as forward's parameters are named",
        ) from None


def _note(error: BaseException, text: str) -> None:
    add_note = getattr(error, "add_note", None)  # Python 3.11 and later
    if add_note is not None:
        add_note(text)
