"""What a module was built with, under one name and in one convention, whatever framework and class it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from padiff.errors import ArgumentError
from padiff.frameworks.lookup import layer_spec
from padiff.frameworks.protocol import Adapter

SYNONYMS = {
    "epsilon": "eps",
    "variance_epsilon": "eps",
    "layer_norm_eps": "eps",
    "layer_norm_epsilon": "eps",
    "rms_norm_eps": "eps",
    "norm_eps": "eps",
    "ksize": "kernel_size",
    "kernel_sizes": "kernel_size",
    "strides": "stride",
    "paddings": "padding",
    "dilations": "dilation",
    "axis": "dim",
    "start_axis": "start_dim",
    "stop_axis": "end_dim",
    "min": "min_val",
    "max": "max_val",
    "return_mask": "return_indices",
    "divisor": "divisor_override",
    "normalize_before": "norm_first",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "nhead": "num_heads",
    "num_attention_heads": "num_heads",
    "n_kv_heads": "num_key_value_heads",
    "num_kv_heads": "num_key_value_heads",
    "drop_prob": "p",
    "drop_rate": "p",
    "dropout_prob": "p",
    "dropout_rate": "p",
    "scaling": "scale",
    "softmax_scale": "scale",
    "attn_scale": "scale",
    "rotary_base": "rope_theta",
    "rope_base": "rope_theta",
}
"""Spelling of an attribute, without leading underscores, to the one name used everywhere."""

IGNORED = frozenset(
    {
        "name",
        "full_name",
        "device",
        "dtype",
        "built",
        "inplace",
        "in_place",
        "training",
        "use_cudnn",
        "could_use_cudnn",
        "op_type",
        "channel_dim",
        "updated_padding",
        "padding_algorithm",
        "reversed_padding_repeated_twice",
        "size_average",
        "reduce",
        "layer_idx",
        "layer_id",
        "layer_index",
        "block_idx",
        "activation_relu_or_gelu",
        "fuse_with_relu",
        "helper",
        "remote_prefetch",
        "is_distributed",
        "qkv_same_embed_dim",
        "flat_weights_names",
        "all_weights",
        "state_components",
        "init",
        "weight_attr",
        "bias_attr",
        "param_attr",
        "gradient_checkpointing",
    }
)
"""What says how a module works and not what it computes."""

_LONGEST = 64
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that some layers of a framework count their own way."""

    own: str
    """The framework's attribute."""
    name: str
    layers: tuple[str, ...] = ()
    """Framework-neutral names of the layers it holds for, by their beginnings; none: all."""
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Conventions:
    """How one framework's modules keep their settings."""

    internal: frozenset[str] = frozenset()
    """Attributes every module of the framework has."""
    package: str = ""
    own: tuple[Setting, ...] = ()
    refresh: Callable[[Any], Mapping[str, Any]] = lambda module: {}
    """Attributes a module derives from its settings when it is built, as they would be now."""


PLAIN = Conventions()


def settings_of(adapter: Adapter, module: Any) -> dict[str, Any]:
    """The adapter's word, or that of the module's attributes where the adapter has none."""
    own = getattr(adapter, "settings", None)
    found: dict[str, Any] = own(module) if own is not None else read_settings(adapter, module)
    return found


@contextmanager
def with_settings(adapter: Adapter, module: Any, changes: Mapping[str, Any]) -> Iterator[None]:
    """Inside, the module has other settings."""
    own = getattr(adapter, "changed_settings", None)
    with own(module, changes) if own is not None else changed(adapter, module, changes):
        yield


def optimizer_settings_of(adapter: Adapter, optimizer: Any) -> dict[str, Any]:
    """The adapter's word; nothing where it has none."""
    own = getattr(adapter, "optimizer_settings", None)
    found: dict[str, Any] = own(optimizer) if own is not None else {}
    return found


def read_settings(adapter: Adapter, module: Any, conventions: Conventions = PLAIN) -> dict[str, Any]:
    """Plain settings of a module under the names all frameworks share, and whether it is in training mode."""
    found: dict[str, Any] = {}
    for attribute, setting in _attributes(adapter, module, conventions).items():
        value = _plain(_value(module, attribute))
        if value is not _NOT_PLAIN:
            found[setting.name] = setting.read(value)
    if found.get("stride", 0) is None and "kernel_size" in found:
        found["stride"] = found["kernel_size"]
    found["training"] = adapter.is_training(module)
    return found


