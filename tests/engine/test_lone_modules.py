"""Modules of raw that base has none for: what goes wrong in them, and what their code makes go wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff

WIDTH = 8
ROWS = np.random.default_rng(0).normal(size=(2, 6, WIDTH)).astype("float32")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.drop = nn.Dropout(0.0)
        self.a, self.act, self.b = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        x = x + self.drop(self.attend(y, y, y, need_weights=False)[0])
        return x + self.b(self.act(self.a(x)))


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any) -> Any:
        q, k, v = (one(x).unflatten(-1, (2, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = torch.softmax(q @ k.transpose(-2, -1) / (WIDTH // 2) ** 0.5, -1) @ v
        return mixed.transpose(1, 2).flatten(2)


class Output(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        return self.drop(self.dense(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores, self.output = Scores(), Output()

    def forward(self, x: Any) -> Any:
        return self.output(self.scores(x))


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.act, self.twice = nn.Linear(WIDTH, WIDTH), nn.GELU(), False
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        x = self.drop(self.act(self.dense(x)))
        return self.act(x) if self.twice else x


class Port(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.wider, self.narrower = Wider(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.narrower(self.wider(x))


def pair() -> tuple[Any, Any]:
    return nn.Sequential(*(Block() for _ in range(3))).eval(), nn.Sequential(*(Port() for _ in range(3))).eval()


def test_who_calls_a_layer_once_more() -> None:
    base, raw = pair()
    assert padiff.compare(base, raw, ROWS).aligned
    raw[1].wider.twice = True
    found = padiff.compare(base, raw, ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", "1.wider")


def test_a_layer_that_does_what_code_of_base_does() -> None:
    base, raw = pair()
    raw[1].attention.output.dense.register_forward_hook(lambda module, given, output: output * 1.001)
    found = padiff.compare(base, raw, ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", "1.attention.output.dense"), str(found)


def test_a_layer_that_passes_on_what_it_is_given() -> None:
    base, raw = pair()
    raw[1].wider.drop.register_forward_hook(lambda module, given, output: output * 1.001)
    found = padiff.compare(base, raw, ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", "1.wider.drop"), str(found)


class Summed(nn.Module):
    """All in one."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.shift = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Any) -> Any:
        scores = torch.tanh(torch.relu(self.out(x)) + self.shift)
        return torch.logsumexp(scores * 2.0, 1)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.bug = nn.Parameter(torch.randn(WIDTH)), ""

    def forward(self, x: Any) -> Any:
        x = x + self.shift
        x = x if self.bug == "inside" else torch.tanh(x)
        return torch.logsumexp(x * 2.0, 1)


class Apart(nn.Module):
    """The same, its end in a module of its own."""

    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.pool, self.out, self.bug = Pooled(), nn.Linear(WIDTH, WIDTH), bug
        self.pool.bug = bug

    def forward(self, x: Any) -> Any:
        x = self.out(x)
        return self.pool(x if self.bug == "around" else torch.relu(x))


@pytest.mark.parametrize(("bug", "path"), [("inside", "pool"), ("around", "")])
def test_what_a_module_of_raws_own_leaves_out(bug: str, path: str) -> None:
    """It is the module's doing where that goes on with what it has made itself, and its caller's where not."""
    torch.manual_seed(0)
    base = Summed()
    assert padiff.compare(base, Apart(), ROWS).aligned
    found = padiff.compare(base, Apart(bug), ROWS).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("forward", path), str(found)
    assert found.op is not None and found.op.raw == ""


class FirstPlace(torch.nn.Module):
    """Base takes the first place as it is; a head follows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)
        self.dense, self.out = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.norm(x + torch.sin(self.mix(x)))
        return self.out(torch.relu(self.dense(x[:, 0])))


class ExtraPooling(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.tanh = paddle.nn.Linear(6, 6), paddle.nn.Tanh()

    def forward(self, x: Any) -> Any:
        return self.tanh(self.proj(x[:, 0]))


class PooledPlace(paddle.nn.Layer):
    """Pools before the head, which base does not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.ln, self.pooling = paddle.nn.Linear(6, 6), paddle.nn.LayerNorm(6), ExtraPooling()
        self.hidden, self.last = paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.ln(x + paddle.sin(self.fc(x)))
        return self.last(paddle.nn.functional.relu(self.hidden(self.pooling(x))))


def test_a_module_of_several_steps_that_base_has_nothing_of_is_named_as_a_whole() -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")
    found = padiff.compare(FirstPlace(), PooledPlace(), x).divergence
    assert found is not None and (found.raw_path, found.phase) == ("pooling", "forward"), str(found)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.fc(self.norm(x))


class Once(nn.Module):
    """Blocks with their layers in them, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.Sequential(Flat(), Flat())

    def forward(self, x: Any) -> Any:
        return self.leave(self.blocks(self.enter(x)))


class Adding(nn.Module):
    """Base has none: it adds in the block around."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)

    def forward(self, x: Any, residual: Any) -> Any:
        return self.drop(self.dense(x)) + residual


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.output = nn.LayerNorm(WIDTH), Adding()

    def forward(self, x: Any) -> Any:
        return self.output(self.before(x), x)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Step() for _ in range(2))

    def forward(self, x: Any) -> Any:
        for step in self.layer:
            x = step(x)
        return x


class Stage(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.first, self.steps, self.times = nn.Linear(WIDTH, WIDTH), Steps(), times

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for _ in range(self.times):
            x = self.steps(x)
        return x


class Staged(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.stage, self.head = Stage(times), nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.stage(x))


def test_modules_that_are_called_once_more_are_not_named_but_who_calls_them() -> None:
    torch.manual_seed(0)
    assert padiff.compare(Once(), Staged(1), ROWS).aligned
    found = padiff.compare(Once(), Staged(2), ROWS).divergence
    assert found is not None and found.raw_path == "stage", str(found)
