"""What recording a model costs while somebody else runs it: steps that are dumped, steps that are not, memory."""

from __future__ import annotations

import gc
import math
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import padiff
from benchmarks.rows import Row, Target

SIZE = Target("<= 1.05", "<= 1.05")
PLAIN = Target("<= 1.05", "<= 1.02")
FLAT = Target("<= 0.1 MiB", "<= 0.1 MiB")
OPEN = Target("-", "-")
MIB = 1 << 20


def run(repeat: int, toy: bool) -> list[Row]:
    width, layers, steps = (16, 2, 20) if toy else (256, 8, 1000)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(_block(width) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    x = torch.randn(32, width)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-capture-") as name:
        folder = Path(name)
        case = f"{layers} blocks of width {width}"
        return [
            _on_disk(model, optimizer, step, folder / "one", case),
            *_speed(model, optimizer, step, folder / "speed", case, max(2, min(repeat, 5)), steps // 10),
            _memory(model, optimizer, step, folder / "long", case, steps),
        ]


def _block(width: int) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def _on_disk(model: Any, optimizer: Any, step: Callable[[], None], to: Path, case: str) -> Row:
    with padiff.capture(model, to, optimizer=optimizer):
        step()
    with padiff.load(to) as dump:
        one = dump.step(0)
        values = [*one.tensors.values(), *one.gradients.values(), *one.parameter_gradients.values()]
        values += [*one.weights_before.values(), *one.weights.values()]
        size = sum(4 * math.prod(value.shape) for value in values if value is not None)
        taken = sum(file.stat().st_size for file in to.iterdir()) / size
    facts = f"{size / MIB:.0f} MiB of tensors, gradients and weights, with what calibration adds"
    return Row("a captured step on disk, against its tensors", case, f"{taken:.3f}", SIZE, facts, taken)


def _speed(
    model: Any, optimizer: Any, step: Callable[[], None], to: Path, case: str, repeat: int, steps: int
) -> list[Row]:
    """A step that is not dumped beside one that nobody watches; the best of several, in turns."""
    plain, watched, dumped = [], [], []
    for _ in range(repeat):
        plain.append(_timed(step, steps))
        with padiff.capture(model, to, optimizer=optimizer, steps=[0], overwrite=True):
            dumped.append(_timed(step, 1))
            step()
            watched.append(_timed(step, steps))
    ratio, cost = min(watched) / min(plain), min(dumped) / min(plain)
    return [
        Row("a step not dumped, against plain", case, f"{ratio:.2f}", PLAIN, f"{1e3 * min(plain):.1f} ms", ratio),
        Row("a step dumped, against plain", case, f"{cost:.1f}", OPEN, "the first: weights and calibration too", cost),
    ]


def _timed(step: Callable[[], None], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def _memory(model: Any, optimizer: Any, step: Callable[[], None], to: Path, case: str, steps: int) -> Row:
    """What Python holds after the first half of a run with ``every`` and after the second."""
    held = []
    with padiff.capture(model, to, optimizer=optimizer, every=max(1, steps // 20), kind="stats"):
        tracemalloc.start()
        for _ in range(3):
            _timed(step, steps // 2)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    grown = (held[2] - held[1]) / MIB
    what = "memory that a longer run takes"
    return Row(what, case, f"{grown:.2f} MiB", FLAT, f"{steps // 2} steps more, 10 of them dumped", grown)
