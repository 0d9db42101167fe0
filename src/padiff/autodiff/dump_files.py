"""What a proxy writes: one dump in one folder, whole or part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from padiff.autodiff.recording import Recording
from padiff.engine.captured.dumping import TraceWriter
from padiff.errors import DumpError
from padiff.frameworks.tree import LiveTree
from padiff.records import StepTrace, Value
from padiff.store import Dump, StepDump

PARTS = ("report", "weights", "grads")
"""What a dump may hold: calls with their tensors and gradients; parameters and buffers; gradients of parameters."""


@dataclass(frozen=True)
class Run:
    """Who writes: the dumps of one proxy belong together."""

    identity: str
    layer_map: tuple[str, ...] = ()
    """Paths of layers that the other model has, in this order, as well."""
    chosen: bool = True
    """Whether somebody chose these layers, or they were found."""
    others: frozenset[str] = frozenset()
    """Other runs that are under way in this process."""


def write_parts(recording: Recording, path: str | Path, parts: Iterable[str], run: Run) -> None:
    """Write parts of what was recorded to a folder. Others that the same run wrote there for this step stay."""
    earlier = _earlier(Path(path), recording.step, run)
    try:
        _write(recording, path, frozenset(parts), run, earlier)
    finally:
        if earlier is not None:
            earlier.close()


def parts_of(dump: Dump) -> frozenset[str]:
    """What a dump holds. One that no proxy wrote holds everything."""
    listed = dump.extra.get("parts")
    return frozenset(PARTS) if listed is None else frozenset(part for part in PARTS if part in listed)


def _write(recording: Recording, path: str | Path, parts: frozenset[str], run: Run, earlier: Dump | None) -> None:
    kept = frozenset() if earlier is None else parts_of(earlier) - parts
    before = None if earlier is None else earlier.step(recording.step)
    known: dict[str, Any] = {} if before is None else dict(before.extra)
    if recording.afresh:
        known["statistics_from_here"] = True
    unseen: Sequence[tuple[str, str]] | None = None
    if "report" in parts:
        trace, unseen = recording.trace(), recording.unseen()
    elif before is not None:
        trace = replace(before.trace(), draws=tuple(draw.load() for draw in before.draws))
        unseen = before.unseen if before.heard else None
    else:
        trace = StepTrace(recording.step, (), {}, None, {})
    gradients = _gradients(recording, parts, before)
    trace = replace(
        trace,
        parameter_gradients=gradients,
        ran_backward=trace.ran_backward or any(value is not None for value in gradients.values()),
    )
    extra = described_run(recording.live, recording.nodes, parts | kept, run)
    with TraceWriter(recording.live, path, overwrite=True, extra=extra) as writer:
        writer.write(
            trace,
            usage=recording.usage(),
            unseen=unseen,
            extra=known,
            **_state(recording, parts, before if "weights" in kept else None),
        )


def _gradients(recording: Recording, parts: frozenset[str], before: StepDump | None) -> Mapping[str, Value | None]:
    if "grads" in parts:
        return recording.gradients()
    return {} if before is None else before.parameter_gradients


def _state(recording: Recording, parts: frozenset[str], before: StepDump | None) -> dict[str, Any]:
    if "weights" in parts:
        return {"weights": recording.weights(), "buffers": recording.buffers()}
    return {} if before is None else {"weights": before.weights, "buffers": before.buffers}


def described_run(live: LiveTree, nodes: frozenset[int], parts: Collection[str], run: Run) -> dict[str, Any]:
    """What a dump says about who wrote it and what it holds."""
    extra: dict[str, Any] = {
        "run": run.identity,
        "parts": [part for part in PARTS if part in parts],
        "layer_map": {"layers": list(run.layer_map), "chosen": run.chosen},
    }
    if len(nodes) < len(live.tree.nodes):
        extra["only"] = [live.tree.nodes[index].path for index in sorted(nodes)]
    return extra


def check_owner(path: Path, run: Run) -> None:
    """Raise where another model of this process has written."""
    found = _earlier(path, -1, run)
    assert found is None


def _earlier(path: Path, step: int, run: Run) -> Dump | None:
    """The dump that the same run wrote to this folder for this step, if there is one."""
    try:
        found = Dump.open(path)
    except DumpError:  # none, or one that nothing can be added to: it is replaced, if it may be
        return None
    if found.extra.get("run") == run.identity and [listed.number for listed in found.steps] == [step]:
        return found
    owner = found.extra.get("run")
    found.close()
    if owner in run.others:
        raise DumpError(
            f"cannot write a dump to {path}: another model of this process, {found.facts.model}, has written there",
            "give each model a name of its own: create_model(model, name=...)",
        )
    return None
