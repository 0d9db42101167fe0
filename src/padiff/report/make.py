"""From a result to its report."""

from __future__ import annotations

import importlib.metadata
import linecache
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

import numpy as np

from padiff.records import (
    Call,
    Comparison,
    Divergence,
    Frame,
    Interruption,
    ModuleNode,
    ModuleTree,
    SourceLine,
    StepComparison,
    Tolerance,
    Unmatched,
    WeightEntry,
    WeightPlan,
)
from padiff.report.record import CallPair, Environment, Module, Report, Side, Weight

AROUND = 2
"""Lines of code kept before and after each line that is pointed at."""
MOST_FRAMES = 4
"""Of a call's stack, the innermost."""
RELEASED = "released"
"""What a value says of its dtype when nobody asked before it was let go."""


class Told(Protocol):
    """What a report is made from: a ``Result``, or anything with the same members."""

    @property
    def aligned(self) -> bool: ...
    @property
    def divergences(self) -> tuple[Divergence, ...]: ...
    @property
    def steps(self) -> tuple[StepComparison, ...]: ...
    @property
    def unmatched(self) -> tuple[Unmatched, ...]: ...
    @property
    def base(self) -> ModuleTree: ...
    @property
    def raw(self) -> ModuleTree: ...
    @property
    def tolerance(self) -> Tolerance: ...
    @property
    def plan(self) -> WeightPlan | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def coverage(self) -> Mapping[str, float]: ...
    @property
    def interruption(self) -> Interruption | None: ...


