"""Paddle's ops: compiled ops are seen, and named by the public function that the user called to get there."""

from __future__ import annotations

import functools
from pathlib import Path
from types import CodeType
from typing import Any

import paddle

from padiff.frameworks.paddle_builtins import METHODS
from padiff.frameworks.protocol import LibraryOp

LAYERS = str(Path(paddle.nn.layer.__file__).parent)
"""Code of the framework's own layers."""
_PACKAGE = Path(paddle.__file__).parent
WRAPPERS = tuple(
    str(_PACKAGE / file)
    for file in (
        "utils/decorator_utils.py",
        "utils/inplace_utils.py",
        "base/wrapped_decorator.py",
        "base/framework.py",
        "base/dygraph/base.py",
    )
)
"""Files of decorators: their frames stand around the public functions and say nothing of them."""
HOMES: tuple[tuple[str, Any], ...] = (
    ("paddle.nn.functional", paddle.nn.functional),
    ("paddle", paddle),
    ("paddle.linalg", paddle.linalg),
    ("paddle.Tensor", paddle.Tensor),
)
"""Where public functions are looked for, in this order."""


def op_name(op: Any, function: CodeType | None, several: bool) -> str:
    """``paddle.nn.functional.linear``, ``paddle.Tensor.__matmul__``; ``paddle._C_ops.name`` where that was called."""
    if type(op) is LibraryOp:
        return f"paddle.custom.{op}"
    if function is None:
        return f"paddle.Tensor.{op}" if op in METHODS else f"paddle._C_ops.{op}"
    return _public(function, op)


@functools.cache
def _public(function: CodeType, op: str) -> str:
    """The public function with this code; where it has none, the public function of the op's own name."""
    name = function.co_name
    plain = name.strip("_") if name.startswith("_") and not name.startswith("__") else name
    if plain == "T":
        return "paddle.Tensor.T"
    homes = HOMES if "functional" in function.co_filename or "generated" in function.co_filename else HOMES[1:]
    for word in (plain, op):
        for home, owner in homes:
            if hasattr(owner, word):
                return f"{home}.{word}"
    module = Path(function.co_filename).relative_to(_PACKAGE.parent).with_suffix("")
    return f"{'.'.join(module.parts)}.{plain}"
