"""The outcome as text."""

from __future__ import annotations

from typing import Any

from padiff.records import Comparison, Divergence, SourceLine


def summary(result: Any) -> str:
    """Verdict, place, numbers, source lines and what was left out, as plain text."""
    lines = [_verdict(result)]
    if result.divergence is not None:
        lines += _divergence(result.divergence)
    lines += [f"note: {note}" for note in result.notes]
    units = list(dict.fromkeys(one.inside for one in result.unmatched if one.inside))
    if units:
        lines.append(f"compared as one, not inside: {', '.join(units[:4])}{', ...' if len(units) > 4 else ''}")
    alone = [one for one in result.unmatched if not one.inside]
    if alone:
        lines.append(f"without partner ({len(alone)}):")
        lines += [f"  {one}" for one in alone[:10]]
        if len(alone) > 10:
            lines.append(f"  and {len(alone) - 10} more")
    return "\n".join(lines)


def _verdict(result: Any) -> str:
    names = f"{result.base.name} ({result.base.framework}) and {result.raw.name} ({result.raw.framework})"
    count = len(result.comparisons)
    if result.aligned:
        worst = worst_error(result.comparisons)
        return f"ALIGNED  {names}: {count} tensors compared, largest relative error of an output {worst:.1e}"
    if result.divergence is None:
        return f"NOT SURE  {names}: {count} tensors compared, too few for a verdict"
    return f"DIVERGED  {names}: {count} tensors compared"


def worst_error(comparisons: tuple[Comparison, ...]) -> float:
    """The largest mean error of an output relative to base's mean size."""
    found = 0.0
    for comparison in comparisons:
        numbers = comparison.outcome.numbers
        if comparison.phase == "forward" and comparison.role == "output" and numbers and numbers.base_mean_abs > 0:
            found = max(found, numbers.mean_abs / numbers.base_mean_abs)
    return found


def _divergence(divergence: Divergence) -> list[str]:
    place = divergence.base_path or "(the model itself)"
    other = divergence.raw_path or "(the model itself)"
    lines = [
        f"  first in {divergence.phase}, step {divergence.step}",
        f"  base  {place}  {divergence.base_kind}",
        f"  raw   {other}  {divergence.raw_kind}",
        f"  {divergence.comparison.outcome.message}",
    ]
    if divergence.note:
        lines.append(f"  {divergence.note}")
    for side, stack in zip(("base", "raw "), divergence.source, strict=True):
        if stack:
            lines.append(f"  {side} {_last(stack)}")
    lines += [f"  cause: {cause}" for cause in divergence.causes]
    return lines


def _last(stack: tuple[SourceLine, ...]) -> str:
    line = stack[-1]
    return f"{line.file}:{line.line}  {line.text}"
