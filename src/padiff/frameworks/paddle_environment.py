"""What PaddlePaddle says of where and how it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import paddle

from padiff.frameworks.environment import facts, listed


def environment(model: Any, dtype: Callable[[Any], str]) -> dict[str, str]:
    parameters = model.parameters()
    kinds = {parameter.dtype: parameter for parameter in parameters}
    found = facts(
        version=lambda: paddle.__version__,
        device=lambda: listed(_device(parameter.place) for parameter in parameters) or paddle.get_device(),
        parameters=lambda: listed(map(dtype, kinds.values())),
        mode=lambda: "training" if model.training else "evaluation",
        threads=lambda: _flag("FLAGS_paddle_num_threads"),
        autocast=lambda: paddle.amp.get_autocast_dtype() if paddle.amp.is_autocast_enabled() else "off",
        deterministic=lambda: _on("FLAGS_cudnn_deterministic"),
        oneDNN=lambda: _on("FLAGS_use_mkldnn"),
    )
    if not found.get("device", "").startswith("gpu"):
        return found
    return found | facts(
        device_name=paddle.device.cuda.get_device_name,
        CUDA=paddle.version.cuda,
        cuDNN=paddle.version.cudnn,
        TF32=lambda: {"0": "off", "1": "on"}.get(os.environ.get("NVIDIA_TF32_OVERRIDE", "")),
    )


def _device(place: Any) -> str:
    """``cpu``, ``gpu:0``: as paddle's own functions name it."""
    return str(place).removeprefix("Place(").removesuffix(")")


def _flag(name: str) -> Any:
    return paddle.get_flags(name)[name]


def _on(name: str) -> bool:
    return bool(_flag(name))
