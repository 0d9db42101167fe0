"""What a result offers: show, save in every form, a notebook's view, a table."""

from __future__ import annotations

import sys
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.errors import ArgumentError, NotAvailableError
from padiff.report.frame import COLUMNS


class Block(torch.nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, eps=eps)
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return x + self.fc(self.norm(x))


def model(eps: float) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), Block(1e-5), Block(eps), torch.nn.Linear(8, 2))


X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


@pytest.fixture(scope="module")
def wrong() -> padiff.Result:
    torch.manual_seed(0)
    return padiff.compare(model(1e-5), model(1e-2), X)


@pytest.fixture(scope="module")
def right() -> padiff.Result:
    torch.manual_seed(0)
    return padiff.compare(model(1e-5), model(1e-5), X)


def test_the_report_of_a_result(wrong: padiff.Result) -> None:
    report = wrong.report()
    assert (report.verdict, report.base.framework, report.base.version) == ("diverged", "torch", torch.__version__)
    assert report.divergence is not None
    assert report.divergence.raw_path == "2.norm"
    assert report.divergence.settings == (("eps", 1e-5, 1e-2),)
    assert len(report.comparisons) == len(wrong.comparisons)
    forms = {one.name or one.role: one.forms for one in report.comparisons if one.raw_path == "2.norm"}
    assert forms == {
        "0": ("float32[6, 8]", "float32[6, 8]"),
        "output": ("float32[6, 8]", "float32[6, 8]"),
        "weight": ("float32[8]", "float32[8]"),
        "bias": ("float32[8]", "float32[8]"),
    }
    calls = {call.raw_path: call for call in report.calls}
    assert calls["2.norm"].parent == calls["2"].raw_call
    assert calls[""].parent == -1
    line = report.frames[calls["2.norm"].raw_stack[-1]]
    assert (Path(line.file).name, line.text) == ("test_result.py", "return x + self.fc(self.norm(x))")
    assert report.code[line.file][str(line.line - 1)] == "    def forward(self, x: Any) -> Any:"
    assert [weight.path for weight in report.weights][:2] == ["0.weight", "0.bias"]
    assert padiff.report.load(padiff.report.to_json(report)) == report


def test_every_module_says_what_it_was_built_with(wrong: padiff.Result) -> None:
    report = wrong.report()
    norm = {
        side: next(one for one in modules if one.path == "2.norm")
        for side, modules in (("base", report.base.modules), ("raw", report.raw.modules))
    }
    assert norm["base"].settings == {
        "normalized_shape": (8,),
        "eps": 1e-5,
        "elementwise_affine": True,
        "training": True,
    }
    assert {**norm["base"].settings, "eps": 1e-2} == norm["raw"].settings
    assert norm["raw"].tensors == {"weight": "float32[8]", "bias": "float32[8]"}


def test_the_place_has_a_picture_of_its_error(wrong: padiff.Result) -> None:
    assert wrong.divergence is not None
    picture = wrong.divergence.comparison.picture
    assert picture is not None
    numbers = wrong.divergence.comparison.outcome.numbers
    assert numbers is not None
    assert picture.size == numbers.size == 48
    assert 10**picture.high == pytest.approx(numbers.max_abs, rel=1e-3)
    assert picture.extent == (6, 8)


@pytest.mark.parametrize("ending", ["html", "json", "xml", "md", "txt", "HTML"])
@pytest.mark.parametrize("outcome", ["wrong", "right"])
def test_saved_in_every_form(ending: str, outcome: str, request: pytest.FixtureRequest) -> None:
    result: padiff.Result = request.getfixturevalue(outcome)
    result.save(f"folder/report.{ending}")
    text = Path(f"folder/report.{ending}").read_text(encoding="utf-8")
    assert ("2.norm" in text) or outcome == "right"
    assert [file.name for file in Path("folder").iterdir()] == [f"report.{ending}"]
    if ending == "xml":
        assert ElementTree.fromstring(text).find("testsuite") is not None
    if ending == "json":
        assert padiff.report.load(text).aligned == result.aligned


def test_an_ending_that_says_nothing(wrong: padiff.Result) -> None:
    with pytest.raises(ArgumentError) as caught:
        wrong.save("report.pdf")
    assert caught.value.message == "path: 'report.pdf' ends in '.pdf', expected one of .html, .json, .xml, .md, .txt"
    assert not Path("report.pdf").exists()


def test_show_prints_the_terminal_report(wrong: padiff.Result, capsys: pytest.CaptureFixture[str]) -> None:
    wrong.show()
    printed = capsys.readouterr().out
    assert "DIVERGED" in printed.splitlines()[0]
    assert "eps is 0.01 in raw and 1e-05 in base" in " ".join(printed.split())


def test_a_notebook_shows_the_page(right: padiff.Result) -> None:
    assert right._repr_html_().startswith('<iframe title="padiff report" sandbox="allow-scripts"')


def test_plain_data_has_what_it_always_had(wrong: padiff.Result) -> None:
    found = wrong.to_dict()
    assert (found["schema"], found["aligned"]) == (1, False)
    assert found["divergence"]["raw_path"] == "2.norm"
    assert len(found["comparisons"]) == len(wrong.comparisons)
    assert found["base"]["framework"] == "torch"


class Frame:
    def __init__(self, rows: list[tuple[Any, ...]], columns: list[str]) -> None:
        self.rows, self.columns = rows, columns


def test_a_table(wrong: padiff.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("pandas")
    stand_in.DataFrame = Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    table = wrong.to_dataframe()
    assert table.columns == list(COLUMNS)
    assert len(table.rows) == len(wrong.comparisons)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]
    found = next(one for one in rows if one["raw_path"] == "2.norm" and one["role"] == "output")
    assert (found["verdict"], found["phase"], found["raw_form"], found["size"]) == (
        *("different", "forward", "float32[6, 8]", 48),
    )
    assert found["relative_error"] == pytest.approx(found["rmse"] / found["base_rms"])


def test_a_table_of_pandas(wrong: padiff.Result) -> None:
    pandas = pytest.importorskip("pandas")
    table = wrong.to_dataframe()
    assert isinstance(table, pandas.DataFrame)
    assert table.loc[table.verdict == "different"].iloc[0].raw_path == "2.norm"


def test_without_pandas_the_extra_is_named(wrong: padiff.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(NotAvailableError) as caught:
        wrong.to_dataframe()
    assert (caught.value.message, caught.value.hint) == (
        "to_dataframe needs pandas, which is not installed",
        "pip install 'padiff[pandas]'",
    )
