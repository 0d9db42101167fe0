"""A dump is whole or not there: full disks, refusals, kills and crowds."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from padiff.errors import DumpError
from padiff.store import Dump, DumpWriter, folder
from padiff.store.dtypes import how_kept
from padiff.store.lane import Lane
from padiff.store.slabs import Slab, Slabs
from tests.store.sketches import FACTS, contents, tree, write

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_is_at_the_place_until_the_dump_is_whole(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        writer.begin_step(0).end()
        assert not (tmp_path / "run").exists()
        (partial,) = tmp_path.iterdir()
        assert partial.name.startswith(".run.partial-")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        writer.begin_step(0).tensor(0, np.ones(10))
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    writer.abort()  # once more does no harm


def test_finished_steps_can_be_kept_after_an_exception(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS)
    step = writer.begin_step(0)
    step.tensor(0, np.ones(3))
    step.end()
    writer.begin_step(1).tensor(0, np.ones(3))
    writer.close()
    assert [s.number for s in Dump.open(tmp_path / "run").steps] == [0]


def test_a_dump_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    old = contents(write(tmp_path / "run"))
    with pytest.raises(DumpError, match="a dump is there\nhint: overwrite=True replaces it"):
        write(tmp_path / "run", scale=2.0)
    assert contents(tmp_path / "run") == old
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, overwrite=True):
        assert contents(tmp_path / "run") == old  # kept until the new one is whole
    assert contents(tmp_path / "run") != old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_replacing_works_where_folders_cannot_be_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run")
    monkeypatch.setattr(folder, "_swapped", lambda *_: False)
    write(tmp_path / "run", scale=2.0, overwrite=True)
    assert contents(tmp_path / "run") == contents(write(tmp_path / "other", scale=2.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_a_replacement_that_fails_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = contents(write(tmp_path / "run"))
    monkeypatch.setattr(folder, "_swapped", lambda *_: False)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name.startswith(".run.partial-"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(DumpError, match=r"cannot put the dump to .*: Input/output error"):
        write(tmp_path / "run", scale=2.0, overwrite=True)
    assert contents(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_dumps_are_ever_replaced(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").write_text("years", encoding="utf-8")
    with pytest.raises(DumpError, match=r"holds 'final\.tex', which is no part of a dump"):
        write(tmp_path / "thesis", overwrite=overwrite)
    with pytest.raises(DumpError, match="a file is there"):
        write(tmp_path / "thesis" / "final.tex", overwrite=overwrite)
    assert (tmp_path / "thesis" / "final.tex").read_text(encoding="utf-8") == "years"


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    contents(write(tmp_path / "run"))


def test_folders_above_are_made(tmp_path: Path) -> None:
    contents(write(tmp_path / "a" / "b" / "run"))


def test_what_appeared_meanwhile_is_kept_and_so_is_the_dump(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS)
    other = contents(write(tmp_path / "run"))
    with pytest.raises(DumpError, match="a dump is there; it appeared while this dump was written, which is at"):
        writer.close()
    assert contents(tmp_path / "run") == other
    (aside,) = tmp_path.glob("run.new-*")
    assert len(Dump.open(aside).steps) == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_permission_denied_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DumpError, match=r"cannot write a dump to .*: Permission denied"):
            write(tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


def test_a_refusal_of_the_system_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DumpError, match=r"cannot write a dump to .*: Permission denied"):
        write(tmp_path / "run")


def test_a_full_disk_is_said_and_the_old_dump_stays(tmp_path: Path) -> None:
    """Files may grow to 200 kB and no further: the same refusal, at the same call, as on a full disk."""
    old = contents(write(tmp_path / "run"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        writer = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, overwrite=True, shard_bytes=100_000)
        step = writer.begin_step(0)
        with pytest.raises(DumpError, match=r"cannot write .*tensors-00001\.safetensors: File too large"), writer:
            step.tensor(0, np.zeros(10_000))
            step.tensor(1, np.zeros(100_000))
            step.end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert contents(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["tensors-00000.safetensors", "step-00000.json", "index.json"])
@pytest.mark.parametrize("at", ["open", "sync"])
def test_a_disk_that_fails_anywhere_loses_nothing(
    name: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = contents(write(tmp_path / "run"))
    opening, syncing = Path.open, os.fsync

    def open_or_fail(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name and at == "open" and "x" in args[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opening(path, *args, **kwargs)

    def sync_or_fail(descriptor: int) -> None:
        if at == "sync" and Path(f"/proc/self/fd/{descriptor}").readlink().name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        syncing(descriptor)

    monkeypatch.setattr(Path, "open", open_or_fail)
    monkeypatch.setattr(os, "fsync", sync_or_fail)
    with pytest.raises(DumpError, match="No space left on device"):
        write(tmp_path / "run", scale=3.0, overwrite=True)
    monkeypatch.undo()
    assert contents(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_after_a_failure_the_next_tensor_says_so_and_memory_does_not_grow(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, waiting_bytes=100, shard_bytes=1)
    (partial,) = tmp_path.iterdir()
    for file in partial.iterdir():
        file.unlink()
    partial.rmdir()
    step = writer.begin_step(0)
    with pytest.raises(DumpError, match="cannot write"):
        for number in range(10_000):
            step.tensor(number, np.ones(100))
    writer.abort()


KILLED = """
import sys
from pathlib import Path
from tests.store.sketches import write
path = Path(sys.argv[1])
print("ready", flush=True)
for scale in range(1, 100_000):
    write(path, scale=float(scale), overwrite=True, steps=3, shard_bytes=64)
