"""Runs the demo: once with the mistake, once without, and the same through the native door."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import padiff
from padiff.autodiff.log import FOLDER
from padiff.demo.models import FEATURES, TOKENS, PaddleEncoder, TorchEncoder


def show() -> bool:
    """True when the mistake is found where it is, and the mended port is found right."""
    x = np.random.default_rng(0).normal(size=(4, TOKENS, FEATURES)).astype("float32")
    torch_model = TorchEncoder().eval()

    _title("A paddle port of a torch encoder, with one mistake in it")
    wrong = _port(mistake=True)
    found = padiff.auto_diff(torch_model, wrong, ({"x": x}, {"x": x}), atol=1e-5)

    _title("The same port, mended")
    mended = _port(mistake=False)
    same = padiff.auto_diff(torch_model, mended, ({"x": x}, {"x": x}), atol=1e-5)

    _title("The native door: padiff.compare(base, raw, inputs)")
    result = padiff.compare(torch_model, wrong, x)
    result.show()
    for ending in ("html", "json"):
        report = Path(FOLDER) / f"demo.{ending}"
        result.save(report)
        sys.stdout.write(f"written to {report}\n")
    named = result.divergence is not None and result.divergence.raw_path == "blocks.1.norm2"
    return not found and same and named


def _port(mistake: bool) -> PaddleEncoder:
    model = PaddleEncoder(mistake)
    model.eval()
    return model


def _title(text: str) -> None:
    sys.stdout.write(f"\n\033[1m{text}\033[0m\n\n" if sys.stdout.isatty() else f"\n{text}\n\n")
