"""Recurrent layers in evaluation mode: paddle's kernel keeps nothing for backward there, and is asked to."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff


class Tagger(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(9, 6)
        made = getattr(torch.nn, "RNN" if kind == "SimpleRNN" else kind)
        self.rnn = made(6, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.head = torch.nn.Linear(10, 4)

    def forward(self, ids: Any) -> Any:
        return self.head(self.rnn(self.embed(ids))[0])


class PaddleTagger(paddle.nn.Layer):
    def __init__(self, kind: str, factor: float = 1.0) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(9, 6)
        self.rnn = getattr(paddle.nn, kind)(6, 5, num_layers=2, direction="bidirect", dropout=0.3)
        self.head, self.factor = paddle.nn.Linear(10, 4), factor

    def forward(self, ids: Any) -> Any:
        return self.head(self.rnn(self.embed(ids))[0] * self.factor)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("randomness", ["replay", "own"])
def test_gradients_are_compared_in_evaluation_mode(kind: str, randomness: Any) -> None:
    ids = np.random.default_rng(0).integers(0, 9, (3, 4))
    before = paddle._C_ops.rnn
    raw = PaddleTagger(kind)
    raw.eval()
    result = padiff.compare(Tagger(kind).eval(), raw, ids, randomness=randomness)
    assert result.aligned, str(result)
    assert any(one.phase == "gradient" and one.raw_path == "rnn" for one in result.comparisons)
    assert paddle._C_ops.rnn is before
    assert not raw.training


def test_the_place_is_named_in_evaluation_mode() -> None:
    ids = np.random.default_rng(0).integers(0, 9, (3, 4))
    raw = PaddleTagger("LSTM", 1.01)
    raw.eval()
    result = padiff.compare(Tagger("LSTM").eval(), raw, ids)
    assert [one.raw_path for one in result.divergences] == [""]
