"""Gradients of one tensor handed on under several names, where the other model hands on copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch import nn

import padiff
from padiff.records import Divergence


def scaled(x: Any) -> Any:
    """The same numbers, and a gradient that is half as large again."""
    return x * 1.5 - (x * 0.5).detach()


def given(how: str, x: Any) -> tuple[Any, ...]:
    """What attention is given: the same numbers in one tensor, in two or in three."""
    if how == "alone":
        return (x,)
    copies = {"same": "xxx", "query": "1xx", "query and key": "12x", "keys": "122", "all": "123", "scaled": "sxx"}[how]
    made = {"x": x, "s": scaled(x) if how == "scaled" else x, **{str(n): x * 1.0 for n in (1, 2, 3)}}
    return tuple(made[name] for name in copies)


class Attention(nn.Module):
    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.wrong = wrong

    def forward(self, query: Any, key: Any = None, value: Any = None) -> Any:
        key, value = query if key is None else key, query if value is None else value
        key = scaled(key) if self.wrong else key
        scores = self.query(query) @ self.key(key).transpose(-1, -2) * 8**-0.5
        return torch.softmax(scores, -1) @ self.value(value)


class Twice(nn.Module):
    """Returns what it makes twice: the same, or a copy."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.how = nn.Linear(8, 8), how

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        return x, x if self.how == "same" else x * 1.0


class Block(nn.Module):
    def __init__(self, how: str, returned: str, wrong: bool) -> None:
        super().__init__()
        self.twice, self.attention, self.norm = Twice(returned), Attention(wrong), nn.LayerNorm(8)
        self.how = how

    def forward(self, x: Any) -> Any:
        one, other = self.twice(x)
        x = one * 2 + torch.tanh(other)
        return self.norm(x + self.attention(*given(self.how, x)))


class Net(nn.Module):
    def __init__(self, how: str = "same", returned: str = "same", wrong: bool = False) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block("same", "same", False), Block(how, returned, wrong))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x))


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


HOWS = ["same", "alone", "query", "query and key", "keys", "all"]


@pytest.mark.parametrize("raw", HOWS)
@pytest.mark.parametrize("base", HOWS)
def test_copies_share_a_gradient(base: str, raw: str) -> None:
    result = padiff.compare(Net(base), Net(raw), rows())
    assert result.aligned, str(result.divergence)


@pytest.mark.parametrize(("base", "raw"), [("same", "copy"), ("copy", "same"), ("copy", "copy")])
def test_what_is_returned_twice_shares_a_gradient(base: str, raw: str) -> None:
    result = padiff.compare(Net("same", base), Net("query", raw), rows())
    assert result.aligned, str(result.divergence)


ELSEWHERE = [("same", "query", "same"), ("query", "same", "same"), ("alone", "all", "same"), ("same", "same", "copy")]


@pytest.mark.parametrize(("base", "raw", "returned"), ELSEWHERE)
def test_a_share_is_no_difference_with_bounds_of_ones_own(base: str, raw: str, returned: str) -> None:
    x = torch.from_numpy(rows())
    assert padiff.auto_diff(Net(base), Net(raw, returned), ({"x": x}, {"x": x}), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("base", "raw", "returned"), ELSEWHERE)
def test_a_share_is_no_difference_in_dumps(tmp_path: Path, base: str, raw: str, returned: str) -> None:
    models = Net(base), Net(raw, returned)
    models[1].load_state_dict(models[0].state_dict())
    for name, model in zip("ab", models, strict=True):
        with padiff.capture(model, to=tmp_path / name):
            model(torch.from_numpy(rows())).pow(2).sum().backward()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result.divergence)


def found(base: nn.Module, raw: nn.Module) -> Divergence:
    result = padiff.compare(base, raw, rows())
    assert result.divergence is not None
    assert len(result.divergences) == 1, [str(one) for one in result.divergences]
    return result.divergence


@pytest.mark.parametrize("swapped", [False, True], ids=["in raw", "in base"])
@pytest.mark.parametrize("other", ["same", "alone", "all"])
def test_a_copy_with_a_wrong_gradient_is_the_code_that_makes_it(other: str, swapped: bool) -> None:
    pair = Net(other), Net("scaled")
    place = found(*(pair[::-1] if swapped else pair))
    assert (place.raw_path, place.phase) == ("blocks.1", "backward")


