"""Three projections against one fused: paired without a map, and a wrong order of the parts is still found."""

import numpy as np
import paddle
import torch

import padiff

WIDTH, HEADS = 24, 4


class Separate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(WIDTH, WIDTH)
        self.key = torch.nn.Linear(WIDTH, WIDTH)
        self.value = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
        return self.norm(x + self.out(mixed.transpose(1, 2).flatten(2)))


class Fused(paddle.nn.Layer):
    def __init__(self, order=(0, 1, 2)):
        super().__init__()
        self.order = order
        self.ln = paddle.nn.LayerNorm(WIDTH)
        self.proj = paddle.nn.Linear(WIDTH, WIDTH)
        self.qkv = paddle.nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        parts = self.qkv(x).reshape([0, 0, 3, HEADS, WIDTH // HEADS]).transpose([2, 0, 3, 1, 4])
        q, k, v = (parts[place] for place in self.order)
        mixed = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) / q.shape[-1] ** 0.5, -1) @ v
        return self.ln(x + self.proj(mixed.transpose([0, 2, 1, 3]).flatten(2)))


base, raw = Separate(), Fused()
x = np.random.default_rng(0).normal(size=(2, 7, WIDTH)).astype("float32")

plan = padiff.plan_weights(base, raw, x)
print(plan)
plan.save("convert.py")
np.savez("source.npz", **{name: tensor.numpy() for name, tensor in base.state_dict().items()})

result = padiff.compare(base, raw, x)
result.show()
print("compared:", result.coverage)
assert result.aligned

wrong = padiff.compare(base, Fused(order=(1, 0, 2)), x)
wrong.show()
assert wrong.divergence is not None
