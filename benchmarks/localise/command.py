"""``python -m benchmarks localise [--pairs a,b] [--bugs a,b] [--limit N] [--seed S] [--json FILE] [--add FILE ...]``"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.localise.counted import ALIGNED, DIVERGING, cost
from benchmarks.localise.judge import CAUSES, PLACES, Judgement


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    found = Found()
    for file in options.add:
        found.read(file)
    if not options.only_add:
        _run(options, found)
    found.show(options.all)
    found.save(options.json)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks localise", description="Plant bugs, and see whether they are found where they are."
    )
    parser.add_argument("--pairs", default="", help="beginnings of the names of pairs, with commas; all by default")
    parser.add_argument("--bugs", default="", help="beginnings of kinds of bugs, with commas; all by default")
    parser.add_argument("--limit", type=int, default=8, help="bugs per pair (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="which bugs are chosen, and where")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every judgement there")
    parser.add_argument("--add", type=Path, nargs="*", default=[], metavar="FILE", help="count these results as well")
    parser.add_argument("--only-add", action="store_true", help="plant nothing, add the given results together")
    parser.add_argument("--all", action="store_true", help="list the exact ones, too")
    parser.add_argument("--list", action="store_true", help="list the pairs and end")
    options = parser.parse_args(arguments)
    if options.list:
        from benchmarks.localise.sources import sources

        for source in sources(_names(options.pairs)):
            print(source.name)
        parser.exit()
    return options


def _run(options: argparse.Namespace, found: Found) -> None:
    from benchmarks.localise.run import run_source
    from benchmarks.localise.sources import sources

    for source in sources(_names(options.pairs)):
        start = time.perf_counter()
        outcome = run_source(source, _names(options.bugs), options.limit, options.seed)
        took = time.perf_counter() - start
        found.judgements += outcome.judgements
        found.faint.update(outcome.faint)
        found.unclean += [f"{source.name}: {what}" for what in outcome.unclean]
        found.clean_runs += outcome.clean_runs
        places = Counter(one.place for one in outcome.judgements)
        told = ", ".join(f"{places[place]} {place}" for place in PLACES if places[place])
        print(f"{source.name}: {told or 'nothing'} in {took:.1f} s", file=sys.stderr, flush=True)
        found.save(options.json)


def _names(text: str) -> list[str]:
    return [name.strip() for name in re.split(r";|,(?! )", text) if name.strip()]  # names hold ", "


@dataclasses.dataclass
class Found:
    """All that was found, of one run or of several."""

    judgements: list[Judgement] = dataclasses.field(default_factory=list)
    faint: Counter[str] = dataclasses.field(default_factory=Counter)
    unclean: list[str] = dataclasses.field(default_factory=list)
    clean_runs: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def read(self, file: Path) -> None:
        """Add what an earlier run wrote."""
        data = json.loads(file.read_text(encoding="utf-8"))
        for one in data["judgements"]:
            for name in ("expected", "phases", "causes", "runs"):
                one[name] = tuple(one.get(name, (0.0, 0.0)))
            self.judgements.append(Judgement(**one))
        self.faint.update(data["faint"])
        self.unclean += data["unclean"]
        self.clean_runs += [(base, raw) for base, raw in data.get("clean_runs", ())]

    def save(self, file: Path | None) -> None:
        if file is not None:
            file.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        return {
            "judgements": [dataclasses.asdict(one) for one in self.judgements],
            "faint": dict(self.faint),
            "unclean": self.unclean,
            "clean_runs": self.clean_runs,
        }

    def show(self, everything: bool) -> None:
        console = Console() if sys.stdout.isatty() else Console(width=200)
        console.print(self._table("by pair", lambda one: one.pair))
        console.print(self._table("by kind", lambda one: one.kind))
        for one in self.judgements:
            if everything or one.place != "exact":
                console.print(_line(one), highlight=False, soft_wrap=True, markup=False)
        for what in self.unclean:
            console.print(f"not clean: {what}", highlight=False, soft_wrap=True, markup=False)
        if self.faint:
            told = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faint.items()))
            console.print(f"changed nothing, not counted: {told}", highlight=False, soft_wrap=True, markup=False)
        console.print(summary(self.judgements), highlight=False, soft_wrap=True, markup=False)
        for what, runs, allowed in (
            ("aligned", self.clean_runs, ALIGNED),
            ("diverging", [one.runs for one in self.judgements if one.place != "missed"], DIVERGING),
        ):
            console.print(cost(what, runs, allowed), highlight=False, soft_wrap=True, markup=False)

    def _table(self, title: str, key: Any) -> Table:
        table = Table(title=f"planted bugs {title}")
        table.add_column("")
        for name in ("bugs", *PLACES, *(f"cause {name}" for name in CAUSES), "bugs per s"):
            table.add_column(name, justify="right")
        groups: dict[str, list[Judgement]] = defaultdict(list)
        for one in self.judgements:
            groups[key(one)].append(one)
        for name in sorted(groups):
            table.add_row(name, *_cells(groups[name]))
        table.add_section()
        table.add_row("all", *_cells(self.judgements))
        return table


def _cells(judgements: Sequence[Judgement]) -> list[str]:
    places = Counter(one.place for one in judgements)
    causes = Counter(one.cause for one in judgements)
    seconds = sum(one.seconds for one in judgements)
    rate = f"{len(judgements) / seconds:.1f}" if seconds else "-"
    counts = [len(judgements), *(places[place] for place in PLACES), *(causes[cause] for cause in CAUSES)]
    return [*(str(count) for count in counts), rate]


def _line(one: Judgement) -> str:
    said = f"{one.path or '(model)'} ({one.phase})" if one.phase else "nothing"
    wanted = " or ".join(path or "(model)" for path in one.expected)
    text = (
        f"{one.place}: {one.pair} | {one.kind} (changes {one.effect:.1e}) at {one.watched or '(model)'}"
        f" | expected {wanted} ({'/'.join(one.phases)}) | said {said}"
    )
    if one.causes:
        text += f" because {', '.join(one.causes)}"
    return f"{text} | {one.note}" if one.note else text


def summary(judgements: Iterable[Judgement]) -> str:
    """The figures the targets are about."""
    ones = list(judgements)
    places = Counter(one.place for one in ones)
    causes = Counter(one.cause for one in ones)
    defined = len(ones) - causes["undefined"]
    total = max(len(ones), 1)
    close = places["exact"] + places["near"]
    return (
        f"{len(ones)} bugs: exact {places['exact'] / total:.1%} (target 95 %), exact or near {close / total:.1%} "
        f"(99 %), missed {places['missed']} (0), errors {places['error']}; right cause {causes['right']} of {defined}, "
        f"{causes['right'] / max(defined, 1):.1%} (80 %)"
    )
