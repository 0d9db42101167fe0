"""What a module returns besides and its caller adds up: where that is wrong, it is the module."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")


class Flow(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        scale = torch.tanh(self.linear(x))
        return x * torch.exp(scale), scale.sum(-1)


class Flows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(Flow() for _ in range(3))

    def forward(self, x: Any) -> Any:
        total = torch.zeros(3)
        for step in self.steps:
            x, one = step(x)
            total = total + one
        return (x * x).sum(-1) * 0.5 - total


class Step(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc, self.bug = paddle.nn.Linear(6, 6), bug

    def forward(self, x: Any) -> Any:
        s = paddle.tanh(self.fc(x))
        total = s.mean(-1) if self.bug == "mean" else s.sum(-1)
        return x * paddle.exp(s), total


class Port(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.flows, self.bug = paddle.nn.LayerList([Step(bug if k == 1 else "") for k in range(3)]), bug

    def forward(self, x: Any) -> Any:
        logs = 0.0
        for flow in self.flows:
            x, one = flow(x)
            logs = logs - one if self.bug == "sign" and flow is self.flows[1] else logs + one
        return (x * x).sum(-1) * 0.5 - logs


@pytest.mark.parametrize(("bug", "place", "line"), [("mean", "flows.1", "total = s.mean"), ("sign", "", "logs = logs")])
def test_who_returned_it_or_who_adds_it_up(bug: str, place: str, line: str) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Flows(), Port(bug), X).divergence
    assert found is not None and found.raw_path == place, str(found)
    assert found.op is not None and found.op.raw_line is not None and found.op.raw_line.text.startswith(line)


class Pool(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.dense(x[:, 0]))


class Words(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm, self.pooler = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), Pool()

    def forward(self, x: Any) -> Any:
        x = self.norm(x + torch.relu(self.mix(x)))
        return x, self.pooler(x)


class Said(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = Words(), torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x)[1])


class Pooler(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.bug = bug
        if bug != "dense":
            self.proj = paddle.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        if self.bug == "dense":
            return x[:, 0]
        return self.proj(x[:, 0]) if self.bug == "tanh" else paddle.tanh(self.proj(x[:, 0]))


class Backbone(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc, self.ln, self.pooler = paddle.nn.Linear(6, 6), paddle.nn.LayerNorm(6), Pooler(bug)

    def forward(self, x: Any) -> Any:
        x = self.ln(x + paddle.nn.functional.relu(self.fc(x)))
        return x, self.pooler(x)


class Speech(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.backbone, self.classifier = Backbone(bug), paddle.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.backbone(x)[1])


@pytest.mark.parametrize("bug", ["dense", "tanh"])
def test_what_a_call_hands_on_besides_is_of_the_one_inside_that_returned_it(bug: str) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
    assert padiff.compare(Said(), Speech(""), x).aligned
    found = padiff.compare(Said(), Speech(bug), x).divergence
    assert found is not None and found.raw_path == "backbone.pooler", str(found)
