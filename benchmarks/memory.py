"""Peak memory of one run, in a process of its own: ``python -m benchmarks.memory plain|compared CASE``.

The kernel's own high-water mark of resident memory is reset after the models were built and run once on the
smallest inputs, so what remains is what the run itself takes: activations, gradients, and what is held to compare.

The C library keeps freed blocks for later and cuts them up, by how much depends on their order: the same run differs by
a quarter. A child is told to give them back at once, and gives back what the first run left in between, so that what
is counted is what is held at one time.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.models import Case, Pair, build, inputs
from benchmarks.runs import compared, plain

RUNS = {"plain": plain, "compared": compared}
ROOT = Path(__file__).resolve().parent.parent
GIVING_BACK = {
    "MALLOC_MMAP_THRESHOLD_": str(16 * 1024),
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024),
}
"""What glibc reads when a process starts, see mallopt(3): blocks of 16 KiB and more are handed back when freed."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """Resident memory in MiB."""

    before: float
    """With both models built and run once on the smallest inputs."""
    highest: float


def in_child(case: Case, run: str) -> Peak:
    """The peak of one run, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", run, json.dumps(dataclasses.asdict(case))]
    environment = {**GIVING_BACK, **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def here(case: Case, run: str) -> Peak:
    """The peak of one run in this process."""
    pair = build(case)
    small = dataclasses.replace(case, batch=2, length=min(case.length, 8))
    RUNS[run](Pair(pair.torch_model, pair.paddle_model, *inputs(small)))
    _give_back()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)
    before = _status("VmRSS")
    RUNS[run](pair)
    return Peak(before, _status("VmHWM"))


def _give_back() -> None:
    """Free blocks between those in use go back to the system, see malloc_trim(3); other C libraries keep none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(here(Case(**json.loads(sys.argv[2])), sys.argv[1]))))
