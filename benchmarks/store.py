"""What a dump costs: how fast it is written next to a plain file, what it takes on disk, how fast it is read."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, Target
from padiff.records import Array, Call, Frame, ModuleNode, ModuleTree, Slot, TensorSpec
from padiff.store import Dump, DumpWriter, Facts
from padiff.store.writer import Kind

SPEED = Target(">= 0.70", ">= 0.70")
SIZE = Target("<= 1.05", "<= 1.05")
OPEN = Target("-", "-")
MIB = 1 << 20
FACTS = Facts("torch", "2.13.0", "Blocks")


def run(repeat: int, toy: bool) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-store-") as name:
        folder = Path(name)
        for case, layers, width, rows_of in _cases(toy):
            arrays = _arrays(layers, width, rows_of)
            rows += _written(folder, case, arrays, max(2, min(repeat, 7)))
    return rows


def _cases(toy: bool) -> list[tuple[str, int, int, int]]:
    """(name, layers, width, rows of an activation)."""
    if toy:
        return [("toy", 3, 16, 8)]
    return [
        ("768 MiB, activations of 4 MiB", 64, 1024, 1024),
        ("150 MiB, activations of 32 KiB", 1200, 128, 64),
        ("54 MiB, activations of 8 KiB", 1700, 64, 32),
    ]


def _arrays(layers: int, width: int, rows_of: int) -> list[Array]:
    """Of each layer: output, its gradient, the gradient of the weight, that of the bias."""
    generator = np.random.default_rng(0)
    pattern = generator.standard_normal((rows_of, width), dtype=np.float32)
    weight = generator.standard_normal((width, width), dtype=np.float32)
    found: list[Array] = []
    for layer in range(layers):
        found += [pattern + layer, pattern - layer, weight + layer, weight[0] + layer]
    return found


def _written(folder: Path, case: str, arrays: Sequence[Array], repeat: int) -> list[Row]:
    size = sum(array.nbytes for array in arrays)
    tree, calls = _tree(len(arrays) // 4, arrays[2].shape), _calls(arrays)

    def plain() -> None:
        _plain(folder / "plain", arrays)

    def full() -> None:
        _dump(folder / "full", arrays, calls, tree, "full")

    plain_times, dump_times = [], []
    for _ in range(repeat):
        first = _timed(plain, folder / "plain")
        ours = _timed(full, folder / "full")
        second = _timed(plain, folder / "plain")
        plain_times += [first, second]
        dump_times.append(ours)
    plain_time, dump_time = statistics.median(plain_times), statistics.median(dump_times)
    ratio = plain_time / dump_time
    facts = (
        f"plain {size / plain_time / 1e9:.2f} GB/s, dump {size / dump_time / 1e9:.2f} GB/s; "
        f"of the best {min(plain_times) / min(dump_times):.2f}"
    )
    rows = [Row("written, share of a plain file", case, f"{ratio:.2f}", SPEED, facts, ratio)]
    taken = sum(file.stat().st_size for file in (folder / "full").iterdir()) / size
    facts = f"{len(arrays)} tensors, {size / MIB:.0f} MiB"
    rows.append(Row("on disk, against the tensors", case, f"{taken:.3f}", SIZE, facts, taken))
    rows.append(_read(folder / "full", case, size, repeat))
    for kind in ("stats", "hash"):
        best = _timed(partial(_dump, folder / kind, arrays, calls, tree, kind))
        each = sum(file.stat().st_size for file in (folder / kind).iterdir()) / len(arrays)
        rows.append(
            Row(f"{kind}: bytes for a tensor", case, f"{each:.0f}", OPEN, f"{size / best / 1e9:.2f} GB/s", each)
        )
    for name in ("full", "stats", "hash"):
        shutil.rmtree(folder / name)
    return rows


def _plain(path: Path, arrays: Sequence[Array]) -> None:
    """One file, from beginning to end, until it is on the disk."""
    with path.open("wb") as file:
        for array in arrays:
            file.write(array.reshape(-1).view(np.uint8))
        file.flush()
        os.fsync(file.fileno())


def _dump(path: Path, arrays: Sequence[Array], calls: Sequence[Call], tree: ModuleTree, kind: Kind) -> None:
    with DumpWriter(path, tree=tree, facts=FACTS, kind=kind) as writer:
        step = writer.begin_step(0)
        for layer, call in enumerate(calls):
            step.tensor(layer, arrays[4 * layer])
            step.call(call)
        for layer in reversed(range(len(calls))):
            step.gradient(layer, arrays[4 * layer + 1])
        gradients = {f"layers.{n}.weight": arrays[4 * n + 2] for n in range(len(calls))}
        step.parameter_gradients(gradients | {f"layers.{n}.bias": arrays[4 * n + 3] for n in range(len(calls))})
        step.end(ran_backward=True)


def _calls(arrays: Sequence[Array]) -> list[Call]:
    """One for each layer: what a recorder hands out, and no part of what is measured."""
    frames = tuple(Frame(__file__, line, "forward") for line in (1, 2))
    found, last = [], None
    for layer in range(len(arrays) // 4):
        slot = Slot("", layer, _Seen(arrays[4 * layer]), True)
        inputs = () if last is None else (Slot("0", last.tensor, last.value, True),)
        numbers = (layer, layer + 1)
        path = f"layers.{layer}"
        found.append(Call(layer + 1, 0, layer + 1, path, "Linear", 0, inputs, (slot,), numbers, frames))
        last = slot
    return found


def _read(path: Path, case: str, size: int, repeat: int) -> Row:
    def read() -> None:
        with Dump.open(path) as dump:
            dump.check()

    rate = size / min(_timed(read) for _ in range(repeat)) / 1e9
    return Row("read and checked", case, f"{rate:.1f} GB/s", OPEN, "from the page cache, every checksum", rate)


class _Seen:
    """A value that was stored already."""

    overwritten = False

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype.name

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        pass


def _tree(layers: int, shape: tuple[int, ...]) -> ModuleTree:
    nodes = [ModuleNode(0, "", "Blocks", None, -1, tuple(range(1, layers + 1)), (), (), 0, "Blocks()")]
    for layer in range(layers):
        specs = (
            TensorSpec("weight", shape, "float32", 4 * layer + 1),
            TensorSpec("bias", shape[:1], "float32", 4 * layer + 2),
        )
        text = f"Linear(in_features={shape[0]}, out_features={shape[0]}, bias=True)"
        nodes.append(
            ModuleNode(layer + 1, f"layers.{layer}", "Linear", "linear", 0, (), specs, (), 4 * layer + 3, text)
        )
    return ModuleTree("torch", "Blocks", tuple(nodes))


def _timed(work: Callable[[], None], makes: Path | None = None) -> float:
    """Seconds, with what the work makes out of the way first."""
    if makes is not None and makes.is_dir():
        shutil.rmtree(makes)
    elif makes is not None:
        makes.unlink(missing_ok=True)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
