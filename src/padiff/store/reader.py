"""Reads a dump: the index when it is opened, a step when it is asked for, a tensor when its elements are."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from padiff.errors import DumpError
from padiff.records import Call, Frame, ModuleTree, SourceLine, StepTrace, Value
from padiff.store import strict
from padiff.store.checks import DIGEST_BYTES, digest
from padiff.store.draws import StoredDraw
from padiff.store.facts import Facts
from padiff.store.files import INDEX, check_size, damaged, is_step_name, open_file, read_file
from padiff.store.index import read_index
from padiff.store.shelves import Shelves, decode_listing
from padiff.store.sources import KnownSources, decode_sources
from padiff.store.steps import Borders, StepDocument, decode_lost, decode_step
from padiff.store.strict import Malformed
from padiff.store.trees import decode_facts, decode_tree
from padiff.store.values import LostValue, StoredValue


@dataclass(frozen=True)
class _ListedStep:
    file: str
    size: int
    digest: str
    step: int


class Dump:
    """A dump on disk. Opening it reads the index and looks at the size of every file, no more."""

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        self.path = folder
        self.kind: str = document["kind"]
        if self.kind not in ("full", "stats", "hash"):
            raise strict.wrong(self.kind, "kind", "full, stats or hash")
        self.facts: Facts = decode_facts(document["facts"])
        self.tree: ModuleTree = decode_tree(document["tree"])
        self.extra: Mapping[str, Any] = strict.table(document["extra"], "extra")
        self._sources: KnownSources = decode_sources(document["sources"])
        self._listed = _decode_steps(document["steps"])
        shards = decode_listing(document["shards"])
        self._sizes = {**{s.file: s.size for s in shards}, **{s.file: s.size for s in self._listed}}
        for name, size in self._sizes.items():
            descriptor = open_file(folder, name)
            try:
                check_size(folder, name, descriptor, size)
            finally:
                os.close(descriptor)
        self._shelves = Shelves(folder, self.kind, shards)

    @staticmethod
    def open(path: str | Path) -> Dump:
        """The dump in a folder; raises DumpError for what is missing, damaged, foreign or too new."""
        folder = Path(path)
        try:
            return Dump(folder, read_index(folder))
        except Malformed as error:
            raise damaged(folder, INDEX, str(error)) from None

    @property
    def steps(self) -> Sequence[StepDump]:
        """Every step in the order it was written; each is read when it is looked into, and forgotten with it."""
        return _Steps(self, self._listed)

    def step(self, number: int) -> StepDump:
        for listed in self._listed:
            if listed.step == number:
                return StepDump(self, listed)
        held = ", ".join(str(listed.step) for listed in self._listed[:20])
        raise DumpError(f"the dump {self.path} has no step {number}", f"it holds {held or 'none'}")

    @property
    def nbytes(self) -> int:
        """What its shards and steps take on disk."""
        return sum(self._sizes.values())

    @property
    def sources(self) -> Mapping[str, Mapping[int, str]]:
        """File to line number to text, as it was when the dump was written."""
        return self._sources.files()

    @property
    def identity(self) -> str:
        """A digest of all that the index says: two dumps have one if they are copies."""
        return digest((self.path / INDEX).read_bytes()).hex()

    def source_line(self, frame: Frame) -> SourceLine:
        """A line of the user's code as it was when the dump was written."""
        return self._sources.line(frame)

    def check(self) -> None:
        """Read everything there is; raises DumpError at the first damage."""
        for step in self.steps:
            step.step  # noqa: B018
            for value in step.all_values():
                value.shape  # noqa: B018
        self._shelves.check()

    def close(self) -> None:
        """Let go of the files. Arrays that were read stay; what is asked for later is opened again."""
        self._shelves.close()

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Dump({str(self.path)!r}, kind={self.kind!r}, steps={len(self._listed)})"

    def _value(self, entry: Any) -> Value:
        if type(entry) is dict:
            return LostValue(*decode_lost(entry))
        return StoredValue(self._shelves, strict.integer(entry, "a tensor", 0, self._shelves.count - 1))

    def _read_step(self, listed: _ListedStep) -> StepDocument:
        data = read_file(self.path, listed.file, listed.size)
        if digest(data).hex() != listed.digest:
            raise damaged(self.path, listed.file, "it does not have the checksum that the index gives")
        try:
            document = decode_step(strict.decode(data), self.tree, self._value)
            if document.step != listed.step:
                raise Malformed(f"it is step {document.step}, where the index says {listed.step}")
        except Malformed as error:
            raise damaged(self.path, listed.file, str(error)) from None
        return document


