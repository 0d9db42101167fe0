"""``padiff compare A B``: two dumps, one verdict; nothing is run, no framework is needed."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from padiff.cli.console import printing
from padiff.dumps import compare_dumps
from padiff.engine.result import Result
from padiff.errors import ArgumentError
from padiff.records import Tolerance
from padiff.report.json import to_json
from padiff.report.saving import form_of

ALIGNED, DIVERGED, COULD_NOT_TELL = 0, 1, 2


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare two dumps",
        description="Say whether two models that ran apart computed the same. Exit code 0: aligned, 1: diverged, "
        "2: could not tell.",
    )
    parser.add_argument("base", help="dump of the trusted model, or a folder of step_<n> or rank_<r>")
    parser.add_argument("raw", help="dump of the model under examination")
    parser.add_argument(
        "--tolerance", choices=("auto", "exact"), default=None, help="what rounding explains (default), or equality"
    )
    parser.add_argument("--rtol", type=float, help="allowed relative deviation, in place of --tolerance")
    parser.add_argument("--atol", type=float, help="allowed absolute deviation, in place of --tolerance")
    parser.add_argument(
        "--mode", choices=("strict", "mean"), help="with --rtol, --atol: every element (default), or the mean"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    parser.add_argument(
        "--output", metavar="FILE", action="append", default=[], help="write the report: .html, .json, .xml, .md, .txt"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit code says it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    files = [*options.output, *([options.html] if options.html else [])]
    for file in files:
        form_of(file)
    quiet = True if options.quiet or options.json else None
    result = compare_dumps(options.base, options.raw, tolerance=_tolerance(options), progress=False if quiet else None)
    for file in files:
        result.save(file)
    with printing():
        if options.json:
            sys.stdout.write(to_json(result.report()))
        elif not options.quiet:
            result.show()
    return code_of(result)


def code_of(result: Result) -> int:
    if result.aligned:
        return ALIGNED
    return DIVERGED if result.divergences else COULD_NOT_TELL


def _tolerance(options: argparse.Namespace) -> Any:
    bounds = [name for name in ("rtol", "atol", "mode") if getattr(options, name) is not None]
    if not bounds:
        return options.tolerance or "auto"
    if options.tolerance is not None:
        raise ArgumentError(
            f"--tolerance and --{bounds[0]} contradict each other", "give one of them: a rule, or bounds"
        )
    if options.rtol is None and options.atol is None:
        raise ArgumentError("--mode goes with --rtol or --atol")
    for name in ("rtol", "atol"):
        bound = getattr(options, name)
        if bound is not None and not 0 <= bound < math.inf:
            raise ArgumentError(f"--{name} is {bound}, expected a number that is finite and not negative")
    return Tolerance(options.rtol or 0.0, options.atol or 0.0, options.mode or "strict")
