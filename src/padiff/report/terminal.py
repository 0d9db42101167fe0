"""The outcome on a terminal: as text in a sentence or two, and drawn by rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from padiff.records import Comparison, Divergence, SourceLine
from padiff.report import words
from padiff.report.drawing import ASCII, UNICODE, Signs, fold, sparkline
from padiff.report.record import Report

STYLES = {"aligned": "bold white on green4", "diverged": "bold white on red3", "unsure": "bold black on yellow3"}
WIDE = 112
"""From this width on, the two sides' sources stand side by side."""
MOST_WORST, MOST_ALONE, MOST_PLACES, MOST_CAUSES = 8, 6, 6, 3


def show(report: Report, file: TextIO | None = None) -> None:
    """Print the report, as the terminal can show it: its width, its colours, its characters."""
    target = sys.stdout if file is None else file
    console = Console(file=target, force_jupyter=False)
    colours = console.color_system if console.is_terminal and not console.legacy_windows else None
    encoding = getattr(target, "encoding", None) or "utf-8"
    text = render(report, console.width, colours, plain=not encoding.lower().replace("_", "-").startswith("utf"))
    target.write(text.encode(encoding, "backslashreplace").decode(encoding))


def render(report: Report, width: int = 100, colours: str | None = None, *, plain: bool = False) -> str:
    """The report as text of a given width; ``plain`` keeps to ASCII, what comes from the models excepted."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        color_system=colours,  # type: ignore[arg-type]
        force_terminal=colours is not None,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    signs = ASCII if plain else UNICODE
    for part in _parts(report, width, signs):
        console.print(part)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).rstrip() + "\n"


def _parts(report: Report, width: int, signs: Signs) -> Iterable[RenderableType]:
    head = Text.assemble(
        (f" {signs.verdict[report.verdict]} {words.VERDICTS[report.verdict]} ", STYLES[report.verdict])
    )
    head.append(f"  {words.side(report.base)} and {words.side(report.raw)}", "bold")
    yield head
    yield Text(words.tally(report))
    first = report.divergence
    if first is not None:
        yield from _section("Where it starts", _place(first, signs))
        if first.causes or first.settings:
            yield from _section("Why", _why(first))
        if any(first.source):
            yield from _section("Source", _source(report, first, width, signs))
        yield from _section("Both models around it", _trees(report, first, signs))
    if first is not None and len(report.divergences) > 1:
        yield from _section("Further places that go wrong by themselves", _further(report))
    yield from _growth(report, width, signs)
    rows = words.worst(report, MOST_WORST)
    if rows:
        title = "Nearest to what is allowed" if report.aligned else "Furthest beyond what is allowed, as raw ran"
        yield from _section(title, _worst_table(report, width, signs))
    yield from _rest(report)


def _section(title: str, body: RenderableType) -> Iterable[RenderableType]:
    yield Text("")
    yield Text(title, "bold cyan")
    yield Padding(body, (0, 0, 0, 2))


# ------------------------------------------------------------------ the place


def _place(divergence: Divergence, signs: Signs) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("phase", words.where(divergence))
    for name, path, kind in (
        ("base", divergence.base_path, divergence.base_kind),
        ("raw", divergence.raw_path, divergence.raw_kind),
    ):
        grid.add_row(name, Text.assemble((words.place(path), "bold red"), f"  {kind}"))
    if divergence.op is not None:
        grid.add_row(divergence.op.what, Text.assemble((str(divergence.op), "bold red")))
    comparison = divergence.comparison
    found = Text(comparison.outcome.message)
    grid.add_row("found", found)
    bad = words.how_bad(comparison.outcome)
    if bad:
        grid.add_row("how bad", Text(bad, "bold"))
    if comparison.outcome.layout:
        grid.add_row("layout", Text(comparison.outcome.layout))
    if divergence.note:
        grid.add_row("note", Text(divergence.note))
    return grid


def _why(divergence: Divergence) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold yellow", no_wrap=True)
    grid.add_column(overflow="fold")
    for cause in divergence.causes[:MOST_CAUSES]:
        grid.add_row(cause.name, Text.assemble(cause.evidence, (f"  ({words.sure(cause)})", "dim")))
    for name, base, raw in divergence.settings[:MOST_WORST]:
        grid.add_row(
            "", Text.assemble(("setting ", "dim"), name, ("  base ", "dim"), str(base), ("  raw ", "dim"), str(raw))
        )
    return grid


def _source(report: Report, divergence: Divergence, width: int, signs: Signs) -> RenderableType:
    blocks = [_code(report, name, stack, signs) for name, stack in zip(("base", "raw"), divergence.source, strict=True)]
    if width < WIDE:
        return Group(*blocks)
    grid = Table.grid(padding=(0, 3), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(*blocks)
    return grid


def _code(report: Report, side: str, stack: tuple[SourceLine, ...], signs: Signs) -> RenderableType:
    if not stack:
        return Text(f"{side}  not known", "dim")
    last = stack[-1]
    title = Text.assemble(
        (f"{side:<4}  ", "dim"), f"{shortened(last.file)}:{last.line}", (f" in {last.function}", "dim")
    )
    title.no_wrap, title.overflow = True, "ellipsis"
    marked = words.marked(stack)
    known = report.code.get(last.file, {})
    shown = words.around(marked, known)
    if not shown:
        return Group(title, Text(f"  {signs.here} {last.text}", no_wrap=True, overflow="ellipsis"))
    indent = min(
        (len(t) - len(t.lstrip()) for line in shown if (t := known[str(line)].expandtabs(4)).strip()), default=0
    )
    rows: list[RenderableType] = [title]
    for line in shown:
        mark = signs.here if line in marked else " "
        text = f"  {mark} {line:>4} {signs.bar} {known[str(line)].expandtabs(4)[indent:]}"
        rows.append(Text(text, "bold" if line in marked else "dim", no_wrap=True, overflow="ellipsis"))
    return Group(*rows)


def shortened(file: str) -> str:
    """A file's path by its last three parts."""
    parts = file.replace("\\", "/").split("/")
    return file if len(parts) <= 4 else ".../" + "/".join(parts[-3:])


