"""Models of one computation, built differently: shuffled, renamed, wrapped, fused. The pairing is still right."""

from __future__ import annotations

import random
import string
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import padiff

WIDTH, HIDDEN, HEADS, DEPTH = 12, 20, 3, 3
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
KIT = {
    "torch": (torch.nn.Module, torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Sequential, torch),
    "paddle": (paddle.nn.Layer, paddle.nn.Linear, paddle.nn.LayerNorm, paddle.nn.Sequential, paddle),
}


def build(
    framework: str,
    seed: int,
    *,
    names: str,
    fused: bool,
    wrapped: bool,
    swapped: bool = False,
    by_head: bool = False,
    depth: int = DEPTH,
) -> Any:
    """A small pre-norm transformer; ``seed`` shuffles definitions and draws names, never what is computed.

    ``names``: the same in all models; drawn but for query, key and value; or all drawn, for all blocks alike.
    """
    module_class, linear, layer_norm, sequential, library = KIT[framework]
    draw, drawn = random.Random(seed), {}

    class Block(module_class):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            fixed = random.Random(seed)
            parts = {"norm1": layer_norm(WIDTH), "norm2": layer_norm(WIDTH), "out": linear(WIDTH, WIDTH)}
            parts |= {"fc1": linear(WIDTH, HIDDEN), "fc2": linear(HIDDEN, WIDTH)}
            if fused:
                parts["qkv"] = linear(WIDTH, 3 * WIDTH)
            else:
                parts |= {name: linear(WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj")}
            order = list(parts)
            (fixed if names == "nameless" else draw).shuffle(order)
            self.where = {}
            self.asked = [part for part in order if part.endswith("_proj")]
            for part in order:
                name = part if names == "same" else "".join(draw.choices(string.ascii_lowercase, k=6))
                if names == "nameless":
                    name = drawn.setdefault(part, name)
                if names == "random" and part in ("q_proj", "k_proj", "v_proj"):
                    name = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}[part]
                self.where[part] = name
                setattr(self, name, sequential(parts[part]) if wrapped and draw.random() < 0.5 else parts[part])

        def part(self, name: str) -> Any:
            return getattr(self, self.where[name])

        def heads(self, x: Any) -> Any:
            x = x.reshape([x.shape[0], x.shape[1], HEADS, WIDTH // HEADS])
            return x.swapaxes(1, 2) if framework == "torch" else x.transpose([0, 2, 1, 3])

        def attend(self, x: Any) -> Any:
            if fused:
                made = self.part("qkv")(x)
                shape = (
                    [x.shape[0], x.shape[1], HEADS, 3, WIDTH // HEADS] if by_head else [x.shape[0], x.shape[1], 3, -1]
                )
                made = made.reshape(shape)
                q, k, v = (made[..., i, :].reshape([x.shape[0], x.shape[1], WIDTH]) for i in range(3))
            else:
                made = {name: self.part(name)(x) for name in self.asked}
                q, k, v = (made[name] for name in ("q_proj", "k_proj", "v_proj"))
            q, k, v = self.heads(q), self.heads(k), self.heads(v)
            turned = k.swapaxes(2, 3) if framework == "torch" else k.transpose([0, 1, 3, 2])
            scores = library.nn.functional.softmax(q @ turned * 0.5, -1)
            mixed = scores @ v
            mixed = mixed.swapaxes(1, 2) if framework == "torch" else mixed.transpose([0, 2, 1, 3])
            return self.part("out")(mixed.reshape([x.shape[0], x.shape[1], WIDTH]))

        def forward(self, x: Any) -> Any:
            first, second = ("norm2", "norm1") if swapped else ("norm1", "norm2")
            x = x + self.attend(self.part(first)(x))
            return x + self.part("fc2")(library.tanh(self.part("fc1")(self.part(second)(x))))

    blocks = [Block() for _ in range(depth)]
    model = sequential(*blocks)
    generator = np.random.default_rng(seed)
    for parameter in model.parameters():
        value = generator.normal(0.0, 0.3, tuple(parameter.shape)).astype("float32")
        if framework == "torch":
            parameter.data.copy_(torch.from_numpy(value))
        else:
            parameter.set_value(value)
    return model


def owner(model: Any, block: int, part: str) -> str:
    return f"{block}.{model[block].where[part]}"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    frameworks=st.sampled_from([("torch", "torch"), ("torch", "paddle"), ("paddle", "torch"), ("paddle", "paddle")]),
    names=st.sampled_from(["same", "random", "nameless"]),
    fused=st.tuples(st.booleans(), st.booleans()),
    wrapped=st.booleans(),
    by_head=st.booleans(),
)
def test_pairing_is_right(seed: int, frameworks: Any, names: str, fused: Any, wrapped: bool, by_head: bool) -> None:
    base = build(frameworks[0], seed, names="same", fused=fused[0], wrapped=False, by_head=by_head)
    raw = build(frameworks[1], seed + 1, names=names, fused=fused[1], wrapped=wrapped, by_head=by_head)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    filled = {entry.path: [source.path for source in entry.sources] for entry in result.plan.entries}
    for block in range(DEPTH):
        for part in ("norm1", "norm2", "out", "fc1", "fc2"):
            sources = [s for path, s in filled.items() if path.startswith(owner(raw, block, part) + ".")]
            assert sources
            assert all(path.startswith(f"{block}.{part}.") for source in sources for path in source), (part, sources)
        if fused == (False, False):
            for part in ("q_proj", "k_proj", "v_proj"):
                sources = [s for path, s in filled.items() if path.startswith(owner(raw, block, part) + ".")]
                assert all(source == [f"{block}.{part}.{source[0].rpartition('.')[2]}"] for source in sources)


@pytest.mark.parametrize("frameworks", [("torch", "paddle"), ("torch", "torch")], ids="-".join)
@pytest.mark.parametrize("fused", [False, True])
def test_swapped_layers_are_a_divergence(frameworks: tuple[str, str], fused: bool) -> None:
    """Two equal layers used in the wrong order: their weights are not swapped to make outputs match."""
    base = build(frameworks[0], 1, names="same", fused=False, wrapped=False)
    raw = build(frameworks[1], 2, names="same", fused=fused, wrapped=True, swapped=True)
    result = padiff.compare(base, raw, X)
    assert not result.aligned
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
    filled = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert all(source.split(".")[1] == "norm1" for path, source in filled.items() if path.startswith("0.norm1"))


@pytest.mark.parametrize("part", ["norm2", "out", "fc1"])
@pytest.mark.parametrize("names", ["same", "random"])
def test_planted_weight_is_found_in_a_model_built_differently(part: str, names: str) -> None:
    base = build("torch", 1, names="same", fused=False, wrapped=False)
    raw = build("paddle", 2, names=names, fused=True, wrapped=False)
    assert padiff.compare(base, raw, X).aligned
    weight = getattr(raw[1], raw[1].where[part]).weight
    weight.set_value(weight * 1.01)
    found = padiff.compare(base, raw, X, weights="keep").divergence
    assert found is not None
    assert (found.base_path, found.raw_path) == (f"1.{part}", owner(raw, 1, part)), str(found)


@pytest.mark.parametrize(("names", "fused"), [("random", True), ("nameless", False)])
def test_grown_to_two_thousand_modules(names: str, fused: bool) -> None:
    """Pairing a deep model takes seconds, renamed and fused or not."""
    import time

    base = build("torch", 1, names="same", fused=False, wrapped=False, depth=250)
    raw = build("torch", 2, names=names, fused=fused, wrapped=False, depth=250)
    start = time.process_time()
    plan = padiff.plan_weights(base, raw, X)
    took = time.process_time() - start
    assert not plan.problems
    assert len(plan) == 250 * (12 if fused else 16)
    assert took < 60, f"{took:.1f} s"


class ListOfExperts(torch.nn.Module):
    """A mixture whose experts are modules in a list, each with a gate, an up and a down projection."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, 4, bias=False)
        self.experts = torch.nn.ModuleList([torch.nn.ModuleDict() for _ in range(4)])
        for expert in self.experts:
            expert["gate_proj"] = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
            expert["up_proj"] = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
            expert["down_proj"] = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        weights = self.router(x).softmax(-1)
        found = [
            e["down_proj"](torch.nn.functional.silu(e["gate_proj"](x)) * e["up_proj"](x))
            for e in reversed(self.experts)
        ]
        return sum(weights[..., 3 - i : 4 - i] * one for i, one in enumerate(found))


class StackedExperts(torch.nn.Module):
    """The same with all experts in two tensors, gate and up fused."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, 4, bias=False)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(4, 2 * HIDDEN, WIDTH) * 0.1)
        self.down_proj = torch.nn.Parameter(torch.randn(4, WIDTH, HIDDEN) * 0.1)

    def forward(self, x: Any) -> Any:
        weights = self.router(x).softmax(-1)
        gate, up = torch.einsum("bsw,eow->ebso", x, self.gate_up_proj).chunk(2, -1)
        made = torch.einsum("ebso,ewo->ebsw", torch.nn.functional.silu(gate) * up, self.down_proj)
        return (made * weights.permute(2, 0, 1)[..., None]).sum(0)


@pytest.mark.parametrize("swap", [False, True])
def test_experts_in_a_list_and_in_a_stack(swap: bool) -> None:
    pair = (ListOfExperts(), StackedExperts())
    base, raw = pair[::-1] if swap else pair
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0


class GateUp(torch.nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        if fused:
            self.gate_up_proj = torch.nn.Linear(WIDTH, 2 * HIDDEN)
        else:
            self.up_proj = torch.nn.Linear(WIDTH, HIDDEN)
            self.gate_proj = torch.nn.Linear(WIDTH, HIDDEN)
        self.down_proj = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_up_proj(x).chunk(2, -1) if self.fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("fused", [False, True])
def test_gate_and_up(fused: bool) -> None:
    result = padiff.compare(GateUp(fused), GateUp(not fused), X)
    assert result.aligned, str(result)


def test_trained_weights_are_recognised_by_their_values() -> None:
    """Names and order of use say nothing here: four equal layers, summed, under other names in another order."""

    class Sum(torch.nn.Module):
        def __init__(self, names: str) -> None:
            super().__init__()
            for name in names:
                setattr(self, f"z{name}", torch.nn.Linear(WIDTH, WIDTH))
            self.names = names

        def forward(self, x: Any) -> Any:
            return sum(getattr(self, f"z{name}")(x) for name in self.names)

    base, raw = Sum("abcd"), Sum("pqrs")
    for ours, theirs in zip("abcd", "srqp", strict=True):
        getattr(raw, f"z{theirs}").load_state_dict(getattr(base, f"z{ours}").state_dict())
    plan = padiff.plan_weights(base, raw, X)
    filled = {entry.path: entry.sources[0].path for entry in plan.entries}
    assert filled["zs.weight"] == "za.weight"
    assert {entry.evidence for entry in plan.entries} == {"values"}
    assert padiff.compare(base, raw, X, weights="keep").aligned


def test_a_wrong_table_of_raws_own_is_seen() -> None:
    """A buffer that raw computes itself is not overwritten with base's."""

    class Scaled(torch.nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(WIDTH, WIDTH)
            self.register_buffer("angles", torch.arange(1.0, WIDTH + 1) * by, persistent=False)

        def forward(self, x: Any) -> Any:
            return self.fc(x) * self.angles

    assert padiff.compare(Scaled(1.0), Scaled(1.0), X).aligned
    result = padiff.compare(Scaled(1.0), Scaled(1.1), X)
    assert not result.aligned
    assert result.divergence is not None


def test_equal_seeds_are_no_evidence() -> None:
    """Both draw the same numbers for layers defined in another order: that says nothing about which is which."""

    class Stack(torch.nn.Module):
        def __init__(self, names: tuple[str, ...], used: tuple[str, ...]) -> None:
            super().__init__()
            torch.manual_seed(0)
            for name in names:
                setattr(self, name, torch.nn.Linear(WIDTH, WIDTH))
            self.used = used

        def forward(self, x: Any) -> Any:
            for name in self.used:
                x = torch.tanh(getattr(self, name)(x))
            return x

    base = Stack(("a", "b", "c"), ("a", "b", "c"))
    raw = Stack(("last", "mid", "start"), ("start", "mid", "last"))
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)


def test_one_odd_block_is_not_talked_into_agreement() -> None:
    """Names say nothing, two of three blocks use their norms in one order, one in the other."""

    class Block(torch.nn.Module):
        def __init__(self, one: str, two: str, swapped: bool = False) -> None:
            super().__init__()
            setattr(self, one, torch.nn.LayerNorm(WIDTH))
            setattr(self, two, torch.nn.LayerNorm(WIDTH))
            self.fc = torch.nn.Linear(WIDTH, WIDTH)
            self.order = (two, one) if swapped else (one, two)

        def forward(self, x: Any) -> Any:
            first, second = (getattr(self, name) for name in self.order)
            return second(x + torch.tanh(self.fc(first(x))))

    def model(one: str, two: str, odd: int = -1) -> Any:
        blocks = torch.nn.Sequential(*(Block(one, two, swapped=i == odd) for i in range(3)))
        generator = torch.Generator().manual_seed(len(one))
        for parameter in blocks.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        return blocks

    base = model("alpha", "omega")
    assert padiff.compare(base, model("uno", "dos"), X).aligned
    result = padiff.compare(base, model("uno", "dos", odd=1), X)
    assert not result.aligned
    assert result.divergence is not None
    assert result.divergence.raw_path == "1", str(result)


def test_no_synonym_means_two_things() -> None:
    from padiff.weights.words import SYNONYMS

    everything = [word for words in SYNONYMS.values() for word in words.split()]
    assert len(everything) == len(set(everything))
    assert not set(everything) & set(SYNONYMS)


class Several(torch.nn.Module):
    """Returns a dict of what it is asked for."""

    def __init__(self, names: tuple[str, str], keys: tuple[str, ...], turned: bool = False) -> None:
        super().__init__()
        self.names, self.keys, self.turned = names, keys, turned
        for name in names:
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        first = torch.tanh(getattr(self, self.names[0])(x))
        second = getattr(self, self.names[1])(first)
        everything = {"logits": second, "aux": first * 3, "pooled": first.mean(1), "sums": second.sum(-1)}
        if self.turned:
            everything["logits"] = second.transpose(1, 2)
        return {key: everything[key] for key in self.keys}


RETURNED = [
    (("logits",), ("aux", "logits")),
    (("aux", "logits"), ("logits",)),
    (("aux", "logits"), ("logits", "pooled")),
    (("logits", "aux"), ("pooled", "logits")),
    (("aux", "logits"), ("sums", "logits", "pooled")),
]


@pytest.mark.parametrize(("base_keys", "raw_keys"), RETURNED, ids=lambda keys: "-".join(keys))
def test_models_that_return_other_things_besides(base_keys: tuple[str, ...], raw_keys: tuple[str, ...]) -> None:
    """What corresponds is compared, and the loss goes over that alone; the rest is listed."""
    base, raw = Several(("one", "two"), base_keys), Several(("uno", "due"), raw_keys)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert any(one.role == "loss" for one in result.comparisons)
    assert any(one.phase == "gradient" for one in result.comparisons)
    assert result.coverage["outputs"] == 1 / len(raw_keys)
    said = " ".join(one.why for one in result.unmatched)
    for key in (set(base_keys) | set(raw_keys)) - {"logits"}:
        assert f"output {key!r}" in said
    raw.due.bias.data += 1
    found = padiff.compare(base, raw, X, weights="keep").divergence
    assert found is not None
    assert (found.base_path, found.raw_path) == ("two", "due")


def test_another_layout_of_the_result_is_stated() -> None:
    base, raw = Several(("one", "two"), ("logits",)), Several(("uno", "due"), ("logits",), turned=True)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    note = "the result 'logits' of raw comes in another layout: compared with base with axes permuted to [0, 2, 1]"
    assert result.notes == (note,)
    assert f"note: {note}" in str(result)
    assert padiff.compare(base, Several(("uno", "due"), ("logits",)), X).notes == ()
