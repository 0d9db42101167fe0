"""The report as Markdown, short enough for a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from padiff.records import Divergence, SourceLine
from padiff.report import words
from padiff.report.record import Report

SIGNS = {"aligned": "✅", "diverged": "❌", "unsure": "❔"}
MOST_PLACES, MOST_WORST, MOST_ALONE, MOST_CAUSES = 5, 15, 30, 3
MOST_TEXT = 60_000
"""A comment on GitHub holds 65,536 characters."""


def to_markdown(report: Report) -> str:
    """Verdict, place, cause and source first; long lists are folded away."""
    text = "\n".join(_lines(report)).rstrip() + "\n"
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT].rsplit("\n", 1)[0] + "\n\n*(cut here)*\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"## {SIGNS[report.verdict]} padiff: {words.VERDICTS[report.verdict].lower()}"
    yield ""
    yield f"{escaped(words.side(report.base))} and {escaped(words.side(report.raw))}: {escaped(words.tally(report))}."
    yield ""
    if report.divergence is not None:
        yield from _place(report, report.divergence)
    if len(report.divergences) > 1:
        yield from ("**Further places that go wrong by themselves**", "")
        for one in report.divergences[1 : 1 + MOST_PLACES]:
            yield f"* {code(words.both(one.base_path, one.raw_path))}, {words.where(one)}"
        if len(report.divergences) - 1 > MOST_PLACES:
            yield f"* and {len(report.divergences) - 1 - MOST_PLACES} more"
        yield ""
    for note in report.notes:
        yield from (f"> {escaped(note)}", "")
    yield from _folded("Worst comparisons", _worst(report))
    count, alone = words.without_partner(report.unmatched)
    yield from _folded(f"Without partner ({count})", _alone(alone))
    shares = ", ".join(f"{words.percent(share)} of raw's {what}" for what, share in report.coverage.items())
    if shares:
        ran = "".join(f" {escaped(told[0].upper() + told[1:])}." for told in words.ran_on(report))
        yield f"<sub>Compared: {shares}. Tolerance: {escaped(str(report.tolerance))}.{ran}</sub>"


def _place(report: Report, divergence: Divergence) -> Iterator[str]:
    both = words.both(divergence.base_path, divergence.raw_path)
    kinds = f"{divergence.base_kind} vs {divergence.raw_kind}"
    yield f"**It starts at {code(both)}** ({escaped(kinds)}), in {words.where(divergence)}."
    yield ""
    yield escaped(divergence.comparison.outcome.message)
    bad = words.how_bad(divergence.comparison.outcome)
    if bad:
        yield ""
        yield f"**{escaped(bad[0].upper() + bad[1:])}.**"
    if divergence.note:
        yield from ("", escaped(divergence.note))
    if divergence.op is not None:
        yield from ("", f"It starts with the {divergence.op.what} {code(str(divergence.op))}.")
    yield ""
    for cause in divergence.causes[:MOST_CAUSES]:
        yield f"* **{escaped(cause.name)}**: {escaped(cause.evidence)} *({escaped(words.sure(cause))})*"
    if divergence.causes:
        yield ""
    if divergence.settings:
        yield from ("| setting | base | raw |", "|---|---|---|")
        for name, base, raw in divergence.settings:
            yield f"| {escaped(name)} | {code(str(base))} | {code(str(raw))} |"
        yield ""
    for side, stack in zip(("base", "raw"), divergence.source, strict=True):
        yield from _source(report, side, stack)


def _source(report: Report, side: str, stack: tuple[SourceLine, ...]) -> Iterator[str]:
    if not stack:
        return
    last = stack[-1]
    known = report.code.get(last.file, {})
    marked = words.marked(stack)
    shown = words.around(marked, known)
    lines = [f"{'>' if line in marked else ' '} {line:>4}  {known[str(line)]}" for line in shown]
    lines = lines or [f"> {last.line:>4}  {last.text}"]
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    yield f"{side}: {code(f'{last.file}:{last.line}')} in {code(last.function)}"
    yield ""
    yield f"{fence}text"
    yield from lines
    yield fence
    yield ""


def _worst(report: Report) -> Iterator[str]:
    rows = words.worst(report, MOST_WORST)
    if not rows:
        return
    yield from ("| module | phase | tensor | relative error | × allowed | verdict |", "|---|---|---|---:|---:|---|")
    for one in rows:
        beyond = words.many(words.excess(one.outcome, report.tolerance.mode))
        yield (
            f"| {code(words.both(one.base_path, one.raw_path))} | {one.phase} | {escaped(words.tensor(one))} "
            f"| {words.error(one.outcome)} | {beyond} | {one.outcome.verdict} |"
        )


def _alone(alone: Sequence[words.Alone]) -> Iterator[str]:
    for one in alone[:MOST_ALONE]:
        yield f"* {one._replace(kind=escaped(one.kind), why=escaped(one.why)).told(code)}"
    if len(alone) > MOST_ALONE:
        yield f"* and of {len(alone) - MOST_ALONE} more kinds"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    inside = list(lines)
    if inside:
        yield from (f"<details><summary>{title}</summary>", "", *inside, "", "</details>", "")


def escaped(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    flat = " ".join(text.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~#@!])", _entity, flat)


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[1])};" if found[1] in "|@`" else "\\" + found[1]


def code(text: str) -> str:
    """Text in code style, whatever is in it; a bar would end a cell of a table."""
    flat = " ".join(text.split())
    if not flat:
        return "(empty)"
    if "|" in flat or "`" in flat:
        inner = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return f"<code>{inner.replace('|', '&#124;').replace('`', '&#96;')}</code>"
    return f"`{flat}`"
