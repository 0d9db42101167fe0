"""A real model whose kernels, precision or parallelism somebody has changed: it is told whether nothing broke."""

from __future__ import annotations

from typing import Any

import pytest

import padiff
from tests.zoo import libraries

if reason := libraries.missing("transformers"):
    pytest.skip(reason, allow_module_level=True)

import torch
from transformers import LlamaConfig, LlamaForCausalLM

IDS = torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(3))


def llama(attention: str = "eager") -> Any:
    torch.manual_seed(1)
    settings = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    settings._attn_implementation = attention
    return LlamaForCausalLM(settings).eval()


def test_attentions_that_hooks_gather() -> None:
    inputs = {"input_ids": IDS, "output_attentions": True, "output_hidden_states": True, "use_cache": False}
    result = padiff.compare(llama(), llama(), inputs)
    assert result.aligned, str(result)
    assert any(one.raw_path == "" and one.name == "attentions.2" for one in result.comparisons)


class RootNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float, wrong: bool) -> Any:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.wrong = wrong
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (x, weight, scale) = gradients, ctx.saved_tensors
        along = 0.0 if ctx.wrong else (gradient * weight * x).mean(-1, keepdim=True)
        of_weight = (gradient * x * scale).sum((0, 1))
        return scale * (gradient * weight - x * scale**2 * along), of_weight, None, None


class Fused(torch.nn.Module):
    def __init__(self, norm: Any, wrong: bool) -> None:
        super().__init__()
        self.weight, self.eps, self.wrong = norm.weight, norm.variance_epsilon, wrong

    def forward(self, x: Any) -> Any:
        return RootNorm.apply(x, self.weight, self.eps, self.wrong)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_fused_norm_with_its_own_backward(wrong: bool) -> None:
    raw = llama("sdpa")
    for place, layer in enumerate(raw.model.layers):
        layer.post_attention_layernorm = Fused(layer.post_attention_layernorm, wrong and place == 1)
    result = padiff.compare(llama(), raw, {"input_ids": IDS, "use_cache": False})
    assert result.aligned is not wrong, str(result)
    if wrong:
        found = result.divergence
        assert found is not None and found.op is not None
        assert (found.raw_path, found.phase) == ("model.layers.1.post_attention_layernorm", "backward")
        assert (found.op.raw, found.causes[0].name) == ("RootNorm.apply", "own backward")


class Columns(torch.nn.Module):
    def __init__(self, given: int, returned: int) -> None:
        super().__init__()
        self.ranks = torch.nn.ModuleList(torch.nn.Linear(given, returned // 2, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return torch.cat([rank(x) for rank in self.ranks], -1)


class Rows(torch.nn.Module):
    def __init__(self, given: int, returned: int, alone: bool) -> None:
        super().__init__()
        self.ranks = torch.nn.ModuleList(torch.nn.Linear(given // 2, returned, bias=False) for _ in range(2))
        self.alone = alone

    def forward(self, x: Any) -> Any:
        first, second = (rank(part) for rank, part in zip(self.ranks, x.chunk(2, -1), strict=True))
        return first if self.alone else first + second


@pytest.mark.parametrize("alone", [False, True])
def test_layers_cut_among_ranks(alone: bool) -> None:
    raw = llama("sdpa")
    for place, layer in enumerate(raw.model.layers):
        layer.mlp.gate_proj, layer.mlp.up_proj = Columns(48, 96), Columns(48, 96)
        layer.mlp.down_proj = Rows(96, 48, alone and place == 1)
    result = padiff.compare(llama(), raw, {"input_ids": IDS, "use_cache": False})
    assert result.aligned is not alone, str(result)
    if alone:
        assert result.divergence is not None and result.divergence.raw_path == "model.layers.1.mlp.down_proj"


class AtOnce(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        return self.model(ids, use_cache=False).logits


class TokenByToken(AtOnce):
    late = 0

    def forward(self, ids: Any) -> Any:
        out = self.model(ids[:, :7], use_cache=True)
        logits = [out.logits]
        for place in range(7, ids.shape[1]):
            positions = torch.full((len(ids), 1), place - self.late)
            given = {"past_key_values": out.past_key_values, "position_ids": positions, "use_cache": True}
            out = self.model(ids[:, place : place + 1], **given)
            logits.append(out.logits)
        return torch.cat(logits, 1)


def test_a_cache_against_one_full_forward() -> None:
    result = padiff.compare(AtOnce(llama()), TokenByToken(llama()), {"ids": IDS})
    assert result.aligned, str(result)
    assert result.coverage["calls"] == 1.0


def test_a_cache_with_late_positions() -> None:
    raw = TokenByToken(llama())
    raw.late = 1
    found = padiff.compare(AtOnce(llama()), raw, {"ids": IDS}).divergence
    assert found is not None and (found.raw_path, found.phase) == ("", "forward")


def test_dynamic_quantisation() -> None:
    raw = torch.ao.quantization.quantize_dynamic(llama(), {torch.nn.Linear}, dtype=torch.qint8)
    result = padiff.compare(llama(), raw, {"input_ids": IDS, "use_cache": False}, phase="forward")
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.causes[0].name) == ("model.layers.0.self_attn.q_proj", "quantised")
