"""Draws the README's pictures from the demo's models: ``python docs/images/make_pictures.py``. Needs Chromium."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.text import Text

import padiff
from padiff.demo.models import FEATURES, TOKENS, PaddleEncoder, TorchEncoder
from padiff.report import render, save

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.report.browser import Browser, find_browser  # noqa: E402

WIDTH = 100

torch.manual_seed(0)
x = np.random.default_rng(0).normal(size=(4, TOKENS, FEATURES)).astype("float32")
raw = PaddleEncoder(mistake=True)
raw.eval()
report = padiff.compare(TorchEncoder().eval(), raw, x).report()

console = Console(record=True, width=WIDTH, file=io.StringIO())
console.print(Text(">>> padiff.compare(torch_model, paddle_model, x).show()", style="bold"))
console.print(Text.from_ansi(render(report, WIDTH, "truecolor")))
svg = console.export_svg(title="padiff")
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)  # fetched from afar, and never where pictures are shown
(HERE / "terminal.svg").write_text(svg, encoding="utf-8")

program = find_browser()
assert program is not None, "Chromium is not here"
with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    Browser(program, Path(folder) / "profile") as it,
):
    save(report, Path(folder) / "report.html")
    it.open(Path(folder) / "report.html", width=1240, height=1412)
    it.picture(HERE / "page.png", whole=False)
with Image.open(HERE / "page.png") as picture:
    picture.quantize(96, dither=Image.Dither.NONE).save(HERE / "page.png", optimize=True)
