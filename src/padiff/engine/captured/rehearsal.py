"""A step that somebody else ran, run again: how far rounding moves it, and the gradients at the borders of its calls.

Nothing is left behind: weights, buffers, gradients and random numbers are afterwards as they were before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from padiff.capture.draws import Listener
from padiff.capture.jitter import Jitter, spacing_of
from padiff.capture.observers import Nobody
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.perturb import perturbed, perturbed_arguments
from padiff.capture.replay import Replay, itself
from padiff.capture.session import Session
from padiff.capture.state import random_state, saved_buffers
from padiff.compare.measure import rms, rms_gap
from padiff.engine.captured.samples import Samples, few_of, sampled, sampled_gap
from padiff.engine.fed.local import Reference
from padiff.engine.fed.localise import reference_of, shaken_reference
from padiff.engine.free.calibrate import UNBELIEVABLE
from padiff.engine.free.drift import relative_steps
from padiff.engine.job import Job
from padiff.frameworks import Adapter
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Noise, Tolerance

ALWAYS_HELD = 4 << 30
"""Bytes of a step that may be held in memory to see the borders of its calls; more where a quarter of what is free
allows."""
MOST_PROBES = 4
CLOSE = 1e-3
"""How near to what arrived at the outputs backward must lead when it is run again, relative."""
MOST_LOST = 0.05
"""Share of tensors that may have another shape or dtype when the step is run again."""
DIFFERENCES = 4.0
"""How much larger a loss's gradient is relative to its inputs, where it takes differences of them."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def most_held() -> int:
    """How many bytes of a step may be held in memory to see the borders of its calls."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not everywhere
        return ALWAYS_HELD
    return max(ALWAYS_HELD, free // 4)


class Rehearsal:
    """The first call of the model in a step, as it began."""

    def __init__(
        self,
        live: LiveTree,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        weights: bool,
        listener: Listener | None = None,
        ops: WantedOps | None = None,
    ) -> None:
        adapter = live.adapter
        self._live, self._listener = live, listener
        self._ops = ops
        self._replays = isinstance(listener, Replay)
        """Whether the model is given the draws that were heard: not where its generators give the same again."""
        self._arguments = self._copies(args, kwargs)
        self._followed = adapter.grad_enabled()
        self._drawn = random_state(adapter)
        self._buffers = saved_buffers(live)
        self._weights: dict[str, Any] = {}
        """Copies of the parameters, where they may move on before the step is run again."""
        if weights:
            self._weights = {path: adapter.clone(tensor) for path, tensor in live.parameters().items()}
        self._left: dict[str, Array] = {}
        """Buffers as this call leaves them, where others followed."""
        self.gradients: dict[str, Array] = {}
        """Gradients of what the model returned, by place: backward starts from these."""

    def weight_before(self, path: str) -> Array | None:
        """A parameter as the step found it, where that was kept."""
        return self._live.adapter.to_numpy(self._weights[path]) if path in self._weights else None

    def _copied(self, leaf: Any) -> Any:
        adapter = self._live.adapter
        if not adapter.is_tensor(leaf):
            return leaf
        return adapter.to_native(leaf, requires_grad=adapter.requires_grad(leaf))

    def arguments(self) -> Arguments:
        """Copies of what the model was given; it may write into them."""
        return self._copies(self._arguments.args, self._arguments.kwargs)

    def _copies(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        copied = once_each(self._copied)
        return Arguments(
            tuple(map_leaves(arg, copied) for arg in args),
            {name: map_leaves(arg, copied) for name, arg in kwargs.items()},
        )

    def find_start(self, step: int) -> None:
        """What backward began with, from what arrived at the outputs: one that the model goes on to use gets more than
        the loss sends. Taking off what others pass on leads there, in as many runs as outputs follow from each other.
        Where it does not, backward is not run again."""
        arrived = dict(self.gradients)
        if len(arrived) < 2:
            return
        with self._prepared(step) as session:
            for _ in range(min(len(arrived), MOST_PROBES) + 1):
                try:
                    found = self._probe(session, step)
                except Exception:  # the model's own
                    break
                over = {name: found[name] - arrived[name] if name in found else -arrived[name] for name in arrived}
                if all(rms(over[name]) <= CLOSE * rms(arrived[name]) for name in arrived):
                    return
                for name, array in over.items():
                    rest = self.gradients[name] - array
                    self.gradients[name] = rest if rms(rest) > CLOSE * rms(arrived[name]) else np.zeros_like(rest)
        self.gradients = {}

    def _probe(self, session: Session, step: int) -> dict[str, Array]:
        """What arrives at the outputs when backward starts from what is believed now."""
        adapter, found = self._live.adapter, dict[str, Array]()
        start = self._loss(True)
        assert start is not None

        def loss(output: Any) -> Any:
            for name, tensor in adapter.flatten(output):
                if name in self.gradients:
                    adapter.on_gradient(tensor, partial(_keep, adapter, found, name))
            return start(output)

        with session.again():
            session.run(step, self.arguments(), loss_fn=loss, backward=True, observer=Nobody())
        return found

    def listened(self, step: int) -> Listener | None:
        """What the model draws in this step, which it drew unheard; None where it refuses to run again."""
        with self._prepared(step) as session:
            session.listen = Listener
            try:
                with session.again():
                    session.run(step, self.arguments(), loss_fn=None, backward=False, observer=Nobody())
            except Exception:  # the model's own
                return None
            self._listener = session.listener
        return self._listener

    def alone(self, step: int, seen: Samples, *, backward: bool) -> None:
        """What this call leaves by itself, where the step goes on after it or began with gradients of an earlier one:
        a call that is run again cannot be held against a sum over several."""
        live, seen.parameters = self._live, {}
        with self._prepared(step) as session:
            try:
                with session.again():
                    loss = self._loss(backward)
                    ran = session.run(step, self.arguments(), loss_fn=loss, backward=backward, observer=Nobody())
                    seen.parameters = {p: sampled(v) for p, v in ran.parameter_gradients.items() if v is not None}
                    self._left = {p: np.array(live.adapter.to_numpy(b)) for p, b in live.buffers().items()}
            except Exception:  # the model's own: that it does not run again is told by who shakes it
                return

    def noise(self, step: int, seen: Samples, drift: Mapping[str, float], *, backward: bool) -> Noise | None:
        """How far rounding moves everything in this step; None where the model refuses to run again, or does something
        else then."""
        with self._prepared(step) as session:
            try:
                found = self._noise(session, step, seen, drift, backward)
                if self._repeats(session, step, seen, found):
                    return found
            except Exception:  # the model's own: it ran through on what it was really given
                return None
        if self._replays or self._listener is None or not self._listener.draws:
            return None
        self._replays = True  # it may have a generator of its own
        return self.noise(step, seen, drift, backward=backward)

    def _repeats(self, session: Session, step: int, seen: Samples, found: Noise) -> bool:
        """Whether the step, run again, is the step that was seen: not under another precision than the user chose, and
        with no memory of having run. The model is asked only where shaking moves an output further than rounding."""
        lost = sum(not math.isfinite(gap) for gap in found.tensors.values())
        if lost > MOST_LOST * len(seen.tensors):
            return False
        moved = self._unbelievable(seen, found.tensors)
        if not moved:
            return True
        meter = Samples(base=seen)
        with session.again():
            session.run(step, self.arguments(), loss_fn=None, backward=False, observer=meter)
        return not self._unbelievable(seen, {tensor: meter.gaps.get(tensor, math.inf) for tensor in moved})

    def _unbelievable(self, seen: Samples, gaps: Mapping[int, float]) -> list[int]:
        """Outputs of the model that moved further than rounding would move them."""
        found: list[int] = []
        for slot in () if seen.root is None else seen.root.outputs:
            sample = seen.tensors.get(slot.tensor)
            if sample is None or slot.tensor not in gaps or not (spacing := spacing_of(sample.dtype)):
                continue
            if gaps[slot.tensor] > UNBELIEVABLE * spacing * rms(sample):
                found.append(slot.tensor)
        return found

    def _noise(self, session: Session, step: int, seen: Samples, drift: Mapping[str, float], backward: bool) -> Noise:
        live, adapter = self._live, self._live.adapter
        jitter, meter = Jitter(), Samples(base=seen)
        now = self._left or {path: np.array(adapter.to_numpy(buffer)) for path, buffer in live.buffers().items()}
        with session.again(), perturbed(live, jitter, relative_steps(session, drift)):
            given = perturbed_arguments(live, self.arguments(), jitter)
            loss = self._loss(backward, lambda gradient: jitter(gradient, _uncertain(meter, seen)))
            shaken = session.run(step, given, loss_fn=loss, backward=backward, observer=meter)
            parameters = {
                path: sampled_gap(seen.parameters[path], sampled(value))
                for path, value in shaken.parameter_gradients.items()
                if value is not None and path in seen.parameters
            }
            after = {path: np.array(adapter.to_numpy(buffer)) for path, buffer in live.buffers().items()}
        buffers = {path: rms_gap(now[path], after[path]) for path in now if path in after}
        spread = math.sqrt(
            sum(
                (rms(self.gradients[slot.name]) * meter.gaps.get(slot.tensor, 0.0)) ** 2 * math.prod(slot.value.shape)
                for slot in (() if meter.root is None else meter.root.outputs)
                if slot.name in self.gradients
            )
        )
        return Noise(meter.gaps, meter.gradient_gaps, parameters, buffers, loss=spread if backward else None)

    def reference(
        self, step: int, drift: Mapping[str, float], *, backward: bool
    ) -> tuple[Reference, Noise | None] | None:
        """The step with the gradients at the borders of each call, and how far rounding moves what each call adds;
        None where the model refuses."""
        loss = self._loss(backward)
        job = Job(
            self._live,
            self._live,
            lambda: (self.arguments(), self.arguments()),
            losses=(loss, loss),
            backward=backward,
            tolerance=Tolerance(mode="auto"),
        )
        shaken = self._loss(backward, Jitter())
        with self._prepared(step) as session:
            try:
                reference = reference_of(job, session, step, backward=backward)
                job = replace(job, losses=(shaken, shaken))
                return shaken_reference(job, session, reference, step, drift, backward=backward)
            except Exception:  # the model's own
                return None

    @contextmanager
    def _prepared(self, step: int) -> Iterator[Session]:
        """The model's weights are those of the step's beginning inside, and what they were afterwards."""
        live = self._live
        with ExitStack() as stack:
            if not self._followed:
                stack.enter_context(live.adapter.no_grad())
            for path, tensor in live.parameters().items() if self._weights else ():
                held = live.adapter.swap_elements(tensor, self._weights[path])
                stack.callback(live.adapter.swap_elements, tensor, held)
            session = Session(live, "base", frozenset(range(len(live.modules))))
            session.resumes(self._drawn, self._buffers)
            session.ops = self._ops
            session.keeps = few_of
            if self._replays and self._listener is not None and self._listener.draws:
                session.listen = partial(itself, self._listener)
            yield session

    def _loss(
        self, backward: bool, change: Callable[[Array], Array] = lambda gradient: gradient
    ) -> Callable[[Any], Any] | None:
        """A loss whose gradients are those that backward began with, or these changed."""
        if not backward:
            return None
        adapter = self._live.adapter

        def loss(output: Any) -> Any:
            followed: dict[int, Any] = {}
            for name, tensor in adapter.flatten(output):
                gradient = self.gradients.get(name)
                if gradient is not None and id(tensor) not in followed and adapter.requires_grad(tensor):
                    given = partial(_instead, gradient, change)
                    followed[id(tensor)] = adapter.substitute(tensor, adapter.to_numpy(tensor), given)
            return adapter.mean_loss(list(followed.values()))

        return loss


def _keep(adapter: Adapter, found: dict[str, Array], name: str, gradient: Any) -> None:
    found[name] = np.array(adapter.to_numpy(gradient))


def _instead(gradient: Array, change: Callable[[Array], Array], _: Any) -> Array:
    return change(gradient)


def _uncertain(meter: Samples, seen: Samples) -> float:
    """How far the gradients that a loss starts backward with are uncertain, relative to themselves: as its inputs
    are, and more where it takes differences."""
    sizes = [
        meter.gaps.get(slot.tensor, 0.0) / size
        for slot in (() if meter.root is None else meter.root.outputs)
        if slot.tensor in seen.tensors and (size := rms(seen.tensors[slot.tensor])) > 0
    ]
    finite = [size for size in sizes if math.isfinite(size)]
    return DIFFERENCES * max(finite, default=0.0)


def repeatable(values: Sequence[Any], is_tensor: Callable[[Any], bool]) -> bool:
    """Whether a model may be given the same once more: nothing among it can remember that it was given before."""
    return all(_forgetful(value, is_tensor) for value in values)


def _forgetful(value: Any, is_tensor: Callable[[Any], bool]) -> bool:
    if isinstance(value, _PLAIN) or is_tensor(value) or isinstance(value, np.ndarray | np.generic):
        return True
    if type(value) in (tuple, list):
        return all(_forgetful(item, is_tensor) for item in value)
    return type(value) is dict and all(_forgetful(item, is_tensor) for item in value.values())
