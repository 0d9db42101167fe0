"""The report on a terminal, at fixed widths, against text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len

from padiff.records import SourceLine, Unmatched
from padiff.report import Report, render, show
from padiff.report.drawing import ASCII, UNICODE, fold, sparkline
from padiff.report.record import Module
from padiff.report.terminal import elided, summary
from tests.report.sketches import SKETCHES, aligned, diverged, outcome

each = pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)

DIVERGED_AT_80 = """\
 !! DIVERGED   TorchModel (torch 2.13.0) and PaddleModel (paddle 3.3.1)
44 tensors compared, 35 differ; it starts at one place

Where it starts
  phase    forward, step 0
  base     blocks.1.norm  LayerNorm
  raw      blocks.1.norm  LayerNorm
  found    rms error 3.0e-03, allowed 1.0e-05 (auto)
  how bad  relative error 3.0e-03, 30,000 times what rounding explains, up to 12
           ulp

Why
  eps   eps is 0.001 in raw and 1e-05 in base; with base's value the outputs
        agree  (97 %, tested)
  bias  the difference is the same along one axis  (40 %, a pattern that fits,
        not tested)
        setting eps  base 1e-05  raw 0.001

Source
  base  port/model.py:11 in forward
        10 | def forward(self, x):
    >   11 |     h = self.norm(x)
        12 |     return x + self.fc(h)
  raw   port/model.py:11 in forward
        10 | def forward(self, x):
    >   11 |     h = self.norm(x)
        12 |     return x + self.fc(h)

Both models around it
  base: torch                            raw: paddle
  TorchModel                             PaddleModel
  |-embed  Linear                        |-embed  Linear
  |-blocks  List                         |-blocks  List
  | |-0  Block                           | |-0  Block
  | |-1  Block                           | |-1  Block
  | | |-norm  LayerNorm <-- here         | | |-norm  LayerNorm <-- here
  | | `-fc  Linear                       | | `-fc  Linear
  | `-2  Block                           | `-2  Block
  `-head  Linear                         `-head  Linear

Relative error of outputs in order of computation, 2.0e-07 to 3.0e-03
  ____________########################
              ^ blocks.1.norm

Furthest beyond what is allowed, as raw ran
      module              phase    rel. error  x allowed
  !!  blocks.1.norm       forward     3.0e-03        300
  !!  blocks.1.fc         forward     3.0e-03        300
  !!  blocks.1            forward     3.0e-03        300
  !!  blocks.2.norm       forward     3.0e-03        300
  !!  blocks.2.fc         forward     3.0e-03        300
  !!  blocks.2            forward     3.0e-03        300
  !!  head                forward     3.0e-03        300
  !!  (the model itself)  forward     3.0e-03        300

compared: 100 % of raw's calls, 100 % of raw's outputs, 100 % of raw's
parameters
both ran on cpu, float32, evaluation
set differently: threads (base 2, raw 1)
"""

ALIGNED_AT_80 = """\
 ✓ ALIGNED   TorchModel (torch 2.13.0) and PaddleModel (paddle 3.3.1)
22 tensors compared, 0 equal to the bit, largest relative error of an output
2.0e-07

Relative error of outputs in order of computation, 2.0e-07 to 2.0e-07
  ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅

Nearest to what is allowed
     module              phase     rel. error  × allowed
  ✓  embed               gradient     4.0e-07       0.04
  ✓  blocks.0.norm       gradient     4.0e-07       0.04
  ✓  blocks.0.fc         gradient     4.0e-07       0.04
  ✓  head                gradient     4.0e-07       0.04
  ✓  (the model itself)  backward     3.0e-07       0.03
  ✓  head                backward     3.0e-07       0.03
  ✓  blocks.0            backward     3.0e-07       0.03
  ✓  blocks.0.fc         backward     3.0e-07       0.03

