"""Modules beside each other that are called the other way round: what shapes tell of one layer, the rest follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch

import padiff


class Head(torch.nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(4) for _ in range(2)])
        self.pred = torch.nn.Conv2d(4, outputs, 1)

    def forward(self, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        return self.pred(x)


class Detector(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.cls_head, self.box_head = torch.nn.Conv2d(3, 4, 3), Head(6), Head(2)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return {"classes": self.cls_head(x), "boxes": self.box_head(x)}


class PaddleHead(paddle.nn.Layer):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.towers = paddle.nn.LayerList([paddle.nn.Conv2D(4, 4, 3, padding=1) for _ in range(2)])
        self.bns = paddle.nn.LayerList([paddle.nn.BatchNorm2D(4) for _ in range(2)])
        self.final = paddle.nn.Conv2D(4, outputs, 1)

    def forward(self, x: Any) -> Any:
        for conv, norm in zip(self.towers, self.bns, strict=True):
            x = paddle.nn.functional.relu(norm(conv(x)))
        return self.final(x)


class PaddleDetector(paddle.nn.Layer):
    """Boxes first."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = paddle.nn.Conv2D(3, 4, 3)
        self.regressor, self.classifier = PaddleHead(2), PaddleHead(6)

    def forward(self, x: Any) -> Any:
        x = self.backbone(x)
        return {"boxes": self.regressor(x), "classes": self.classifier(x)}


def test_heads_called_the_other_way_round() -> None:
    torch.manual_seed(0)
    picture = np.random.default_rng(0).normal(size=(2, 3, 7, 6)).astype("float32")
    plan = padiff.plan_weights(Detector(), PaddleDetector(), picture)
    sources = {entry.path: entry.sources[0].path for entry in plan.entries}
    assert sources["regressor.towers.1.weight"] == "box_head.convs.1.weight"
    assert sources["classifier.bns.0._mean"] == "cls_head.norms.0.running_mean"
    assert not plan.unsure
    assert padiff.compare(Detector(), PaddleDetector(), picture).aligned
