"""Three training steps side by side; a mistake in the optimizer shows in the second."""

import numpy as np
import paddle
import torch

import padiff


def torch_net():
    return torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def paddle_net():
    return paddle.nn.Sequential(paddle.nn.Linear(12, 20), paddle.nn.Tanh(), paddle.nn.Linear(20, 3))


random = np.random.default_rng(0)
x = random.normal(size=(8, 12)).astype("float32")
label = random.integers(0, 3, size=8)
losses = (
    lambda out: torch.nn.functional.cross_entropy(out, torch.as_tensor(label)),
    lambda out: paddle.nn.functional.cross_entropy(out, paddle.to_tensor(label)),
)


def compare(optimizer_of_raw):
    base, raw = torch_net(), paddle_net()
    optimizers = (torch.optim.SGD(base.parameters(), lr=0.1, momentum=0.9), optimizer_of_raw(raw.parameters()))
    return padiff.compare(base, raw, x, loss=losses, optimizers=optimizers, steps=3)


wrong = compare(lambda parameters: paddle.optimizer.SGD(0.1, parameters=parameters))
wrong.show()
assert (wrong.divergence.phase, wrong.divergence.step) == ("weight", 1)

right = compare(lambda parameters: paddle.optimizer.Momentum(0.1, momentum=0.9, parameters=parameters))
right.show()
assert right.aligned
