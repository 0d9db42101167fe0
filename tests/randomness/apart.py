"""Two models that draw, each captured by itself: base first, then raw along base's dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import torch

import padiff


def along(base: Any, raw: Any, x: Any, folder: Path, *, steps: int = 1, optimize: Any = None, **options: Any) -> Any:
    """What comparing their dumps says."""
    trained(base, x, folder / "a", steps, optimize)
    trained(raw, x, folder / "b", steps, optimize, base=folder / "a", **options)
    return padiff.compare_dumps(folder / "a", folder / "b")


def trained(model: Any, x: Any, to: Path, steps: int = 1, optimize: Any = None, **options: Any) -> None:
    """A few steps of a model, captured."""
    given = torch.from_numpy(x) if isinstance(model, torch.nn.Module) else paddle.to_tensor(x)
    optimizer = None if optimize is None else optimize(model)
    with padiff.capture(model, to, optimizer=optimizer, overwrite=True, **options):
        for _ in range(steps):
            output = model(given)
            (output * output).mean().backward()
            if optimizer is not None:
                optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None
