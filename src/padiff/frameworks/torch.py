"""The adapter of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from padiff.errors import ArgumentError
from padiff.frameworks import (
    containers,
    picks,
    torch_arrays,
    torch_cancelling,
    torch_device,
    torch_graphs,
    torch_ops,
    torch_optimizers,
    torch_picks,
    torch_scripts,
    torch_substitutes,
)
from padiff.frameworks.cancelling_ops import Told, listening
from padiff.frameworks.draws import Dice
from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.protocol import Enter, Exit, Fail, Follow, GradientSink, Handle, Measured, OpWatcher, See
from padiff.frameworks.settings import Conventions, changed, read_settings, twice
from padiff.frameworks.torch_compiled import compiled_methods, holds_compiled
from padiff.frameworks.torch_draws import watching
from padiff.frameworks.torch_environment import environment
from padiff.frameworks.torch_gradients import before_written, keeping, on_gradient
from padiff.frameworks.torch_hooks import attached
from padiff.frameworks.torch_layers import LAYERS
from padiff.frameworks.torch_writes import ReadWatch, WriteWatch, written_position
from padiff.records import Array, Direction, Moves

_AUTOCAST = ("cpu", "cuda")


def _derived(module: Any) -> dict[str, Any]:
    """A convolution keeps its padding a second time, in the form that padding functions take."""
    own = vars(module)
    if "_reversed_padding_repeated_twice" not in own or not isinstance(own.get("padding"), tuple):
        return {}
    return {"_reversed_padding_repeated_twice": twice(module.padding)}


_CONVENTIONS = Conventions(frozenset(vars(torch.nn.Module())), "torch", refresh=_derived)


class TorchAdapter:
    """Speaks for torch."""

    name = "torch"

    # --- recognising things

    def is_model(self, thing: Any) -> bool:
        return isinstance(thing, (torch.nn.Module, torch.export.ExportedProgram))

    def model_of(self, thing: Any) -> Any:
        return thing.module() if isinstance(thing, torch.export.ExportedProgram) else thing

    tensor_type = torch.Tensor
    function_type = torch.autograd.Function
    leaves_gradients = True

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor) and not thing.is_nested

    def is_optimizer(self, thing: Any) -> bool:
        return isinstance(thing, torch.optim.Optimizer)

    # --- the model at rest

    def children(self, module: Any) -> list[tuple[str, Any]]:
        if isinstance(module, torch.fx.GraphModule):
            return torch_graphs.children(module)
        return [(name, child) for name, child in module._modules.items() if child is not None]

    def own_parameters(self, module: Any) -> list[tuple[str, Any]]:
        lazy = [name for name, p in module._parameters.items() if p is not None and is_lazy(p)]
        if lazy:
            raise ArgumentError(
                f"a {type(module).__name__} of the model has no {lazy[0]} yet: it is made when the layer first runs",
                "run the model once on an example before comparing it",
            )
        found = [(name, p) for name, p in module._parameters.items() if p is not None]
        bare = [name for name, p in found if p.is_meta]
        if bare:
            raise ArgumentError(
                f"the {bare[0]} of a {type(module).__name__} of the model is on the device meta: "
                "it has a shape and no data",
                'model.to_empty(device="cpu") gives it memory; load or initialise its weights then',
            )
        return found

    def own_buffers(self, module: Any) -> list[tuple[str, Any]]:
        return [(name, b) for name, b in module._buffers.items() if b is not None]

    def is_computed(self, module: Any, name: str) -> bool:
        return name in module._non_persistent_buffers_set

    def written_as(self, module: Any) -> type | None:
        return torch_graphs.written_as(module)

    def keeps_lines(self, module: Any) -> bool:
        return torch_graphs.keeps_lines(module)

    def describe(self, module: Any) -> str:
        return f"{(self.written_as(module) or type(module)).__name__}({' '.join(module.extra_repr().split())})"

    def layer_table(self) -> Mapping[str, LayerSpec]:
        return LAYERS

    def forward_signature(self, model: Any) -> Callable[..., Any]:
        return model.forward

    def settings(self, module: Any) -> dict[str, Any]:
        return read_settings(self, module, _CONVENTIONS)

    def changed_settings(self, module: Any, changes: Mapping[str, Any]) -> AbstractContextManager[None]:
        return changed(self, module, changes, _CONVENTIONS)

    def optimizer_settings(self, optimizer: Any) -> dict[str, Any]:
        return torch_optimizers.settings_of(optimizer)

    def environment(self, model: Any) -> dict[str, str]:
        return environment(model, self.dtype)

    def optimizer_moments(self, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return torch_optimizers.moments_of(optimizer, parameters)

    # --- tensors

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple((tensor.values() if tensor.is_nested else tensor).shape)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    # As they are, with no method around them: they are called for every tensor.
    to_numpy = staticmethod(torch_arrays.to_numpy)
    to_native = staticmethod(torch_arrays.to_native)
    made_of = staticmethod(torch_arrays.made_of)

    def elsewhere(self, tensor: Any) -> bool:
        return torch_device.elsewhere(tensor)

    def measure(self, base: Any, raw: Any, rtol: float | None) -> Measured | None:
        return torch_device.measure(base, raw, rtol)

    def multiplied(self, tensor: Any, moves: Callable[[], Moves]) -> Any | None:
        return torch_device.multiplied(tensor, moves)

    def take(self, target: Any, source: Any, before: Callable[[], None]) -> bool:
        return torch_device.take(target, source, before)

    def detach(self, tensor: Any) -> Any:
        return tensor.detach()

    def clone(self, tensor: Any) -> Any:
        return tensor.detach().clone()

    def version(self, tensor: Any) -> int:
        try:
            return tensor._version
        except RuntimeError:  # one made in inference mode
            return 0

    def storage(self, tensor: Any) -> int:
        try:
            return int(tensor.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # sparse and other storage-less tensors
            return id(tensor)

    def assign(self, tensor: Any, value: Array) -> None:
        plain = value.flags.writeable and min(value.strides, default=0) >= 0  # else torch warns, or refuses
        with torch.no_grad():
            tensor.copy_(self.made_of(value if plain else np.array(value)))

    def flatten(self, tree: Any) -> list[tuple[str, Any]]:
        return containers.flatten(tree, self.is_tensor)

    # --- running

    def attach(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
        return attached(modules, enter, leave, fail)

    def attach_in_backward(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
        return attached(modules, enter, leave, fail, in_backward=True)

    def unseen(self) -> AbstractContextManager[Any]:
        """Inside, nobody sees what is done: padiff's own work, amid the model's."""
        return torch._C.DisableTorchFunction()

    def seen_again(self) -> AbstractContextManager[Any]:
        """Inside, a model that is run from a hook is seen as it is elsewhere."""
        return torch._C._EnableTorchFunction()

    def compiled(self, module: Any) -> str | None:
        if isinstance(module, torch.jit.ScriptModule):
            return "torch.jit"
        if isinstance(module, torch.fx.GraphModule):
            return "torch.export" if hasattr(module, "validate_inputs") else "torch.fx"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return "Module.compile"
        if type(module).__name__ == "OptimizedModule" or compiled_methods(type(module)):
            return "torch.compile"
        return "torch.compile" if holds_compiled(module) else None

    def runs_in_parts(self, module: Any) -> bool:
        return torch_graphs.opens(module)

    def run_in_parts(self, modules: Iterable[Any]) -> Iterable[Handle]:
        return torch_graphs.in_parts(modules)

    def order_of_use(self, module: Any) -> list[Any]:
        return torch_scripts.order_of_use(module) if isinstance(module, torch.jit.ScriptModule) else []

    def eagerly(self) -> AbstractContextManager[Any]:
        return torch.compiler.set_stance("force_eager")

    def watch_writes(self, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        return WriteWatch(about_to_write)

    def watch_reads(self, read: Callable[[Any], None]) -> AbstractContextManager[None]:
        return ReadWatch(read)

    def kept_for_backward(self) -> AbstractContextManager[None]:
        return nullcontext()  # on a CPU everything is kept anyway

    def watch_draws(self, dice: Dice) -> AbstractContextManager[None]:
        return watching(dice, self.to_numpy, self.to_native)

    def watch_ops(self, watcher: OpWatcher, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        return torch_ops.watching(watcher, WriteWatch(about_to_write).tell, written_position)

    def cancelling(self, told: Told) -> AbstractContextManager[None]:
        return listening(told, torch_cancelling.patches())

    def picking(self, told: picks.Told) -> AbstractContextManager[None]:
        return picks.listening(told, torch_picks.patches())

    def op_name(self, op: Any, function: CodeType | None, several: bool) -> str:
        return torch_ops.op_name(op, function, several)

    def layer_folders(self) -> tuple[str, ...]:
        return (torch_ops.LAYERS,)

    def wrapper_files(self) -> tuple[str, ...]:
        return ()

    def on_gradient(self, tensor: Any, callback: See) -> Handle | None:
        return on_gradient(tensor, callback)

    def before_written(self, tensor: Any, handle: Handle) -> Handle:
        return before_written(tensor, handle)

    def keeping_gradients(self, sink: GradientSink) -> Follow:
        return keeping(sink)

    def substitute(self, tensor: Any, value: Array, see: See | None = None, *, tracked: bool = False) -> Any:
        return torch_substitutes.substitute(tensor, value, see, tracked=tracked)

    def copy_of(self, tensor: Any, see: See | None = None, *, tracked: bool = False) -> Any:
        return torch_substitutes.copy_of(tensor, see, tracked=tracked)

    def write(self, target: Any, source: Any) -> None:
        if not (target.is_leaf and target.requires_grad):
            target.copy_(source)

    def swap_elements(self, tensor: Any, other: Any) -> Any:
        held = tensor.data
        tensor.data = other
        return held

    def no_grad(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def grad_enabled(self) -> bool:
        return torch.is_grad_enabled()

    def product_dtype(self, model: Any) -> str | None:
        on_gpu = any(one.is_cuda and one.dtype is torch.float32 for one in model.parameters())
        return "tf32" if on_gpu and torch_device.multiplies_in_tf32(model) else None

    def autocast_dtype(self) -> str | None:
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        return None

    transforming = staticmethod(torch._C._functorch.peek_interpreter_stack)

    def requires_grad(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        total = sum(output.numel() for output in outputs)
        if len(outputs) == 1:
            return outputs[0].mean()
        return sum(output.mean() * (output.numel() / total) for output in outputs if output.numel())

    def projected_loss(self, outputs: Sequence[tuple[Any, Direction]]) -> Any:
        terms = []
        for output, direction in outputs:
            real = output.real + 0.5 * output.imag if output.is_complex() else output
            wide = real if real.dtype == torch.float64 else real.float()
            terms.append((wide * torch_device.spread(direction, wide)).sum())
        return sum(terms[1:], terms[0])

    def backward(self, loss: Any) -> None:
        loss.backward()

    def may_pause(self, model: Any) -> bool:
        here_only = (
            any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
            or torch._C._len_torch_dispatch_stack()
            or torch._C._len_torch_function_stack()
        )
        return not here_only and all(parameter.device.type == "cpu" for parameter in model.parameters())

    def watch_scaling(self, scaled: Callable[[float], None]) -> AbstractContextManager[None]:
        return torch_optimizers.watching_scale(scaled)

    def gradient(self, parameter: Any) -> Any | None:
        return torch_optimizers.gradient(parameter)

    def gradient_stays(self, parameter: Any) -> bool:
        return getattr(parameter, "main_grad", None) is None

    def set_gradient(self, parameter: Any, gradient: Any | None) -> None:
        torch_optimizers.set_gradient(parameter, gradient)

    def step(self, optimizer: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def device_of(self, model: Any) -> Any:
        return torch_arrays.device_of(model)

    def ranks(self) -> tuple[int, int] | None:
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return None
        return distributed.get_rank(), distributed.get_world_size()

    # --- leaving things as they were

    def random_state(self) -> Any:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        return torch.get_rng_state(), cuda

    def restore_random_state(self, state: Any) -> None:
        cpu, cuda = state
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)

    def random_key(self, state: Any) -> Any:
        cpu, cuda = state
        return [one.numpy().tobytes() for one in (cpu, *(cuda or ()))]

    def is_training(self, module: Any) -> bool:
        return bool(getattr(module, "training", False))  # a frozen script has none

    def set_training(self, module: Any, flag: bool) -> None:
        if hasattr(module, "training"):
            module.training = flag

    def package_folders(self) -> tuple[str, ...]:
        return (str(Path(torch.__file__).parent),)

    # --- numeric conventions

    def statistics_momentum(self, module: Any) -> float | None:
        momentum = getattr(module, "momentum", None)
        return None if momentum is None else 1.0 - float(momentum)
