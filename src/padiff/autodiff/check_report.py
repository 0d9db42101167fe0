"""``check_report``: what two models computed, held against each other from their dumps. No framework is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from padiff.autodiff.dump_pairs import RunsSeen, check_parts, dump_pairs, mapped_rules
from padiff.autodiff.failure import explain
from padiff.autodiff.log import count, say, wrapped
from padiff.autodiff.options import read_tolerance, refuse_option
from padiff.autodiff.rounding import said_of_bounds, tolerance_that_holds
from padiff.autodiff.trees import route
from padiff.engine.apart.apart import Apart
from padiff.engine.result import Result
from padiff.errors import ArgumentError
from padiff.records import Phase, Rules, Tolerance
from padiff.report import Report
from padiff.store import Dump

OPTIONS = ("atol", "rtol", "compare_mode")
STAGES = {"forward": "forward stage", "loss": "loss", "backward": "backward stage"}


def check_report(path_0: Any, path_1: Any, cfg: Mapping[str, Any] | None = None) -> bool:
    """True when two dumps hold the same calls with the same tensors and gradients; else the log says where they part.

    ``path_0`` is base's. Each is a dump, or a folder of ``step_<n>`` or ``rank_<r>``, walked whole. ``cfg`` has
    ``atol``, ``rtol`` and ``compare_mode``.
    """
    tolerance = read_cfg("check_report", cfg)
    found = dump_pairs(path_0, path_1)
    say(f"Checking report ({tolerance})", f"    base_model: {path_0}", f"    raw_model:  {path_1}")
    passed, runs = True, RunsSeen()
    for label, one, other in found.pairs:
        with Dump.open(one) as base, Dump.open(other) as raw:
            for path, dump in ((path_0, base), (path_1, raw)):
                check_parts(dump, "report")
                runs.see(path, label, dump)
            apart = opened(base, raw, tolerance)
            result = apart.run(renumbered=True)
            _say_compared(label, result)
            if result.aligned:
                for note in result.notes:
                    say(*wrapped(note, after="    "))
                continue
            if passed:
                explain(result.report(), whole=True, own_loss=True)
                _say_of_rounding(base, raw, result.report())
            else:
                _say_briefly(result)
            passed = False
    return concluded(passed and not found.alone, [*found.alone, *runs.notes()])


def opened(base: Dump, raw: Dump, tolerance: Tolerance, left: tuple[Phase, ...] = ()) -> Apart:
    """Two dumps, ready to be compared; ``left`` is what counts of what steps left."""

    def rules(_: Any, *trees: Any) -> tuple[Rules, dict[str, Any]]:
        return mapped_rules(base, raw), {}

    return Apart(base, raw, tolerance, None, rules, lambda bounds, *_: bounds, left=left)


def read_cfg(call: str, cfg: Any) -> Tolerance:
    """The bounds that ``cfg`` gives, or the documented ones."""
    if cfg is not None and not isinstance(cfg, Mapping):
        raise ArgumentError(f"cfg is a {type(cfg).__name__}, expected a dict such as {{'atol': 1e-4}}")
    given = dict(cfg or {})
    for name in given:
        if name not in OPTIONS:
            refuse_option(call, name, OPTIONS)
    return read_tolerance(given.get("atol", 0.0), given.get("rtol", 1e-7), given.get("compare_mode", "mean"))


def concluded(passed: bool, notes: Iterable[str]) -> bool:
    """The last lines of a check."""
    for text in notes:
        say(*wrapped(text, after="    "))
    say("SUCCESS !!!" if passed else "FAILED !!!")
    return passed


def _say_compared(label: str, result: Result) -> None:
    parts: list[str] = []
    for name, text in STAGES.items():
        outcomes = [c.agrees for c in result.comparisons if ("loss" if c.role == "loss" else c.phase) == name]
        if outcomes:
            wrong = outcomes.count(False)
            parts.append(f"{text} ({count(len(outcomes), 'tensor')}{f', {wrong} differ' if wrong else ''})")
    said = ", ".join(parts) or "nothing"
    say(*wrapped(f"{label}: {said} compared." if label else f"{said} compared.", after="    "))


def _say_of_rounding(base: Dump, raw: Dump, report: Report) -> None:
    """Where more than the bounds keeps the report from calling it rounding: what inner layers are given, and each
    author gives as he likes. Whether that accuses anybody is for the engine to say."""
    found = tolerance_that_holds(report, own_loss=True, inner=False)
    if found is None or tolerance_that_holds(report, own_loss=True) is not None:
        return
    if opened(base, raw, Tolerance(mode="auto")).run(renumbered=True).aligned:
        say(
            "",
            "The differences are of the size of rounding noise, but for what inner layers are given, which is passed",
            "    differently and changes nothing: but for the bounds, the models agree.",
            said_of_bounds(found),
        )


def _say_briefly(result: Result) -> None:
    """One of many that differ: the place, and no more."""
    divergence = result.divergence
    if divergence is None:
        say(*(line for note in result.notes for line in wrapped(note, "    ")))
    else:
        base = route(result.base.name, "base_model", divergence.base_path)
        raw = route(result.raw.name, "raw_model", divergence.raw_path)
        say(f"    differs, first at {base} and {raw} ({divergence.phase})")