"""


def test_a_killed_writer_leaves_a_whole_dump_or_none(tmp_path: Path) -> None:
    chance = random.Random(7)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    for name in ("run0", "run1"):
        write(tmp_path / name, steps=3)
    for attempt in range(12):
        path = tmp_path / f"run{attempt % 4}"
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, env=environment)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.0, 0.06))
        there = path.exists()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert path.exists() or not there
        if path.exists():
            assert {"step 0", "step 1", "step 2"} < contents(path).keys()
    assert len(list(tmp_path.glob(".run*.partial-*"))) > 0  # they were killed in the middle of it


def test_leftovers_of_killed_writers_are_swept_and_living_ones_are_not(tmp_path: Path) -> None:
    dead = tmp_path / ".run.partial-dead"
    dead.mkdir()
    (dead / "step-00000.json").write_text("{", encoding="utf-8")
    other = tmp_path / ".run2.partial-dead"
    other.mkdir()
    living = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS)
    (alive,) = (path for path in tmp_path.glob(".run.partial-*") if path != dead)
    for path in (dead, alive, other):
        os.utime(path, (0, 0))
    write(tmp_path / "run", overwrite=True)
    assert not dead.exists()
    assert alive.exists()
    assert other.exists()
    living.abort()


def test_two_dumps_are_written_at_one_time(tmp_path: Path) -> None:
    expected = {scale: contents(write(tmp_path / f"alone{scale}", scale=scale)) for scale in (1.0, 2.0)}
    failures: list[BaseException] = []

    def work(scale: float) -> None:
        try:
            for _ in range(10):
                write(tmp_path / f"run{scale}", scale=scale, overwrite=True, shard_bytes=32, waiting_bytes=64)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {scale: contents(tmp_path / f"run{scale}") for scale in expected} == expected


def test_two_writers_of_one_place_both_leave_a_whole_dump(tmp_path: Path) -> None:
    first = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, overwrite=True)
    second = DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, overwrite=True)
    first.begin_step(1).end()
    second.begin_step(2).end()
    first.close()
    second.close()
    assert [step.number for step in Dump.open(tmp_path / "run").steps] == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_memory_is_bounded_however_slow_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros(1 << 17)  # 1 MiB
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (time.sleep(0.002), sync(descriptor))[1])
    limits = {"waiting_bytes": 4 << 20, "shard_bytes": 2 << 20}
    tracemalloc.start()
    try:
        with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, **limits) as writer:
            step = writer.begin_step(0)
            for number in range(64):
                step.tensor(number, array)
            step.end()
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 11 << 20  # 4 waiting, two shards of 2, one more tensor on either side
    assert Dump.open(tmp_path / "run").step(0).value(63).shape == array.shape


def _held_by_the_store() -> int:
    """Whatever threads of other tests do beside it."""
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/padiff/*")])
    return sum(one.size for one in ours.statistics("filename"))


@pytest.mark.parametrize("kind", ["full", "stats", "hash"])
def test_long_runs_keep_flat_memory(kind: Any, tmp_path: Path) -> None:
    arrays = [np.ones(8) * n for n in range(20)]
    held = []
    tracemalloc.start()
    try:
        with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, kind=kind, shard_bytes=4096) as writer:
            for number in range(440):
                step = writer.begin_step(number)
                for place, array in enumerate(arrays):
                    step.tensor(place, array)
                    step.gradient(place, array)
                step.weights({"w": arrays[0]})
                step.end()
                if number in (39, 439):
                    writer._lane.drain()
                    gc.collect()
                    held.append(_held_by_the_store())
    finally:
        tracemalloc.stop()
    # 400 steps of 40 tensors each: what grows is a line of the index for each step, and for each shard; memory that is
    # lent to the writer again and again comes and goes.
    assert (held[1] - held[0]) / 400 < (8000 if kind == "full" else 20_000)


def test_work_is_done_in_order_and_what_it_raises_is_raised_to_who_hands_over_more() -> None:
    done: list[int] = []
    lane = Lane(limit=2)
    for number in range(50):
        lane.put(lambda number=number: done.append(number))  # type: ignore[misc]
    lane.drain()
    lane.end()
    assert done == list(range(50))
    with pytest.raises(RuntimeError, match="has ended"):
        lane.put(lambda: None)

    told = threading.Event()
    lane = Lane(limit=2, failed=told.set)
    with pytest.raises(ZeroDivisionError):
        for _ in range(50):
            lane.put(lambda: print(1 // 0))
    assert told.wait(10)
    lane.end()


def test_memory_is_lent_up_to_its_limit_and_given_out_again() -> None:
    slabs = Slabs(size=100, limit=250)
    first, second = slabs.take(10), slabs.take(100)
    assert first is not None
    assert second is not None
    assert (first.size, second.size) == (100, 100)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(slabs.take(1)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    slabs.give(first)
    waiting.join(10)
    assert found == [first]
    slabs.give(first)
    slabs.give(second)
    large = slabs.take(1000)  # more than there is, and alone
    assert large is not None
    assert large.size == 1000
    waiting = threading.Thread(target=lambda: found.append(slabs.take(1)))
    waiting.start()
    slabs.stop()
    waiting.join(10)
    assert found[1:] == [None]


def test_the_next_memory_is_made_ready_while_the_last_is_filled() -> None:
    slabs = Slabs(size=100, limit=250)
    first = slabs.take(10)
    assert first is not None
    slabs.look_ahead()
    slabs.look_ahead()
    second = slabs.take(10)
    assert second is not None
    assert second is not first
    slabs.look_ahead()  # there is no room for a third
    slabs.give(first)
    assert slabs.take(10) is first
    slabs.stop()
    slabs.look_ahead()
    assert slabs.take(10) is None


def test_memory_of_a_writer_that_has_ended_is_the_next_ones() -> None:
    slabs = Slabs(size=104, limit=520)
    taken = [slabs.take(1) for _ in range(5)]
    for slab in taken[:4]:
        assert slab is not None
        slabs.give(slab)
    slabs.end()
    assert Slabs(size=96, limit=400).take(1) not in taken
    following = Slabs(size=104, limit=520)
    assert [following.take(1) in taken[:4] for _ in range(4)] == [True, True, True, False]


def test_tensors_of_any_layout_lie_aligned_and_side_by_side() -> None:
    slab = Slab(1000)
    arrays: list[Any] = [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(True),
        np.arange(3, dtype=">f8"),
        np.zeros((0, 4)),
        np.arange(8, dtype=np.int64)[::-2],
    ]
    handles = [slab.lay(array, how_kept(array.dtype), None) for array in arrays]
    assert [handle and handle.start for handle in handles] == [0, 24, 32, 56, 56]
    for array, handle in zip(arrays, handles, strict=True):
        assert handle is not None
        assert np.array_equal(slab.array(handle), array)
        assert slab.array(handle).flags.aligned
    (run,) = slab.runs([handle for handle in handles[2:] if handle is not None])
    assert bytes(run) == np.arange(3.0).tobytes() + arrays[4].tobytes()
    assert slab.lay(np.zeros(200), how_kept(np.dtype(float)), None) is None


def test_tensors_larger_than_a_shard_have_one_of_their_own(tmp_path: Path) -> None:
    limits = {"waiting_bytes": 0, "shard_bytes": 1000}
    arrays = [np.full(size, float(size)) for size in (10, 1000, 20, 5000, 30, 30)]
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, **limits) as writer:
        step = writer.begin_step(0)
        for number, array in enumerate(arrays):
            step.tensor(number, array)
        step.end()
    with Dump.open(tmp_path / "run") as dump:
        dump.check()
        assert [dump.step(0).value(number).numpy().tolist() for number in range(6)] == [one.tolist() for one in arrays]
    assert len(list((tmp_path / "run").glob("tensors-*"))) == 5


def test_many_threads_may_hand_over_at_one_time(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, shard_bytes=3000, waiting_bytes=3000) as writer:
        step = writer.begin_step(0)

        def work(begin: int) -> None:
            for number in range(begin, begin + 300):
                step.tensor(number, np.full(number % 7 + 1, float(number)))

        threads = [threading.Thread(target=work, args=(begin,)) for begin in range(0, 1200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        step.end()
    with Dump.open(tmp_path / "run") as dump:
        found = [dump.step(0).value(number).numpy().tolist() for number in range(1200)]
    assert found == [[float(number)] * (number % 7 + 1) for number in range(1200)]


def test_a_disk_that_fails_while_everybody_waits_for_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training thread waits for memory, the second for the third, which fails."""
    syncing = os.fsync
    failed: list[int] = []

    def fail_late(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "tensors-00001.safetensors":
            time.sleep(0.1)
            failed.append(descriptor)
            raise OSError(errno.ENOSPC, "No space left on device")
        syncing(descriptor)

    monkeypatch.setattr(os, "fsync", fail_late)
    limits = {"waiting_bytes": 0, "shard_bytes": 4096}
    with (
        pytest.raises(DumpError, match=r"cannot write .*tensors-00001\.safetensors: No space left on device"),
        DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, **limits) as writer,
    ):
        step = writer.begin_step(0)
        for number in range(100_000):
            step.tensor(number, np.zeros(512))
    assert failed
    assert not list(tmp_path.iterdir())