def _trees(report: Report, divergence: Divergence, signs: Signs) -> RenderableType:
    grid = Table.grid(padding=(0, 3), expand=True)
    sides = ((report.base, divergence.base_path), (report.raw, divergence.raw_path))
    trees = []
    for name, (side, path) in zip(("base", "raw"), sides, strict=True):
        grid.add_column(ratio=1)
        lines = [Text(f"{name}: {side.framework}", "dim")]
        for line, marked in fold(side.modules, path, signs):
            text = Text(line, "bold red" if marked else "", no_wrap=True, overflow="ellipsis")
            if marked:
                text = Text(f"{line} {signs.left} here", "bold red", no_wrap=True, overflow="ellipsis")
            lines.append(text)
        trees.append(Group(*lines))
    grid.add_row(*trees)
    return grid


def _further(report: Report) -> RenderableType:
    rows = [
        Text(f"{words.both(one.base_path, one.raw_path)}  {words.where(one)}", no_wrap=True, overflow="ellipsis")
        for one in report.divergences[1 : 1 + MOST_PLACES]
    ]
    more = len(report.divergences) - 1 - MOST_PLACES
    return Group(*rows, *([Text(f"and {more} more", "dim")] if more > 0 else []))


# ------------------------------------------------------------------ the whole


def _growth(report: Report, width: int, signs: Signs) -> Iterable[RenderableType]:
    first = report.divergence
    step = first.step if first is not None else (report.steps[-1] if report.steps else 0)
    phase = first.phase if first is not None and first.phase == "backward" else "forward"
    rows = words.outputs(report.comparisons, phase, step)
    if len(rows) < 3:
        return
    at = -1
    if first is not None:
        at = next((i for i, one in enumerate(rows) if one.raw_call == first.raw_call and one.raw_call >= 0), -1)
    drawn = sparkline([words.relative(one.outcome) for one in rows], width - 4, signs, at)
    if drawn is None:
        return
    what = "outputs" if phase == "forward" else "gradients"
    title = f"Relative error of {what} in order of computation, {drawn.low} to {drawn.high}"
    if drawn.none and signs.none.strip():
        title += f", {signs.none} none"
    lines = [Text(drawn.line, "green" if report.aligned else "yellow", no_wrap=True)]
    if drawn.marker and first is not None:
        lines.append(Text(drawn.under(words.place(first.raw_path), width - 4), "bold red", no_wrap=True))
    yield from _section(title, Group(*lines))


