"""A torch network, its paddle port with one mistake, and the place of the mistake."""

import numpy as np
import paddle
import torch

import padiff


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.act = torch.nn.GELU()
        self.head = torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.act(self.norm(self.embed(x))))


class PaddleNet(paddle.nn.Layer):
    def __init__(self, epsilon):
        super().__init__()
        self.embed = paddle.nn.Linear(16, 32)
        self.norm = paddle.nn.LayerNorm(32, epsilon=epsilon)
        self.act = paddle.nn.GELU()
        self.head = paddle.nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.act(self.norm(self.embed(x))))


x = np.random.default_rng(0).normal(size=(8, 16)).astype("float32")
base = TorchNet()

wrong = padiff.compare(base, PaddleNet(epsilon=1e-3), x)
wrong.show()
assert wrong.divergence.raw_path == "norm"

mended = padiff.compare(base, PaddleNet(epsilon=1e-5), x)
mended.show()
mended.save("report.json")
assert mended.aligned
