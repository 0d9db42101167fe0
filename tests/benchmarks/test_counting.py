"""The two benchmarks that count: they run in slices, and slices add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.benchmarks.test_smoke import from_the_root as from_the_root


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "1")  # the command sets them; put back afterwards


def test_planted_bugs_in_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    one, two, both = (tmp_path / name for name in ("one.json", "two.json", "both.json"))
    slices = ["localise", "--pairs", "twins: torch, torch", "--bugs"]
    assert main([*slices, "weight: one row;output: negated", "--limit", "3", "--json", str(one)]) == 0
    assert main([*slices, "bias: missing", "--limit", "2", "--json", str(two)]) == 0
    assert main(["localise", "--only-add", "--add", str(one), str(two), "--json", str(both)]) == 0
    written = json.loads(both.read_text(encoding="utf-8"))
    kinds = [judgement["kind"] for judgement in written["judgements"]]
    assert sorted(set(kinds)) == ["bias: missing", "output: negated", "weight: one row wrong"]
    assert len(kinds) == 5
    assert written["unclean"] == []
    assert {judgement["place"] for judgement in written["judgements"]} == {"exact"}
    told = capsys.readouterr().out
    assert "5 bugs: exact 100.0%" in told
    assert "aligned: 2 of 2 within 3 plain runs of base and 1 of raw" in told
    assert "diverging: 5 of 5 within 5 plain runs of base and 3 of raw, 5 within 8 in all" in told


def test_clean_pairs_in_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    file = tmp_path / "clean.json"
    assert main(["clean", "--pairs", "twins: torch, torch", "--count", "16", "--json", str(file)]) == 0
    ones = json.loads(file.read_text(encoding="utf-8"))
    assert [one["ended"] for one in ones] == ["aligned"] * 16
    assert len({one["variant"] for one in ones}) == 14
    assert [one["seed"] for one in ones] == [0] * 14 + [1] * 2
    assert main(["clean", "--only-add", "--add", str(file), str(file)]) == 0
    assert "32 clean comparisons of whole models, 0 false alarms" in capsys.readouterr().out
