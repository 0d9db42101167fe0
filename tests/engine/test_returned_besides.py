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


class Attend(torch.nn.Module):
    """May return keys and values besides, to be kept."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.keeps = *(torch.nn.Linear(6, 6) for _ in range(3)), keeps

    def forward(self, x: Any, other: Any = None, mask: Any = None) -> Any:
        k, v = self.k(x if other is None else other), self.v(x if other is None else other)
        scores = self.q(x) @ k.transpose(-1, -2)
        scores = scores if mask is None else scores + (1.0 - mask[:, None]) * -1e4
        found = torch.softmax(scores, -1) @ v
        return (found, k, v) if self.keeps and other is not None else (found,)


class Mixed(torch.nn.Module):
    def __init__(self, keeps: bool, slope: float) -> None:
        super().__init__()
        self.own, self.cross, self.slope = Attend(keeps), Attend(keeps), slope
        self.up, self.down = torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)

    def forward(self, x: Any, other: Any, mask: Any = None) -> Any:
        x = x + self.own(x, mask=mask)[0]
        x = x + self.cross(x, other)[0]
        return x + self.down(torch.nn.functional.leaky_relu(self.up(x), self.slope))


class Reader(torch.nn.Module):
    """Its port keeps what it attends to in the second half, and leaves nothing out of the first."""

    def __init__(self, port: bool = False, slope: float = 0.1) -> None:
        super().__init__()
        self.port, self.first = port, Attend(port)
        self.blocks = torch.nn.ModuleList(Mixed(port, slope if k == 1 else 0.1) for k in range(3))

    def forward(self, x: Any) -> Any:
        other = self.first(x)[0]
        mask = {"mask": torch.ones(x.shape[:2])} if self.port else {}
        for block in self.blocks:
            x = block(x, other, **mask)
        return x


def test_what_is_kept_by_some_of_a_class_and_a_mask_of_nothing_are_no_place() -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
    assert padiff.compare(Reader(), Reader(port=True), x).aligned
    found = padiff.compare(Reader(), Reader(port=True, slope=0.4), x).divergence
    assert found is not None and found.raw_path == "blocks.1", str(found)
    assert found.op is not None and found.op.raw_line is not None and "leaky_relu" in found.op.raw_line.text


class Balanced(torch.nn.Module):
    """Returns a loss of its own besides."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.linear = torch.nn.Linear(6, 4), torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        shares = torch.softmax(self.gate(x), -1)
        return self.linear(x) * shares.max(-1, keepdim=True).values, (shares.mean(0) ** 2).sum() * 4


class BalancedBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = torch.nn.LayerNorm(6), Balanced()

    def forward(self, x: Any) -> Any:
        more, loss = self.mix(self.norm(x))
        return x + more, loss


class BalancedNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(BalancedBlock() for _ in range(4))

    def forward(self, x: Any) -> Any:
        total = 0.0
        for block in self.blocks:
            x, loss = block(x)
            total = total + loss
        return x, 0.1 * total


class Sparse(paddle.nn.Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.router, self.factor = paddle.nn.Linear(6, 6), paddle.nn.Linear(6, 4), factor

    def forward(self, x: Any) -> Any:
        shares = paddle.nn.functional.softmax(self.router(x), axis=-1)
        loss = paddle.sum(paddle.square(shares.mean(axis=0))) * self.factor
        return self.fc(x) * shares.max(axis=-1, keepdim=True), loss


class SparseLayer(paddle.nn.Layer):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.sparse, self.ln = Sparse(factor), paddle.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        more, loss = self.sparse(self.ln(x))
        return x + more, loss


class SparseNet(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.layers = paddle.nn.LayerList([SparseLayer(1.0 if bug == "inside" and n == 2 else 4.0) for n in range(4)])

    def forward(self, x: Any) -> Any:
        losses = []
        for layer in self.layers:
            x, loss = layer(x)
            losses.append(loss)
        return x, 0.1 * paddle.stack(losses[1:] if self.bug == "around" else losses).sum()


@pytest.mark.parametrize(("bug", "place"), [("", None), ("inside", "layers.2.sparse"), ("around", "")])
def test_losses_that_are_gathered_and_then_added_up(bug: str, place: str | None) -> None:
    """Base adds them up as they come: whoever returns a wrong one, through a block that hands it on, is named."""
    torch.manual_seed(0)
    found = padiff.compare(BalancedNet(), SparseNet(bug), X).divergence
    assert (None if found is None else found.raw_path) == place, str(found)


class Seen(torch.nn.Module):
    """Returns what is pooled besides."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm, self.post = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        x = self.norm(x + torch.relu(self.mix(x)))
        return x, self.post(x.amax(1))


class Matched(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.read = Seen(), Seen()
        self.of_seen, self.of_read = (torch.nn.Linear(6, 4, bias=False) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        seen, read = self.of_seen(self.seen(x)[1]), self.of_read(self.read(y)[1])
        return torch.nn.functional.normalize(seen, dim=-1) @ torch.nn.functional.normalize(read, dim=-1).T


class Tower(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.fc, self.ln, self.ln_post = paddle.nn.Linear(6, 6), paddle.nn.LayerNorm(6), paddle.nn.LayerNorm(6)
        self.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.ln(x + paddle.nn.functional.relu(self.fc(x)))
        return x, x.max(1) if self.bug == "norm" else self.ln_post(x.max(1))


class Towers(paddle.nn.Layer):
    """Projects by itself."""

    def __init__(self, bug: str) -> None:
        super().__init__()
        self.image, self.text, self.bug = Tower(bug), Tower(""), bug
        self.image_projection, self.text_projection = (self.create_parameter((6, 4)) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        image, text = self.image(x)[1], self.text(y)[1]
        image = paddle.matmul(image, self.image_projection)
        text = paddle.matmul(text, self.text_projection)
        image = image if self.bug == "whole" else image / image.norm(axis=-1, keepdim=True)
        return image @ (text / text.norm(axis=-1, keepdim=True)).T


@pytest.mark.parametrize(("bug", "place"), [("", None), ("norm", ("image", "forward")), ("whole", ("", "forward"))])
def test_what_the_caller_projects_in_its_own_way(bug: str, place: tuple[str, str] | None) -> None:
    torch.manual_seed(0)
    paddle.seed(0)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 6)).astype("float32")
    found = padiff.compare(Matched(), Towers(bug), (x[0], x[1])).divergence
    assert (None if found is None else (found.raw_path, found.phase)) == place, str(found)


def test_what_base_projects_with_parameters_of_its_own() -> None:
    torch.manual_seed(0)
    paddle.seed(0)
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 6)).astype("float32")
    assert padiff.compare(Towers(""), Matched(), (x[0], x[1])).aligned
