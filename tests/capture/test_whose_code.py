"""Whose a line is: of padiff under a folder that is a link, too, its own lines are no user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import padiff
from padiff.capture import whose_code

SCRIPT = """
import torch
from torch import nn

import padiff


class Model(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.one, self.two, self.wrong = nn.Linear(4, 4), nn.Linear(4, 4), wrong

    def forward(self, x):
        h = self.one(x).topk(4).values
        if self.wrong:
            h = h * 1.1
        return self.two(h)


torch.manual_seed(0)
found = padiff.compare(Model(False), Model(True), torch.randn(3, 4)).divergence
print(padiff.__file__)
print([[line.text for line in lines] for lines in found.source])
print(found.op.base_line.text, "|", found.op.raw_line.text)
"""


def test_lines_are_the_users(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(Path(padiff.__file__).parents[1], target_is_directory=True)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "linked")}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        str(tmp_path / "linked" / "padiff" / "__init__.py"),
        "[['h = self.one(x).topk(4).values'], ['h = h * 1.1']]",
        "h = self.one(x).topk(4).values | h = h * 1.1",
    ]


def test_files_that_stand_around_an_op_are_there() -> None:
    assert [name for name in whose_code._WATCHING if not Path(name).is_file()] == []
