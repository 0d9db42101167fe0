"""``python -m benchmarks clean [--count N] [--pairs a,b] [--variants a,b] [--seed S] [--json FILE] [--add FILE …]``"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.clean.run import Comparison, comparisons
from benchmarks.localise.counted import ALIGNED, cost


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks clean", description="Compare models that compute the same, and count false alarms."
    )
    parser.add_argument("--count", type=int, default=200, help="how many comparisons of whole models (default 200)")
    parser.add_argument("--pairs", default="", help="beginnings of the names of pairs, with commas; all by default")
    parser.add_argument("--variants", default="", help="beginnings of names of states, with commas")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round has the next")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every comparison there")
    parser.add_argument("--add", type=Path, nargs="*", default=[], metavar="FILE", help="count these results as well")
    parser.add_argument("--only-add", action="store_true", help="compare nothing, add the given results together")
    options = parser.parse_args(arguments)
    found = [Comparison(**one) for file in options.add for one in json.loads(file.read_text(encoding="utf-8"))]
    if not options.only_add:
        for one in comparisons(_names(options.pairs), _names(options.variants), options.count, options.seed):
            found.append(one)
            if one.ended != "aligned":
                print(_line(one), file=sys.stderr, flush=True)
            if len(found) % 50 == 0:  # a run that is stopped leaves what it has
                save(found, options.json)
    show(found)
    save(found, options.json)
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in re.split(r";|,(?! )", text) if name.strip()]  # names hold ", "


def save(found: Sequence[Comparison], file: Path | None) -> None:
    if file is not None:
        plain = [dataclasses.asdict(one) for one in found]
        file.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def show(found: Sequence[Comparison]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=160)
    for title, key in (("pair", "pair"), ("state", "variant")):
        table = Table(title=f"clean comparisons by {title}")
        table.add_column("")
        for name in ("models compared", "false alarms", "could not run", "tensors", "worst ratio", "per s"):
            table.add_column(name, justify="right")
        groups: dict[str, list[Comparison]] = defaultdict(list)
        for one in found:
            groups[getattr(one, key)].append(one)
        for name in sorted(groups):
            table.add_row(name, *_cells(groups[name]))
        table.add_section()
        table.add_row("all", *_cells(found))
        console.print(table)
    for one in found:
        if one.ended in ("false alarm", "error"):
            console.print(_line(one), highlight=False, soft_wrap=True, markup=False)
    console.print(summary(found), highlight=False, soft_wrap=True, markup=False)
    aligned = [one.runs for one in found if one.ended == "aligned"]
    console.print(cost("aligned", aligned, ALIGNED), highlight=False, soft_wrap=True, markup=False)


def _cells(ones: Sequence[Comparison]) -> list[Any]:
    ran = [one for one in ones if one.ended != "could not run"]
    alarms = sum(one.ended != "aligned" for one in ran)
    ratios = [one.worst for one in ran if one.worst is not None and one.ended == "aligned"]
    seconds = sum(one.seconds for one in ran)
    return [
        str(len(ran)),
        str(alarms),
        str(len(ones) - len(ran)),
        str(sum(one.tensors for one in ran)),
        f"{max(ratios):.2g}" if ratios else "-",
        f"{len(ran) / seconds:.1f}" if seconds else "-",
    ]


def _line(one: Comparison) -> str:
    return f"{one.ended}: {one.pair} | {one.variant}, seed {one.seed} | {one.said}"


def summary(found: Sequence[Comparison]) -> str:
    """The figure the target is about."""
    ran = [one for one in found if one.ended != "could not run"]
    alarms = sum(one.ended != "aligned" for one in ran)
    return f"{len(ran)} clean comparisons of whole models, {alarms} false alarms (target: none in 1,000)"
