"""A dump in the place of a model: its modules, tensors and settings as they were, with no framework at hand."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from padiff.engine.families import floating
from padiff.engine.fed.local_comparing import Key
from padiff.errors import DumpError
from padiff.frameworks.layers import LayerSpec, Stored
from padiff.frameworks.tree import LiveTree, join
from padiff.records import Array, Call, ModuleNode, Noise, Slot, TensorSpec, Usage, Value
from padiff.store import Dump, LostValue, StepDump, StoredValue, strict

_NUMBERED = ("calls", "made", "ready", "times")
FOREIGN = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading something else than was written raises."""


class StoredTensor:
    """A parameter or buffer of a dump; one object stands for one tensor, under however many paths."""

    __slots__ = ("absent", "dtype", "frozen", "shape", "value")

    def __init__(self, spec: TensorSpec, value: Value | None, *, frozen: bool, absent: bool) -> None:
        self.shape, self.dtype, self.value = spec.shape, spec.dtype, value
        self.frozen, self.absent = frozen, absent

    # What people write to read a tensor, whatever framework they come from.

    def numpy(self) -> Array:
        return elements_of(self)

    def detach(self) -> StoredTensor:
        return self

    cpu = clone = contiguous = detach

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(elements_of(self), dtype)


class StoredModule:
    """A module of a dump."""

    def __init__(self, node: ModuleNode, settings: Mapping[str, Any]) -> None:
        self.node = node
        self.settings = dict(settings)
        self.parameters: list[tuple[str, StoredTensor]] = []
        self.buffers: list[tuple[str, StoredTensor]] = []
        self.children: list[tuple[str, StoredModule]] = []

    def __getattr__(self, name: str) -> Any:
        """Its tensors and modules by name, for functions that fill a module from it; and what it was built with, under
        the names all frameworks share."""
        own = self.__dict__
        for named in ("parameters", "buffers", "children"):
            for known, thing in own.get(named, ()):
                if known == name:
                    return thing
        settings = own.get("settings", {})
        if name not in settings:
            raise AttributeError(f"the dump knows of no {name!r} of this module")
        return settings[name]


