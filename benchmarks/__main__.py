"""``python -m benchmarks [aligned] [cost] [growth] [tensors] [store] [capture] [ops] [--repeat N] [--json F] [--toy]``.

``localise`` and ``clean`` have options of their own: ``python -m benchmarks localise``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

# Read once, when a framework is loaded. One thread: two cores are too few to share between two thread pools.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
os.environ["KMP_BLOCKTIME"] = "0"

from rich.console import Console
from rich.table import Table

from benchmarks.rows import Row

NAMES = ("aligned", "cost", "growth", "tensors", "store", "capture", "ops")
COMMANDS = ("localise", "clean")
"""Count instead of timing, and have options of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in COMMANDS:
        return int(importlib.import_module(f"benchmarks.{given[0]}.command").main(given[1:]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What padiff costs.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(NAMES)}; all by default")
    parser.add_argument("--repeat", type=int, default=9, help="rounds of each measurement (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.add_argument("--toy", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    options = parser.parse_args(given)
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}, only {', '.join(NAMES)}")
    rows: list[Row] = []
    for name in options.names or NAMES:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run(options.repeat, options.toy)
    facts = machine()
    show(rows, facts)
    if options.json is not None:
        numbers = [{**row._asdict(), "target": row.target._asdict()} for row in rows]
        options.json.write_text(json.dumps({"machine": facts, "rows": numbers}, indent=1) + "\n", encoding="utf-8")
    return 0


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    versions = {
        name: getattr(sys.modules.get(name), "__version__", "not loaded") for name in ("numpy", "torch", "paddle")
    }
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": f"{_cpu()}, {cores} cores, {os.environ['OMP_NUM_THREADS']} thread used, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **versions,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(rows: Sequence[Row], facts: dict[str, str]) -> None:
    table = Table(title="padiff against a plain forward and backward of both models")
    for name in ("what", "case"):
        table.add_column(name)
    for name in ("ours", "this version", "later"):
        table.add_column(name, justify="right")
    table.add_column("measured")
    for row in rows:
        table.add_row(row.what, row.case, row.ours, row.target.now, row.target.later, row.facts)
    console = Console() if sys.stdout.isatty() else Console(width=180)
    console.print(table)
    console.print("; ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)


if __name__ == "__main__":
    sys.exit(main())
