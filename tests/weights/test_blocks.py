"""Blocks called in another order, left out or repeated, projections fused on one side: each keeps its own weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.errors import WeightError

WIDTH, HIDDEN, HEADS = 12, 20, 3
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
NAMES = {
    "plain": {n: n for n in ("norm1", "norm2", "qkv", "q", "k", "v", "out", "fc1", "fc2")},
    "other": {
        "norm1": "pre",
        "norm2": "mid",
        "qkv": "to_qkv",
        "q": "query",
        "k": "key",
        "v": "value",
        "out": "mix",
        "fc1": "grow",
        "fc2": "shrink",
    },
}


class Block(torch.nn.Module):
    def __init__(self, fused: bool, names: str) -> None:
        super().__init__()
        self.fused, self.names = fused, NAMES[names]
        parts: dict[str, Any] = {"norm1": torch.nn.LayerNorm(WIDTH), "norm2": torch.nn.LayerNorm(WIDTH)}
        if fused:
            parts["qkv"] = torch.nn.Linear(WIDTH, 3 * WIDTH)
        else:
            parts |= {name: torch.nn.Linear(WIDTH, WIDTH) for name in "qkv"}
        parts |= {"out": torch.nn.Linear(WIDTH, WIDTH), "fc1": torch.nn.Linear(WIDTH, HIDDEN)}
        parts["fc2"] = torch.nn.Linear(HIDDEN, WIDTH)
        for name, part in parts.items():
            setattr(self, self.names[name], part)

    def part(self, name: str) -> Any:
        return getattr(self, self.names[name])

    def forward(self, x: Any) -> Any:
        y = self.part("norm1")(x)
        made = self.part("qkv")(y).chunk(3, -1) if self.fused else [self.part(name)(y) for name in "qkv"]
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in made)
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + self.part("out")(mixed.transpose(1, 2).flatten(2))
        return x + self.part("fc2")(torch.tanh(self.part("fc1")(self.part("norm2")(x))))


class Net(torch.nn.Module):
    def __init__(self, seed: int, fused: bool, order: Sequence[int], count: int = 4, names: str = "plain") -> None:
        super().__init__()
        self.order = order
        self.blocks = torch.nn.ModuleList([Block(fused, names) for _ in range(count)])
        self.head = torch.nn.Linear(WIDTH, 7)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)

    def forward(self, x: Any) -> Any:
        for place in self.order:
            x = self.blocks[place](x)
        return self.head(x)


ORDERS = {
    "exchanged": (0, 2, 1, 3),
    "backwards": (3, 2, 1, 0),
    "one left out": (0, 1, 3),
    "the last left out": (0, 1, 2),
    "one twice": (0, 1, 1, 2, 3),
    "one in the place of another": (0, 0, 2, 3),
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("case", ORDERS)
def test_every_block_keeps_its_own(case: str, swap: bool, fused: bool, names: str) -> None:
    right, wrong = Net(1, False, range(4)), Net(2, fused, ORDERS[case], names=names)
    base, raw = (wrong, right) if swap else (right, wrong)
    result = padiff.compare(base, raw, X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("", ""), str(result)
    assert result.plan is not None
    for entry in result.plan.entries:
        where = {entry.path.split(".")[1], *(source.path.split(".")[1] for source in entry.sources)}
        assert len(where) == 1 or entry.path.startswith("head"), str(entry)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("fused", [False, True])
def test_a_block_too_many_is_named(fused: bool, names: str) -> None:
    base, raw = Net(1, False, range(3), 3), Net(2, fused, range(4), names=names)
    with pytest.raises(WeightError) as caught:
        padiff.compare(base, raw, X)
    text = str(caught.value)
    assert "no module of base corresponds to blocks.3 (Block) of raw" in text
    assert "base would have it in blocks (ModuleList)" in text
    before = {name: tensor.clone() for name, tensor in raw.state_dict().items()}
    with pytest.raises(WeightError):
        padiff.plan_weights(base, raw, X).apply()
    assert all(torch.equal(tensor, before[name]) for name, tensor in raw.state_dict().items())


@pytest.mark.parametrize("fused", [False, True])
def test_a_block_too_few_is_listed(fused: bool) -> None:
    result = padiff.compare(Net(1, False, range(4)), Net(2, fused, range(3), 3, names="other"), X)
    assert not result.aligned
    left = {one.path for one in result.unmatched if one.side == "base" and one.kind == "parameter"}
    assert left == {f"blocks.3.{name}" for name, _ in Block(False, "plain").named_parameters()}


def kernel(names: Sequence[str], stride: int) -> torch.nn.Module:
    conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, stride, 1, groups=WIDTH, bias=False)
    return torch.nn.Sequential(OrderedDict(zip(names, (conv, torch.nn.BatchNorm1d(WIDTH)), strict=True)))


class Mixing(torch.nn.Module):
    """Attention between what kernels make of its input, in the order that is said."""

    def __init__(self, names: Sequence[str], order: Sequence[int], parts: Sequence[str]) -> None:
        super().__init__()
        self.names, self.order = names, order
        for name, stride in zip(names, (1, 2, 2), strict=True):
            setattr(self, name, kernel(parts, stride))
        self.norm, self.out = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        order = [self.names[place] for place in self.order]
        y = self.norm(x).transpose(1, 2)
        made = {name: getattr(self, name)(y) for name in order}
        q, k, v = (made[name] for name in self.names)
        return x + self.out((q.transpose(1, 2) @ k).softmax(-1) @ v.transpose(1, 2))


class Staged(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        names = ("projection_query", "projection_key", "projection_value")
        blocks = [Mixing(names, (1, 0, 2), ("conv", "norm")) for _ in range(3)]
        self.stages = torch.nn.ModuleList(
            [*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2)), torch.nn.Sequential(*blocks)]
        )

    def forward(self, x: Any) -> Any:
        for stage in self.stages:
            x = stage(x)
        return x


class StagedApart(torch.nn.Module):
    """The same with stages under names of their own, and queries made first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stage0, self.stage1 = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.stage2 = torch.nn.Sequential(*(Mixing(("proj_q", "proj_k", "proj_v"), (0, 1, 2), "01") for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.stage2(self.stage1(self.stage0(x)))


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_used_in_another_order_stays_in_its_block(swap: bool) -> None:
    pair = (Staged(0).eval(), StagedApart(1).eval())
    base, raw = pair[::-1] if swap else pair
    assert padiff.compare(base, raw, X).aligned
    (raw.stages[2] if swap else raw.stage2)[1].norm.eps = 1e-2
    found = padiff.compare(base, raw, X).divergence
    assert found is not None
    assert found.raw_path == ("stages.2.1.norm" if swap else "stage2.1.norm")