class StoredAdapter:
    """Answers what is asked of a model at rest; runs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_model(self, thing: Any) -> bool:
        return isinstance(thing, StoredModule)

    def is_tensor(self, thing: Any) -> bool:
        return isinstance(thing, StoredTensor)

    def is_optimizer(self, thing: Any) -> bool:
        return False

    def children(self, module: StoredModule) -> list[tuple[str, StoredModule]]:
        return module.children

    def own_parameters(self, module: StoredModule) -> list[tuple[str, StoredTensor]]:
        return module.parameters

    def own_buffers(self, module: StoredModule) -> list[tuple[str, StoredTensor]]:
        return module.buffers

    def settings(self, module: StoredModule) -> dict[str, Any]:
        return module.settings

    def is_training(self, module: StoredModule) -> bool:
        return bool(module.settings.get("training", False))

    def shape(self, tensor: StoredTensor) -> tuple[int, ...]:
        return tensor.shape

    def dtype(self, tensor: StoredTensor) -> str:
        return tensor.dtype

    def requires_grad(self, tensor: StoredTensor) -> bool:
        return not tensor.frozen

    def to_numpy(self, tensor: StoredTensor) -> Array:
        return elements_of(tensor)


def elements_of(tensor: StoredTensor) -> Array:
    """The elements. Of a dump that holds none, numbers that are equal where the tensors are, for telling them apart and
    nothing else."""
    value = tensor.value
    if isinstance(value, StoredValue) and value.whole:
        return value.numpy()
    if isinstance(value, StoredValue):
        seed = value.statistics().sample if value.kind == "stats" else bytes.fromhex(value.digest())
        return np.resize(np.array(list(seed) or [0.0]), tensor.shape).astype(np.float32)
    if value is not None and not isinstance(value, LostValue):
        return value.numpy()
    if tensor.absent:  # of a module that was not to be dumped
        return np.broadcast_to(np.zeros((), np.float32), tensor.shape)
    raise DumpError(f"the dump does not hold the weights of its model ({tensor.dtype}{list(tensor.shape)})")


@dataclass(frozen=True)
class StoredTree(LiveTree):
    """A model as its dump knows it."""

    dump: Dump | None = None
    specs: tuple[LayerSpec | None, ...] = field(default=(), repr=False)

    def layer_spec(self, index: int) -> LayerSpec | None:
        return self.specs[index]

    @property
    def whole(self) -> bool:
        """Whether the dump holds all weights, element by element."""
        return all(isinstance(t.value, StoredValue) and t.value.whole for t in self.parameters().values())


def stored_tree(dump: Dump) -> StoredTree:
    """The model of a dump, with the weights its first step found, or left where that is all there is."""
    try:
        return _stored_tree(dump)
    except FOREIGN as error:
        raise DumpError(f"the dump {dump.path} describes its model in a way that is not understood: {error}") from None


def _stored_tree(dump: Dump) -> StoredTree:
    tree, extra = dump.tree, dump.extra
    first = dump.steps[0] if len(dump.steps) else None
    values = {} if first is None else state_before(first)
    settings = strict.array(extra.get("settings", [{}] * len(tree.nodes)), "settings")
    frozen = set(strict.array(extra.get("frozen", []), "frozen"))
    tensors: dict[int, StoredTensor] = {}
    modules: dict[int, StoredModule] = {}
    found: list[StoredModule] = []

    def tensor(path: str, spec: TensorSpec) -> StoredTensor:
        if spec.identity not in tensors:
            absent = "only" in extra
            tensors[spec.identity] = StoredTensor(spec, values.get(path), frozen=path in frozen, absent=absent)
        elif tensors[spec.identity].value is None:
            tensors[spec.identity].value = values.get(path)
        return tensors[spec.identity]

    for node in tree.nodes:
        known = modules.get(node.identity)
        if known is None:
            options = settings[node.index] if node.index < len(settings) else {}
            known = modules[node.identity] = StoredModule(node, _tuples(options))
            known.parameters = [(s.name, tensor(join(node.path, s.name), s)) for s in node.parameters]
            known.buffers = [(s.name, tensor(join(node.path, s.name), s)) for s in node.buffers]
            if node.parent >= 0:
                found[node.parent].children.append((node.name, known))
        found.append(known)
    adapter: Any = StoredAdapter(tree.framework)
    nodes = tuple(replace(node, settings=module.settings) for node, module in zip(tree.nodes, found, strict=True))
    tree = replace(tree, nodes=nodes, environment=_environment(dump))
    return StoredTree(adapter, found[0], tree, tuple(found), dump=dump, specs=_specs(dump))


def _environment(dump: Dump) -> dict[str, str]:
    """Where the dump's model ran, which need not be where it is compared."""
    facts = {"version": dump.facts.framework_version, "device": dump.facts.device}
    kept = strict.table(dump.extra.get("environment", {}), "environment")
    told = {name: strict.text(text, name) for name, text in kept.items()}
    return {name: text for name, text in facts.items() if text != "unknown"} | told


def state_before(step: StepDump) -> dict[str, Value]:
    """Parameters and buffers that a step found; where it does not say, those it left."""
    return {**step.weights, **step.buffers, **step.weights_before, **step.buffers_before}


def stored_noise(step: StepDump) -> tuple[Noise | None, dict[Key, float]]:
    """What rounding was predicted to do in a step; with, by place, what it does to a call fed base's tensors."""
    rows = step.noise
    if not rows:
        return None, {}
    loss = rows.get("loss", {}).get("")
    noise = Noise(
        tensors={int(key): gap for key, gap in rows.get("tensors", {}).items()},
        gradients={int(key): gap for key, gap in rows.get("gradients", {}).items()},
        parameters=rows.get("parameters", {}),
        buffers=rows.get("buffers", {}),
        weights=rows.get("weights", {}),
        loss=loss,
    )
    local: dict[Key, float] = {}
    for text, gap in rows.get("local", {}).items():
        phase, role, call, tensor = text.split(" ")
        local[phase, role, int(call), int(tensor)] = gap
    empty = not any((noise.tensors, noise.gradients, noise.parameters, noise.buffers))
    return (None if empty else noise), local


