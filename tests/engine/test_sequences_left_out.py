"""What a sequence of modules leaves out, where base calls all layers of a block by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.localise.counted import counting
from torch import nn

import padiff

PICTURE = torch.randn(2, 6, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Normed(nn.BatchNorm2d):
    """With its activation."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.ReLU6(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.act(super().forward(x))


class Flat(nn.Module):
    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(6, 12, 1, bias=False), Normed(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 12, 3, stride, 1, groups=12, bias=False), Normed(12)
        self.conv3, self.bn3, self.adds = nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6), stride == 1

    def forward(self, x: Any) -> Any:
        y = self.bn3(self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x))))))
        return x + y if self.adds else y


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Sequential(Flat(), Flat(2), Flat()), nn.Sequential(Flat(), Flat()))
        self.last, self.norm, self.fc = nn.Conv2d(6, 8, 1, bias=False), Normed(8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.last(self.stages(x)))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Steps(nn.Sequential):
    skip = -1

    def forward(self, x: Any) -> Any:
        for place, step in enumerate(self):
            x = x if place == self.skip else step(x)
        return x


def layer(given: int, made: int, size: int, stride: int = 1) -> Steps:
    groups = made if size > 1 else 1
    conv = nn.Conv2d(given, made, size, stride, size // 2, groups=groups, bias=False)
    return Steps(conv, nn.BatchNorm2d(made), nn.ReLU6(inplace=True))


class Nested(nn.Module):
    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        first, second = layer(6, 12, 1), layer(12, 12, 3, stride)
        self.conv = Steps(first, second, nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6))
        self.adds = stride == 1

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.adds else self.conv(x)


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = Steps(Nested(), Nested(2), Nested(), Nested(), Nested(), layer(6, 8, 1))
        self.head = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return self.head(nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1))


def pair(where: str = "", skip: int = -1) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(1)
    base, raw = Base().eval(), Raw().eval()
    for module in base.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.uniform_(0.5, 1.5)
    if where:
        steps = raw.get_submodule(where)
        assert isinstance(steps, Steps)
        steps.skip = skip
    return base, raw


@pytest.mark.parametrize(
    ("where", "skip"),
    [
        ("features.3.conv", 1),
        ("features.3.conv", 3),
        ("features.3.conv.0", 1),
        ("features.3.conv.0", 2),
        ("features.3.conv.1", 0),
        ("features.3.conv.1", 2),
        ("features", 2),
        ("features", 3),
        ("features.5", 1),
        ("features.5", 2),
    ],
)
def test_who_leaves_it_out_is_named(where: str, skip: int) -> None:
    assert padiff.compare(*pair(), PICTURE).aligned
    result = padiff.compare(*pair(where, skip), PICTURE)
    assert result.divergence is not None
    assert (result.divergence.phase, result.divergence.raw_path) == ("forward", where), str(result.divergence)


# ------------------------------------------------------------------ layers whose sizes add up to another's


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.self_attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(x).reshape(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        made = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.proj(made.transpose(1, 2).reshape(2, 5, 8))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class Together(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(8), Fused(), nn.LayerNorm(8)
        self.mlp, self.leaves_out = Mlp(), False

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        x = x + (y if self.leaves_out else self.attn(y))
        return x + self.mlp(self.norm2(x))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_key_and_value_are_no_feed_forward(place: int) -> None:
    """As wide together as one; nor does an option of what raw never uses have raw run again."""
    torch.manual_seed(0)
    base = nn.Sequential(Apart(), Apart(), Apart())
    blocks = [Together() for _ in range(3)]
    blocks[place].leaves_out = True
    raw = nn.Sequential(*blocks)
    with counting(base, raw) as runs:
        result = padiff.compare(base, raw, ROWS)
    assert result.divergence is not None
    assert result.divergence.raw_path == str(place), str(result.divergence)
    assert max(runs.plain()) <= 4.0
    assert runs.plain()[1] <= 3.0
    sources = {entry.path: {source.path for source in entry.sources} for entry in result.plan.entries}
    assert sources[f"{place}.mlp.fc1.weight"] == {f"{place}.mlp.0.weight"}
