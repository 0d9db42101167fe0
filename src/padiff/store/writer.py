"""Writes a dump while the model runs: tensors go to disk as they come, the calling thread only hands them over."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from padiff.errors import ArgumentError, DumpError
from padiff.records import Array, ModuleTree, StepTrace
from padiff.store import strict
from padiff.store.disk import Files
from padiff.store.dtypes import how_kept
from padiff.store.facts import Facts
from padiff.store.files import INDEX, step_name
from padiff.store.folder import PartialFolder
from padiff.store.index import sealed
from padiff.store.lane import Lane, Work
from padiff.store.packs import Pack, SummaryPack, TensorPack, listed_document
from padiff.store.slabs import Handle, Slab, Slabs
from padiff.store.sources import SourceText
from padiff.store.step_writer import StepWriter, number_of, plain_json
from padiff.store.trees import encode_tree

Kind = Literal["full", "stats", "hash"]
MIB = 1 << 20
WAITING_BYTES = 16 * MIB
"""Of tensors handed over and not yet looked at."""
SHARD_BYTES = 16 * MIB
_SHARDS = 2
"""Of memory: one being filled, one on its way to the disk. More would only cost: finding memory takes the system as
long as writing it away, or longer, and what was found once is used again."""
_WORTH_WAKING = 1 << 20
"""Bytes that are worth waking the other thread for: each time costs more than a small tensor."""
_MANY = 256
"""Tensors that are, however small."""
_MOST_WAITING = 256
"""Pieces of work."""


class DumpWriter:
    """A dump in the making. As a context manager it is whole when the block ends, and gone when the block raises.

    Tensors waiting to be looked at take at most ``waiting_bytes`` of memory, the shard being filled and one on its
    way to the disk ``shard_bytes`` each; a single larger tensor is taken when it is alone.
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
        self._slabs = Slabs(shard_bytes, waiting_bytes + _SHARDS * shard_bytes)
        self._slab: Slab | None = None
        self._pack: Pack = (
            TensorPack(self._files, self._slabs)
            if kind == "full"
            else SummaryPack(self._files, self._slabs, kind == "stats")
        )
        self._lane = Lane(_MOST_WAITING, self._slabs.stop)
        self._laid: list[Handle] = []
        """Laid into the slab, and not yet handed over."""
        self._laid_bytes = 0
        self._document: Work | None = None
        """Writes the document of the step that is over: when tensors of the next are on their way, or the last are."""
        self._adding = threading.Lock()
        self._ended = False
        self._process = os.getpid()

    # --- tensors and steps

    def add(self, array: Array, key: str | None = None) -> Handle:
        """Hand over a tensor. It is copied before this returns.

        With a ``key`` (a weight's path) it is stored again only when it differs from what the key last stood for.
        """
        self._check_open()
        how = how_kept(array.dtype)
        with self._adding:
            handle = None if self._slab is None else self._slab.lay(array, how, key)
            if handle is None:
                handle = self._next_slab(array.nbytes).lay(array, how, key)
                assert handle is not None
            self._laid.append(handle)
            self._laid_bytes += handle.size
            if self._laid_bytes >= _WORTH_WAKING or len(self._laid) >= _MANY:
                self._hand_over()
        return handle

    def _next_slab(self, least: int) -> Slab:
        """An empty slab; waits until there is one, and raises what went wrong meanwhile."""
        self._end_slab()
        slab = self._slabs.take(least)
        if slab is None:
            self._lane.check()
            raise self._closed()
        self._slab = slab
        return slab

    def _end_slab(self) -> None:
        self._hand_over()
        if self._slab is not None:
            self._lane.put(functools.partial(self._pack.end, self._slab))
            self._slab = None

    def _hand_over(self) -> None:
        if self._laid:
            assert self._slab is not None
            self._lane.put(functools.partial(self._pack.add, self._slab, self._laid))
            self._laid, self._laid_bytes = [], 0
            if self._slab.half_full:
                self._slabs.look_ahead()
            self._write_document()

    def _write_document(self) -> None:
        if self._document is not None:
            self._lane.put(self._document)
            self._document = None

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
            data = strict.encode(document, number_of)
            name = step_name(len(self._steps))
            self._files.write(name, [data])
            self._steps.append(listed_document(name, data, {"step": step.step}))

        with self._adding:
            self._hand_over()
            self._write_document()
            self._document = keep

    # --- ending

    def close(self) -> None:
        """Finish the dump and give it its name. A step that was begun and not ended is left out."""
        self._check_open()
        try:
            with self._adding:
                self._end_slab()
                self._write_document()
            self._lane.put(self._finish)
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
        """Give the dump up: nothing of it remains, and what was at its place stays. Not for a forked process to do."""
        if not self._ended and os.getpid() == self._process:
            self._end_threads()
            self._folder.discard()

    def _end_threads(self) -> None:
        self._ended = True
        self._slabs.stop()
        self._lane.end()
        self._files.end()
        self._slabs.end()

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
        self._files.write(INDEX, [index])
        self._files.settle()

    def _check_open(self) -> None:
        if os.getpid() != self._process:  # the threads that write are in the other
            raise DumpError(
                f"the dump {self.path} belongs to the process that began it", "a forked one adds nothing to it"
            )
        if self._ended:
            raise self._closed()

    def _closed(self) -> DumpError:
        return DumpError(f"the dump {self.path} has been ended", "nothing can be added to it any more")

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.close()
