"""padiff's adapter for minigrad: all that a third framework has to bring."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import minigrad
import numpy as np

from padiff.frameworks import containers
from padiff.frameworks.layers import LayerSpec, Stored


class _Handle:
    def __init__(self, off: Callable[[], Any]) -> None:
        self.remove = off


class MinigradAdapter:
    name = "minigrad"

    def is_model(self, thing: Any) -> bool:
        return isinstance(thing, minigrad.Module)

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, minigrad.Tensor)

    def is_optimizer(self, thing: Any) -> bool:
        return False

    def children(self, module: Any) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(module).items() if isinstance(value, minigrad.Module)]

    def own_parameters(self, module: Any) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(module).items() if isinstance(value, minigrad.Tensor)]

    def own_buffers(self, module: Any) -> list[tuple[str, Any]]:
        return []

    def is_computed(self, module: Any, name: str) -> bool:
        return False

    def describe(self, module: Any) -> str:
        return f"{type(module).__name__}()"

    def layer_table(self) -> Mapping[str, LayerSpec]:
        rows = {"kernel": Stored(("weight",), "io"), "offset": Stored(("bias",), "o")}
        return {"minigrad.Dense": LayerSpec("linear", rows)}

    def forward_signature(self, model: Any) -> Callable[..., Any]:
        return model.forward

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tensor.data.shape

    def dtype(self, tensor: Any) -> str:
        return str(tensor.data.dtype)

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.data

    def detach(self, tensor: Any) -> Any:
        return minigrad.Tensor(tensor.data)

    def clone(self, tensor: Any) -> Any:
        return minigrad.Tensor(tensor.data.copy())

    def version(self, tensor: Any) -> int:
        return 0

    def storage(self, tensor: Any) -> int:
        return id(tensor.data)

    def to_native(self, value: Any, like: Any = None, requires_grad: bool = False) -> Any:
        if isinstance(value, minigrad.Tensor):
            array = value.data
        else:
            array = value if isinstance(value, np.ndarray) else np.from_dlpack(value)
        return minigrad.parameter(array) if requires_grad else minigrad.Tensor(np.array(array))

    def assign(self, tensor: Any, value: Any) -> None:
        tensor.data = np.array(value, dtype=tensor.data.dtype)

    def flatten(self, tree: Any) -> list[tuple[str, Any]]:
        return containers.flatten(tree, self.is_tensor)

    def attach(self, modules: Iterable[Any], enter: Any, leave: Any, fail: Any) -> Iterator[Any]:
        for module in modules:
            watchers = module.__dict__.setdefault("watchers", [])
            entry = (enter, leave, fail)
            watchers.append(entry)
            yield _Handle(lambda watchers=watchers, entry=entry: watchers.remove(entry))

    @contextlib.contextmanager
    def watch_writes(self, about_to_write: Any) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def watch_reads(self, read: Any) -> Iterator[None]:
        yield

    def on_gradient(self, tensor: Any, callback: Any) -> Any:
        if not tensor.needs:
            return None

        def watcher(gradient: Any) -> None:
            callback(minigrad.Tensor(gradient))

        tensor.watchers.append(watcher)
        return _Handle(lambda: tensor.watchers.remove(watcher))

    def substitute(self, tensor: Any, value: Any, see: Any = None, *, tracked: bool = False) -> Any:
        def back(gradient: Any) -> tuple[Any]:
            other = None if see is None else see(minigrad.Tensor(gradient))
            return (gradient if other is None else other,)

        return minigrad.Tensor(np.array(value), (tensor,), back)

    def write(self, target: Any, source: Any) -> None:
        target.data[...] = source.data

    def swap_elements(self, tensor: Any, other: Any) -> Any:
        held = minigrad.Tensor(tensor.data)
        tensor.data = other.data
        return held

    def no_grad(self) -> Any:
        return contextlib.nullcontext()

    def grad_enabled(self) -> bool:
        return True

    def requires_grad(self, tensor: Any) -> bool:
        return tensor.needs

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        return outputs[0].mean()

    def backward(self, loss: Any) -> None:
        loss.backward()

    def may_pause(self, model: Any) -> bool:
        return True

    def gradient(self, parameter: Any) -> Any:
        return None if parameter.grad is None else minigrad.Tensor(parameter.grad)

    def set_gradient(self, parameter: Any, gradient: Any) -> None:
        parameter.grad = None if gradient is None else gradient.data

    def step(self, optimizer: Any) -> None:
        raise NotImplementedError

    def device_of(self, model: Any) -> Any:
        return "cpu"

    def random_state(self) -> Any:
        return None

    def restore_random_state(self, state: Any) -> None:
        pass

    def is_training(self, module: Any) -> bool:
        return module.training

    def set_training(self, module: Any, flag: bool) -> None:
        module.training = flag

    def package_folders(self) -> tuple[str, ...]:
        return (str(minigrad.__path__[0]),)

    def statistics_momentum(self, module: Any) -> float | None:
        return None
