"""How paddle's layers call their settings, and where its conventions differ."""

from __future__ import annotations

from typing import Any

import paddle

from padiff.frameworks.settings import Conventions, Setting, twice


def _rest(share: Any) -> Any:
    """What is left of one; paddle counts the share of the old value, the shared convention that of the new one."""
    return None if share is None else round(1.0 - share, 12)


def _opposite(flag: Any) -> bool:
    return not flag


def _derived(module: Any) -> dict[str, Any]:
    """A convolution reads its padding from a second attribute, and pads first itself in all modes but ``zeros``."""
    own = vars(module)
    kernel, padding = own.get("_kernel_size"), own.get("_padding")
    if kernel is None or padding is None or "_padding_mode" not in own:
        return {}
    if isinstance(padding, int):
        padding = [padding] * len(kernel)
    if isinstance(padding, str) or len(padding) != len(kernel) or not all(isinstance(p, int) for p in padding):
        return {}
    if own.get("_padding_mode", "zeros") == "zeros":
        return {"_updated_padding": list(padding), "_padding_algorithm": "EXPLICIT"}
    return {
        "_updated_padding": [0] * len(kernel),
        "_padding_algorithm": "EXPLICIT",
        "_reversed_padding_repeated_twice": twice(padding),
    }


CONVENTIONS = Conventions(
    frozenset(vars(paddle.nn.Layer())),
    "paddle",
    (
        Setting("_momentum", "momentum", ("batch_norm", "instance_norm"), _rest, _rest),
        Setting(
            "_approximate",
            "approximate",
            ("gelu",),
            lambda value: "tanh" if value in (True, "tanh") else "none",
            lambda value: value == "tanh",
        ),
        Setting("exclusive", "count_include_pad", ("avg_pool",), _opposite, _opposite),
        Setting("time_major", "batch_first", ("lstm", "gru", "rnn"), _opposite, _opposite),
        Setting(
            "num_directions",
            "bidirectional",
            ("lstm", "gru", "rnn"),
            lambda value: value == 2,
            lambda value: 2 if value else 1,
        ),
        Setting("delta", "beta", ("smooth_l1",)),
        Setting("_threshold", "lambd", ("hardshrink", "softshrink")),
    ),
    _derived,
)
