"""The benchmarks run and hand out numbers; what the numbers are is nobody's business here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("paddle")
    monkeypatch.syspath_prepend(str(ROOT))


def test_aligned_pairs_at_toy_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "1")  # the command sets them; put back afterwards
    from benchmarks.__main__ import main

    assert main(["aligned", "tensors", "--toy", "--repeat", "1", "--json", str(tmp_path / "numbers.json")]) == 0
    written = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert {row["what"] for row in written["rows"]} == {"time", "peak memory", "copy", "compare_arrays"}
    times = [row["value"] for row in written["rows"] if row["what"] == "time"]
    assert len(times) == 2
    assert all(value > 0 and math.isfinite(value) for value in times)
    assert written["machine"]["torch"] != "not loaded"


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit):
        main(["alinged"])
    assert "aligned, cost, growth, tensors" in capsys.readouterr().err
