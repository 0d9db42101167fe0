"""Settings every test runs under: quiet threads, its own folder, known seeds."""

from __future__ import annotations

import os

# Read once, when a framework is loaded: idle threads of torch's and paddle's OpenMP spin against each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import random
import sys
from pathlib import Path

import hypothesis
import numpy as np
import pytest

# The first example of a test may load a framework or warm a cache; its time says nothing.
hypothesis.settings.register_profile("padiff", deadline=None, derandomize=True)
hypothesis.settings.load_profile("padiff")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in an empty folder, so that logs and dumps never land in the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Seed every random generator in use, without loading a framework that is not."""
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
    if (paddle := sys.modules.get("paddle")) is not None:
        paddle.seed(0)
