"""One step of one model while it is under way: forward, loss, backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from padiff.capture.draws import Listener
from padiff.capture.held import Held
from padiff.capture.lines import call_model
from padiff.capture.recorder import Recorder
from padiff.capture.scaling import Unscaled, unscaled
from padiff.capture.state import spared_collector
from padiff.errors import ArgumentError
from padiff.frameworks import Adapter
from padiff.frameworks.draws import watching_draws
from padiff.frameworks.picks import watching_picks
from padiff.frameworks.tree import LiveTree
from padiff.records import Direction, StepTrace, Value

if TYPE_CHECKING:
    from padiff.capture.session import Session

Loss = Callable[[Any], Any] | None
Probed = tuple[Any, Direction]
"""An output, and the direction along which it is followed back."""
Probe = Callable[[Sequence[tuple[str, Any]]], Sequence[Probed]]
"""Says of the floating outputs of a model, with their places, which are followed back, and along which directions."""


@dataclass(frozen=True)
class Arguments:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Where = Literal["forward", "loss", "backward", "optimizer"]


@dataclass
class Stopped:
    """An exception of the model's own code, or of what the user gave for it, and what was seen up to then."""

    error: Exception
    where: Where
    path: str | None = None
    """The innermost module it left; None where no module was running."""
    trace: StepTrace | None = None


