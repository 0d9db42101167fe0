"""What the tests of weights share: models written down once for both frameworks, the copy under test, a look inside.

    build("torch", {"cls_token": parameter(1, 1, 4), "body": [linear(4, 8), relu(), linear(8, 4)]})

A dict is a user's module with these attributes in that order, a list a Sequential.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import torch

from padiff.autodiff.weights import assign_by_keyword
from padiff.frameworks import adapter_of_model, module_tree

Made = Callable[[str], Any]
"""Framework to the module or tensor of that framework."""
FRAMEWORKS = ("torch", "paddle")
DIRECTIONS = [(base, raw) for base in FRAMEWORKS for raw in FRAMEWORKS]
_NN = {"torch": torch.nn, "paddle": paddle.nn}


class TorchPart(torch.nn.Module):
    """A user's module; its forward is never run."""


class PaddlePart(paddle.nn.Layer):
    """A user's module; its forward is never run."""


def _of(torch_name: str, paddle_name: str) -> Callable[..., Made]:
    names = {"torch": torch_name, "paddle": paddle_name}
    return lambda *sizes, **options: lambda framework: getattr(_NN[framework], names[framework])(*sizes, **options)


embedding = _of("Embedding", "Embedding")
layer_norm = _of("LayerNorm", "LayerNorm")
batch_norm = _of("BatchNorm2d", "BatchNorm2D")
sync_batch_norm = _of("SyncBatchNorm", "SyncBatchNorm")
conv = _of("Conv2d", "Conv2D")
attention = _of("MultiheadAttention", "MultiHeadAttention")
dropout = _of("Dropout", "Dropout")
identity = _of("Identity", "Identity")
relu = _of("ReLU", "ReLU")
gelu = _of("GELU", "GELU")


def linear(inputs: int, outputs: int, bias: bool = True) -> Made:
    option = {"torch": {} if bias else {"bias": False}, "paddle": {} if bias else {"bias_attr": False}}
    return lambda framework: _NN[framework].Linear(inputs, outputs, **option[framework])


def parameter(*shape: int) -> Made:
    def made(framework: str) -> Any:
        if framework == "torch":
            return torch.nn.Parameter(torch.zeros(shape))
        return paddle.create_parameter(list(shape), "float32")

    return made


def buffer(*shape: int, dtype: str = "float32", persistent: bool = True) -> Made:
    """A buffer; the module it goes into registers it."""

    def made(framework: str) -> Any:
        if framework == "torch":
            tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
            return lambda module, name: module.register_buffer(name, tensor, persistent=persistent)
        value = paddle.zeros(list(shape), dtype)
        return lambda module, name: module.register_buffer(name, value, persistable=persistent)

    return made


def build(framework: str, what: Any, seed: int = 0) -> Any:
    """The model, its tensors filled with random values of the seed."""
    return filled(_built(framework, what), seed)


def _built(framework: str, what: Any) -> Any:
    if isinstance(what, list):
        return _NN[framework].Sequential(*(_built(framework, part) for part in what))
    if not isinstance(what, dict):
        return what(framework)
    module = TorchPart() if framework == "torch" else PaddlePart()
    for name, part in what.items():
        made = _built(framework, part)
        if callable(made) and type(made).__name__ == "function":
            made(module, name)
        else:
            setattr(module, name, made)
    return module


UNTIED = {"embed": embedding(6, 4), "body": linear(4, 4), "out": {"weight": parameter(6, 4)}}


def tied(framework: str, seed: int) -> Any:
    """A language model whose head is the table of its embedding."""
    model = build(framework, UNTIED, seed)
    model.out.weight = model.embed.weight
    return model


def live(model: Any) -> Any:
    return module_tree(adapter_of_model(model, "model"), model)


def filled(model: Any, seed: int) -> Any:
    """Every tensor of the model drawn anew; running variances stay positive, integers integers."""
    generator, tree = np.random.default_rng(seed), live(model)
    for tensor in {id(tensor): tensor for tensor in tree.tensors().values()}.values():
        drawn = generator.uniform(0.5, 1.5, tree.adapter.shape(tensor))
        if "int" in tree.adapter.dtype(tensor):
            drawn = generator.integers(0, 100, tree.adapter.shape(tensor))
        tree.adapter.assign(tensor, np.asarray(drawn, tree.adapter.to_numpy(tensor).dtype))
    return model


def arrays(model: Any) -> dict[str, npt.NDArray[Any]]:
    """Every parameter and buffer under each of its paths, copied."""
    tree = live(model)
    # An LSTM of paddle keeps scratch memory among its buffers, which is not there before the first call.
    held = {path: tensor for path, tensor in tree.tensors().items() if "_dropout_state" not in path}
    return {path: tree.adapter.to_numpy(tensor).copy() for path, tensor in held.items()}


def bits(model: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The same, to the bit."""
    return {path: (str(array.dtype), array.shape, array.tobytes()) for path, array in arrays(model).items()}


def copy(base: Any, raw: Any, layer_map: Any = None) -> bool:
    """Copy base's weights into raw, whatever the frameworks are."""
    return assign_by_keyword(base_model=base, raw_model=raw, layer_map=layer_map)


def neutral(model: Any) -> dict[str, npt.NDArray[Any]]:
    """Every tensor as torch would keep it: the weights of paddle's Linear turned."""
    tree = live(model)
    turned = {f"{node.path}.weight".lstrip(".") for node in tree.tree.nodes if node.layer == "linear"}
    turned = turned if tree.adapter.name == "paddle" else set()
    return {path: array.T if path in turned else array for path, array in arrays(model).items()}


def assert_holds(base: Any, raw: Any, renamed: dict[str, str] | None = None) -> None:
    """Every tensor of raw holds base's of the same path, or of the path that ``renamed`` gives for raw's."""
    source, target = neutral(base), neutral(raw)
    for path, array in target.items():
        np.testing.assert_array_equal(array, source[(renamed or {}).get(path, path)], err_msg=path)
