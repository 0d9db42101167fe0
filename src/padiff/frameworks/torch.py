"""The adapter of PyTorch."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn.parameter import is_lazy

from padiff.errors import ArgumentError
from padiff.frameworks import containers, torch_device, torch_graphs, torch_ops, torch_scripts
from padiff.frameworks.draws import Dice
from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.patches import replaced
from padiff.frameworks.protocol import Enter, Exit, Fail, Handle, Measured, OpWatcher, Take
from padiff.frameworks.settings import Conventions, changed, read_settings, twice
from padiff.frameworks.torch_compiled import AroundCompiled, compiled_methods, holds_compiled
from padiff.frameworks.torch_draws import watching
from padiff.frameworks.torch_environment import environment
from padiff.frameworks.torch_gradients import keeping, on_gradient
from padiff.frameworks.torch_layers import LAYERS
from padiff.frameworks.torch_writes import ReadWatch, WriteWatch, written_position
from padiff.records import Array

# numpy has no such types; the bits are handed over as integers of the same width.
_BIT_VIEWS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
_AUTOCAST = ("cpu", "cuda")
_PLAIN = frozenset({torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool})
_TO_TORCH_BITS = {
    np.dtype(numpy_type): (np.dtype(f"int{np.dtype(numpy_type).itemsize * 8}"), torch_type)
    for torch_type, (_, numpy_type) in _BIT_VIEWS.items()
}


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
    leaves_gradients = True

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, torch.Tensor)

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
        group = dict(optimizer.param_groups[0])
        betas = group.pop("betas", None)
        found = {name: value for name, value in group.items() if isinstance(value, (bool, int, float))}
        if betas is not None:
            found["beta1"], found["beta2"] = (float(beta) for beta in betas)
        return {"kind": type(optimizer).__name__} | found

    def environment(self, model: Any) -> dict[str, str]:
        return environment(model, self.dtype)

    def optimizer_moments(self, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        names = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
        if isinstance(optimizer, torch.optim.SGD):
            names["momentum_buffer"] = "velocity"
        found: dict[str, dict[str, Any]] = {}
        for path, parameter in parameters.items():
            for own, held in optimizer.state.get(parameter, {}).items():
                if own in names and isinstance(held, torch.Tensor) and held.shape == parameter.shape:
                    found.setdefault(names[own], {})[path] = held
        return found

    # --- tensors

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def to_numpy(self, tensor: Any) -> Array:
        host = tensor.detach() if tensor.requires_grad else tensor
        if host.dtype in _PLAIN:
            try:
                plain: Array = host.numpy()
            except (RuntimeError, TypeError):  # elsewhere than on the host, sparse, or conjugate in name only
                pass
            else:
                return plain
        if host.layout is not torch.strided:
            host = host.to_dense()
        if host.is_quantized:
            host = host.dequantize()
        host = host.cpu().resolve_conj().resolve_neg()
        view = _BIT_VIEWS.get(host.dtype)
        array: Array = host.numpy() if view is None else host.view(view[0]).numpy().view(view[1])
        return array

    def elsewhere(self, tensor: Any) -> bool:
        return torch_device.elsewhere(tensor)

    def measure(self, base: Any, raw: Any, rtol: float | None) -> Measured | None:
        return torch_device.measure(base, raw, rtol)

    def multiplied(self, tensor: Any, factors: Callable[[], Array], largest: float) -> Any | None:
        return torch_device.multiplied(tensor, factors, largest)

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

    def to_native(self, value: Any, like: Any = None, requires_grad: bool = False) -> Any:
        if isinstance(value, torch.Tensor):
            tensor = value.detach().clone()
        elif isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            array = np.array(value)
            bits = _TO_TORCH_BITS.get(array.dtype)
            tensor = torch.from_numpy(array) if bits is None else torch.from_numpy(array.view(bits[0])).view(bits[1])
        else:
            tensor = torch.from_dlpack(value).clone()
        if like is not None and not (isinstance(value, torch.Tensor) and _at_home(tensor, like)):
            tensor = tensor.to(self.device_of(like))
        return tensor.requires_grad_(requires_grad) if requires_grad else tensor

    def assign(self, tensor: Any, value: Array) -> None:
        with torch.no_grad():
            tensor.copy_(self.to_native(value))

    def flatten(self, tree: Any) -> list[tuple[str, Any]]:
        return containers.flatten(tree, self.is_tensor)

    # --- running

    def attach(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
        return self._attached(modules, enter, leave, fail, in_backward=False)

    def unseen(self) -> AbstractContextManager[Any]:
        """Inside, nobody sees what is done: padiff's own work, amid the model's."""
        return torch._C.DisableTorchFunction()

    def seen_again(self) -> AbstractContextManager[Any]:
        """Inside, a model that is run from a hook is seen as it is elsewhere."""
        return torch._C._EnableTorchFunction()

    def attach_in_backward(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
        return self._attached(modules, enter, leave, fail, in_backward=True)

    def _attached(
        self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail, *, in_backward: bool
    ) -> Iterator[Handle]:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # What a compiler takes in with the code around must not become part of it.
            if torch.compiler.is_compiling() or _recomputing() is not in_backward:
                return None
            with torch._C.DisableTorchFunction():  # the write watch need not see that a shape is read
                return enter(module, args, kwargs)

        def after(module: Any, args: Any, output: Any) -> Any:
            if torch.compiler.is_compiling():
                return None
            if output is None and sys.exc_info()[1] is not None:
                fail(module)
                return None
            if _recomputing() is not in_backward:
                return None
            with torch._C.DisableTorchFunction():
                return leave(module, output)

        modules = list(modules)
        yield from torch_graphs.in_parts(modules)
        for module in modules:
            if getattr(module, "_compiled_call_impl", None) is not None:
                yield AroundCompiled(module, before, after)
                continue
            # Not the module's own methods: a script refuses, though it calls hooks.
            yield torch.nn.Module.register_forward_pre_hook(module, before, with_kwargs=True)
            yield torch.nn.Module.register_forward_hook(module, after, always_call=True)

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

    def watch_draws(self, dice: Dice) -> AbstractContextManager[None]:
        return watching(dice, self.to_numpy, self.to_native)

    def watch_ops(self, watcher: OpWatcher, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        return torch_ops.watching(watcher, WriteWatch(about_to_write).tell, written_position)

    def op_name(self, op: Any, function: CodeType | None, several: bool) -> str:
        return torch_ops.op_name(op, function, several)

    def layer_folders(self) -> tuple[str, ...]:
        return (torch_ops.LAYERS,)

    def wrapper_files(self) -> tuple[str, ...]:
        return ()

    def on_gradient(self, tensor: Any, callback: Callable[[Any], Array | None]) -> Handle | None:
        return on_gradient(tensor, callback, self.to_native)

    def keeping_gradients(self, take: Take) -> Callable[[Any, int], Handle | None]:
        return keeping(take)

    def substitute(
        self, tensor: Any, value: Array, see: Callable[[Any], Array | None] | None = None, *, tracked: bool = False
    ) -> Any:
        native = self.to_native(value).to(device=tensor.device, dtype=tensor.dtype)
        return self._in_place_of(tensor, native, see, tracked)

    def copy_of(self, tensor: Any, see: Callable[[Any], Array | None] | None = None, *, tracked: bool = False) -> Any:
        return self._in_place_of(tensor, self.clone(tensor), see, tracked)

    def _in_place_of(self, tensor: Any, native: Any, see: Callable[[Any], Array | None] | None, tracked: bool) -> Any:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            leaf = native.requires_grad_(tracked and native.is_floating_point())
            # Nobody may write into a leaf that is followed.
            return leaf.clone() if leaf.requires_grad and torch.is_grad_enabled() else leaf
        return _Substitute.apply(tensor, _Given(self, native, see))

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

    def requires_grad(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        total = sum(output.numel() for output in outputs)
        if len(outputs) == 1:
            return outputs[0].mean()
        return sum(output.mean() * (output.numel() / total) for output in outputs if output.numel())

    def projected_loss(self, outputs: Sequence[tuple[Any, Array]]) -> Any:
        terms = []
        for output, direction in outputs:
            wide = output if output.dtype == torch.float64 else output.float()
            array = direction if direction.flags.writeable else np.array(direction)  # else torch warns
            terms.append((wide * torch.from_numpy(array).to(wide)).sum())
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
        return _watching_scale(scaled)

    def gradient(self, parameter: Any) -> Any | None:
        main = getattr(parameter, "main_grad", None)
        return parameter.grad if main is None or parameter.grad is not None else main

    def set_gradient(self, parameter: Any, gradient: Any | None) -> None:
        main = getattr(parameter, "main_grad", None)
        if main is None:
            parameter.grad = gradient
            return
        parameter.grad = None  # what is built on torch adds gradients up in a tensor of its own
        with torch.no_grad():
            main.zero_() if gradient is None else main.copy_(gradient)

    def step(self, optimizer: Any) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def device_of(self, model: Any) -> Any:
        for tensor in model.parameters():
            return tensor.device
        for tensor in model.buffers():
            return tensor.device
        return "cpu"

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


class _Given:
    """What a substitute holds, and who looks at its gradient; no tensor itself, lest autograd take it for an input."""

    def __init__(self, adapter: TorchAdapter, value: Any, see: Callable[[Any], Array | None] | None) -> None:
        self.adapter, self.value, self.see = adapter, value, see


class _Substitute(torch.autograd.Function):
    """Other elements under the history of a tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, given: _Given) -> Any:
        ctx.given, value, given.value = given, given.value, None
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given, gradient = ctx.given, gradients[0]
        other = None if given.see is None else given.see(gradient.detach())
        if other is not None:
            gradient = given.adapter.to_native(other).to(device=gradient.device, dtype=gradient.dtype)
        return gradient, None


def _at_home(tensor: Any, model: Any) -> bool:
    """Whether the tensor is where some of the model is: a model spread over devices is given each input where the
    user put it."""
    elsewhere = False
    for own in itertools.chain(model.parameters(), model.buffers()):  # the first one usually tells
        if own.device == tensor.device:
            return True
        elsewhere = True
    return not elsewhere


def _recomputing() -> bool:
    """Inside backward: a forward seen there is a checkpoint's second one."""
    return bool(torch._C._current_graph_task_id() != -1)


@contextmanager
def _watching_scale(scaled: Callable[[float], None]) -> Iterator[None]:
    thread = threading.get_ident()

    def wrap(original: Any) -> Any:
        def reporting(scaler: Any, outputs: Any) -> Any:
            found = original(scaler, outputs)
            if threading.get_ident() == thread and scaler.is_enabled():
                scaled(float(scaler.get_scale()))
            return found

        return reporting

    with replaced([(torch.amp.GradScaler, "scale", wrap)]):
        yield
