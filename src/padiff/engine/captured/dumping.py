"""A trace into a dump: while the model runs, call by call, or when the step is over."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from padiff.engine.fed.local_comparing import Key
from padiff.frameworks.compiled import compiled_words
from padiff.frameworks.protocol import Adapter
from padiff.frameworks.settings import settings_of
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, Noise, StepTrace, Usage, Value
from padiff.store import DumpWriter, Facts, Kind, StepWriter


class TraceWriter:
    """Writes what one model does to a dump. As a context manager: whole when the block ends, gone when it raises.

    Either hand over a step that is over::

        with TraceWriter(live, "run_a") as dump:
            dump.write(session.run(0, arguments, loss_fn=None, backward=True), weights=session.weights())

    or let tensors go to disk while the step runs, so that none is held longer than its call takes::

        sink = dump.begin(0)
        trace = session.run(0, arguments, loss_fn=None, backward=True, observer=sink)
        sink.end(trace, weights=session.weights(), buffers=session.buffers())

    Besides the steps the dump holds what comparing it without the model takes: the module tree, how each layer stores
    its tensors, and what each module was built with. ``padiff.engine.apart.stored.stored_tree`` reads that back.
    """

    def __init__(
        self,
        live: LiveTree,
        path: str | Path,
        *,
        kind: Kind = "full",
        overwrite: bool = False,
        only: frozenset[int] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._only = only
        """Nodes whose tensors are kept; None for all. Of the others, calls are written and tensors left out."""
        rank, ranks = ranks_here(live.adapter)
        self.writer = DumpWriter(
            path,
            tree=live.tree,
            facts=facts_of(live, rank, ranks),
            kind=kind,
            overwrite=overwrite,
            extra={**described(live), **(extra or {})},
        )

    def begin(self, step: int) -> StepSink:
        """A step that is about to run; give what is returned to the recorder as its observer."""
        return StepSink(self.writer.begin_step(step), self._only)

    def write(self, trace: StepTrace, **more: Any) -> None:
        """A step that is over; ``more`` is what ``StepSink.end`` takes."""
        sink = self.begin(trace.step)
        for call in trace.calls:
            sink.on_call(call)
        for number, gradient in trace.gradients.items():
            sink.on_gradient(number, gradient)
        sink.end(trace, **more)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.abort()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, traceback)


class StepSink:
    """One step on its way into a dump. It is an observer: told of calls and gradients, it hands them over at once."""

    def __init__(self, step: StepWriter, only: frozenset[int] | None = None) -> None:
        self.step = step
        self._only = only
        self.bordered = False
        """Whether ``borders`` will follow: most gradients need not be stored a second time then."""
        self._kept: set[int] = set()

    def on_call(self, call: Call) -> None:
        kept = self._only is None or call.node in self._only
        if kept and self._only is not None:
            self._kept.update(slot.tensor for slot in (*call.inputs, *call.outputs))
        self.step.call(call, kept=kept)

    def on_gradient(self, tensor: int, gradient: Value) -> None:
        if self._only is None or tensor in self._kept:
            self.step.gradient(tensor, gradient, bordered=self.bordered)

    def on_tag(self, tag: Call) -> None:
        """It comes with the call in whose code it is."""

    def before_write(self) -> None:
        """Everything was copied when it was seen."""

    def end(
        self,
        trace: StepTrace,
        *,
        weights: Mapping[str, Value] | None = None,
        buffers: Mapping[str, Value] | None = None,
        noise: Noise | None = None,
        local: Mapping[Key, float] | None = None,
        fed: Noise | None = None,
        usage: Usage | None = None,
        unseen: Sequence[tuple[str, str]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """The step is over: ``trace`` says how it went, the rest what it left; ``unseen``, where the model was listened
        to, what it drew unseen.

        Values may be gone from ``trace`` by now: its calls and gradients were handed over as they came.
        """
        step = self.step
        for draw in trace.draws:
            step.draw(draw)
        if unseen is not None:
            step.heard(unseen)
        step.loss(trace.loss)
        if trace.parameter_gradients:
            step.parameter_gradients(trace.parameter_gradients)
        if weights is not None:
            step.weights(weights)
        if buffers is not None:
            step.buffers(buffers)
        if noise is not None or local:
            step.noise(plain_noise(noise or Noise(), local or {}, fed))
        known = dict(extra or {})
        if usage is not None:
            known["usage"] = _plain_usage(usage)
        if known:
            step.extra(known)
        step.end(ran_backward=trace.ran_backward)


def plain_noise(noise: Noise, local: Mapping[Key, float], fed: Noise | None = None) -> dict[str, dict[Any, float]]:
    """Predicted noise as the format keeps it: role to key to number. ``local`` and ``fed`` are about calls that are fed
    base's tensors."""
    found: dict[str, dict[Any, float]] = {
        field.name: dict(getattr(noise, field.name))
        for field in dataclasses.fields(noise)
        if field.name not in ("loss", "cancelled")  # dumps are not looked at again
    }
    if noise.loss is not None:
        found["loss"] = {"": noise.loss}
    if local:
        found["local"] = {" ".join(map(str, key)): gap for key, gap in local.items()}
    if fed is not None:
        found["fed_parameters"] = dict(fed.parameters)
        found["fed_loss"] = {} if fed.loss is None else {"": fed.loss}
    return {role: row for role, row in found.items() if row}


