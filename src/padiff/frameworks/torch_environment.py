"""What PyTorch says of where and how it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from padiff.frameworks.environment import facts, listed


def environment(model: Any, dtype: Callable[[Any], str]) -> dict[str, str]:
    parameters = list(model.parameters())
    devices = {tensor.device: tensor for tensor in parameters or model.buffers()}
    kinds = {parameter.dtype: parameter for parameter in parameters}
    device = next(iter(devices), torch.device("cpu"))
    found = facts(
        version=lambda: torch.__version__,
        device=lambda: listed(devices) or "cpu",
        parameters=lambda: listed(map(dtype, kinds.values())),
        mode=lambda: "training" if model.training else "evaluation",
        threads=torch.get_num_threads,
        autocast=lambda: _autocast(device.type),
        deterministic=torch.are_deterministic_algorithms_enabled,
        matmul_precision=torch.get_float32_matmul_precision,
    )
    if device.type == "cpu":
        return found | facts(processor=torch.backends.cpu.get_cpu_capability)
    if device.type != "cuda":
        return found
    return found | facts(
        device_name=lambda: torch.cuda.get_device_name(device),
        CUDA=lambda: torch.version.cuda,
        cuDNN=lambda: torch.backends.cudnn.version(),
        TF32_in_matmul=lambda: bool(torch.backends.cuda.matmul.allow_tf32),
        TF32_in_convolution=lambda: bool(torch.backends.cudnn.allow_tf32),
        cuDNN_deterministic=lambda: bool(torch.backends.cudnn.deterministic),
        cuDNN_benchmark=lambda: bool(torch.backends.cudnn.benchmark),
    )


def _autocast(device: str) -> str:
    """The dtype it casts to, without the framework's name before it."""
    if not torch.is_autocast_enabled(device):
        return "off"
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
