"""A plan as a script that a person can read, edit and run without padiff, and read back."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padiff.errors import ArgumentError
from padiff.records import WeightEntry, WeightSource

_HEAD = '''"""Fills {raw} from {base}.

One line per tensor of the target: where it comes from. A source is a name, or a name with what to do to it:
("name", {{"index": 3}}) takes one slice of the first axis, {{"axis": 0, "start": 0, "stop": 64}} a stretch,
{{"permute": (1, 0)}} turns it. Several sources are joined along "join"; "stack" stacks groups of them.

    python {file} source.npz target.npz
"""

import sys

import numpy as np

TABLE = {{
'''
_TAIL = '''}


def take(base, source):
    """One source: a name, or a name and what to do to it."""
    name, how = (source, {}) if isinstance(source, str) else source
    array = np.asarray(base[name])
    if "index" in how:
        array = array[how["index"]]
    if "start" in how:
        array = array[(slice(None),) * how["axis"] + (slice(how["start"], how["stop"]),)]
    if "interleaved" in how:
        heads, start, stop = how["interleaved"]
        moved = np.moveaxis(array, how["axis"], 0)
        moved = moved.reshape(heads, -1, *moved.shape[1:])[:, start:stop]
        array = np.moveaxis(moved.reshape(-1, *moved.shape[2:]), 0, how["axis"])
    return array.transpose(how["permute"]) if "permute" in how else array


def convert(base):
    """Arrays of the target by name, from arrays of the source by name."""
    target = {}
    for name, (sources, how) in TABLE.items():
        parts = [take(base, source) for source in sources]
        axis = how.get("join", 0)
        if "stack" in how:
            each = len(parts) // how["stack"]
            groups = [parts[i : i + each] for i in range(0, len(parts), each)]
            array = np.stack([np.concatenate(group, axis) for group in groups])
        elif "heads" in how:
            cut = [np.moveaxis(part, axis, 0) for part in parts]
            cut = [part.reshape(how["heads"], -1, *part.shape[1:]) for part in cut]
            joined = np.concatenate(cut, axis=1)
            array = np.moveaxis(joined.reshape(-1, *joined.shape[2:]), 0, axis)
        else:
            array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
        target[name] = array.reshape(how["shape"])
    return target


if __name__ == "__main__":
    np.savez(sys.argv[2], **convert(np.load(sys.argv[1])))
'''


def write_script(path: Path, entries: Sequence[WeightEntry], base: str, raw: str) -> None:
    """Write the script, whole or not at all."""
    functions = [entry.path for entry in entries if entry.function is not None]
    if functions:
        raise ArgumentError(
            f"the plan fills {functions[0]!r} by a function, which a script cannot hold",
            "put padiff.transpose, padiff.split or padiff.concat in its place, or edit the saved script",
        )
    lines = [_line(entry) for entry in entries]
    text = _HEAD.format(raw=raw, base=base, file=path.name) + "".join(lines) + _TAIL
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _line(entry: WeightEntry) -> str:
    how: dict[str, object] = {"shape": entry.shape}
    if len(entry.sources) > 1 and entry.axis:
        how["join"] = entry.axis
    if entry.stack:
        how["stack"] = entry.stack
        how["join"] = entry.axis
    if entry.heads:
        how["heads"] = entry.heads
    sources = [_source(source) for source in entry.sources]
    mark = f"  # {entry.evidence}" if entry.confidence < 1 else ""
    return f"    {entry.path!r}: ({sources!r}, {how!r}),{mark}\n"


def _source(source: WeightSource) -> object:
    how: dict[str, object] = {}
    if source.index is not None:
        how["index"] = source.index
    if source.start is not None:
        how |= {"axis": source.axis, "start": source.start, "stop": source.stop}
    if source.interleaved is not None:
        how |= {"axis": source.axis, "interleaved": source.interleaved}
    if source.permute is not None:
        how["permute"] = source.permute
    return (source.path, how) if how else source.path


def read_script(path: Path) -> list[WeightEntry]:
    """The entries of a saved script, edited or not; its code is never run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        table = next(
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "TABLE" for t in node.targets)
        )
        return [_entry(name, *row) for name, row in table.items()]
    except (OSError, SyntaxError, ValueError, StopIteration, TypeError, KeyError) as error:
        raise ArgumentError(f"{str(path)!r} is no converter that padiff wrote: {error or 'it has no TABLE'}") from error


def _entry(name: str, sources: Sequence[object], how: dict[str, object]) -> WeightEntry:
    def number(key: str) -> int:
        value = how.get(key, 0)
        return value if isinstance(value, int) else 0

    shape = how["shape"]
    if not isinstance(shape, tuple):
        raise ValueError(f"the shape of {name!r} is {shape!r}")
    return WeightEntry(
        name,
        "parameter",
        tuple(_read(source) for source in sources),
        shape,
        number("join"),
        number("stack"),
        number("heads"),
        evidence="script",
    )


def _read(source: Any) -> WeightSource:
    name, how = (source, {}) if isinstance(source, str) else source
    return WeightSource(
        name,
        how.get("permute"),
        how.get("axis", 0),
        how.get("start"),
        how.get("stop"),
        how.get("index"),
        how.get("interleaved"),
    )
