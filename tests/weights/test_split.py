"""One convolution and its norm here, several with theirs there: stretches of kernels, norms, tables and their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 5, 4)).astype("float32")
F = paddle.nn.functional


class TConv(torch.nn.Sequential):
    def __init__(self, given: int, made: int, kernel: int = 1, groups: int = 1) -> None:
        super().__init__(
            torch.nn.Conv2d(given, made, kernel, padding=kernel // 2, groups=groups, bias=False),
            torch.nn.BatchNorm2d(made),
            torch.nn.SiLU(),
        )
        for norm in self[1].parameters():
            torch.nn.init.normal_(norm)


class Whole(torch.nn.Module):
    """One convolution whose channels are then cut, as in C2f."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.cv1, self.cv2 = TConv(6, 8), TConv(8 + 4 * depth, 6)
        self.m = torch.nn.ModuleList(TConv(4, 4, 3) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(parts[-1] + block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class PConv(paddle.nn.Layer):
    def __init__(self, given: int, made: int, kernel: int = 1) -> None:
        super().__init__()
        self.norm = paddle.nn.BatchNorm2D(made)
        self.conv = paddle.nn.Conv2D(given, made, kernel, padding=kernel // 2, bias_attr=False)
        self.bug = ""

    def forward(self, x: Any) -> Any:
        x = self.norm(self.conv(x))
        return F.relu(x) if self.bug == "act" else x * F.sigmoid(x)


class Parts(paddle.nn.Layer):
    """Two convolutions of half the channels, as in CSP; the one that goes round the blocks comes first, or last."""

    def __init__(self, depth: int = 1, late: bool = False) -> None:
        super().__init__()
        self.fuse = PConv(8 + 4 * depth, 6)
        self.main, self.short = PConv(6, 4), PConv(6, 4)
        self.blocks = paddle.nn.LayerList([PConv(4, 4, 3) for _ in range(depth)])
        self.late, self.bug = late, ""

    def forward(self, x: Any) -> Any:
        short = None if self.late else self.short(x)
        main = self.main(x)
        parts = [main]
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        short = self.short(x) if short is None else short
        if self.bug == "scale":
            short = short * 1.1
        return self.fuse(paddle.concat([short, *parts], 1))


class Flat(paddle.nn.Layer):
    """The same in one module, and both kernels before their norms."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.bn3, self.bn4 = (paddle.nn.BatchNorm2D(n) for n in (4, 4, 4, 6))
        self.conv1, self.conv2 = (paddle.nn.Conv2D(6, 4, 1, bias_attr=False) for _ in range(2))
        self.conv3 = paddle.nn.Conv2D(4, 4, 3, padding=1, bias_attr=False)
        self.conv4 = paddle.nn.Conv2D(12, 6, 1, bias_attr=False)

    def forward(self, x: Any) -> Any:
        short, main = self.conv1(x), self.conv2(x)
        short, main = F.silu(self.bn1(short)), F.silu(self.bn2(main))
        deep = main + F.silu(self.bn3(self.conv3(main)))
        return F.silu(self.bn4(self.conv4(paddle.concat([short, main, deep], 1))))


def both(base: Any, raw: Any, swap: bool) -> tuple[Any, Any]:
    return (raw, base) if swap else (base, raw)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("make", [Parts, lambda: Parts(2), lambda: Parts(2, late=True), Flat], ids=range(4))
def test_a_right_port_aligns(make: Any, swap: bool) -> None:
    port = make()
    base, raw = both(Whole(len(getattr(port, "blocks", [0]))), port, swap)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    compared = {(one.base_path, one.raw_path) for one in result.comparisons}
    assert any("cv1.0" in one + other and ("main.conv" in one + other or "conv2" in one + other) for one, other in compared)
    assert any("cv1.1" in one + other for one, other in compared)


def optimizers(base: Any, raw: Any) -> tuple[Any, Any]:
    made = [
        torch.optim.SGD(one.parameters(), 0.1)
        if isinstance(one, torch.nn.Module)
        else paddle.optimizer.SGD(0.1, one.parameters())
        for one in (base, raw)
    ]
    return made[0], made[1]


@pytest.mark.parametrize("swap", [False, True])
def test_steps_of_an_optimizer_are_compared(swap: bool) -> None:
    base, raw = both(Whole(), Parts(), swap)
    result = padiff.compare(base, raw, X, optimizers=optimizers(base, raw), steps=2)
    assert result.aligned, str(result)
    phases = {one.phase for one in result.comparisons if "cv1" in one.base_path + one.raw_path}
    assert phases == {"forward", "backward", "gradient", "weight", "buffer"}
