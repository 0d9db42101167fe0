"""Models in plain torch that paddle ships too: the pairs that need no library besides the frameworks.

The three CNNs follow the naming of torchvision, which paddle.vision.models follows as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import torch
from torch import nn

from tests.zoo.convert import BATCH_NORM, COUNTED, chained, renaming, split
from tests.zoo.prepare import calibrated, randomised, seeded

Models = tuple[Any, Any, Any]

CLASSES = 7


# ------------------------------------------------------------------ ResNet-18


class Residual(nn.Module):
    """Two convolutions around which the input is led, through a projection where sizes change."""

    def __init__(self, taken: int, given: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(taken, given, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(given)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(given, given, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(given)
        self.downsample: nn.Module | None = None
        if stride != 1 or taken != given:
            self.downsample = nn.Sequential(nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + around)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self.stage(64, 64, 1)
        self.layer2 = self.stage(64, 128, 2)
        self.layer3 = self.stage(128, 256, 2)
        self.layer4 = self.stage(256, 512, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, CLASSES)

    @staticmethod
    def stage(taken: int, given: int, stride: int) -> nn.Sequential:
        return nn.Sequential(Residual(taken, given, stride), Residual(given, given, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


# ------------------------------------------------------------------ VGG-11


class VGG11(nn.Module):
    """The convolutions; the classifier with its hundred million weights is left out on both sides."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, pooled in zip((64, 128, 256, 256, 512, 512, 512, 512), (1, 1, 0, 1, 0, 1, 0, 1), strict=True):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            if pooled:
                layers.append(nn.MaxPool2d(2, 2))
            channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        for layer in layers:
            if isinstance(layer, nn.Conv2d):  # the usual start fades on the way down
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.avgpool(self.features(x))


# ------------------------------------------------------------------ MobileNetV2


def normed(taken: int, given: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(taken, given, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(given), nn.ReLU6())


class Inverted(nn.Module):
    """Widen, convolve each channel, narrow."""

    def __init__(self, taken: int, given: int, stride: int, widening: int) -> None:
        super().__init__()
        wide = taken * widening
        layers: list[nn.Module] = [] if widening == 1 else [normed(taken, wide, 1)]
        layers += [normed(wide, wide, 3, stride, wide), nn.Conv2d(wide, given, 1, bias=False), nn.BatchNorm2d(given)]
        self.conv = nn.Sequential(*layers)
        self.around = stride == 1 and taken == given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.around else self.conv(x)


class MobileNetV2(nn.Module):
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    """Widening, channels, blocks, stride of the first."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [normed(3, 32, 3, 2)]
        channels = 32
        for widening, width, count, stride in self.STAGES:
            for block in range(count):
                layers.append(Inverted(channels, width, stride if block == 0 else 1, widening))
                channels = width
        layers.append(normed(channels, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


CNN = renaming(*BATCH_NORM, turned=r"(fc|classifier\.1)\.weight", dropped=COUNTED)


def _images(size: int) -> np.ndarray:
    return seeded().normal(size=(2, 3, size, size)).astype("float32")


def resnet18(small: bool, training: bool = False) -> Models:
    seeded()
    base, raw = ResNet18(), paddle.vision.models.resnet18(num_classes=CLASSES)
    calibrated(base, (6, 3, 64, 64))
    base.train(training)
    raw.train() if training else raw.eval()
    return base, raw, _images(64)


def vgg11(small: bool) -> Models:
    seeded()
    base, raw = VGG11(), paddle.vision.models.vgg11(num_classes=0)
    randomised(base)
    raw.eval()
    return base, raw, _images(48)


def mobilenet_v2(small: bool) -> Models:
    seeded()
    base, raw = MobileNetV2(), paddle.vision.models.mobilenet_v2(num_classes=CLASSES)
    calibrated(base, (6, 3, 64, 64))
    raw.eval()
    return base, raw, _images(64)


# ------------------------------------------------------------------ torch.nn and paddle.nn

VOCABULARY, WIDTH, STATES, HEADS, INNER = 97, 24, 20, 4, 40


class TorchReader(nn.Module):
    """Words to one of some classes, by the last states of a recurrent network of both directions."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, STATES, layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * STATES, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs, (_, _) = self.lstm(self.words(words))
        return self.head(outputs.mean(1))


class PaddleReader(paddle.nn.Layer):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = paddle.nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = paddle.nn.LSTM(WIDTH, STATES, layers, direction="bidirect")
        self.head = paddle.nn.Linear(2 * STATES, CLASSES)

    def forward(self, words: Any) -> Any:
        outputs, (_, _) = self.lstm(self.words(words))
        return self.head(outputs.mean(1))


def _words(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, VOCABULARY, size=(2, length))


def lstm(small: bool) -> Models:
    seeded()
    layers = 2 if small else 6
    # In training: paddle's LSTM keeps nothing for backward otherwise. There is no dropout.
    return TorchReader(layers).train(), PaddleReader(layers), _words(11)


def _cells(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """paddle's LSTM lists its weights twice: under torch's names and under those of its cells."""
    found = renaming(turned=r"head\.weight")(state)
    by_cell = renaming(
        (r"_l(\d+)_reverse$", r"@\1.cell_bw"),
        (r"_l(\d+)$", r"@\1.cell_fw"),
        (r"^lstm\.(\w+)@(.*)$", r"lstm.\2.\1"),
    )
    return found | by_cell({name: array for name, array in state.items() if name.startswith("lstm.")})


LSTM = _cells


class TorchTranslator(nn.Module):
    """Encoder and decoder between an embedding and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, WIDTH)
        self.target = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, HEADS, layers, layers, INNER, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.transformer(self.source(source), self.target(target)))


class PaddleTranslator(paddle.nn.Layer):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.source = paddle.nn.Embedding(VOCABULARY, WIDTH)
        self.target = paddle.nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = paddle.nn.Transformer(WIDTH, HEADS, layers, layers, INNER, 0.0)
        self.head = paddle.nn.Linear(WIDTH, CLASSES)

    def forward(self, source: Any, target: Any) -> Any:
        return self.head(self.transformer(self.source(source), self.target(target)))


def transformer(small: bool) -> Models:
    seeded()
    layers = 2 if small else 6
    base, raw = TorchTranslator(layers), PaddleTranslator(layers)
    randomised(base)
    raw.eval()
    return base, raw, {"source": _words(11), "target": _words(9)}


TRANSFORMER = chained(
    split(r"(.*attn)\.in_proj_(weight|bias)", *(rf"\1.{part}_proj.\2" for part in "qkv")),
    renaming((r"multihead_attn", "cross_attn"), turned=r".*(proj|linear\d|head)\.weight"),
)
