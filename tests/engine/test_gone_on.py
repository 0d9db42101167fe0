"""What one author does inside of a module and the other behind it is not why something later is slightly wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

IDS = np.random.default_rng(0).integers(0, 30, (2, 7))


class Scaled(torch.nn.Embedding):
    def forward(self, ids: Any) -> Any:
        return super().forward(ids) * 4.0


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = torch.nn.LayerNorm(16), torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)
        self.act = torch.nn.GELU()

    def forward(self, x: Any) -> Any:
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


class Coder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = Scaled(30, 16), torch.nn.Embedding(7, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.embed(ids) + self.place(torch.arange(7)))
        for block in self.blocks:
            x = block(x)
        return x


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Coder(), Coder()
        self.decoder.embed.weight = self.encoder.embed.weight

    def forward(self, ids: Any) -> Any:
        return self.encoder(ids) + self.decoder(ids)


class Layer(paddle.nn.Layer):
    def __init__(self, approximate: bool) -> None:
        super().__init__()
        self.ln, self.up, self.down = paddle.nn.LayerNorm(16), paddle.nn.Linear(16, 24), paddle.nn.Linear(24, 16)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return x + self.down(paddle.nn.functional.gelu(self.up(self.ln(x)), approximate=self.approximate))


class Half(paddle.nn.Layer):
    def __init__(self, words: Any, wrong: int) -> None:
        super().__init__()
        self.words, self.places, self.ln = words, paddle.nn.Embedding(7, 16), paddle.nn.LayerNorm(16)
        self.layers = paddle.nn.LayerList([Layer(k == wrong) for k in range(3)])

    def forward(self, ids: Any) -> Any:
        x = self.ln(self.words(ids) * 4.0 + self.places(paddle.arange(7)))
        for layer in self.layers:
            x = layer(x)
        return x


class Whole(paddle.nn.Layer):
    def __init__(self, wrong: tuple[int, int]) -> None:
        super().__init__()
        self.shared = paddle.nn.Embedding(30, 16)
        self.enc, self.dec = (Half(self.shared, one) for one in wrong)

    def forward(self, ids: Any) -> Any:
        return self.enc(ids) + self.dec(ids)


@pytest.mark.parametrize(
    ("wrong", "place"), [((9, 9), None), ((0, 9), "enc.layers.0"), ((1, 9), "enc.layers.1"), ((9, 2), "dec.layers.2")]
)
def test_a_gelu_behind_an_embedding_that_is_scaled_elsewhere(wrong: tuple[int, int], place: str | None) -> None:
    torch.manual_seed(0)
    found = padiff.compare(Pair(), Whole(wrong), IDS).divergence
    assert (None if found is None else (found.raw_path, found.phase)) == (place and (place, "forward")), str(found)
    assert found is None or found.causes[0].name == "gelu variant"