def _worst_table(report: Report, width: int, signs: Signs) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("module", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("phase", no_wrap=True)
    if width >= WIDE:
        table.add_column("tensor", no_wrap=True, overflow="ellipsis")
    for name in ("rel. error", "× allowed" if signs is UNICODE else "x allowed"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in words.worst(report, MOST_WORST):
        beyond = words.excess(one.outcome, report.tolerance.mode)
        row: list[RenderableType] = [
            Text(signs.outcome[one.outcome.verdict], "red" if not one.agrees else "green"),
            Text(_module(one, width)),
            one.phase if len(report.steps) == 1 else f"{one.phase} {one.step}",
            *([words.tensor(one)] if width >= WIDE else []),
            words.error(one.outcome),
            words.many(beyond) if beyond != float("inf") else signs.no_number,
        ]
        table.add_row(*row)
    return table


def _module(one: Comparison, width: int) -> str:
    """Both paths where there is room and they differ, else raw's."""
    if width < WIDE or one.base_path == one.raw_path:
        return elided(words.place(one.raw_path), max(16, width - 50))
    half = (width - 70) // 2
    return f"{elided(words.place(one.base_path), half)} vs {elided(words.place(one.raw_path), half)}"


def elided(path: str, most: int) -> str:
    """A path with its middle left out: its ends tell most."""
    if len(path) <= most:
        return path
    head = (most - 3) // 3
    return f"{path[:head]}...{path[head - most + 3 :]}"


def _rest(report: Report) -> Iterable[RenderableType]:
    shares = ", ".join(f"{words.percent(share)} of raw's {what}" for what, share in report.coverage.items())
    lines = [Text(f"compared: {shares}", "dim")] if shares else []
    lines += [Text(told, "dim") for told in words.ran_on(report)]
    lines += [Text(f"note: {note}") for note in report.notes]
    units = list(dict.fromkeys(one.inside for one in report.unmatched if one.inside))
    if units:
        shown = ", ".join(units[:4]) + (f" and {len(units) - 4} more" if len(units) > 4 else "")
        lines.append(Text(f"compared as one, not inside: {shown}", "dim"))
    count, alone = words.without_partner(report.unmatched)
    if alone:
        lines.append(Text(f"without partner ({count}):"))
        lines += [Text(f"  {one.told()}", no_wrap=True, overflow="ellipsis") for one in alone[:MOST_ALONE]]
        if len(alone) > MOST_ALONE:
            lines.append(Text(f"  and of {len(alone) - MOST_ALONE} more kinds", "dim"))
    if lines:
        yield Text("")
        yield Group(*lines)


# ------------------------------------------------------------------ in a few sentences


def summary(result: Any) -> str:
    """Verdict, place, numbers, source lines and what was left out, as plain text; of a result or a report."""
    names = f"{result.base.name} ({result.base.framework}) and {result.raw.name} ({result.raw.framework})"
    verdict = "aligned" if result.aligned else "unsure" if result.divergence is None else "diverged"
    lines = [f"{words.VERDICTS[verdict]}  {names}: {_tally(result, verdict)}"]
    if result.divergence is not None:
        lines += _sentences(result.divergence)
    lines += [f"note: {note}" for note in result.notes]
    units = list(dict.fromkeys(one.inside for one in result.unmatched if one.inside))
    if units:
        lines.append(f"compared as one, not inside: {', '.join(units[:4])}{', ...' if len(units) > 4 else ''}")
    count, alone = words.without_partner(result.unmatched)
    if alone:
        lines.append(f"without partner ({count}):")
        lines += [f"  {one.told()}" for one in alone[:10]]
        if len(alone) > 10:
            lines.append(f"  and of {len(alone) - 10} more kinds")
    return "\n".join(lines)


def _tally(result: Any, verdict: str) -> str:
    compared = f"{len(result.comparisons)} tensors compared"
    if result.interruption is not None:
        return f"{compared} before {result.interruption.side} raised {result.interruption.error}"
    if verdict == "aligned":
        return f"{compared}, largest relative error of an output {words.peak_of(result.comparisons):.1e}"
    return f"{compared}, too few for a verdict" if verdict == "unsure" else compared


def _sentences(divergence: Divergence) -> list[str]:
    lines = [
        f"  first in {divergence.phase}, step {divergence.step}",
        f"  base  {words.place(divergence.base_path)}  {divergence.base_kind}",
        f"  raw   {words.place(divergence.raw_path)}  {divergence.raw_kind}",
        f"  {divergence.comparison.outcome.message}",
    ]
    if divergence.note:
        lines.append(f"  {divergence.note}")
    if divergence.op is not None:
        lines.append(f"  it starts with the {divergence.op.what} {divergence.op}")
    for side, stack in zip(("base", "raw "), divergence.source, strict=True):
        if stack:
            lines.append(f"  {side} {stack[-1].file}:{stack[-1].line}  {stack[-1].text}")
    lines += [f"  cause: {cause}" for cause in divergence.causes]
    return lines
