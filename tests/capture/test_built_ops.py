"""Operators that a user has built: paddle's with ``PD_BUILD_OP``, torch's with ``torch.library``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from paddle.utils import cpp_extension
from tests.twins import FRAMEWORKS

import padiff

if shutil.which("g++") is None:
    pytest.skip("building an operator takes g++", allow_module_level=True)

BACKWARD_OFF = 0.5
NAMES = {"torch": "torch.ops.padiff_built.squares.default", "paddle": "paddle.custom.squares"}
X = np.random.RandomState(0).randn(3, 8).astype("float32")
PAIRS = [(base, raw) for base in FRAMEWORKS for raw in FRAMEWORKS]


@pytest.fixture(scope="module")
def paddle_squares(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Built in some ten seconds."""
    built = cpp_extension.load(
        name="padiff_built",
        sources=[str(Path(__file__).with_name("squares.cc"))],
        extra_cxx_cflags=["-O0", "-g0"],
        build_directory=str(tmp_path_factory.mktemp("built")),
    )
    return built.squares  # type: ignore[no-any-return]


@torch.library.custom_op("padiff_built::squares", mutates_args=())
def torch_squares(x: torch.Tensor, factor: float, off: bool) -> torch.Tensor:
    return factor * x * x


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor, ctx.off = inputs[1:]


def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return 2 * ctx.factor * ctx.saved_tensors[0] * above * (BACKWARD_OFF if ctx.off else 1.0), None, None


torch_squares.register_autograd(backward, setup_context=keep)


class Torch(torch.nn.Module):
    def __init__(self, factor: float = 3.0, off: bool = False) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
        self.factor, self.off = factor, off

    def forward(self, x: Any) -> Any:
        x = torch_squares(self.first(x), self.factor, self.off)
        return self.last(torch.tanh(x))


class Paddle(paddle.nn.Layer):
    def __init__(self, squares: Callable[..., Any], factor: float = 3.0) -> None:
        super().__init__()
        self.first, self.last = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 4)
        self.squares, self.factor = squares, factor

    def forward(self, x: Any) -> Any:
        x = self.squares(self.first(x), self.factor)
        return self.last(paddle.tanh(x))


LINES = {
    "torch": "x = torch_squares(self.first(x), self.factor, self.off)",
    "paddle": "x = self.squares(self.first(x), self.factor)",
}


def model(framework: str, squares: Callable[..., Any], factor: float = 3.0) -> Any:
    return Torch(factor) if framework == "torch" else Paddle(squares, factor)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_seen_by_themselves_with_their_gradients(base: str, raw: str, paddle_squares: Callable[..., Any]) -> None:
    result = padiff.compare(model(base, paddle_squares), model(raw, paddle_squares), X, level="op")
    assert result.aligned
    assert result.unmatched == ()
    seen = [one for one in result.comparisons if one.raw_path == "/squares"]
    assert [(one.phase, one.base_kind, one.raw_kind) for one in seen] == [
        ("forward", NAMES[base], NAMES[raw]),
        ("backward", NAMES[base], NAMES[raw]),
    ]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_named_where_they_differ(base: str, raw: str, paddle_squares: Callable[..., Any]) -> None:
    found = padiff.compare(model(base, paddle_squares), model(raw, paddle_squares, 2.5), X).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", "")
    assert found.op is not None
    assert found.op.base_line is not None and found.op.raw_line is not None
    assert (found.op.base, found.op.base_line.text) == (NAMES[base], LINES[base])
    assert (found.op.raw, found.op.raw_line.text) == (NAMES[raw], LINES[raw])


def test_a_gradient_of_their_own_that_is_wrong(paddle_squares: Callable[..., Any]) -> None:
    found = padiff.compare(Paddle(paddle_squares), Torch(off=True), X).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("backward", "")
    assert found.op is not None
    assert (found.op.base, found.op.raw) == (NAMES["paddle"], NAMES["torch"])
    assert found.op.raw_line is not None
    assert found.op.raw_line.text == LINES["torch"]


def test_named_in_the_environment_by_the_package_that_has_them(
    paddle_squares: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One op, under the name that was asked for, not one inside another."""
    package: Any = ModuleType("built_by_somebody")
    package.squares = paddle_squares
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setenv("PADDLE_THIRDPARTY_API", "built_by_somebody.squares")
    result = padiff.compare(Torch(), Paddle(lambda *args: package.squares(*args)), X, level="op")
    assert result.aligned
    assert result.unmatched == ()
    seen = [one for one in result.comparisons if "/" in one.raw_path]
    assert [(one.phase, one.raw_path, one.raw_kind) for one in seen] == [
        ("forward", "/squares", "built_by_somebody.squares"),
        ("forward", "/tanh", "paddle.nn.functional.tanh"),
        ("backward", "/squares", "built_by_somebody.squares"),
    ]
