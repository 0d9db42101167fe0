"""What docs/dump-format.md says is so."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from padiff.store.statistics import COLUMNS, LEVELS, RANKED, SAMPLED
from tests.store.sketches import write

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dump-format.md").read_text(encoding="utf-8")


def test_its_example_reads_a_dump_without_padiff(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    write(tmp_path / "run_a")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    code = code.replace('step["calls"][0]', 'step["calls"][1]')  # the first returns bfloat16, which numpy lacks
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "last (2, 3, 2)\n", done.stderr


def test_its_columns_are_those_written() -> None:
    assert ", ".join(COLUMNS[:4]) + " (counts); " + ", ".join(COLUMNS[4:]) in PAGE
    assert ", ".join(map(str, LEVELS)) in PAGE
    assert f"at most {RANKED:,} positions; the sample takes at most {SAMPLED}" in PAGE
    assert f"[n, {len(COLUMNS) + len(LEVELS)}]" in PAGE


@pytest.mark.skipif(shutil.which("b2sum") is None, reason="no b2sum here")
@pytest.mark.parametrize("kind", ["full", "hash"])
def test_b2sum_computes_the_digest(kind: Any, tmp_path: Path) -> None:
    data = (write(tmp_path / "run", kind) / "index.json").read_bytes()
    body, _, tail = data.rpartition(b',"checksum":"')
    done = subprocess.run(["b2sum", "-l", "128"], input=body, capture_output=True, check=True)
    assert done.stdout.split()[0] == tail.removesuffix(b'"}\n')
