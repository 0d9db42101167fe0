"""``padiff demo`` and ``python -m padiff``, from a shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import padiff


def padiff_command(*words: str, cwd: Path, program: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", program] if program else ["-m", "padiff"]
    return subprocess.run([sys.executable, *start, *words], capture_output=True, text=True, cwd=cwd, check=False)


def test_demo_finds_the_mistake_and_then_success(tmp_path: Path) -> None:
    done = padiff_command("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = [line for line in done.stdout.splitlines() if line.startswith("[AutoDiff]")]
    assert sum(line.endswith("FAILED !!!") for line in log) == 2
    assert log[-1] == "[AutoDiff] SUCCESS !!!"
    assert "[AutoDiff]            PaddleEncoder(raw_model).blocks.1.norm2" in log
    assert any("self.norm2(x)" in line for line in log)
    report = json.loads((tmp_path / "padiff_log" / "demo.json").read_text(encoding="utf-8"))
    assert report["divergence"]["raw_path"] == "blocks.1.norm2"
    assert report["aligned"] is False


def test_missing_framework_is_one_message(tmp_path: Path) -> None:
    program = "import sys; sys.modules['paddle'] = None; from padiff.cli import main; sys.exit(main(['demo']))"
    done = padiff_command(cwd=tmp_path, program=program)
    assert done.returncode == 2
    assert done.stderr == "padiff: paddle is not installed\nhint: pip install 'padiff[paddle]'\n"


def test_version_and_usage(tmp_path: Path) -> None:
    assert padiff_command("--version", cwd=tmp_path).stdout == f"padiff {padiff.__version__}\n"
    wrong = padiff_command("dance", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "invalid choice: 'dance'" in wrong.stderr