def facts_of(live: LiveTree, rank: int = 0, ranks: int = 1) -> Facts:
    """Who runs what, where and when."""
    framework = live.adapter.name
    version = str(getattr(sys.modules.get(framework), "__version__", "unknown"))
    return Facts(framework, version, live.tree.name, str(live.adapter.device_of(live.model)), rank, ranks)


def ranks_here(adapter: Adapter | None = None) -> tuple[int, int]:
    """Which of how many processes this is: as the framework knows it, else as launchers say it in the environment."""
    ask = getattr(adapter, "ranks", None)
    known: tuple[int, int] | None = None if ask is None else ask()
    if known is not None:
        return known
    for rank, ranks in (("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"), ("RANK", "WORLD_SIZE")):
        mine, all_of_them = os.environ.get(rank, ""), os.environ.get(ranks, "")
        if mine.isdecimal():
            return int(mine), max(int(mine) + 1, int(all_of_them) if all_of_them.isdecimal() else 1)
    return 0, 1


def described(live: LiveTree) -> dict[str, Any]:
    """What the tree alone does not say: layer tables, settings, which parameters are not trained."""
    tables: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}
    table_of: list[int | None] = []
    for index in range(len(live.modules)):
        spec = live.layer_spec(index)
        if spec is not None and id(spec) not in numbers:
            numbers[id(spec)] = len(tables)
            stored = {name: dataclasses.asdict(one) for name, one in spec.stored.items()}
            tables.append({"layer": spec.layer, "stored": stored, "atomic": spec.atomic})
        table_of.append(None if spec is None else numbers[id(spec)])
    adapter = live.adapter
    compiled = compiled_words(live)
    return {
        **({} if compiled is None else {"compiled": compiled}),
        "environment": dict(live.tree.environment),
        "layers": {"tables": tables, "nodes": table_of},
        "settings": [plain_settings(settings_of(adapter, module)) for module in live.modules],
        "frozen": [path for path, tensor in live.parameters().items() if not adapter.requires_grad(tensor)],
    }


def plain_settings(value: Any) -> Any:
    """Settings as JSON can say them; numbers that it cannot are left out."""
    if isinstance(value, Mapping):
        plain = {str(name): plain_settings(item) for name, item in value.items()}
        return {name: item for name, item in plain.items() if item is not ...}
    if isinstance(value, (list, tuple)):
        items = [plain_settings(item) for item in value]
        return ... if any(item is ... for item in items) else items
    if isinstance(value, float) and not math.isfinite(value):
        return ...
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _plain_usage(usage: Usage) -> dict[str, Any]:
    """The order of use without outputs, which are in the trace."""
    rows = {name: getattr(usage, name) for name in ("tensors", "calls", "made", "ready", "times")}
    return {name: {str(key): number for key, number in row.items()} for name, row in rows.items()}
