"""``padiff show A [path]``: what a dump holds, as a whole or of one module."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from padiff.cli.console import printing
from padiff.errors import ArgumentError
from padiff.records import Call, ModuleNode, Value
from padiff.store import Dump, LostValue, StepDump, StoredValue, dumps_below

MOST_STEPS = 12


def add(commands: Any) -> None:
    parser = commands.add_parser("show", help="show what a dump holds")
    parser.add_argument("dump", help="a dump, or a folder of step_<n> or rank_<r>")
    parser.add_argument("path", nargs="?", help="path of a module: its calls and tensors")
    parser.add_argument("--step", type=int, help="of which step (default: the first)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    console = Console(file=sys.stdout, force_jupyter=False, highlight=False, markup=False, emoji=False)
    found = dumps_below(options.dump)
    if len(found) > 1:
        with printing():
            _folders(console, options.dump, found)
        return 0
    with Dump.open(next(iter(found.values()))) as dump, printing():
        if options.path is None and options.step is None:
            _whole(console, dump)
        else:
            step = dump.step(options.step) if options.step is not None else _first(dump)
            _module(console, dump, step, _node(dump, options.path or ""))
    return 0


def _folders(console: Console, root: str, found: dict[tuple[int | None, int | None], Path]) -> None:
    console.print(f"{root} holds {len(found)} dumps")
    for (step, rank), path in found.items():
        where = [f"step {step}"] * (step is not None) + [f"rank {rank}"] * (rank is not None)
        console.print(f"  {', '.join(where)}: {path}")


def _first(dump: Dump) -> StepDump:
    if not len(dump.steps):
        raise ArgumentError(f"the dump {dump.path} holds no step")
    return dump.steps[0]


def _node(dump: Dump, path: str) -> ModuleNode:
    nodes = dump.tree.by_path()
    if path not in nodes:
        near = difflib.get_close_matches(path, list(nodes), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"padiff show {dump.path} lists its modules"
        raise ArgumentError(f"{dump.tree.name} has no module {path!r}", hint)
    return nodes[path]


# ------------------------------------------------------------------ a dump


def _whole(console: Console, dump: Dump) -> None:
    facts = dump.facts
    console.print(Text.assemble((f"{facts.model}", "bold"), f"  {facts.framework} {facts.framework_version}"))
    steps = dump.steps
    numbers = [str(step.number) for step in steps[:MOST_STEPS]]
    more = f", ... ({len(steps)} in all)" if len(steps) > MOST_STEPS else ""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("kind", dump.kind)
    grid.add_row("steps", ", ".join(numbers) + more or "none")
    grid.add_row("size", _size(dump.nbytes))
    grid.add_row("made", f"{facts.created} on {facts.device}, Python {facts.python}, padiff {facts.padiff}")
    if facts.ranks > 1:
        grid.add_row("rank", f"{facts.rank} of {facts.ranks}")
    if "only" in dump.extra:
        grid.add_row("only", ", ".join(map(str, dump.extra["only"][:8])))
    console.print(grid)
    first = steps[0] if len(steps) else None
    calls = Counter(call.path for call in first.calls) if first is not None else Counter()
    console.print()
    console.print(_tree(dump, calls))


def _tree(dump: Dump, calls: Counter[str]) -> Tree:
    nodes = dump.tree.nodes
    drawn: list[Tree] = []
    for node in nodes:
        parameters = sum(_count(spec.shape) for spec in node.parameters)
        label = Text.assemble((node.name or dump.tree.name, "bold"), f"  {node.line}")
        if parameters:
            label.append(f"  {parameters:,} parameters", "cyan")
        times = calls[node.path]
        if times > 1 or (calls and not times and not node.children):
            label.append(f"  called {times} times" if times else "  never called", "yellow")
        drawn.append(Tree(label) if node.parent < 0 else drawn[node.parent].add(label))
    return drawn[0]


# ------------------------------------------------------------------ a module


def _module(console: Console, dump: Dump, step: StepDump, node: ModuleNode) -> None:
    name = node.path or dump.tree.name
    console.print(Text.assemble((name, "bold"), f"  {node.line}  ", (f"step {step.number}", "dim")))
    calls = [call for call in step.calls if call.path == node.path]
    if not calls:
        console.print("it was not called in this step")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "tensor", "mean", "std", "min", "max"):
        numbers = title not in ("", "tensor")
        table.add_column(title, overflow="fold", justify="right" if numbers else "left", no_wrap=numbers)
    for call in sorted(calls, key=lambda one: one.index):
        if len(calls) > 1:
            table.add_row(f"call {call.occurrence}", "", "", "", "", "", style="bold")
        for what, value in _of_call(step, call):
            table.add_row(what, *_numbers(value))
    for what, value in _of_module(step, node):
        table.add_row(what, *_numbers(value))
    if table.row_count:
        console.print(table)
    for draw in step.draws:
        if draw.facts.path == node.path and dump.kind == "full":
            console.print(f"draws {draw.load()}")
    if calls and calls[0].stack:
        frame = calls[0].stack[-1]
        line = dump.source_line(frame)
        console.print(Text(f"{line.file}:{line.line}  {line.text}", "dim"))


def _of_call(step: StepDump, call: Call) -> Iterable[tuple[str, Value]]:
    for role, slots in (("input", call.inputs), ("output", call.outputs)):
        for slot in slots:
            yield f"{role} {slot.name}".strip(), slot.value
            if slot.tensor in step.gradients:
                yield "  gradient", step.gradients[slot.tensor]
    for op in call.ops:
        for slot in op.outputs:
            yield f"{op.path[len(call.path) :]} {slot.name}".strip(), slot.value
            if slot.tensor in step.gradients:
                yield "  gradient", step.gradients[slot.tensor]


def _of_module(step: StepDump, node: ModuleNode) -> Iterable[tuple[str, Value]]:
    prefix = f"{node.path}." if node.path else ""
    held = {**step.weights_before, **step.buffers_before, **step.weights, **step.buffers}
    for spec in (*node.parameters, *node.buffers):
        if f"{prefix}{spec.name}" in held:
            yield spec.name, held[f"{prefix}{spec.name}"]
        gradient = step.parameter_gradients.get(f"{prefix}{spec.name}")
        if gradient is not None:
            yield "  gradient", gradient
        for name, row in step.moments.items():
            if f"{prefix}{spec.name}" in row:
                yield f"  {name}", row[f"{prefix}{spec.name}"]


def _numbers(value: Value) -> tuple[str, ...]:
    form = f"{value.dtype}{list(value.shape)}"
    if isinstance(value, LostValue):
        return f"{form}, not kept", "", "", "", ""
    if isinstance(value, StoredValue) and value.kind != "hash":
        found = value.statistics()
        bad = found.nan + found.positive_infinite + found.negative_infinite
        note = f"{form}, {bad} not finite" if bad else form
        return note, *(f"{number:.4g}" for number in (found.mean, found.std, found.minimum, found.maximum))
    return form, "", "", "", ""


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _size(nbytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:.1f} GiB"
