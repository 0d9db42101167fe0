"""What ``paddle.jit.load`` brings back: a program without layers, whose tensors still bear the names that their layers
gave them."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from padiff.frameworks import cycles
from padiff.frameworks.lookup import class_named
from padiff.frameworks.paddle_layers import LAYERS

_NAME = re.compile(r"(?P<layer>(?P<kind>.+)_\d+)\.(?P<role>[wb])_(?P<number>\d+)(?:_\d+)?")
"""``batch_norm2d_0.w_1``, and one more number for each time that it was loaded."""
_KINDS = ("paddle.jit.translated_layer.TranslatedLayer", "paddle.jit.pir_translated_layer.PirTranslatedLayer")


class Part(paddle.nn.Layer):
    """The tensors of one layer of the model that was saved."""

    def __init__(self, name: str, written_as: type) -> None:
        super().__init__(name_scope=f"{name}_loaded")
        self.written_as = written_as

    def extra_repr(self) -> str:
        return "as saved"


def is_loaded(module: Any) -> bool:
    return _loads(type(module))


def _look_at(kind: type) -> bool:
    return any(f"{cls.__module__}.{cls.__qualname__}" in _KINDS for cls in kind.__mro__)


_loads: Callable[[Any], bool] = functools.lru_cache(maxsize=4096)(_look_at)


def parts(module: Any) -> list[tuple[str, Part]]:
    """The layers whose tensors a program holds, in the order in which it uses them; made anew."""
    cycles.must_go()
    gc.collect()
    found: dict[str, Part] = {}
    for tensor in order_of_use(module):
        name = _NAME.fullmatch(tensor.name)
        if name is None:
            continue
        cls, weights, biases = _layer(name["kind"])
        part = found.setdefault(name["layer"], Part(name["layer"], cls))
        known, number = (biases if name["role"] == "b" else weights), int(name["number"])
        own = known[number] if number < len(known) else f"{name['role']}_{number}"
        part._parameters[own] = tensor
    return list(found.items())


def left_over(module: Any) -> list[tuple[str, Any]]:
    """Tensors that were no layer's parameters."""
    return [(name, one) for name, one in module._parameters.items() if _NAME.fullmatch(one.name) is None]


def order_of_use(module: Any) -> list[Any]:
    """All tensors, those first that the program uses first."""
    named = {one.name: one for one in module._parameters.values()}
    ranks = {name: rank for rank, name in reversed(list(enumerate(_read(module))))}
    return sorted(named.values(), key=lambda one: ranks.get(one.name, len(ranks)))


def _read(module: Any) -> Iterator[str]:
    """Names of parameters as the ops of the program take them."""
    for holder in module._program_holder_dict.values():
        block = getattr(holder.infer_program, "global_block", None)
        for op in block().ops if block is not None else ():
            for value in op.operands_source():
                made = value.get_defining_op()
                if made is not None and made.name() == "builtin.parameter":
                    yield made.attrs()["parameter_name"]


@functools.cache
def _layer(kind: str) -> tuple[type, tuple[str, ...], tuple[str, ...]]:
    """The class whose layers are named so, and what it calls its weights and biases, in the order it makes them."""
    for name, cls in vars(paddle.nn).items():
        if isinstance(cls, type) and _snake(name) == kind:
            bases = (LAYERS.get(f"{one.__module__}.{one.__qualname__}") for one in cls.__mro__)
            spec = next((found for found in bases if found is not None), None)
            own = [] if spec is None else [tensor for tensor in spec.stored if "." not in tensor]
            biases = tuple(tensor for tensor in own if "bias" in tensor)
            return cls, tuple(tensor for tensor in own if tensor not in biases), biases
    return class_named(f"saved.{kind.title().replace('_', '')}", paddle.nn.Layer), (), ()


def _snake(name: str) -> str:
    """As paddle makes a layer's name of its class's."""
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()
