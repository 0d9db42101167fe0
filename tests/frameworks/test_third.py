"""A framework padiff has never heard of, brought in by an entry point alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

THIRD = Path(__file__).parent / "third"

PROGRAM = """
import sys
sys.path.insert(0, {third!r})
import minigrad as mg, numpy as np, torch, padiff

class Net(mg.Module):
    def __init__(self, seed):
        self.first, self.second = mg.Dense(6, 5, seed), mg.Dense(5, 3, seed + 1)
        self.wrong = False
    def forward(self, x):
        h = self.first(x).relu()
        return self.second(h + h if self.wrong else h)

class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
for base, raw in ((Net(1), Net(5)), (Net(1), Twin()), (Twin(), Net(1))):
    result = padiff.compare(base, raw, x)
    assert result.aligned, str(result)
    phases = {{c.phase for c in result.comparisons}}
    assert phases == {{"forward", "backward", "gradient"}}, phases
    assert padiff.auto_diff(base, raw, ({{"x": x}}, {{"x": x}}), atol=1e-4) is True
    assert not getattr(raw, "watchers", [])
raw = Net(1)
raw.wrong = True
found = padiff.compare(Twin(), raw, x).divergence
assert (found.base_path, found.raw_path, found.phase) == ("", "", "forward"), str(found)
assert "between its children first" in found.note
raw.wrong = False
base = Twin()
padiff.assign_weight(base_model=base, raw_model=raw)
raw.first.kernel.data = raw.first.kernel.data + 0.1
found = padiff.compare(base, raw, x, weights="keep").divergence
assert (found.base_path, found.raw_path) == ("first", "first"), str(found)
print("the third framework fits")
"""


def test_a_third_framework_fits_without_touching_a_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(third=str(THIRD))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the third framework fits" in done.stdout


def test_unknown_framework_is_named() -> None:
    from padiff.errors import UnknownFrameworkError
    from padiff.frameworks import adapter_named, adapter_of_model

    with pytest.raises(UnknownFrameworkError, match="framework 'mxnet' is not known; known are paddle, torch"):
        adapter_named("mxnet")
    with pytest.raises(UnknownFrameworkError, match="base is of type builtins"):
        adapter_of_model({}, "base")


def test_framework_that_is_not_installed(tmp_path: Path) -> None:
    """A framework that cannot be imported is named with what to install."""
    program = (
        "import sys; sys.modules['paddle'] = None\n"
        "from padiff.frameworks import adapter_named\n"
        "from padiff.errors import UnknownFrameworkError\n"
        "try:\n    adapter_named('paddle')\n"
        "except UnknownFrameworkError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "paddle is not installed\nhint: pip install 'padiff[paddle]'\n"


def test_lazy_layer_says_what_to_do() -> None:
    import torch

    import padiff
    from padiff.errors import ArgumentError

    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with pytest.raises(ArgumentError, match="run the model once"):
        padiff.assign_weight(lazy, torch.nn.Sequential(torch.nn.Linear(2, 3)))
