"""``check_params``, ``check_weights``, ``check_grads``: parameters and their gradients, from two dumps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from padiff.autodiff.check_report import concluded, opened, read_cfg
from padiff.autodiff.dump_pairs import DumpPairs, RunsSeen, check_parts, dump_pairs
from padiff.autodiff.failure import listed_difference, number_lines, routes, title_of
from padiff.autodiff.log import count, say, wrapped, write_file
from padiff.autodiff.rounding import bounds_that_hold, said_of_rounding, widest
from padiff.engine.apart.apart import Apart
from padiff.engine.verdict import ENOUGH_PARAMETERS
from padiff.records import Comparison, Phase, Tolerance
from padiff.store import Dump, StepDump

PHASES: dict[str, tuple[Phase, ...]] = {"weights": ("weight", "buffer"), "grads": ("gradient",)}
MOST_PRINTED = 3
INDENT = "    "


def check_params(path_0: Any, path_1: Any, cfg: Mapping[str, Any] | None = None) -> bool:
    """True when two dumps hold the same weights and the same gradients of parameters."""
    return _check("check_params", ("weights", "grads"), path_0, path_1, cfg)


def check_weights(path_0: Any, path_1: Any, cfg: Mapping[str, Any] | None = None) -> bool:
    """True when two dumps hold the same parameters and buffers; else the log names those that differ."""
    return _check("check_weights", ("weights",), path_0, path_1, cfg)


def check_grads(path_0: Any, path_1: Any, cfg: Mapping[str, Any] | None = None) -> bool:
    """True when two dumps hold the same gradients of parameters; else the log names those that differ."""
    return _check("check_grads", ("grads",), path_0, path_1, cfg)


def _check(call: str, wanted: tuple[str, ...], path_0: Any, path_1: Any, cfg: Any) -> bool:
    tolerance = read_cfg(call, cfg)
    found, runs = dump_pairs(path_0, path_1), RunsSeen()
    outcomes = [_walk(what, (path_0, path_1), found, tolerance, runs, alone=len(wanted) == 1) for what in wanted]
    return concluded(all(outcomes) and not found.alone, [*found.alone, *runs.notes()])


@dataclass
class _Tally:
    """What a walk through dumps has come to."""

    what: str
    tolerance: Tolerance
    passed: bool = True
    compared: int = 0
    lines: list[str] = field(default_factory=list)
    """Of the file that lists every difference."""
    printed: int = 0
    would_hold: list[Tolerance | None] = field(default_factory=list)
    """Bounds under which what differs would not; None for what is more than rounding."""


def _walk(
    what: str, paths: tuple[Any, Any], found: DumpPairs, tolerance: Tolerance, runs: RunsSeen, *, alone: bool
) -> bool:
    """Walk all pairs of dumps; ``alone`` says that nothing else is checked, so that something must be there."""
    say(f"Checking {what} ({tolerance})", f"    base_model: {paths[0]}", f"    raw_model:  {paths[1]}")
    tally = _Tally(what, tolerance)
    for label, one, other in found.pairs:
        with Dump.open(one) as base, Dump.open(other) as raw:
            for path, dump in zip(paths, (base, raw), strict=True):
                check_parts(dump, what)
                runs.see(path, label, dump)
            apart = opened(base, raw, tolerance, PHASES[what])
            for ours, theirs in apart.steps(renumbered=True):
                _step(tally, _label(label, base, ours), apart, ours, theirs)
            if not apart.steps(renumbered=True):
                tally.passed = False
                say(f"{label or 'dumps'}: no step in common")
            _left_over(tally, apart)
    if tally.lines:
        path = write_file(f"{what}_diff", tally.lines)
        say(f"all {what} that differ are listed in", f"{INDENT}{path}")
        _say_of_rounding(tally)
    if not tally.compared and found.pairs and tally.passed:
        why = "no backward was run" if what == "grads" else "neither dump holds any"
        say(f"no {what} were compared: {why}")
        return not alone
    return tally.passed


def _step(tally: _Tally, label: str, apart: Apart, base: StepDump, raw: StepDump) -> None:
    what = tally.what
    if what == "grads":
        sides = [any(value is not None for value in step.parameter_gradients.values()) for step in (base, raw)]
        if sides[0] != sides[1]:
            tally.passed = False
            say(f"{label}only {'base_model' if sides[0] else 'raw_model'} has grads")
            return
    compared = apart.left_by(base, raw)
    differing = [one for one in compared if not one.agrees]
    tally.compared += len(compared)
    if not differing:
        if compared:
            say(f"{label}{what} compared. ({count(len(compared), 'tensor')})")
        return
    tally.passed = False
    say(f"{label}{what} compared. ({count(len(compared), 'tensor')}, {len(differing)} differ)")
    names = apart.job.base.tree.name, apart.job.raw.tree.name
    tally.would_hold += [bounds_that_hold(compared, one, tally.tolerance, own_loss=True) for one in differing]
    for one in differing:
        tally.lines += listed_difference(what, one, names, tally.tolerance)
    for one in differing[: max(0, MOST_PRINTED - tally.printed)]:
        tally.printed += 1
        _say_difference(one, names, tally.tolerance)


def _say_of_rounding(tally: _Tally) -> None:
    known = [one for one in tally.would_hold if one is not None]
    found = widest(known, tally.tolerance)
    if found is not None and len(known) == len(tally.would_hold):
        say(*said_of_rounding(len(known), tally.what, found))


def _say_difference(one: Comparison, names: tuple[str, str], tolerance: Tolerance) -> None:
    base, raw = routes(names, one)
    say(
        f"{INDENT}base_model: {base}",
        f"{INDENT}raw_model:  {raw}",
        *(2 * INDENT + line for line in number_lines(one, tolerance, title_of(one))),
    )


def _left_over(tally: _Tally, apart: Apart) -> None:
    """Parameters that have no partner cannot be compared: said, and where they are many, no success."""
    for problem in apart.plan.problems:
        tally.passed = False
        say(*wrapped(f"{tally.what} not compared: {problem.message}", after=INDENT))
    for one in apart.plan.unmatched:
        if one.kind == "parameter":
            say(*wrapped(f"{tally.what} not compared: {one}", after=INDENT))
    share = apart.covered()
    if share < ENOUGH_PARAMETERS:
        tally.passed = False
        say(f"only {100 * share:.0f} % of raw_model's parameters have a partner: too little for a verdict")


def _label(label: str, base: Dump, step: StepDump) -> str:
    """Which step of which rank; of a dump that holds several steps, the folders don't say it all."""
    several = f"step {step.number}" if len(base.steps) > 1 else ""
    text = " ".join(part for part in (label, several) if part)
    return f"{text}: " if text else ""
