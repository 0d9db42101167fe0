"""What every renderer says alike: places, numbers, how bad it is, and which comparisons are the worst."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from padiff.records import Cause, Comparison, Divergence, Outcome, SourceLine, Unmatched
from padiff.report.record import Report, Side

VERDICTS = {"aligned": "ALIGNED", "diverged": "DIVERGED", "unsure": "NOT SURE"}


def place(path: str) -> str:
    return path or "(the model itself)"


def tensor(comparison: Comparison) -> str:
    """Which tensor of its module: ``output``, ``input 0``, ``parameter weight``."""
    return comparison.role if comparison.name in ("", comparison.role) else f"{comparison.role} {comparison.name}"


def first_of(names: Sequence[str], most: int) -> str:
    """The first few of many, in a row."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


class Alone(NamedTuple):
    """What has no partner, of one side and kind, for one reason."""

    side: str
    paths: list[str]
    kind: str
    why: str

    def told(self, written: Callable[[str], str] = str) -> str:
        """In a line, with the paths as they are ``written``."""
        shown = first_of([written(path) for path in self.paths], 2)
        many = f"{len(self.paths)} x " if len(self.paths) > 1 else ""
        return f"{self.side} {shown} ({many}{self.kind}): {self.why}"


def without_partner(unmatched: Iterable[Unmatched]) -> tuple[int, list[Alone]]:
    """How many have no partner and are not inside a layer that is compared as one; and all of a kind together."""
    kinds: dict[tuple[str, str, str], Alone] = {}
    for one in unmatched:
        if not one.inside:
            key = one.side, one.kind, one.why
            kinds.setdefault(key, Alone(one.side, [], one.kind, one.why)).paths.append(one.path or "(model)")
    return sum(len(one.paths) for one in kinds.values()), list(kinds.values())


def side(one: Side) -> str:
    return f"{one.name} ({one.framework}{' ' + one.version if one.version else ''})"


def ran_on(report: Report) -> list[str]:
    """Where both sides ran, and what else of it differs between them."""
    sides = base, raw = (report.base.environment, report.raw.environment)
    asked = ("device", "device name", "parameters", "mode")
    told = [", ".join(one[name] for name in asked if name in one) for one in sides]
    if not all(told):
        return []
    first = f"both ran on {told[0]}" if told[0] == told[1] else f"base ran on {told[0]}; raw on {told[1]}"
    unlike = [name for name in base if raw.get(name, base[name]) != base[name] and name not in asked]
    differ = ", ".join(f"{name} (base {base[name]}, raw {raw[name]})" for name in unlike)
    return [first, f"set differently: {differ}"] if differ else [first]


def both(base: str, raw: str) -> str:
    """One path for both, or the two."""
    return place(raw) if base == raw else f"{place(base)} vs {place(raw)}"


