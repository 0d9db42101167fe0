"""Writes a dump while the model runs: tensors go to disk as they come, the calling thread only hands them over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from padiff.errors import ArgumentError, DumpError
from padiff.records import Array, ModuleTree, StepTrace
from padiff.store import strict
from padiff.store.dtypes import storable
from padiff.store.facts import Facts
from padiff.store.files import INDEX, step_name
from padiff.store.folder import PartialFolder
from padiff.store.index import sealed
from padiff.store.lane import Lane
from padiff.store.packs import Files, Pack, SummaryPack, TensorPack, listed_document
from padiff.store.sources import SourceText
from padiff.store.step_writer import Handle, StepWriter, plain_json, resolved
from padiff.store.trees import encode_tree

Kind = Literal["full", "stats", "hash"]
MIB = 1 << 20
WAITING_BYTES = 64 * MIB
"""Of tensors handed over and not yet looked at."""
SHARD_BYTES = 32 * MIB


class DumpWriter:
    """A dump in the making. As a context manager it is whole when the block ends, and gone when the block raises.

    Tensors waiting to be looked at take at most ``waiting_bytes`` of memory, the shard being filled and three on
    their way to the disk ``shard_bytes`` each; a single larger tensor is taken when it is alone.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        tree: ModuleTree,
        facts: Facts,
        kind: Kind = "full",
        overwrite: bool = False,
        extra: Mapping[str, Any] | None = None,
        waiting_bytes: int = WAITING_BYTES,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        if kind not in get_args(Kind):
            raise ArgumentError(f"kind is {kind!r}, expected one of {', '.join(get_args(Kind))}")
        self.path = Path(path)
        self.kind: Kind = kind
        self._tree = tree
        self._extra = plain_json(extra or {}, "extra")
        self._facts = plain_json(dataclasses.asdict(facts), "facts")
        self._encoded_tree = encode_tree(tree)
        self._steps: list[dict[str, Any]] = []
        self._numbers: set[int] = set()
        self._open: StepWriter | None = None
        self._sources = SourceText()
        self._folder = PartialFolder(self.path, overwrite)
        self._files = Files(self._folder.path)
        self._pack: Pack = (
            TensorPack(self._files, shard_bytes) if kind == "full" else SummaryPack(self._files, kind == "stats")
        )
        self._lane = Lane(waiting_bytes)
        self._ended = False

    # --- tensors and steps

    def add(self, array: Array, *, owned: bool = False, key: str | None = None) -> Handle:
        """Hand over a tensor. It is copied before this returns, unless ``owned`` promises that nobody writes it.

        With a ``key`` (a weight's path) it is stored again only when it differs from what the key last stood for.
        """
        self._check_open()
        taken = storable(array, copy=not owned)
        handle = Handle()

        def keep() -> None:
            handle.number = self._pack.add(taken, key)

        self._lane.put(keep, taken.nbytes)
        return handle

    def begin_step(self, step: int) -> StepWriter:
        """Begin a step; the one before must have been ended."""
        self._check_open()
        if self._open is not None:
            raise ArgumentError(f"step {self._open.step} has not been ended", "call end() on it first")
        if step in self._numbers or step < 0:
            raise ArgumentError(f"step is {step}, expected a number from 0 that the dump does not hold yet")
        self._open = StepWriter(self, step, self._tree)
        return self._open

    def write_step(self, trace: StepTrace, **state: Any) -> None:
        """A step that is over, in one go; ``state`` is what ``StepWriter`` has methods for: weights, buffers, extra."""
        step = self.begin_step(trace.step)
        step.trace(trace)
        for name, value in state.items():
            getattr(step, name)(value)
        step.end(ran_backward=trace.ran_backward)

    def drop_step(self) -> None:
        """Forget the step that was begun: what it was about did not come to its end."""
        self._open = None

    def end_step(self, step: StepWriter, document: Mapping[str, Any]) -> None:
        """Called by the step. The document is finished by the thread that numbers the tensors."""
        self._check_open()
        self._numbers.add(step.step)
        self._open = None

        def keep() -> None:
            for frame in step.stacks.frames:
                self._sources.see(frame)
            data = strict.encode(resolved(document))
            name = step_name(len(self._steps))
            self._files.write(name, [data])
            self._steps.append(listed_document(name, data, {"step": step.step}))

        self._lane.put(keep, 0)

    # --- ending

    def close(self) -> None:
        """Finish the dump and give it its name. A step that was begun and not ended is left out."""
        self._check_open()
        try:
            self._lane.put(self._finish, 0)
            self._lane.drain()
        except BaseException:
            self.abort()
            raise
        self._end_threads()
        try:
            self._folder.commit()
        except BaseException:
            self._folder.discard()
            raise

    def abort(self) -> None:
        """Give the dump up: nothing of it remains, and what was at its place stays."""
        if not self._ended:
            self._end_threads()
            self._folder.discard()

    def _end_threads(self) -> None:
        self._ended = True
        self._lane.end()
        self._files.end()

    def _finish(self) -> None:
        self._pack.flush()
        index = sealed(
            {
                "kind": self.kind,
                "facts": self._facts,
                "tree": self._encoded_tree,
                "shards": self._pack.listing,
                "steps": self._steps,
                "sources": self._sources.document(),
                "extra": self._extra,
            }
        )
        self._files.settle()
        self._files.write(INDEX, [index])
        self._files.settle()

    def _check_open(self) -> None:
        if self._ended:
            raise DumpError(f"the dump {self.path} has been ended", "nothing can be added to it any more")

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.close()
