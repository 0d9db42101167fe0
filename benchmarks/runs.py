"""The two things that are timed: both models by themselves, and ``auto_diff`` of both."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator

from benchmarks.models import Pair
from padiff import auto_diff

RTOL, ATOL = 1e-2, 1e-2
"""Far above rounding: what is measured is an aligned pair."""


def plain(pair: Pair) -> None:
    """Forward and backward of both models, one after the other; the gradients of both are there at the end."""
    with _quiet():
        pair.torch_model(**pair.torch_inputs).mean().backward()
        pair.paddle_model(**pair.paddle_inputs).mean().backward()
        for model in (pair.torch_model, pair.paddle_model):
            for parameter in model.parameters():
                parameter.grad = None


def compared(pair: Pair) -> None:
    """The same under ``auto_diff``, weights copied from torch to paddle first, every tensor compared."""
    inputs = (pair.torch_inputs, pair.paddle_inputs)
    log = io.StringIO()
    with _quiet(), contextlib.redirect_stdout(log):
        aligned = auto_diff(pair.torch_model, pair.paddle_model, inputs, rtol=RTOL, atol=ATOL)
    if not aligned:
        raise AssertionError(f"the benchmark's pair does not agree:\n{log.getvalue()}")


def seconds(run: Callable[[Pair], None], pair: Pair) -> float:
    start = time.perf_counter()
    run(pair)
    return time.perf_counter() - start


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # paddle's BatchNorm says at every call that it tracks statistics
        yield