def report_of(result: Told) -> Report:
    """Everything worth telling, as plain data."""
    frames = _Frames()
    calls = tuple(pair for step in result.steps for pair in _calls(step, frames))
    forms = _Forms(result.base, result.raw)
    divergences = tuple(_plain_settings(one) for one in result.divergences)
    for divergence in divergences:
        for stack in divergence.source:
            frames.keep(stack)
    return Report(
        verdict=_verdict(result),
        base=_side(result.base),
        raw=_side(result.raw),
        tolerance=result.tolerance,
        coverage=dict(result.coverage),
        notes=tuple(result.notes),
        divergences=tuple(
            replace(one, comparison=forms.told(one.comparison, _step(result, one.step))) for one in divergences
        ),
        comparisons=tuple(forms.told(one, step) for step in result.steps for one in step.comparisons),
        local=tuple(forms.told(one, step) for step in result.steps for one in step.local),
        calls=calls,
        unmatched=tuple(result.unmatched),
        weights=() if result.plan is None else tuple(_weight(entry) for entry in result.plan.entries),
        frames=tuple(frames.lines),
        code=frames.code(),
        environment=_environment(),
        interruption=result.interruption,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _verdict(result: Told) -> Literal["aligned", "diverged", "unsure"]:
    if result.aligned:
        return "aligned"
    return "diverged" if result.divergences else "unsure"


def _step(result: Told, number: int) -> StepComparison | None:
    return next((step for step in result.steps if step.step == number), None)


def _plain_settings(divergence: Divergence) -> Divergence:
    settings = tuple((name, _plain(base), _plain(raw)) for name, base, raw in divergence.settings)
    return replace(divergence, settings=settings)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# ------------------------------------------------------------------ models and where they ran


def _side(tree: ModuleTree) -> Side:
    """One model; a dump's tree knows where it ran, which need not be here."""
    environment = {name: text for name, text in tree.environment.items() if name != "version"}
    version = tree.environment.get("version", "")
    return Side(tree.name, tree.framework, version, tuple(_module(node) for node in tree.nodes), environment)


def _module(node: ModuleNode) -> Module:
    settings = {name: _plain(value) for name, value in node.built_with.items()}
    tensors = {spec.name: _form(spec) for spec in (*node.parameters, *node.buffers)}
    return Module(node.path, node.kind, node.line, node.parent, settings, tensors)


def _environment() -> Environment:
    try:
        own = importlib.metadata.version("padiff")
    except importlib.metadata.PackageNotFoundError:
        own = ""
    return Environment(own, platform.python_version(), np.__version__, platform.platform(terse=True))


# ------------------------------------------------------------------ calls and the lines they come from


class _Frames:
    """Lines of code, each once."""

    def __init__(self) -> None:
        self.lines: list[SourceLine] = []
        self._places: dict[tuple[str, int, str], int] = {}
        self._stacks: dict[tuple[Frame, ...], tuple[int, ...]] = {}

    def stack(self, frames: tuple[Frame, ...]) -> tuple[int, ...]:
        kept = frames[-MOST_FRAMES:]
        found = self._stacks.get(kept)
        if found is None:
            found = self._stacks[kept] = tuple(self._place(*frame) for frame in kept)
        return found

    def keep(self, lines: Iterable[SourceLine]) -> None:
        for line in lines:
            self._place(line.file, line.line, line.function)

    def _place(self, file: str, line: int, function: str) -> int:
        key = (file, line, function)
        if key not in self._places:
            self._places[key] = len(self.lines)
            self.lines.append(SourceLine(file, line, function, linecache.getline(file, line).strip()))
        return self._places[key]

    def code(self) -> dict[str, dict[str, str]]:
        wanted: dict[str, set[int]] = {}
        for line in self.lines:
            wanted.setdefault(line.file, set()).update(range(line.line - AROUND, line.line + AROUND + 1))
        found: dict[str, dict[str, str]] = {}
        for file, numbers in wanted.items():
            text = linecache.getlines(file)
            lines = {str(n): text[n - 1].rstrip("\r\n") for n in sorted(numbers) if 0 < n <= len(text)}
            if lines:
                found[file] = lines
        return found


def _calls(step: StepComparison, frames: _Frames) -> Iterable[CallPair]:
    around = {call.index: call.parent for call in step.raw.calls}
    paired = {raw.index for _, raw in step.pairs}
    for base, raw in step.pairs:
        parent = raw.parent
        while parent >= 0 and parent not in paired:
            parent = around.get(parent, -1)
        yield CallPair(
            step.step,
            base.index,
            raw.index,
            parent,
            base.path,
            raw.path,
            base.kind,
            raw.kind,
            raw.occurrence,
            frames.stack(base.stack),
            frames.stack(raw.stack),
            raw.begun,
        )


# ------------------------------------------------------------------ tensors


class _Forms:
    """Dtype and shape of what was compared, found again in the traces and the trees."""

    def __init__(self, base: ModuleTree, raw: ModuleTree) -> None:
        self._specs = (_specs(base), _specs(raw))
        self._step: StepComparison | None = None
        self._calls: tuple[dict[int, Call], dict[int, Call]] = ({}, {})

    def told(self, comparison: Comparison, step: StepComparison | None) -> Comparison:
        """The comparison with the forms of both tensors, where they are not there yet."""
        if any(comparison.forms) or step is None:
            return comparison
        forms = self._of(comparison, step)
        return replace(comparison, forms=forms) if any(forms) else comparison

    def _of(self, comparison: Comparison, step: StepComparison) -> tuple[str, str]:
        if comparison.role in ("parameter", "buffer"):
            own = f"{comparison.raw_path}.{comparison.name}" if comparison.raw_path else comparison.name
            sources = comparison.sources or (own,)
            base = " + ".join(filter(None, (self._specs[0].get(source, "") for source in sources)))
            return base, self._specs[1].get(own, "")
        if step is not self._step:
            self._step = step
            self._calls = (_by_index(step.base.calls), _by_index(step.raw.calls))
        base = _slot_form(self._calls[0].get(comparison.base_call), comparison)
        raw = _slot_form(self._calls[1].get(comparison.raw_call), comparison)
        return _completed(base, raw, comparison)


def _by_index(calls: Iterable[Call]) -> dict[int, Call]:
    return {call.index: call for call in calls}


def _slot_form(call: Call | None, comparison: Comparison) -> str:
    """By the slot's name: numbers of tensors mean something in their own run only, and there may have been several."""
    if call is None or comparison.role not in ("input", "output"):
        return ""
    slots = call.inputs if comparison.role == "input" else call.outputs
    found = [slot for slot in slots if slot.name == comparison.name] or (slots if len(slots) == 1 else ())
    return _form(found[0].value) if found else ""


def _form(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix(RELEASED)


def _completed(base: str, raw: str, comparison: Comparison) -> tuple[str, str]:
    """A value that was let go may have forgotten its dtype; unless dtypes differ, its partner's is the same."""
    if comparison.outcome.reason != "dtype":
        dtype = next((form.partition("[")[0] for form in (base, raw) if form and form[0] != "["), "")
        base, raw = (dtype + form if form.startswith("[") else form for form in (base, raw))
    return base, raw


def _specs(tree: ModuleTree) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.nodes:
        for spec in (*node.parameters, *node.buffers):
            found[f"{node.path}.{spec.name}" if node.path else spec.name] = _form(spec)
    return found


# ------------------------------------------------------------------ weights


def _weight(entry: WeightEntry) -> Weight:
    return Weight(
        entry.path,
        entry.role,
        tuple(entry.shape),
        _sources(entry),
        entry.evidence,
        entry.confidence,
        entry.written,
        tuple(entry.alternatives),
    )


def _sources(entry: WeightEntry) -> str:
    if entry.function is not None:
        return getattr(entry.function, "__name__", "a function")
    parts: Sequence[str] = [
        source.path
        + (f"[{source.index}]" if source.index is not None else "")
        + (f"[{source.start}:{source.stop}]" if source.start is not None else "")
        + (" turned" if source.permute else "")
        for source in entry.sources
    ]
    how = (f", by {entry.heads} heads" if entry.heads else "") + (", stacked" if entry.stack else "")
    return " + ".join(parts) + how