@contextmanager
def changed(
    adapter: Adapter, module: Any, changes: Mapping[str, Any], conventions: Conventions = PLAIN
) -> Iterator[None]:
    """Inside, the module has the settings of ``changes``; afterwards its own again. ``training`` reaches all below."""
    held = {setting.name: (own, setting) for own, setting in _attributes(adapter, module, conventions).items()}
    unknown = [name for name in changes if name not in held and name != "training"]
    if unknown:
        raise ArgumentError(
            f"changes names {unknown[0]!r}, which a {type(module).__name__} does not have",
            f"it has {', '.join(sorted({*held, 'training'}))}",
        )
    with ExitStack() as stack:
        for name, value in changes.items():
            if name == "training":
                _train(adapter, module, bool(value), stack)
                continue
            own, setting = held[name]
            old = _value(module, own)
            if isinstance(old, _FUNCTIONS):
                raise ArgumentError(f"changes names {name!r}, which is a function", "a name cannot stand in for it")
            _put(module, own, _shaped(setting.write(value), old), stack)
        if any(name != "training" for name in changes):
            for own, value in conventions.refresh(module).items():
                _put(module, own, value, stack)
        yield


def _attributes(adapter: Adapter, module: Any, conventions: Conventions) -> dict[str, Setting]:
    """Attributes that hold settings, each name once; its plainest spelling wins."""
    spec = layer_spec(adapter, type(module))
    layer = spec.layer if spec is not None else ""
    special = {s.own: s for s in conventions.own if not s.layers or layer.startswith(s.layers)}
    names = [name for name in vars(module) if name not in conventions.internal]
    names += [name for name in _class_numbers(type(module), conventions.package) if name not in vars(module)]
    found: dict[str, tuple[str, Setting]] = {}
    for own in names:
        stripped = own.strip("_")
        if stripped in IGNORED or not stripped:
            continue
        setting = special.get(own) or Setting(own, SYNONYMS.get(stripped, stripped))
        if setting.name not in found or stripped == setting.name:
            found[setting.name] = own, setting
    return dict(found.values())


def _class_numbers(cls: type, package: str) -> list[str]:
    """Numbers that a user's class gives to all its modules."""
    found: list[str] = []
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in (package, "builtins", "typing", "abc"):
            continue
        found += [n for n, v in vars(base).items() if type(v) in (int, float) and not n.startswith("_")]
    return found


def _value(module: Any, attribute: str) -> Any:
    own = vars(module)
    return own[attribute] if attribute in own else getattr(type(module), attribute)


class _NotPlain:
    """Says that a value is nothing to print beside another."""


_NOT_PLAIN = _NotPlain()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else _NOT_PLAIN
    if isinstance(value, _FUNCTIONS):
        return value.__name__
    if isinstance(value, (list, tuple)) and len(value) <= _LONGEST:
        items = tuple(_plain(item) for item in value)
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else items
    return _NOT_PLAIN


def _shaped(value: Any, old: Any) -> Any:
    """A value in the form the framework keeps it in: lists stay lists, of their length."""
    if not isinstance(old, (list, tuple)):
        return value
    items: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value] * len(old)
    return list(items) if isinstance(old, list) else tuple(items)


def _put(module: Any, attribute: str, value: Any, stack: ExitStack) -> None:
    own = vars(module)
    if attribute in own:
        stack.callback(own.__setitem__, attribute, own[attribute])
    else:
        stack.callback(own.pop, attribute, None)
    own[attribute] = value


def _train(adapter: Adapter, module: Any, flag: bool, stack: ExitStack) -> None:
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        stack.callback(adapter.set_training, one, adapter.is_training(one))
        adapter.set_training(one, flag)
        waiting += [child for _, child in adapter.children(one)]


def twice(padding: Any) -> list[int]:
    """Padding for each axis as the padding functions take it: last axis first, both ends."""
    return [amount for amount in reversed(tuple(padding)) for _ in range(2)]