def short(value: float | None) -> str:
    """A number as people read it: two digits, or a word."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return "0" if value == 0 else f"{value:.1e}"


def many(value: float) -> str:
    """How many times: 3.2, 47, 8,300, 2.1e+06."""
    if not math.isfinite(value):
        return "inf"
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def relative(outcome: Outcome) -> float | None:
    """The error's root mean square over base's; inf where values are not finite, None where there is no number."""
    numbers = outcome.numbers
    if outcome.reason == "nonfinite":
        return math.inf
    if numbers is None:
        return None
    if numbers.base_rms > 0:
        return numbers.rmse / numbers.base_rms
    return 0.0 if numbers.rmse == 0 else math.inf


def error(outcome: Outcome) -> str:
    """The relative error, or what stands in the way of one."""
    if outcome.reason == "nonfinite":
        return "NaN, Inf"
    return short(relative(outcome)) if outcome.numbers is not None else outcome.reason or "–"


def excess(outcome: Outcome, mode: str) -> float:
    """How many times what was allowed; inf where no tolerance would help."""
    numbers = outcome.numbers
    if numbers is None or outcome.reason in ("nonfinite", "shape", "dtype", "structure"):
        return 0.0 if outcome.agrees else math.inf
    error = {"auto": numbers.rmse, "mean": numbers.mean_abs}.get(mode, numbers.max_abs)
    if not outcome.allowed:
        return math.inf if error and not outcome.agrees else 0.0
    return error / outcome.allowed


def how_bad(outcome: Outcome) -> str:
    """The error against what rounding explains and what was allowed, in one line; empty where there are no numbers."""
    numbers = outcome.numbers
    if numbers is None or outcome.reason == "nonfinite":
        return ""
    parts = [f"relative error {short(relative(outcome))}"]
    if outcome.ratio is not None and math.isfinite(outcome.ratio):
        parts.append(f"{many(outcome.ratio)} times what rounding explains")
    elif outcome.allowed and not outcome.agrees:
        parts.append(f"allowed {short(outcome.allowed)}")
    if numbers.max_ulp:
        parts.append(f"up to {many(numbers.max_ulp)} ulp")
    return ", ".join(parts)


def tally(report: Report) -> str:
    """What was compared and what came of it, in one sentence."""
    found = Counter(one.outcome.verdict for one in report.comparisons)
    differ = found["different"]
    compared = f"{count(len(report.comparisons), 'tensor')} compared"
    if report.interruption is not None:
        compared += f" before {report.interruption.side} raised {report.interruption.error}"
    if report.verdict == "aligned":
        largest = f"largest relative error of an output {short(peak(report))}"
        return f"{compared}, {found['equal']:,} equal to the bit, {largest}"
    if report.verdict == "unsure":
        enough = "" if report.interruption is not None else ", too few for a verdict"
        return f"{compared}{enough}" if not differ else f"{compared}, {differ:,} differ"
    places = len(report.divergences)
    start = "it starts at one place" if places == 1 else f"it starts at {places} places"
    return f"{compared}, {differ:,} differ; {start}"


def peak(report: Report) -> float:
    """The largest relative error of an output, in forward: gradients may be zero by rights, and all noise."""
    return peak_of(report.comparisons)


def peak_of(comparisons: Iterable[Comparison]) -> float:
    errors = [relative(one.outcome) for one in comparisons if one.phase == "forward" and one.role == "output"]
    return max((error for error in errors if error is not None and math.isfinite(error)), default=0.0)


def sure(cause: Cause) -> str:
    """How much a cause is to be believed."""
    how = "tested" if cause.tested else "a pattern that fits, not tested"
    return f"{round(100 * cause.confidence)} %, {how}"


def where(divergence: Divergence) -> str:
    return f"{divergence.phase}, step {divergence.step}"


def outputs(comparisons: Iterable[Comparison], phase: str, step: int) -> list[Comparison]:
    """What is drawn along depth: outputs of calls in the order they ended, parameters and buffers in theirs."""
    roles = ("output",) if phase == "forward" else ("output", "parameter", "buffer", "input")
    return [one for one in comparisons if one.phase == phase and one.step == step and one.role in roles]


def worst(report: Report, most: int) -> Sequence[Comparison]:
    """The comparisons that went furthest beyond what was allowed; in an aligned report those that came nearest."""
    mode = report.tolerance.mode
    seen: set[tuple[str, str, int]] = set()
    found: list[Comparison] = []

    def rank(one: Comparison) -> tuple[bool, float, float]:
        return not one.agrees, excess(one.outcome, mode), relative(one.outcome) or 0.0

    for one in sorted(report.comparisons, key=rank, reverse=True):
        key = (one.raw_path, one.phase, one.step)  # one line for each module
        if key in seen or one.role == "input" or one.outcome.verdict == "equal":
            continue
        seen.add(key)
        found.append(one)
        if len(found) == most:
            break
    return found


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share in (0, 1) or 0.005 <= share < 0.995 else f"{100 * share:.1f} %"


def marked(stack: Sequence[SourceLine]) -> set[int]:
    """The lines a divergence points at: the innermost, and those right before it that are listed with it."""
    found: set[int] = set()
    for line in reversed(stack):
        if found and (line.file != stack[-1].file or line.line not in (min(found), min(found) - 1)):
            break
        found.add(line.line)
    return found


def around(lines: Iterable[int], known: Mapping[str, str]) -> list[int]:
    """These lines and two before and after each, as far as their text is known; no blank ones at the ends."""
    shown = sorted({near for line in lines for near in range(line - 2, line + 3) if str(near) in known})
    while shown and not known[str(shown[-1])].strip():
        shown.pop()
    while shown and not known[str(shown[0])].strip():
        shown.pop(0)
    return shown
