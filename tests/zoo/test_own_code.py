"""Bugs in functional code of real models: the op and the line are named on both sides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import padiff
from padiff.align import same_thing
from tests.zoo import libraries

if reason := libraries.missing("transformers"):
    pytest.skip(reason, allow_module_level=True)

import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama import modeling_llama as code

Function = Callable[..., Any]


def rotated_wrongly(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_out = (q * cos) + (code.rotate_half(q) * sin)
    k_out = (k * cos) - (code.rotate_half(k) * sin)
    return q_out, k_out


def unscaled(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any) -> Any:
    key = code.repeat_kv(key, module.num_key_value_groups)
    value = code.repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3))
    scores = scores + attention_mask
    weights = torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def over_heads(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any) -> Any:
    key = code.repeat_kv(key, module.num_key_value_groups)
    value = code.repeat_kv(value, module.num_key_value_groups)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    scores = scores + attention_mask
    weights = torch.nn.functional.softmax(scores, dim=1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def norm_with_another_eps(self: Any, hidden: Any) -> Any:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    hidden = hidden * torch.rsqrt(variance + 1e-3)
    return self.weight * hidden


def enlarged(self: Any, x: Any) -> Any:
    inner = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
    inner = inner * 1.01
    return self.down_proj(inner)


@contextmanager
def instead(name: str, function: Function) -> Iterator[None]:
    original = getattr(code, name)
    setattr(code, name, function)
    try:
        yield
    finally:
        setattr(code, name, original)


def attention_with(name: str, function: Function) -> Function:
    def plant(model: Any) -> str:
        class Planted(code.LlamaAttention):  # type: ignore[misc]
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                with instead(name, function):
                    return super().forward(*args, **kwargs)

        model.layers[1].self_attn.__class__ = Planted
        return "layers.1.self_attn"

    return plant


def module_with(path: str, forward: Function) -> Function:
    def plant(model: Any) -> str:
        found = model.get_submodule(path)
        found.forward = forward.__get__(found)
        return path

    return plant


SCALED = "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"
CASES: dict[str, tuple[Function, str, str, str, str]] = {
    "rotation": (
        attention_with("apply_rotary_pos_emb", rotated_wrongly),
        *("add", "k_embed = (k * cos) + (rotate_half(k) * sin)"),
        *("sub", "k_out = (k * cos) - (code.rotate_half(k) * sin)"),
    ),
    "scale": (
        attention_with("eager_attention_forward", unscaled),
        "mul",
        SCALED,
        "",
        "scores = scores + attention_mask",
    ),
    "axis": (
        attention_with("eager_attention_forward", over_heads),
        "softmax",
        "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)",
        "softmax",
        "weights = torch.nn.functional.softmax(scores, dim=1, dtype=torch.float32).to(query.dtype)",
    ),
    "eps": (
        module_with("layers.1.input_layernorm", norm_with_another_eps),
        *("add", "hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)"),
        *("add", "hidden = hidden * torch.rsqrt(variance + 1e-3)"),
    ),
    "factor": (
        module_with("layers.1.mlp", enlarged),
        *("", "down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))"),
        *("mul", "inner = inner * 1.01"),
    ),
}
"""Bug to how it is planted; base's op and line; raw's op and line."""


@pytest.mark.parametrize("case", list(CASES))
def test_op_and_lines(case: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    base = LlamaModel(config).eval()
    raw = copy.deepcopy(base)
    plant, base_op, base_line, raw_op, raw_line = CASES[case]
    path = plant(raw)
    found = padiff.compare(base, raw, {"input_ids": np.arange(22).reshape(2, 11)}).divergence
    assert found is not None
    assert found.raw_path == path
    assert found.op is not None
    assert [same_thing(name) if name else "" for name in (found.op.base, found.op.raw)] == [base_op, raw_op]
    assert [line.text for line in (found.op.base_line, found.op.raw_line) if line] == [base_line, raw_line]
