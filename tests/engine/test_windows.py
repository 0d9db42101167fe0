"""One author cuts into windows inside the attention, the other around it: neither what it is given nor what it returns
has its partner's shape, and both hold the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import padiff
from tests.twins import TorchScaleGradient


def cut(x: torch.Tensor) -> torch.Tensor:
    """Into windows of 2 by 2."""
    n, h, w, c = x.shape
    return x.view(n, h // 2, 2, w // 2, 2, c).transpose(2, 3).reshape(-1, 4, c)


def mended(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    n, h, w, c = shape
    return x.view(n, h // 2, w // 2, 2, 2, c).transpose(2, 3).reshape(shape)


class Attention(torch.nn.Module):
    cuts = False

    def __init__(self) -> None:
        super().__init__()
        self.bias_table = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("index", torch.arange(4))
        self.qkv, self.proj = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.shown: Any = lambda x: x
        self.calls = True

    def _through(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer(x) if self.calls else torch.nn.functional.linear(x, layer.weight, layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = cut(x) if self.cuts else x
        q, k, v = self._through(self.qkv, self.shown(windows)).chunk(3, -1)
        attended = (q @ k.transpose(1, 2) * 0.35 + self.bias_table[self.index]).softmax(-1) @ v
        out = self._through(self.proj, attended)
        return mended(out, tuple(x.shape)) if self.cuts else out


class Cutting(Attention):
    cuts = True


class Block(torch.nn.Module):
    """Cuts inside its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = torch.nn.LayerNorm(8), Cutting(), torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Around(torch.nn.Module):
    """Cuts around it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = torch.nn.LayerNorm(8), Attention()
        self.norm2, self.mlp = torch.nn.LayerNorm(8), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = cut(self.norm1(x))
        x = x + mended(self.attn(windows), tuple(x.shape))
        n, h, w, c = x.shape
        flat = x.reshape(n, h * w, c)
        return (flat + self.mlp(self.norm2(flat))).reshape(n, h, w, c)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class One(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = False
        self.features = torch.nn.Sequential(torch.nn.Linear(3, 8), Block(), torch.nn.LayerNorm(8), Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return x if self.whole else x.mean((1, 2))


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = False
        self.embed, self.early, self.norm = torch.nn.Linear(3, 8), Around(), torch.nn.LayerNorm(8)
        self.late = torch.nn.ModuleList([Around(), Around()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.early(self.embed(x)))
        for block in self.late:
            x = block(x)
        return x if self.whole else x.mean((1, 2))


def pair() -> tuple[One, Two, np.ndarray]:
    torch.manual_seed(3)
    x = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype("float32")
    return One(), Two(), x


def test_they_agree_and_each_attention_has_its_partner() -> None:
    base, raw, x = pair()
    calls = {base: 0}
    base.register_forward_pre_hook(lambda model, given: calls.update({model: calls[model] + 1}))
    result = padiff.compare(base, raw, x)
    assert result.aligned, str(result)
    assert calls[base] == 2  # nothing had to be looked at twice
    assert result.plan is not None
    sources = {entry.path: entry.sources[0].path for entry in result.plan.entries}
    assert {path: source for path, source in sources.items() if path.endswith("index")} == {
        "early.attn.index": "features.1.attn.index",
        "late.0.attn.index": "features.3.attn.index",
        "late.1.attn.index": "features.4.attn.index",
    }


@pytest.mark.parametrize("block", ["early", "late.0", "late.1"])
def test_a_wrong_gradient_is_the_attentions(block: str) -> None:
    base, raw, x = pair()
    raw.get_submodule(f"{block}.attn").shown = TorchScaleGradient.apply
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (f"{block}.attn", "backward")
    assert [one.raw_path for one in result.divergences] == [f"{block}.attn"]


@pytest.mark.parametrize("block", ["early", "late.0", "late.1"])
def test_wrong_numbers_are_the_attentions(block: str) -> None:
    base, raw, x = pair()
    attention = raw.get_submodule(f"{block}.attn")
    attention.shown = lambda windows: windows * 1.01
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) in (
        (f"{block}.attn", "forward"),
        (f"{block}.attn.qkv", "forward"),
    )


def test_what_is_mended_wrongly_is_the_blocks() -> None:
    base, raw, x = pair()
    block = raw.late[0]
    block.forward = lambda x: x + block.mlp(block.norm2(x + block.attn(cut(block.norm1(x))).view(x.shape)))
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("late.0", "forward")


def test_an_order_that_the_mean_forgets_is_the_blocks() -> None:
    base, raw, x = pair()
    block = raw.late[1]
    block.register_forward_hook(lambda module, given, made: made.flip(1))
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("late.1", "forward")


class OwnNorm(torch.nn.LayerNorm):
    """A class of raw's author."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def test_a_norm_of_ones_own_that_moves_places_is_named_and_not_the_attention_after_it() -> None:
    base, raw, x = pair()
    for block in (raw.early, *raw.late):
        block.norm1, block.norm2 = OwnNorm(8), OwnNorm(8)
    for place in (1, 3, 4):
        base.features[place].attn.calls = False
    raw.late[1].norm1.register_forward_hook(lambda module, given, output: output.roll(1, 1))
    result = padiff.compare(base, raw, x)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("late.1.norm1", "forward")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bug", [False, True])
def test_rows_that_are_much_alike_agree_in_any_order_to_a_narrower_dtype(dtype: torch.dtype, bug: bool) -> None:
    """What is right to so few digits is not handed on, and no gradient sent back, in the wrong order."""
    base, raw, x = pair()
    base.whole = raw.whole = True  # else the same comes back to every row
    with torch.no_grad():
        for block in base.features:
            if isinstance(block, Block):
                block.attn.proj.weight *= 0.02
    if bug:
        raw.late[0].mlp.fc2.register_forward_hook(lambda *given: given[-1] * 1.1)
    result = padiff.compare(base, raw.to(dtype), (padiff.Inputs(x), padiff.Inputs(torch.from_numpy(x).to(dtype))))
    if bug:
        assert result.divergence is not None
        assert (result.divergence.raw_path, result.divergence.phase) == ("late.0.mlp.fc2", "forward"), str(result)
    else:
        assert result.aligned, str(result)
