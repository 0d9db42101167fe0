"""Whatever is wrong with a dump is said in one message, and what is merely unusual is accepted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from padiff.errors import DumpError
from padiff.store import Dump, dumps_below, place
from tests.store.sketches import contents, write
from tests.store.test_round_trip import one

Damage = Callable[[Path], object]
SHARD, STEP, INDEX = "tensors-00000.safetensors", "step-00000.json", "index.json"


def cut(name: str, to: int) -> Damage:
    return lambda dump: os.truncate(dump / name, to)


def flip(name: str, at: int) -> Damage:
    def damage(dump: Path) -> None:
        data = bytearray((dump / name).read_bytes())
        data[at] ^= 1
        (dump / name).write_bytes(data)

    return damage


def swap(name: str, other: str) -> Damage:
    return lambda dump: shutil.copy(dump.parent / other / name, dump / name)


def linked(name: str) -> Damage:
    def damage(dump: Path) -> None:
        (dump / name).rename(dump.parent / "outside")
        (dump / name).symlink_to(dump.parent / "outside")

    return damage


def exchange(dump: Path) -> None:
    shutil.copy(dump / "step-00001.json", dump / STEP)


def emptied(dump: Path) -> None:
    for file in dump.iterdir():
        file.unlink()


def foreign(dump: Path) -> None:
    emptied(dump)
    (dump / "notes.txt").write_text("hello", encoding="utf-8")


def newer(dump: Path) -> None:
    text = (dump / INDEX).read_text(encoding="utf-8")
    (dump / INDEX).write_text(text.replace('"schema":1', '"schema":2', 1), encoding="utf-8")


CASES: dict[str, tuple[Damage, str]] = {
    "missing": (shutil.rmtree, "there is no dump at"),
    "a file": (lambda dump: (shutil.rmtree(dump), dump.write_bytes(b""))[1], "is a file; a dump is a folder"),
    "empty": (emptied, "is empty and holds no dump"),
    "foreign": (foreign, r"is no dump: it holds 'notes\.txt', and no index\.json"),
    "foreign index": (lambda dump: (dump / INDEX).write_text("{}"), "is no dump of padiff"),
    "half-written": (lambda dump: (dump / INDEX).unlink(), "is half-written or torn apart: index.json is missing"),
    "newer": (newer, "has schema 2; this version of padiff reads schema 1\nhint: install a newer padiff"),
    "index empty": (cut(INDEX, 0), r"index\.json: it is empty"),
    "index truncated": (cut(INDEX, 500), r"index\.json: it is truncated"),
    "index flipped": (flip(INDEX, 300), r"index\.json: it does not have the checksum"),
    "step missing": (lambda dump: (dump / STEP).unlink(), r"step-00000\.json: the file is missing"),
    "step truncated": (cut(STEP, 10), r"step-00000\.json: it is truncated: 10 bytes"),
    "step flipped": (flip(STEP, 100), r"step-00000\.json: it does not have the checksum that the index gives"),
    "step of another": (swap(STEP, "longer"), r"step-00000\.json: it is too long: \d+ bytes, where the index says \d+"),
    "steps exchanged": (exchange, r"step-00000\.json: it is too long"),
    "shard missing": (lambda dump: (dump / SHARD).unlink(), r"safetensors: the file is missing"),
    "shard truncated": (cut(SHARD, 1000), r"safetensors: it is truncated: 1000 bytes, where the index says"),
    "shard header": (flip(SHARD, 200), "its header does not have the checksum"),
    "shard length": (flip(SHARD, 7), r"a header of \d+ bytes does not fit"),
    "shard data": (flip(SHARD, -3), "its tensors do not have the checksum they were written with"),
    "shard swapped": (swap(SHARD, "other"), "its header does not have the checksum"),
    "shard a link": (linked(SHARD), "it is a link, and a dump holds no links"),
    "index a link": (linked(INDEX), "it is a link, and a dump holds no links"),
    "shard a folder": (lambda dump: ((dump / SHARD).unlink(), (dump / SHARD).mkdir()), "is no plain file"),
    "shard a pipe": (lambda dump: ((dump / SHARD).unlink(), os.mkfifo(dump / SHARD)), "is no plain file"),
}


@pytest.mark.parametrize(("damage", "message"), CASES.values(), ids=CASES)
def test_damage_is_named(damage: Damage, message: str, tmp_path: Path) -> None:
    write(tmp_path / "other", scale=2.0)
    write(tmp_path / "longer", more=True)
    path = write(tmp_path / "run")
    damage(path)
    with pytest.raises(DumpError, match=message) as caught:
        contents(path)
    assert str(path) in str(caught.value)


def test_what_lies_in_undamaged_shards_can_still_be_read(tmp_path: Path) -> None:
    rows = [np.full((8, 8), float(n), np.float32) for n in range(3)]
    one(tmp_path / "run", *rows, shard_bytes=256).close()
    flip("tensors-00001.safetensors", -1)(tmp_path / "run")
    read = Dump.open(tmp_path / "run").step(0)
    assert read.value(1).shape == (8, 8)
    with pytest.raises(DumpError, match=r"tensors-00001\.safetensors: its tensors do not have the checksum"):
        read.value(1).numpy()
    assert [read.value(n).numpy().tobytes() for n in (0, 2)] == [rows[0].tobytes(), rows[2].tobytes()]
    with pytest.raises(DumpError, match="checksum"):
        Dump.open(tmp_path / "run").check()


def test_a_dump_may_lie_behind_a_link(tmp_path: Path) -> None:
    before = contents(write(tmp_path / "run"))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert contents(tmp_path / "link") == before
    write(tmp_path / "link", scale=2.0, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "run") != before


def test_other_files_beside_the_dump_do_no_harm(tmp_path: Path) -> None:
    before = contents(write(tmp_path / "run"))
    (tmp_path / "run" / ".DS_Store").write_bytes(b"")
    assert contents(tmp_path / "run") == before


def test_opening_reads_no_step_and_no_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "run")
    for name in (STEP, SHARD):
        flip(name, 50)(path)
    dump = Dump.open(path)
    assert dump.tree.name == "Net"
    assert [step.number for step in dump.steps] == [0, 1]
    assert dump.nbytes == sum(file.stat().st_size for file in path.iterdir() if file.name != INDEX)


def test_the_old_dump_is_pointed_at_where_a_kill_left_it(tmp_path: Path) -> None:
    write(tmp_path / "run").rename(tmp_path / "run.old-abc")
    with pytest.raises(DumpError, match=r"hint: the dump that was there before is at .*run\.old-abc"):
        Dump.open(tmp_path / "run")


def test_steps_and_ranks_in_folders_of_their_own(tmp_path: Path) -> None:
    for step in (10, 2):
        for rank in (1, 0):
            write(place(tmp_path / "root", step, rank), steps=1)
    (tmp_path / "root" / "step_x").mkdir()
    found = dumps_below(tmp_path / "root")
    assert list(found) == [(2, 0), (2, 1), (10, 0), (10, 1)]
    assert found[10, 1] == tmp_path / "root" / "step_10" / "rank_1"
    assert list(dumps_below(tmp_path / "root" / "step_2")) == [(None, 0), (None, 1)]
    assert list(dumps_below(found[2, 0])) == [(None, None)]
    with pytest.raises(DumpError, match=r"hint: dumps lie deeper, for example in .*step_10"):
        Dump.open(tmp_path / "root")
    with pytest.raises(DumpError, match="holds no dump, and no folders"):
        dumps_below(tmp_path)
    with pytest.raises(DumpError, match="there is no folder"):
        dumps_below(tmp_path / "nowhere")


def test_the_index_is_plain_json(tmp_path: Path) -> None:
    path = write(tmp_path / "run")
    document = json.loads((path / INDEX).read_bytes())
    assert document["format"] == "padiff-dump"
    assert document["schema"] == 1
    assert str(tmp_path) not in json.dumps({**document, "sources": None})