class StepDump:
    """One step of a dump."""

    def __init__(self, dump: Dump, listed: _ListedStep) -> None:
        self._dump, self._listed = dump, listed

    @property
    def number(self) -> int:
        return self._listed.step

    @functools.cached_property
    def _document(self) -> StepDocument:
        return self._dump._read_step(self._listed)

    @property
    def step(self) -> int:
        return self._document.step

    @property
    def calls(self) -> tuple[Call, ...]:
        return self._document.calls

    @property
    def tensors(self) -> Mapping[int, Value]:
        """Every tensor of the trace, by its number there."""
        return self._document.tensors

    def value(self, number: int) -> Value:
        """A tensor by its number in the trace."""
        found = self._document.tensors.get(number)
        if found is None:
            raise DumpError(f"step {self.number} of the dump {self._dump.path} has no tensor {number}")
        return found

    @property
    def gradients(self) -> Mapping[int, Value]:
        return self._document.gradients

    @property
    def loss(self) -> Value | None:
        return self._document.loss

    @property
    def parameter_gradients(self) -> Mapping[str, Value | None]:
        return self._document.parameter_gradients

    @property
    def weights(self) -> Mapping[str, Value]:
        return self._document.weights

    @property
    def buffers(self) -> Mapping[str, Value]:
        return self._document.buffers

    @property
    def weights_before(self) -> Mapping[str, Value]:
        """Parameters as the step found them, where the dump holds them."""
        return self._document.weights_before

    @property
    def buffers_before(self) -> Mapping[str, Value]:
        return self._document.buffers_before

    @property
    def moments(self) -> Mapping[str, Mapping[str, Value]]:
        """What the optimizer remembers of each parameter after the step: name to path to value."""
        return self._document.moments

    @property
    def borders(self) -> Borders | None:
        """Gradients at the borders of each call, where they were seen by themselves."""
        return self._document.borders

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """What the model was called with, where the dump holds it."""
        return self._document.arguments

    @property
    def draws(self) -> tuple[StoredDraw, ...]:
        """Random numbers that the model drew, in order; none either where nobody listened."""
        return self._document.draws or ()

    @property
    def heard(self) -> bool:
        """Whether it is known what the model drew, be it nothing."""
        return self._document.draws is not None

    @property
    def unseen(self) -> tuple[tuple[str, str], ...]:
        """Ops that drew where nobody could see it, with the path of their module."""
        return self._document.unseen

    @property
    def noise(self) -> Mapping[str, Mapping[str, float]]:
        return self._document.noise

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._document.extra

    def trace(self) -> StepTrace:
        """The step as capture made it, its tensors still on disk."""
        read = self._document
        return StepTrace(read.step, read.calls, read.gradients, read.loss, read.parameter_gradients, read.ran_backward)

    def all_values(self) -> Iterator[Value]:
        """Every tensor that the step refers to, arguments left aside."""
        read = self._document
        yield from read.tensors.values()
        yield from read.gradients.values()
        yield from (value for value in read.parameter_gradients.values() if value is not None)
        yield from read.weights.values()
        yield from read.buffers.values()
        yield from read.weights_before.values()
        yield from read.buffers_before.values()
        yield from (value for row in read.moments.values() for value in row.values())
        if read.borders is not None:
            yield from read.borders.contributions.values()
            yield from read.borders.arrivals.values()
        yield from (value for draw in read.draws or () for value in draw.values())
        if read.loss is not None:
            yield read.loss

    def __repr__(self) -> str:
        return f"StepDump({self.number} of {str(self._dump.path)!r})"


class _Steps(Sequence[StepDump]):
    def __init__(self, dump: Dump, listed: Sequence[_ListedStep]) -> None:
        self._dump, self._listed = dump, listed

    def __len__(self) -> int:
        return len(self._listed)

    @overload
    def __getitem__(self, place: int) -> StepDump: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[StepDump]: ...

    def __getitem__(self, place: int | slice) -> StepDump | Sequence[StepDump]:
        if isinstance(place, slice):
            return _Steps(self._dump, self._listed[place])
        return StepDump(self._dump, self._listed[place])


def _decode_steps(value: Any) -> tuple[_ListedStep, ...]:
    found = []
    for item in strict.array(value, "steps"):
        row = strict.table(item, "a step", frozenset({"file", "size", "digest", "step"}))
        name = strict.text(row["file"], "file")
        if not is_step_name(name):
            raise strict.wrong(name, "file", "the name of a step's file")
        mark = strict.hexadecimal(row["digest"], "digest", 2 * DIGEST_BYTES)
        found.append(_ListedStep(name, strict.integer(row["size"], "size"), mark, strict.integer(row["step"], "step")))
    if len({step.file for step in found}) != len(found) or len({step.step for step in found}) != len(found):
        raise Malformed("a step is listed twice")
    return tuple(found)