def fed_noise(step: StepDump) -> Noise | None:
    """What rounding was predicted to do to the gradients of parameters when every call is fed base's tensors."""
    rows = step.noise
    if "fed_parameters" not in rows and "fed_loss" not in rows:
        return None
    return Noise(parameters=rows.get("fed_parameters", {}), loss=rows.get("fed_loss", {}).get(""))


def reference_calls(step: StepDump) -> tuple[Call, ...] | None:
    """The calls of a step under the numbers that its borders go by, each tensor standing for the one that the model
    itself had there; None where these were not looked at."""
    numbers = step.extra.get("reference")
    if step.borders is None or not isinstance(numbers, list) or len(numbers) != len(step.calls):
        return None
    found = []
    for call, row in zip(step.calls, numbers, strict=True):
        numbered = zip(numbered_slots(call), row, strict=True)
        left = iter([replace(slot, tensor=number, stands_for=slot.origin) for slot, number in numbered])
        inputs, outputs = (tuple(next(left) for _ in slots) for slots in (call.inputs, call.outputs))
        tags = [replace(op, outputs=tuple(next(left) for _ in op.outputs)) if op.tag else op for op in call.ops]
        found.append(replace(call, inputs=inputs, outputs=outputs, ops=tuple(tags)))
    return tuple(found)


def numbered_slots(call: Call) -> tuple[Slot, ...]:
    """The slots of a call whose tensors have other numbers where borders were looked at: its own, and its tags'."""
    return (*call.inputs, *call.outputs, *(slot for op in call.ops if op.tag for slot in op.outputs))


def stored_usage(step: StepDump) -> Usage:
    """In which order the model used its tensors; empty where that was not seen. Outputs are those of the trace."""
    rows = step.extra.get("usage")
    if not isinstance(rows, Mapping):
        return Usage()
    calls, made, ready, times = ({int(k): n for k, n in rows[name].items()} for name in _NUMBERED)
    return Usage(dict(rows["tensors"]), calls, made, ready, times, root_outputs(step))


def root_call(step: StepDump) -> Call | None:
    """The first call of the model itself."""
    return min((call for call in step.calls if call.parent < 0), key=lambda call: call.index, default=None)


def stored_returned(live: StoredTree, places: Sequence[str]) -> dict[str, Array]:
    """What the modules around some places returned in the dump's first step."""
    assert live.dump is not None
    step = live.dump.steps[0]
    made: dict[str, Array] = {}
    for call in step.calls:
        returned = [slot.value for slot in call.outputs if floating(slot.value)]
        if returned and call.path not in made:
            made[call.path] = returned[0].numpy()
    found: dict[str, Array] = {}
    for place in places:
        inner = place
        while inner and inner not in made:
            inner = inner.rpartition(".")[0]
        if inner:
            found[place] = made[inner]
    return found


def root_outputs(step: StepDump) -> tuple[tuple[str, Array], ...]:
    """The floating tensors that the model returned in its first call."""
    root = root_call(step)
    slots = {slot.tensor: slot for slot in reversed(() if root is None else root.outputs)}
    return tuple(
        (slot.name, slot.value.numpy())
        for slot in reversed(slots.values())
        if floating(slot.value) and getattr(slot.value, "whole", True)
    )


def dtype_named(name: str) -> Any:
    """A dtype by the name it has everywhere here."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _specs(dump: Dump) -> tuple[LayerSpec | None, ...]:
    layers = dump.extra.get("layers")
    if not isinstance(layers, Mapping):
        return (None,) * len(dump.tree.nodes)
    tables = [_spec(row) for row in layers["tables"]]
    return tuple(None if number is None else tables[number] for number in layers["nodes"])


def _spec(row: Mapping[str, Any]) -> LayerSpec:
    stored = {name: Stored(**{**one, "parts": tuple(one["parts"])}) for name, one in row["stored"].items()}
    return LayerSpec(row["layer"], stored, row["atomic"])


@functools.singledispatch
def _tuples(value: Any) -> Any:
    return value


@_tuples.register
def _(value: list) -> Any:  # type: ignore[type-arg]
    return tuple(_tuples(item) for item in value)


@_tuples.register
def _(value: dict) -> Any:  # type: ignore[type-arg]
    return {name: _tuples(item) for name, item in value.items()}