compared: 100 % of raw's calls, 100 % of raw's outputs, 100 % of raw's
parameters
both ran on cpu, float32, evaluation
"""


def test_diverged_in_plain_signs() -> None:
    assert render(diverged(), 80, plain=True) == DIVERGED_AT_80


def test_aligned() -> None:
    assert render(aligned(1), 80) == ALIGNED_AT_80


@each
@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_too_long(sketch: Callable[[], Report], width: int) -> None:
    found = render(sketch(), width)
    assert max(cell_len(line) for line in found.splitlines()) <= width
    assert "\x1b" not in found


def test_wide_terminals_show_both_sources_side_by_side() -> None:
    assert "port/model.py:11 in forward" in render(diverged(), 140)
    assert re.search(r"model\.py:11 in forward +raw +port/model\.py:11", render(diverged(), 140))
    assert not re.search(r"model\.py:11 in forward +raw +port/model\.py:11", render(diverged(), 80))


def test_colour_adds_nothing_but_colour() -> None:
    coloured = render(diverged(), 100, "truecolor")
    assert "\x1b[" in coloured
    bare = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines())
    assert bare + "\n" == render(diverged(), 100)


class Stream(io.TextIOWrapper):
    """A file that knows few characters, as consoles do."""

    def __init__(self, encoding: str) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, newline="")


@each
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "gbk", "utf-8", "utf-16-le"])
def test_every_console_can_show_it(sketch: Callable[[], Report], encoding: str) -> None:
    found = replace(sketch(), notes=("模型 über ✗ \ud800",))
    stream = Stream(encoding)
    show(found, stream)
    stream.flush()
    text = stream.bytes.getvalue().decode(encoding, "strict" if encoding != "utf-16-le" else "replace")
    assert text.startswith(" ✗" if encoding.startswith("utf") and found.verdict == "diverged" else " ")
    assert "\\ud800" in text


def test_piped_there_is_no_colour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    show(diverged())
    assert capsys.readouterr().out == render(diverged(), 80)


def test_lines_between_two_children_are_all_marked() -> None:
    first = diverged().divergences[0]
    lines = tuple(SourceLine("port/model.py", line, "forward", "") for line in (11, 12))
    outer = SourceLine("port/model.py", 3, "forward", "self.block(x)")
    found = render(replace(diverged(), divergences=(replace(first, source=((outer, *lines), lines)),)), 80, plain=True)
    assert found.count("    >   11 |     h = self.norm(x)\n    >   12 |     return x + self.fc(h)\n") == 2


def test_markup_of_rich_is_text() -> None:
    found = replace(diverged(), notes=("[bold]not bold[/bold] :smile:",))
    assert "note: [bold]not bold[/bold] :smile:" in render(found, 100)


# ------------------------------------------------------------------ drawings


def test_far_branches_are_counted() -> None:
    modules = [Module("", "Net"), *(Module(f"b{i}", "Block", "", 0) for i in range(9))]
    modules += [Module("b4.fc", "Linear", "", 5), Module("b4.fc.q", "Q", "", 10)]
    assert [line for line, _ in fold(modules, "b4.fc", ASCII)] == [
        "Net",
        ": 3 before",
        "|-b3  Block",
        "|-b4  Block",
        "| `-fc  Linear",
        "|   `-q  Q",
        "|-b5  Block",
        ": 3 after",
    ]
    assert [line for line, here in fold(modules, "b4.fc", ASCII) if here] == ["| `-fc  Linear"]


def test_a_path_nobody_knows_is_the_model() -> None:
    assert next(iter(fold([Module("", "Net")], "gone", ASCII))) == ("Net", True)
    assert list(fold([], "", ASCII)) == []


def test_no_error_is_told_from_a_small_one() -> None:
    whole = diverged()
    rows = tuple(replace(one, outcome=outcome(0.0)) if one.agrees else one for one in whole.comparisons)
    shown = render(replace(whole, comparisons=rows), 80)
    assert "in order of computation, 3.0e-03 to 3.0e-03, · none\n  ············▅▅▅" in shown


def test_where_both_sides_ran() -> None:
    whole = aligned(1)
    other = replace(whole, raw=replace(whole.raw, environment={"device": "gpu:0", "threads": "2"}))
    assert "base ran on cpu, float32, evaluation; raw on gpu:0\n" in render(other, 80)
    silent = replace(whole, raw=replace(whole.raw, environment={}))
    assert " ran on " not in render(silent, 80)


def test_sparkline() -> None:
    values = [0.0, 1e-8, 1e-7, 1e-6, None, 1e-1, float("nan")]
    found = sparkline(values, 7, UNICODE, 5)
    assert found is not None
    assert (found.line, found.low, found.high, found.at) == ("·▁▂▃ █!", "1.0e-08", "no number", 5)
    assert found.under("fc", 20) == "     ▲ fc"
    assert found.under("blocks.1", 10) == "blocks.1 ▲"


def test_sparkline_keeps_the_peak_of_each_stretch() -> None:
    values = [1e-8] * 1000
    values[777] = 1.0
    found = sparkline(values, 50, ASCII)
    assert found is not None
    assert found.line == "_" * 38 + "#" + "_" * 11


def test_nothing_to_draw_is_no_line() -> None:
    assert sparkline([0.0, None, 0.0], 10, UNICODE) is None


def test_elided() -> None:
    assert elided("a.b", 10) == "a.b"
    assert elided("encoder.layers.11.norm", 16) == "enco...s.11.norm"
    assert len(elided("x" * 100, 16)) == 16


def test_summary_of_a_report_is_a_few_sentences() -> None:
    assert summary(diverged()).splitlines() == [
        "DIVERGED  TorchModel (torch) and PaddleModel (paddle): 44 tensors compared",
        "  first in forward, step 0",
        "  base  blocks.1.norm  LayerNorm",
        "  raw   blocks.1.norm  LayerNorm",
        "  rms error 3.0e-03, allowed 1.0e-05 (auto)",
        "  base port/model.py:11  h = self.norm(x)",
        "  raw  port/model.py:11  h = self.norm(x)",
        "  cause: eps: eps is 0.001 in raw and 1e-05 in base; with base's value the outputs agree",
        "  cause: bias: the difference is the same along one axis",
    ]


def test_what_stayed_alone_is_told_by_kind() -> None:
    alone = [Unmatched("base", f"blocks.{place}.drop", "Identity", "raw calls nothing like it") for place in range(40)]
    alone.insert(3, Unmatched("raw", "pool", "Pool", "base calls nothing like it"))
    alone.append(Unmatched("raw", "attention.q", "Linear", "inside", inside="attention"))
    report = replace(aligned(), unmatched=tuple(alone))
    told = summary(report)
    assert told.splitlines()[-3:] == [
        "without partner (41):",
        "  base blocks.0.drop, blocks.1.drop, ... (40 x Identity): raw calls nothing like it",
        "  raw pool (Pool): base calls nothing like it",
    ]
    assert all(line in render(report, width=120) for line in told.splitlines()[-3:])
