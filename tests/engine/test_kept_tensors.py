"""What a module returns and its caller drops may come back: a hook of the user's keeps it for the model's result."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS


class TorchAttention(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.scale = torch.nn.Linear(6, 6), scale

    def forward(self, x: Any) -> Any:
        weights = torch.softmax(self.query(x) @ x.transpose(-1, -2) * self.scale, -1)
        return weights @ x, weights


class TorchBlock(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attention, self.norm = TorchAttention(scale), torch.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.attention(x)[0])


class TorchModel(torch.nn.Module):
    def __init__(self, *scales: float) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(TorchBlock(scale) for scale in scales)
        self.kept: list[Any] = []
        for block in self.blocks:
            block.attention.register_forward_hook(lambda module, args, output: self.kept.append(output[1]))

    def forward(self, x: Any) -> Any:
        self.kept.clear()
        for block in self.blocks:
            x = block(x)
        return {"hidden": x, "attentions": tuple(self.kept)}


class PaddleAttention(paddle.nn.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.scale = paddle.nn.Linear(6, 6), scale

    def forward(self, x: Any) -> Any:
        weights = paddle.nn.functional.softmax(self.query(x) @ x.transpose([0, 2, 1]) * self.scale, -1)
        return weights @ x, weights


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.attention, self.norm = PaddleAttention(scale), paddle.nn.LayerNorm(6)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.attention(x)[0])


class PaddleModel(paddle.nn.Layer):
    def __init__(self, *scales: float) -> None:
        super().__init__()
        self.blocks = paddle.nn.LayerList([PaddleBlock(scale) for scale in scales])
        self.kept: list[Any] = []
        for block in self.blocks:
            block.attention.register_forward_post_hook(lambda layer, args, output: self.kept.append(output[1]))

    def forward(self, x: Any) -> Any:
        self.kept.clear()
        for block in self.blocks:
            x = block(x)
        return {"hidden": x, "attentions": tuple(self.kept)}


MODELS: dict[str, Any] = {"torch": TorchModel, "paddle": PaddleModel}


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")


@pytest.mark.parametrize("phase", ["forward", "both"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_it_is_compared_where_it_comes_back(base: str, raw: str, phase: Any) -> None:
    result = padiff.compare(MODELS[base](0.4, 0.4, 0.4), MODELS[raw](0.4, 0.4, 0.4), batch(), phase=phase)
    assert result.aligned, result.notes
    assert not result.notes
    outputs = [one for one in result.comparisons if one.raw_path == "" and one.role == "output"]
    returned = [one.name for one in outputs if one.phase == "forward"]
    assert returned == ["hidden", "attentions.0", "attentions.1", "attentions.2"]


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_the_module_that_made_it_is_named(base: str, raw: str) -> None:
    found = padiff.compare(MODELS[base](0.4, 0.4, 0.4), MODELS[raw](0.4, 0.5, 0.4), batch()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("blocks.1.attention", "forward")


class Table(torch.nn.Module):
    """Computes a table from a parameter when it first runs, and keeps it, graph and all."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.linear = torch.nn.Parameter(torch.randn(3, 6)), torch.nn.Linear(6, 6)
        self.cache: dict[str, Any] = {}
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        if str(x.device) not in self.cache:
            self.cache[str(x.device)] = self.weight.exp()
        self.last = self.linear(x)
        return self.last + self.cache[str(x.device)].sum(0)


class Plain(paddle.nn.Layer):
    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.fc, self.table, self.sign = paddle.nn.Linear(6, 6), self.create_parameter([3, 6]), sign

    def forward(self, x: Any) -> Any:
        return self.fc(x) + self.sign * self.table.exp().sum(0)


def test_a_table_computed_once_is_computed_in_every_run() -> None:
    base = Table()
    assert padiff.compare(base, Plain(), np.ones((2, 6), "float32")).aligned
    assert base.cache == {} and base.last is None
    place = padiff.compare(base, Plain(-1.0), np.ones((2, 6), "float32")).divergence
    assert place is not None and (place.raw_path, place.phase) == ("", "forward")


class Lengthened(torch.nn.Module):
    """Keeps a table, and for how many rows it was made."""

    def __init__(self, sign: float = 1.0) -> None:
        super().__init__()
        self.linear, self.sign = torch.nn.Linear(6, 6), sign
        self.rows: int | None = None
        self.table: Any = None

    def forward(self, x: Any) -> Any:
        if self.rows != len(x):
            self.rows, self.table = len(x), torch.arange(len(x)).cos()[:, None]
        return self.linear(x) + self.sign * self.table.to(x.dtype)


def test_what_tells_of_a_table_goes_with_it() -> None:
    base, raw = Lengthened(), Lengthened(-1.0)
    result = padiff.compare(base, raw, np.ones((4, 6), "float32"))
    assert result.divergence is not None and result.divergence.raw_path == ""
    assert not any("could not be run" in note for note in result.notes), result.notes
    assert (base.rows, base.table, raw.rows, raw.table) == (None, None, None, None)
