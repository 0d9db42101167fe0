"""``padiff compare`` and ``padiff show``, from a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import padiff
from padiff.cli import main
from padiff.report import load

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.spare = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.norm(self.one(self.one(x)))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Base, the same again, and one with another eps."""
    root = tmp_path_factory.mktemp("dumps")
    for name, eps in (("base", 1e-5), ("same", 1e-5), ("other", 1e-2)):
        torch.manual_seed(0)
        model = Net()
        model.norm.eps = eps
        with padiff.capture(model, root / name):
            model(torch.linspace(0, 1, 12).reshape(3, 4)).square().sum().backward()
    return {name: root / name for name in ("base", "same", "other")}


def command(*words: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(padiff.__file__).parents[1]), "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-m", "padiff", *map(str, words)], capture_output=True, text=True, check=False, env=environment
    )


def test_aligned_is_0(dumps: dict[str, Path]) -> None:
    done = command("compare", dumps["base"], dumps["same"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "ALIGNED" in done.stdout.splitlines()[0]


def test_diverged_is_1_and_names_the_place(dumps: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(dumps["base"]), str(dumps["other"])]) == 1
    text = capsys.readouterr().out
    assert "DIVERGED" in text and "norm  LayerNorm" in text and "eps" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "base", "nowhere"], "there is no folder"),
        (["compare", "base", "same", "--rtol", "-1"], "--rtol is -1.0"),
        (["compare", "base", "same", "--mode", "mean"], "--mode goes with"),
        (["compare", "base", "same", "--tolerance", "auto", "--rtol", "1"], "contradict"),
        (["compare", "base", "same", "--output", "report.exe"], "report.exe"),
        (["show", "base", "nrm"], "did you mean norm?"),
        (["show", "base", "--step", "4"], "has no step 4"),
        (["show", "nowhere"], "there is no folder"),
    ],
)
def test_an_error_is_2_and_one_message(
    words: list[str], message: str, dumps: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(dumps.get(word, word)) for word in words]
    assert main(given) == 2
    done = capsys.readouterr()
    assert done.out == "" and done.err.startswith("padiff: ")
    assert message in done.err and "Traceback" not in done.err


def test_damage_is_2(dumps: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = (dumps["base"] / "index.json").read_bytes()
    (tmp_path / "index.json").write_bytes(index[:-20])
    assert main(["compare", str(dumps["base"]), str(tmp_path)]) == 2
    assert "index.json" in capsys.readouterr().err


def test_quiet_says_nothing(dumps: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(dumps["base"]), str(dumps["other"]), "--quiet"]) == 1
    assert capsys.readouterr() == ("", "")


def test_json_and_files(dumps: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("r.md", "r.json")]
    words = [part for file in files for part in ("--output", str(file))]
    given = ["compare", str(dumps["base"]), str(dumps["other"]), "--json", "--html", str(tmp_path / "r.html"), *words]
    assert main(given) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "diverged" and told["divergence"]["raw_path"] == "norm"
    assert load(files[1]).verdict == "diverged"
    assert all((tmp_path / name).stat().st_size for name in ("r.md", "r.html"))


def test_bounds(dumps: dict[str, Path]) -> None:
    both = [str(dumps["base"]), str(dumps["other"])]
    assert main(["compare", *both, "--quiet", "--atol", "10"]) == 0
    assert main(["compare", *both, "--quiet", "--rtol", "1e-6", "--mode", "mean"]) == 1
    assert main(["compare", str(dumps["base"]), str(dumps["same"]), "--quiet", "--tolerance", "exact"]) == 0


def test_show_a_dump(
    dumps: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["show", str(dumps["base"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Net  torch ")
    assert any(line.startswith("kind   full") for line in lines)
    assert any("one  Linear(" in line and "called 2 times" in line for line in lines)
    assert any("spare  Linear(" in line and "never called" in line for line in lines)


def test_show_a_module(dumps: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dumps["base"]), "one"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    firsts = [line[0] for line in lines if line]
    assert firsts.count("call") == 2 and firsts.count("gradient") >= 4
    weight = next(line for line in lines if line[:1] == ["weight"])
    assert weight[1] == "float32[4," and len(weight) == 7
    assert main(["show", str(dumps["base"]), "spare"]) == 0
    assert "it was not called" in capsys.readouterr().out


class Drawing(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Any) -> Any:
        return padiff.tag("mark", self.drop(self.one(x)).tanh())


def test_show_what_else_a_dump_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Drawing()
    optimizer = torch.optim.Adam(model.parameters())
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer, level="op"):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()

    def shown(path: str) -> list[str]:
        assert main(["show", str(tmp_path / "run"), path]) == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in shown("") if line.startswith(("/tanh", "@"))] == ["/tanh", "@mark"]
    assert "draws a mask of [3, 4] that keeps 0.75" in [line.rstrip() for line in shown("drop")]
    assert {"moment1", "moment2"} <= {line.split()[0] for line in shown("one") if line.strip()}


def test_show_many(dumps: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, name in enumerate(("base", "same")):
        (tmp_path / f"rank_{rank}").symlink_to(dumps[name])
    assert main(["show", str(tmp_path)]) == 0
    assert "rank 1" in capsys.readouterr().out
