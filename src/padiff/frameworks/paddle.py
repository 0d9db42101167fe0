"""The adapter of PaddlePaddle."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import paddle

from padiff.errors import ArgumentError
from padiff.frameworks import (
    containers,
    paddle_arrays,
    paddle_builtins,
    paddle_cancelling,
    paddle_draws,
    paddle_gradients,
    paddle_hooks,
    paddle_loaded,
    paddle_ops,
    paddle_optimizers,
    paddle_reads,
    paddle_substitutes,
)
from padiff.frameworks.cancelling_ops import Told, listening
from padiff.frameworks.draws import Dice
from padiff.frameworks.layers import LayerSpec
from padiff.frameworks.paddle_arrays import dtype_name
from padiff.frameworks.paddle_compiled import eagerly, is_static
from padiff.frameworks.paddle_environment import environment
from padiff.frameworks.paddle_layers import LAYERS
from padiff.frameworks.paddle_rnn import kept_for_backward
from padiff.frameworks.paddle_settings import CONVENTIONS
from padiff.frameworks.protocol import Enter, Exit, Fail, Follow, GradientSink, Handle, Measured, OpWatcher, See
from padiff.frameworks.settings import changed, read_settings
from padiff.records import Array, Direction, Moves

_STATISTICS = ("_mean", "_variance")
_GONE = itertools.count(-1, -1)
"""Versions of tensors that hold nothing: never the same twice, so that they count as overwritten."""


class PaddleAdapter:
    """Speaks for paddle."""

    name = "paddle"

    # --- recognising things

    def is_model(self, thing: Any) -> bool:
        return isinstance(thing, paddle.nn.Layer)

    tensor_type = paddle.Tensor
    function_type = paddle.autograd.PyLayer
    leaves_gradients = False  # sums are made in the first of their terms

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, paddle.Tensor)

    def is_optimizer(self, thing: Any) -> bool:
        return isinstance(thing, paddle.optimizer.Optimizer)

    # --- the model at rest

    def children(self, module: Any) -> list[tuple[str, Any]]:
        if paddle_loaded.is_loaded(module):
            return list(paddle_loaded.parts(module))
        return [(name, child) for name, child in module._sub_layers.items() if child is not None]

    def own_parameters(self, module: Any) -> list[tuple[str, Any]]:
        own = module._parameters
        if not own or paddle_loaded.is_loaded(module):
            return []
        bare = [n for n, p in own.items() if p is not None and p.size and not p._is_initialized() and not p.is_dist()]
        if bare:
            raise ArgumentError(
                f"the {bare[0]} of a {type(module).__name__} of the model was made under LazyGuard: "
                "it has a shape and no data",
                "initialise its parameters first: for p in model.parameters(): p.initialize()",
            )
        return [(n, p) for n, p in own.items() if p is not None and (n not in _STATISTICS or not p.stop_gradient)]

    def own_buffers(self, module: Any) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        if paddle_loaded.is_loaded(module):
            return paddle_loaded.left_over(module)
        # BatchNorm registers its running statistics as parameters that take no gradient.
        for name in _STATISTICS:
            statistic = module._parameters.get(name)
            if statistic is not None and statistic.stop_gradient:
                found.append((name, statistic))
        if module._buffers:
            # Recurrent layers keep a dropout state that has no memory until it is used: there is nothing to read.
            held = module._buffers.items()
            found += [(n, b) for n, b in held if isinstance(b, paddle.Tensor) and b._is_initialized()]
        return found

    def is_computed(self, module: Any, name: str) -> bool:
        return name in module._non_persistable_buffer_names_set

    def describe(self, module: Any) -> str:
        return f"{(self.written_as(module) or type(module)).__name__}({' '.join(module.extra_repr().split())})"

    def layer_table(self) -> Mapping[str, LayerSpec]:
        return LAYERS

    def forward_signature(self, model: Any) -> Callable[..., Any]:
        return model.forward

    def settings(self, module: Any) -> dict[str, Any]:
        return read_settings(self, module, CONVENTIONS)

    def changed_settings(self, module: Any, changes: Mapping[str, Any]) -> AbstractContextManager[None]:
        return changed(self, module, changes, CONVENTIONS)

    def optimizer_settings(self, optimizer: Any) -> dict[str, Any]:
        return paddle_optimizers.settings_of(optimizer)

    def environment(self, model: Any) -> dict[str, str]:
        return environment(model, self.dtype)

    def optimizer_moments(self, optimizer: Any, parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        return paddle_optimizers.moments_of(optimizer, parameters)

    # --- tensors

    def shape(self, tensor: Any) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    # As they are, with no method around them: they are called for every tensor.
    to_numpy = staticmethod(paddle_arrays.to_numpy)
    to_native = staticmethod(paddle_arrays.to_native)
    made_of = staticmethod(paddle_arrays.from_numpy)

    def elsewhere(self, tensor: Any) -> bool:
        return False  # elements are fetched

    def measure(self, base: Any, raw: Any, rtol: float | None) -> Measured | None:
        return None

    def multiplied(self, tensor: Any, moves: Callable[[], Moves]) -> Any | None:
        return None

    def take(self, target: Any, source: Any, before: Callable[[], None]) -> bool:
        return False

    def detach(self, tensor: Any) -> Any:
        return tensor.detach()

    def clone(self, tensor: Any) -> Any:
        return tensor.detach().clone()

    def version(self, tensor: Any) -> int:
        if not tensor._is_initialized():  # what an op keeps for its own backward may hold nothing (einsum's caches)
            return next(_GONE)
        version: int = tensor._inplace_version()  # what the property asks for
        return version

    def storage(self, tensor: Any) -> int:
        if not tensor._is_initialized():
            return next(_GONE)
        return int(tensor.data_ptr()) - int(tensor.offset)

    def assign(self, tensor: Any, value: Array) -> None:
        if value.dtype.name == self.dtype(tensor) and value.dtype.isbuiltin == 1:
            paddle_arrays.fill(tensor, value)
            return
        source = self.to_native(value)
        with paddle.no_grad():
            tensor.set_value(source.astype(tensor.dtype))

    def flatten(self, tree: Any) -> list[tuple[str, Any]]:
        return containers.flatten(tree, self.is_tensor)

    # --- running

    def attach(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
        return paddle_hooks.attached(modules, enter, leave, fail)

    attach_in_backward = attach

    def unseen(self) -> AbstractContextManager[None]:
        return paddle_builtins.Unseen()

    def seen_again(self) -> AbstractContextManager[None]:
        return paddle_builtins.seen_again()

    def keeps_lines(self, module: Any) -> bool:
        return not isinstance(module, paddle_loaded.Part)

    def written_as(self, module: Any) -> type | None:
        return module.written_as if isinstance(module, paddle_loaded.Part) else None

    def order_of_use(self, module: Any) -> list[Any]:
        return paddle_loaded.order_of_use(module) if paddle_loaded.is_loaded(module) else []

    def compiled(self, module: Any) -> str | None:
        if paddle_loaded.is_loaded(module):
            return "paddle.jit.load"
        return "paddle.jit.to_static" if is_static(module) else None

    def runs_in_parts(self, module: Any) -> bool:
        return False

    def run_in_parts(self, modules: Iterable[Any]) -> Iterable[Handle]:
        return ()

    def lacks_backward(self, module: Any) -> bool:
        """What was made static in eval mode has no backward (paddle 3.3)."""
        return (is_static(module) or paddle_loaded.is_loaded(module)) and not module.training

    def eagerly(self) -> AbstractContextManager[Any]:
        return eagerly()

    def watch_writes(self, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        return paddle_builtins.watching_writes(about_to_write)

    def watch_reads(self, read: Callable[[Any], None]) -> AbstractContextManager[None]:
        return paddle_reads.watching(read)

    def kept_for_backward(self) -> AbstractContextManager[None]:
        return kept_for_backward()

    def watch_draws(self, dice: Dice) -> AbstractContextManager[None]:
        return paddle_draws.watching(dice, self.to_numpy, self.to_native)

    def watch_ops(self, watcher: OpWatcher, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        return paddle_builtins.watching_ops(watcher, about_to_write)

    def cancelling(self, told: Told) -> AbstractContextManager[None]:
        return listening(told, paddle_cancelling.patches())

    def op_name(self, op: Any, function: CodeType | None, several: bool) -> str:
        return paddle_ops.op_name(op, function, several)

    def layer_folders(self) -> tuple[str, ...]:
        return (paddle_ops.LAYERS,)

    def wrapper_files(self) -> tuple[str, ...]:
        return paddle_ops.WRAPPERS

    def on_gradient(self, tensor: Any, callback: See) -> Handle | None:
        return paddle_gradients.on_gradient(tensor, callback)

    def before_written(self, tensor: Any, handle: Handle) -> Handle:
        return handle  # a write moves the hook along with the history that the tensor had

    def keeping_gradients(self, sink: GradientSink) -> Follow:
        return paddle_gradients.keeping(sink)

    def substitute(self, tensor: Any, value: Array, see: See | None = None, *, tracked: bool = False) -> Any:
        return paddle_substitutes.substitute(tensor, value, see, tracked=tracked)

    def copy_of(self, tensor: Any, see: See | None = None, *, tracked: bool = False) -> Any:
        return paddle_substitutes.copy_of(tensor, see, tracked=tracked)

    def write(self, target: Any, source: Any) -> None:
        if target.stop_gradient or not target.is_leaf:
            paddle.assign(source, output=target)

    def swap_elements(self, tensor: Any, other: Any) -> Any:
        held = tensor.detach()
        tensor.data = other
        return held

    def no_grad(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = paddle.no_grad()
        return context

    def grad_enabled(self) -> bool:
        return bool(paddle.is_grad_enabled())

    def product_dtype(self, model: Any) -> str | None:
        return None

    def autocast_dtype(self) -> str | None:
        tracer = paddle.base.framework._dygraph_tracer()
        if tracer is None or tracer._amp_level == paddle.base.core.AmpLevel.O0:
            return None
        return str(tracer._amp_dtype)

    transforming = staticmethod(bool)

    def requires_grad(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        if len(outputs) == 1:
            return outputs[0].mean()
        total = sum(int(output.size) for output in outputs)
        parts = [output.mean() * (int(output.size) / total) for output in outputs if int(output.size)]
        return functools.reduce(lambda a, b: a + b, parts)

    def projected_loss(self, outputs: Sequence[tuple[Any, Direction]]) -> Any:
        terms = []
        for output, direction in outputs:
            real = output.real() + 0.5 * output.imag() if output.is_complex() else output
            wide = real if real.dtype == paddle.float64 else real.astype("float32")
            along = paddle_arrays.from_numpy(np.array(direction.spread)).to(output.place)
            terms.append((wide * along.astype(wide.dtype)).sum())
        return functools.reduce(lambda a, b: a + b, terms)

    def backward(self, loss: Any) -> None:
        loss.backward()

    def may_pause(self, model: Any) -> bool:
        tracer = paddle.base.framework._dygraph_tracer()
        plain = tracer is not None and tracer._amp_level == paddle.base.core.AmpLevel.O0
        return plain and all(parameter.place.is_cpu_place() for parameter in model.parameters())

    def watch_scaling(self, scaled: Callable[[float], None]) -> AbstractContextManager[None]:
        return paddle_optimizers.watching_scale(scaled)

    def gradient(self, parameter: Any) -> Any | None:
        return paddle_optimizers.gradient(parameter)

    def gradient_stays(self, parameter: Any) -> bool:
        return paddle_optimizers.gradient_stays(parameter)

    def set_gradient(self, parameter: Any, gradient: Any | None) -> None:
        paddle_optimizers.set_gradient(parameter, gradient)

    def step(self, optimizer: Any) -> None:
        optimizer.step()
        optimizer.clear_grad()

    def device_of(self, model: Any) -> Any:
        return paddle_arrays.device_of(model)

    def ranks(self) -> tuple[int, int] | None:
        distributed = paddle.distributed
        return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else None

    # --- leaving things as they were

    def random_state(self) -> Any:
        return paddle.get_rng_state()

    def restore_random_state(self, state: Any) -> None:
        paddle.set_rng_state(state)

    def random_key(self, state: Any) -> Any:
        return [one.__getstate__() for one in state]

    def is_training(self, module: Any) -> bool:
        return bool(module.training)

    def set_training(self, module: Any, flag: bool) -> None:
        module.training = flag

    def package_folders(self) -> tuple[str, ...]:
        return (str(Path(paddle.__file__).parent),)

    # --- numeric conventions

    def statistics_momentum(self, module: Any) -> float | None:
        momentum = getattr(module, "_momentum", None)
        return None if momentum is None else float(momentum)