@pytest.mark.parametrize("swapped", [False, True], ids=["in raw", "in base"])
@pytest.mark.parametrize("other", HOWS)
def test_a_module_that_sends_back_the_wrong_sum_is_named_itself(other: str, swapped: bool) -> None:
    pair = Net("same"), Net(other, wrong=True)
    place = found(*(pair[::-1] if swapped else pair))
    assert (place.raw_path, place.phase) == ("blocks.1.attention", "backward")


class PaddleAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (paddle.nn.Linear(8, 8) for _ in range(3))

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        scores = self.query(query) @ self.key(key).transpose([0, 2, 1]) * 8**-0.5
        return paddle.nn.functional.softmax(scores, -1) @ self.value(value)


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.attention, self.norm, self.how = PaddleAttention(), paddle.nn.LayerNorm(8), how

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.attention(*given(self.how, x)))


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.attention(x, x, x))


@pytest.mark.parametrize(("how", "path"), [("query", None), ("all", None), ("scaled", "1")])
def test_copies_in_another_framework(how: str, path: str | None) -> None:
    base = nn.Sequential(nn.Linear(8, 8), TorchBlock(), nn.Linear(8, 4))
    raw = paddle.nn.Sequential(paddle.nn.Linear(8, 8), PaddleBlock(how), paddle.nn.Linear(8, 4))
    result = padiff.compare(base, raw, rows())
    assert (None if result.divergence is None else result.divergence.raw_path) == path, str(result.divergence)


class Biased(nn.Module):
    """Attention with a bias for its scores, made by the first of several and handed on to the others."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.places = nn.Embedding(9, 1) if first else None

    def forward(self, x: Any, bias: Any = None) -> Any:
        if self.places is not None:
            place = torch.arange(x.shape[1])
            bias = self.places((place[:, None] - place).clamp(-4, 4) + 4)[..., 0]
        return x + (self.query(x) @ self.key(x).transpose(-1, -2) + bias).softmax(-1) @ self.value(x), bias


class Deep(nn.Module):
    def __init__(self, detached: int = -1) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Biased(place == 0) for place in range(3))
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        if detached >= 0:
            self.inner[detached].register_forward_hook(lambda _, given, made: made.detach())

    def forward(self, x: Any) -> Any:
        bias = None
        for attention, inner in zip(self.attention, self.inner, strict=True):
            x, bias = attention(x, bias)
            x = inner(x)
        return x


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_call_that_gets_a_part_of_its_gradients_is_not_blamed_for_what_it_lacks(place: int) -> None:
    """Later blocks send something back to the bias, but nothing comes to what the attention returns besides."""
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    result = padiff.compare(Deep(), Deep(place), x)
    assert [(one.raw_path, one.phase) for one in result.divergences] == [(f"inner.{place}", "backward")], str(result)


class Residual(torch.nn.Module):
    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.norm, self.mix, self.copied = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), copied

    def forward(self, x: Any) -> Any:
        rest = x.clone() if self.copied else x
        return rest + self.mix(self.norm(x))


class Padded(torch.nn.Module):
    """Pads in its own code, or has its convolution pad."""

    def __init__(self, *, outside: bool) -> None:
        super().__init__()
        self.stem, self.outside = torch.nn.Conv2d(3, 4, 1), outside
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=0 if outside else 1)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        return self.conv(torch.nn.functional.pad(x, (1, 1, 1, 1)) if self.outside else x).mean((2, 3))


class Stacked(torch.nn.Sequential):
    """One more level than its partner."""

    def __init__(self, *blocks: Any) -> None:
        super().__init__(torch.nn.Sequential(*blocks), torch.nn.Identity())


@pytest.mark.parametrize(
    ("base", "raw", "shape"),
    [
        ([Residual(copied=False) for _ in range(3)], [Residual(copied=True) for _ in range(3)], (4, 6)),
        ([Padded(outside=False)], [Padded(outside=True)], (2, 3, 6, 6)),
    ],
    ids=["a copy of what is added", "a frame around what a convolution is given"],
)
def test_what_parameters_tell_takes_no_second_look(base: Any, raw: Any, shape: tuple[int, ...]) -> None:
    models = torch.nn.Sequential(*base), Stacked(*raw)
    calls: list[int] = []
    for side, model in enumerate(models):
        model.register_forward_pre_hook(lambda *_, side=side: calls.append(side))
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    result = padiff.compare(*models, x)
    assert result.aligned, str(result)
    assert calls == [0, 0, 1]