class Step:
    """One step of one model, while it is under way."""

    def __init__(
        self,
        session: Session,
        step: int,
        arguments: Arguments,
        loss_fn: Loss,
        backward: bool,
        recorder: Recorder,
        listener: Listener | None,
        sealed: frozenset[int],
    ) -> None:
        self._listener = listener
        self._session, self._step, self._arguments = session, step, arguments
        self._loss_fn, self._backward = loss_fn, backward
        self.recorder, self._sealed = recorder, sealed
        self._loss: Any = None
        self._trace: StepTrace | None = None

    def forward(self) -> StepTrace:
        """Run the model and its loss; gradients are added to what is returned as backward makes them."""
        session, adapter = self._session, self._session.live.adapter
        nodes, compiled = session.nodes - self._sealed, bool(self._sealed)
        session.spent += 1
        with (
            spared_collector(),
            session.drawing(),
            self._kept_for_backward(),
            watching_draws(adapter, None if compiled else self._listener),
            watching_picks(adapter, None if compiled or session.picks is None else session.picks.of(session.side)),
            self.recorder.attached(nodes, compiled=compiled),
        ):
            output = self._call()
            self._loss = self._loss_of(output)
        self._trace = self.so_far()
        session.autocast = self.recorder.autocast
        session.saw(self._trace.calls)
        return self._trace

    def _kept_for_backward(self) -> AbstractContextManager[None]:
        keeping = getattr(self._session.live.adapter, "kept_for_backward", None)
        return nullcontext() if keeping is None or not self._backward else keeping()

    def so_far(self) -> StepTrace:
        """What was seen up to now."""
        adapter, recorder = self._session.live.adapter, self.recorder
        held = None if self._loss is None else unscaled(Held(adapter, self._loss), recorder.log.scale)
        draws = () if self._listener is None else tuple(self._listener.draws)
        return self._trace or StepTrace(
            self._step, tuple(recorder.calls), recorder.gradients, held, {}, draws=draws, copies=recorder.copies
        )

    def follow_also(self, probed: Sequence[Probed]) -> None:
        """Between forward and backward: what is followed back besides what the model returned."""
        assert self._trace is not None and self._loss is not None
        adapter = self._session.live.adapter
        self._loss = self._loss + _projected(adapter, probed)
        self._trace = replace(self._trace, loss=unscaled(Held(adapter, self._loss), self.recorder.log.scale))

    def backward(self) -> StepTrace:
        """Run backward where it was asked for, and read the parameters' gradients."""
        assert self._trace is not None
        adapter = self._session.live.adapter
        loss, self._loss = self._loss, None
        if not self._backward:
            return self._trace
        ran = loss is not None and adapter.requires_grad(loss)
        if ran:
            self._session.spent += 2
            with (
                spared_collector(),
                self._session.explained(self._step, "backward", "in backward"),
                self.recorder.taking_gradients(self._session.nodes - self._sealed),
                in_backward(self._listener) as listener,
                watching_draws(adapter, None if self._sealed else listener),
            ):
                adapter.backward(loss)
        found: dict[str, Value | None] = {}
        for path, parameter in self._session.live.parameters().items():
            gradient = adapter.gradient(parameter)
            if gradient is None:
                found[path] = None
                continue
            held, keeps = unscaled(Held(adapter, gradient), self.recorder.log.scale), self._session.keeps
            found[path] = held if keeps is None else keeps(held)
        return replace(self._trace, calls=self.recorder.seen(), parameter_gradients=found, ran_backward=ran)

    def close(self) -> None:
        self._loss = None
        self.recorder.close()
        if self._trace is not None and isinstance(self._trace.loss, (Held, Unscaled)):
            self._trace.loss.detach()

    def _call(self) -> Any:
        args, kwargs = self._arguments.args, dict(self._arguments.kwargs)
        try:
            if 0 in self._sealed:
                return self.recorder.call_by_hand(args, kwargs)
            return call_model(self._session.live.model, args, kwargs)
        except Exception as error:
            path = self.recorder.raised_in()
            self._session.stopped = Stopped(error, "forward", path)
            where = "before any layer ran" if path is None else f"in {path or 'the model itself'}"
            note(error, f"padiff: raised by the {self._session.who()} {where}, forward of step {self._step}")
            raise

    def _loss_of(self, output: Any) -> Any:
        adapter, who = self._session.live.adapter, self._session.who()
        if self._loss_fn is None:
            if not self._backward:
                return None
            wanted = self._session.loss_outputs
            probe = self._session.probe
            named = floating(adapter, output) if probe is None else floating(adapter, output, _PROBED, once=False)
            outputs = [(name, tensor) for name, tensor in named if wanted is None or name in wanted]
            if probe is not None:
                return _projected(adapter, probe(outputs))
            return adapter.mean_loss([tensor for _, tensor in outputs]) if outputs else None
        with self._session.explained(self._step, "loss", "in the loss function"), self._watching_scales():
            loss = self._loss_fn(output)
        if not adapter.is_tensor(loss):
            raise ArgumentError(
                f"loss_fns: the loss of the {who} returned {type(loss).__name__}, expected one {adapter.name} "
                "tensor holding a single number",
                "return the loss itself, e.g. lambda out: criterion(out, label)",
            )
        if any(size != 1 for size in adapter.shape(loss)):
            raise ArgumentError(
                f"loss_fns: the loss of the {who} returned a tensor of shape {list(adapter.shape(loss))}, "
                "expected a scalar",
                "reduce it, e.g. with .mean()",
            )
        return loss

    @contextmanager
    def _watching_scales(self) -> Iterator[None]:
        """A gradient scaler may multiply the loss: its factor is taken out of everything that is compared."""
        watch = getattr(self._session.live.adapter, "watch_scaling", None)
        self._session.scale = 1.0
        if watch is None:
            yield
            return

        def scaled(factor: float) -> None:
            self._session.scale = self.recorder.log.scale = factor

        with watch(scaled):
            yield


def in_backward(listener: Listener | None) -> AbstractContextManager[Listener | None]:
    """Who listens to the draws of a checkpoint that runs again."""
    return nullcontext() if listener is None else listener.in_backward()


_FLOATING = ("float", "bfloat")
_PROBED = (*_FLOATING, "complex")


def floating(
    adapter: Adapter, output: Any, kinds: tuple[str, ...] = _FLOATING, *, once: bool = True
) -> list[tuple[str, Any]]:
    """The floating tensors that a model returned with their places; each once, or as often as it is returned."""
    found: dict[tuple[int, str], tuple[str, Any]] = {}
    for name, tensor in adapter.flatten(output):
        if adapter.dtype(tensor).startswith(kinds):
            found.setdefault((id(tensor), "" if once else name), (name, tensor))
    return list(found.values())


def _projected(adapter: Adapter, probed: Sequence[Probed]) -> Any:
    own: Callable[[Sequence[Probed]], Any] = adapter.projected_loss  # type: ignore[attr-defined]
    return own(probed) if probed else None


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


def note(error: BaseException, text: str) -> None:
    """Have Python print a line below the traceback."""
    add_note = getattr(error, "add_note", None)  # Python 3.11 and later
    if add_note is not None:
        add_note(text)
