"""Models made fit to be compared: no parameter constant, BatchNorm with real statistics, everything seeded."""

from __future__ import annotations

from typing import Any

import numpy as np

State = dict[str, np.ndarray]


def seeded(seed: int = 0) -> np.random.Generator:
    """Seed both frameworks; the generator is for inputs."""
    import paddle
    import torch

    torch.manual_seed(seed)
    paddle.seed(seed)
    return np.random.default_rng(seed)


def randomised(model: Any, spread: float = 0.2) -> Any:
    """Norm weights and biases that are ones and zeros tell nothing apart: give them values. Base only, in eval mode."""
    import torch

    generator = torch.Generator().manual_seed(7)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or tensor.ndim != 1:
            continue
        with torch.no_grad():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(noise.abs() * spread + 0.8)
            else:
                tensor.copy_((1.0 if name.endswith("weight") else 0.0) + spread * noise)
    return model.eval()


def calibrated(model: Any, shape: tuple[int, ...], batches: int = 4) -> Any:
    """Random affine values, then a few batches in train mode: otherwise a random CNN in eval mode fades to 1e-9."""
    import torch

    randomised(model)
    generator = torch.Generator().manual_seed(11)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum, module._zoo_momentum = 0.5, module.momentum
    model.train()
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(shape, generator=generator))
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = module._zoo_momentum
            del module._zoo_momentum
    return model.eval()


def state_of(model: Any) -> State:
    """Parameters and buffers by name, as arrays of their own."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in model.state_dict().items()}


def fill(model: Any, state: State) -> None:
    """Write arrays into a model of either framework, by name."""
    for name, tensor in model.state_dict().items():
        if name in state:
            write(tensor, state[name])


def write(tensor: Any, array: np.ndarray) -> None:
    if hasattr(tensor, "set_value"):
        tensor.set_value(array.reshape(tensor.shape))
    else:
        import torch

        with torch.no_grad():
            tensor.copy_(torch.as_tensor(np.array(array)))
