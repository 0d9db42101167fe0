"""Settings that differ and made no difference are told, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import torch

import padiff

X = np.random.default_rng(0).standard_normal((6, 8)).astype("float32")


def torch_net(eps: float = 1e-12, p: float = 0.1, momentum: float = 0.1) -> Any:
    torch.manual_seed(0)
    block = [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps=eps), torch.nn.Dropout(p)]
    return torch.nn.Sequential(
        *block, torch.nn.LayerNorm(8, eps=eps), torch.nn.BatchNorm1d(8, momentum=momentum)
    ).eval()


def paddle_net(eps: float = 1e-12, p: float = 0.1, momentum: float = 0.9) -> Any:
    block = [paddle.nn.Linear(8, 8), paddle.nn.LayerNorm(8, epsilon=eps), paddle.nn.Dropout(p)]
    net = paddle.nn.Sequential(*block, paddle.nn.LayerNorm(8, epsilon=eps), paddle.nn.BatchNorm1D(8, momentum=momentum))
    net.eval()
    return net


def compared(base: Any, raw: Any) -> padiff.Result:
    return padiff.compare(base, raw, (torch.from_numpy(X), paddle.to_tensor(X)))


def test_each_is_told_once_with_its_places() -> None:
    result = compared(torch_net(), paddle_net(eps=1e-8, p=0.3, momentum=0.99))
    assert result.aligned
    assert result.notes == (
        "eps differs and made no difference here: 1e-12 in base, 1e-08 in raw, in 2 modules, 1 first",
        "p differs and made no difference here: 0.1 in base, 0.3 in raw, in 2",
        "momentum differs and made no difference here: 0.1 in base, 0.01 in raw, in 4",
    )


def test_nothing_is_told_of_what_is_the_same() -> None:
    assert compared(torch_net(), paddle_net()).notes == ()


def test_what_makes_a_difference_is_no_note() -> None:
    result = compared(torch_net(), paddle_net(eps=1e-3, p=0.3))
    assert result.divergence is not None and result.divergence.raw_path == "1"
    assert not [note for note in result.notes if "made no difference" in note]


def test_dumps_tell_it_too(tmp_path: Path) -> None:
    for model, folder in ((torch_net(), "a"), (torch_net(eps=1e-9), "b")):
        with padiff.capture(model, to=tmp_path / folder):
            model(torch.from_numpy(X)).square().mean().backward()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned
    told = "eps differs and made no difference here: 1e-12 in base, 1e-09 in raw, in 2 modules, 1 first"
    assert told in result.notes
