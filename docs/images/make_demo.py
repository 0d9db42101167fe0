"""Draws demo.svg from what ``padiff demo`` really prints: ``python docs/images/make_demo.py``."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 112
printed = subprocess.run([sys.executable, "-m", "padiff", "demo"], capture_output=True, text=True, check=True).stdout
lines = printed.splitlines()
failed = lines.index("[AutoDiff] FAILED !!!")
tree = next(i for i in range(failed, len(lines)) if "PaddleEncoder(raw_model)" in lines[i] and "=" in lines[i + 1])
here = next(i for i in range(tree, len(lines)) if "HERE" in lines[i])
stack = next(i for i in range(here, len(lines)) if "raw_model" in lines[i] and "lines" in lines[i])
success = next(i for i, line in enumerate(lines) if "SUCCESS" in line)
shown = [
    *lines[failed : failed + 11],
    *lines[tree : tree + 4],
    "[AutoDiff]      |     ...",
    *lines[here - 8 : here + 2],
    "[AutoDiff]      ...",
    *lines[stack : stack + 5],
    "",
    "the same port, mended",
    *lines[success - 7 : success + 1],
]
console = Console(record=True, width=WIDTH, file=io.StringIO())
console.print(Text("$ padiff demo", style="bold"))
for line in shown:
    line = re.sub(r"File \S*/(padiff/demo)", r"File .../\1", line)
    text = Text(line[:WIDTH])
    text.highlight_words(["FAILED !!!", "<---  *** HERE ***"], style="bold red")
    text.highlight_words(["SUCCESS !!!"], style="bold green")
    text.highlight_regex(r"^\[AutoDiff\]", style="dim")
    console.print(text)
console.save_svg(str(Path(__file__).with_name("demo.svg")), title="padiff")
