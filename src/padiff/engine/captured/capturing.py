"""``padiff.capture``: records a model while somebody else runs it, and tells where its steps begin and end."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any, Literal

import numpy as np

from padiff.capture.ops import WantedOps
from padiff.capture.statistics import RunningStatistics
from padiff.engine.apart.alongside import Alongside
from padiff.engine.captured.dumping import TraceWriter, ranks_here
from padiff.engine.captured.running import Running
from padiff.engine.randomness import looks_random
from padiff.errors import ArgumentError
from padiff.frameworks.compiled import sealed
from padiff.frameworks.tree import LiveTree
from padiff.report.progress import stages
from padiff.store import Kind


class Capture:
    """Records a model into a dump inside a ``with`` block.

    A step begins with a call of the model. It is over when the model is called again after backward was run; with an
    ``optimizer``, after that has stepped, so that accumulated gradients are one step. A call from which no backward
    can start (gradients switched off, evaluation mode) is a step of its own, and so is each of ``generate``'s.
    """

    def __init__(
        self,
        live: LiveTree,
        to: str | Path,
        *,
        wanted: Callable[[int], bool],
        optimizer: Any = None,
        only: frozenset[int] | None = None,
        ops: WantedOps | None = None,
        kind: Kind = "full",
        overwrite: bool = False,
        calibrate: bool | None = True,
        extra: Mapping[str, Any] | None = None,
        alongside: Alongside | None = None,
        randomness: Literal["replay", "own"] = "replay",
        progress: bool | None = None,
    ) -> None:
        rank, ranks = ranks_here(live.adapter)
        self.path = Path(to) if ranks == 1 else Path(to) / f"rank_{rank}"
        """Where the dump will be: one process writes one dump."""
        self.steps: list[int] = []
        """Numbers of the steps that were recorded."""
        self.step = 0
        """Number of the step that is running, or comes next."""
        self.live = live
        self.optimizer, self.only, self.ops = optimizer, only, ops
        # Models that talk to each other can be run again only if all of them are: for the user to say.
        wanted_here = ranks == 1 and alongside is None if calibrate is None else calibrate
        self.calibrates = wanted_here and kind != "hash"
        self.holds = self.calibrates and kind == "full"
        """Whether the borders of calls are looked at, too."""
        self.keeps_draws = randomness == "replay" and kind == "full"
        """Whether the model's random draws are recorded."""
        self.listens = self.keeps_draws or (randomness == "replay" and alongside is not None)
        """Whether anybody wants to hear of them."""
        self.draws = False
        """Whether the model draws, as far as is known."""
        self._wanted, self._kind, self._overwrite, self._extra = wanted, kind, overwrite, dict(extra or {})
        if alongside is not None:
            self._extra |= alongside.extra
        self.progress = progress
        """Whether a bar shows what takes over a second: always, never, or (None) on a terminal."""
        self.alongside = alongside
        """What a base has to say: what the model is given, and what records it."""
        self._stack = ExitStack()
        self._writer: TraceWriter | None = None
        self._running: Running | None = None
        self._depth = 0
        self._own_runs = 0
        self._modules: frozenset[int] = frozenset()
        self._process = os.getpid()
        self.statistics: RunningStatistics | None = None
        self.trained = False
        """Whether the weights may have changed since they were last written."""
        self.drift: dict[str, float] = {}
        """How far rounding has moved the parameters, as of the last step that was recorded."""

    # --- the block

    def __enter__(self) -> Capture:
        if self._writer is not None:
            raise ArgumentError("this capture has had its block already", "call padiff.capture again, for another dump")
        self.live.forget()
        self._modules = frozenset(map(id, self.live.modules))
        self.draws = looks_random(self.live)
        if sealed(self.live, eager=False):  # nobody hears what compiled code draws
            self.keeps_draws = self.listens = False
        extra = {**self._extra, "only": self._paths()} if self.only is not None else self._extra
        self._writer = TraceWriter(
            self.live, self.path, kind=self._kind, overwrite=self._overwrite, only=self.only, extra=extra
        )
        _active.append(self)
        self._stack.callback(_active.remove, self)
        try:
            if self.alongside is not None:
                with stages(self.progress) as shown, self.alone():
                    shown.now("matching base")
                    self.alongside.start()
            adapter = self.live.adapter
            in_parts = getattr(adapter, "run_in_parts", None)
            for handle in in_parts(self.live.modules) if in_parts is not None else ():
                self._stack.callback(handle.remove)
            for handle in adapter.attach([self.live.model], self._enter, self._leave, self._fail):
                self._stack.callback(handle.remove)
            watch_scaling = getattr(adapter, "watch_scaling", None)
            if watch_scaling is not None:
                self._stack.enter_context(watch_scaling(self._scaled))
            if self.optimizer is not None:
                self._stack.enter_context(self._told())
        except BaseException:
            self._stack.close()
            self._writer.abort()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._writer is not None
        self._stack.close()
        if os.getpid() != self._process:
            return
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._writer.abort()
            raise
        finally:
            if self._running is not None:
                self._running.close()
                self._running = None
        with stages(self.progress) as shown:
            shown.now("writing the dump")
            self._writer.__exit__(kind, error, traceback)

    @property
    def busy(self) -> bool:
        """Whether the model runs on padiff's own account, for this capture or for another that has modules in common;
        or in a process that was forked inside the block, where nobody writes."""
        return self._own_runs > 0 or os.getpid() != self._process

    def loss(self, value: Any) -> None:
        """Record the loss of the step that is running: a tensor, or a number."""
        running = self._running
        if running is not None and running.sink is not None:
            is_tensor = self.live.adapter.is_tensor(value)
            running.loss = np.array(self.live.adapter.to_numpy(value)) if is_tensor else np.asarray(value)

    def _paths(self) -> list[str]:
        assert self.only is not None
        return [self.live.tree.nodes[index].path for index in sorted(self.only)]

    # --- the model is called

    def _enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.busy:
            return None
        self._depth += 1
        if self._depth > 1:
            return None
        if self._running is not None and self._running.over:
            self._finish()
        if self._running is None:
            self._running = self._begin()
        return self._running.enter(args, kwargs)

    def _leave(self, module: Any, output: Any) -> Any:
        if self.busy:
            return None
        self._depth -= 1
        if self._depth or self._running is None:
            return None
        return self._running.leave(output)

    def _fail(self, module: Any) -> None:
        if self.busy:
            return
        self._depth = 0
        if self._running is not None:
            self._running.broken()
            if self._running.sink is not None:
                assert self._writer is not None
                self._writer.writer.drop_step()
            self._running = None

    def _before_update(self) -> None:
        if self._running is not None:
            with self.alone():
                self._running.before_update()

    def _after_update(self) -> None:
        self.trained = True
        if self._running is not None:
            self._running.stepped = True

    def _scaled(self, factor: float) -> None:
        if self._running is not None:
            self._running.scaled(factor)

    def _begin(self) -> Running:
        sink = None
        if self._wanted(self.step):
            assert self._writer is not None
            sink = self._writer.begin(self.step)
        return Running(self, self.step, sink, first=not self.steps)

    def _finish(self) -> None:
        """The step that was running is over."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            with self.alone():
                running.finish()
        finally:
            running.close()
        if running.sink is not None:
            self.steps.append(self.step)
        self.step += 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, calls of the model are padiff's own; they are seen, also if this is a hook."""
        seen = getattr(self.live.adapter, "seen_again", nullcontext)
        others = [one for one in (*_active,) if one is not self and not self._modules.isdisjoint(one._modules)]
        with ExitStack() as stack:
            for one in (self, *others):
                stack.enter_context(one._not_its_own(paused=one is not self))
            stack.enter_context(seen())
            yield

    @contextmanager
    def _not_its_own(self, *, paused: bool) -> Iterator[None]:
        """Inside, nothing that runs is the user's doing; what is being recorded is ``paused``, where another runs."""
        running = self._running
        self._own_runs += 1
        try:
            with running.paused() if paused and running is not None else nullcontext():
                yield
        finally:
            self._own_runs -= 1

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Inside, the optimizer's updates are seen; its methods are its own again afterwards, with what others (a
        scheduler) have laid around them meanwhile."""
        optimizer, told = self.optimizer, [self]
        with ExitStack() as stack:
            stack.callback(told.clear)
            for name in ("step", "minimize"):
                own = getattr(optimizer, name, None)
                if own is not None:
                    before = vars(optimizer).get(name, _NONE)
                    mine = _telling(optimizer, own, told)
                    setattr(optimizer, name, mine)
                    stack.callback(_put_back, optimizer, name, mine, before)
            yield


_NONE = object()
_active: list[Capture] = []
"""Those whose blocks are open."""


def _telling(optimizer: Any, own: Callable[..., Any], told: Sequence[Capture]) -> Any:
    """A method that updates as the optimizer's own does, and tells whoever is still there to be told."""

    @functools.wraps(own)
    def update(_: Any, *args: Any, **kwargs: Any) -> Any:
        for capture in told:
            capture._before_update()
        made = own(*args, **kwargs)
        for capture in told:
            capture._after_update()
        return made

    return MethodType(update, optimizer)  # torch's schedulers take the function of the method and wrap that


def _put_back(thing: Any, name: str, mine: Any, before: Any) -> None:
    if vars(thing).get(name) is not mine:
        return
    if before is _NONE:
        del vars(thing)[name]
    else:
        setattr(thing, name, before)
