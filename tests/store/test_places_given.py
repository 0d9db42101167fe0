"""What users give as the place of a dump: taken, or refused in words before anything is run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import padiff
from padiff.errors import ArgumentError, DumpError
from padiff.store import Dump, DumpWriter, folder
from tests.store.sketches import FACTS, contents, tree, write


@pytest.mark.parametrize("given", [None, 3, b"run", "", "a\0b", ["run"]], ids=str)
def test_what_is_no_path_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^path is .*, expected the path of a folder"):
        padiff.load(given)
    with pytest.raises(ArgumentError, match=r"^base is .*, expected the path of a folder"):
        padiff.compare_dumps(given, "run")
    with pytest.raises(ArgumentError, match=r"^raw is .*, expected the path of a folder"):
        padiff.compare_dumps("run", given)


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(DumpError, match="cannot write a dump to"):
        write(tmp_path / "one")


def test_the_current_directory_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpError, match="it is the current directory"):
        write(Path())
    assert Path("here").write_text("still", encoding="utf-8") == 5


def test_a_mount_point_is_refused_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    with pytest.raises(DumpError, match="a file system is mounted there"):
        DumpWriter(tmp_path / "disk", tree=tree(), facts=FACTS)
    contents(write(tmp_path / "disk" / "run"))


def test_a_dump_that_cannot_take_its_place_is_kept_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(folder, "_move", busy)
    with pytest.raises(DumpError, match=r"Device or resource busy; it is whole, and at .*run\.new-"):
        write(tmp_path / "run")
    (aside,) = tmp_path.iterdir()
    contents(aside)


@pytest.mark.skipif(sys.platform == "win32", reason="names end elsewhere there")
@pytest.mark.parametrize("name", ["y" * 255, "\N{SNOWMAN}" * 85], ids=["letters", "three bytes each"])
def test_the_longest_name_there_is(name: str, tmp_path: Path) -> None:
    known = contents(write(tmp_path / name))
    with DumpWriter(tmp_path / name, tree=tree(), facts=FACTS, overwrite=True) as writer:
        assert contents(tmp_path / name) == known
        writer.begin_step(0).end()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked there")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_neither_writes_nor_takes_away(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        writer.begin_step(0).end()
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                writer.begin_step(1)
            except DumpError:
                refused = 1
            writer.abort()
            os._exit(7 if refused else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(Dump.open(tmp_path / "run").steps) == 1
