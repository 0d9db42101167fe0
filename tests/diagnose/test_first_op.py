"""Which op of a module's own code is named where two authors arrange the same computation differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import padiff
from padiff.align import same_thing
from tests.capture.test_ops import of

Forward = Callable[[Any, Any], Any]
TABLE = torch.linspace(0.1, 3.0, 20).reshape(5, 4)
LEFT_OUT = torch.full((5, 5), torch.finfo(torch.float32).min).triu(1)


def half(x: Any) -> Any:
    return torch.cat((-x[..., 2:], x[..., :2]), -1)


def other_half(x: Any) -> Any:
    return torch.cat((x[..., 2:], x[..., :2]), -1)


def heads_first(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    q = q * TABLE.cos() + half(q) * TABLE.sin()
    return (q @ q.transpose(-1, -2)).softmax(-1)


def heads_last(self: Any, x: Any, turn: Any = half) -> Any:
    q = self.fc(x).view(2, 5, 3, 4)
    q = q * TABLE.cos()[:, None] + turn(q) * TABLE.sin()[:, None]
    return torch.einsum("bqhd,bkhd->bhqk", q, q).softmax(-1)


def heads_last_wrongly(self: Any, x: Any) -> Any:
    return heads_last(self, x, other_half)


def heads_last_unturned(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4)
    q = q * TABLE.cos()[:, None]
    q = q.transpose(1, 2)
    return (q @ q.transpose(-1, -2)).softmax(-1)


def heads_first_scaled(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    k = q * TABLE.cos() + half(q) * TABLE.sin()
    return (k @ k.transpose(-1, -2) * 0.5 + LEFT_OUT).softmax(-1)


def halves_scaled(self: Any, x: Any, scale: float = 0.25, turn: int = -1) -> Any:
    q = self.fc(x).view(2, 5, 3, 4)
    (a, b), (c, d), (e, f) = (one.chunk(2, -1) for one in (q, TABLE.cos()[:, None], TABLE.sin()[:, None]))
    k = torch.cat((a * c + turn * b * e, b * d + a * f), -1)
    q = k * scale
    return (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) + torch.full((5, 5), -1e9).triu(1)).softmax(-1)


def garbled(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 3, 5, 4)
    q = q * TABLE.cos() + half(q) * TABLE.sin()
    return (q @ q.transpose(-1, -2)).softmax(-1)


def table(self: Any, x: Any) -> Any:
    angles = self.fc(x) * 3.0
    return torch.stack((angles.cos() * 2.0, angles.sin() * 2.0))


def sines(self: Any, x: Any) -> Any:
    angles = self.fc(x) * 3.0
    return torch.stack((angles.sin() * 2.0, angles.sin() * 2.0))


def regrouped(self: Any, x: Any) -> Any:
    return self.fc(x).reshape(2, 5, 3, 2, 2).permute(0, 1, 2, 4, 3).flatten(2)


def joined_in_another_order(self: Any, x: Any) -> Any:
    y = self.fc(x).reshape(2, 5, 3, 4)
    parts = [y[..., n::2] for n in (0, 1)]
    return torch.cat(parts[::-1], -1).flatten(2)


def biased(self: Any, x: Any) -> Any:
    y = self.fc(x)
    return (y + TABLE.sum(-1, keepdim=True)) + x


def biased_backwards(self: Any, x: Any) -> Any:
    y = self.fc(x)
    return (y - TABLE.sum(-1, keepdim=True)) + x


def places(self: Any, x: Any) -> Any:
    slopes = torch.arange(1.0, 6.0)[:, None]
    return self.fc(x) + (slopes * torch.arange(12.0)).reshape(1, 5, 12)


def places_added(self: Any, x: Any) -> Any:
    slopes = torch.arange(1.0, 6.0)[:, None]
    return self.fc(x) + (slopes + torch.arange(12.0)).reshape(1, 5, 12)


def summed(self: Any, x: Any) -> Any:
    return self.fc(x) + x + TABLE.sum(-1, keepdim=True)


def summed_otherwise(self: Any, x: Any) -> Any:
    y = self.fc(x) - TABLE.sum(-1, keepdim=True)
    return y + x


def first_row(self: Any, x: Any) -> Any:
    y = self.fc(x)
    one, two = y[:, 0], y[:, 1]
    return one, two


def second_row(self: Any, x: Any) -> Any:
    y = self.fc(x)
    one, two = y[:, 1], y[:, 1]
    return one, two


def scaled_first(self: Any, x: Any) -> Any:
    q = self.fc(x) * 0.5
    q = q.view(2, 5, 3, 4).transpose(1, 2)
    return q.softmax(-1)


def scaled_later(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    q = q * 0.25
    return q.softmax(-1)


def slopes(self: Any, x: Any) -> Any:
    start = torch.tensor(2.0**-2)
    powers = torch.pow(start, torch.arange(1, 6))
    return self.fc(x) + (powers[:, None] * torch.arange(12.0)).reshape(1, 5, 12)


def other_slopes(self: Any, x: Any) -> Any:
    start = torch.tensor(2.0**-3)
    powers = torch.pow(start, torch.arange(1, 6))
    return self.fc(x) + (powers[:, None] * torch.arange(12.0)).reshape(1, 5, 12)


def rows(self: Any, x: Any) -> Any:
    ones = torch.ones(2, 5, dtype=torch.long)
    index = ones.cumsum(1) - 1
    return self.fc(x) * TABLE.flatten()[index][..., None]


def rows_from_one(self: Any, x: Any) -> Any:
    ones = torch.ones(2, 5, dtype=torch.long)
    index = ones.cumsum(1) + 1
    return self.fc(x) * TABLE.flatten()[index][..., None]


def tokens_of_zeros(self: Any, x: Any) -> Any:
    types = torch.zeros(2, 5, dtype=torch.long)
    return self.fc(x) * TABLE.sum(-1)[types][..., None]


def tokens_of_ones(self: Any, x: Any) -> Any:
    types = torch.ones(2, 5, dtype=torch.long)
    return self.fc(x) * TABLE.sum(-1)[types][..., None]


def attending(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    y = y.transpose(1, 2)
    return y.reshape(2, 5, 12)


def attending_by_heads(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return y.reshape(2, 5, 12)


def attending_in_vain(self: Any, x: Any) -> Any:
    q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    y = y.transpose(1, 1)
    return y.reshape(2, 5, 12)


def halved(self: Any, x: Any) -> Any:
    q = self.fc(x)
    q = q * 0.5
    return q.softmax(-1)


def times_one(self: Any, x: Any) -> Any:
    q = self.fc(x)
    q = q * 1.0
    return q.softmax(-1)


CASES: list[tuple[Forward, Forward, str, str, str, str]] = [
    (heads_first, heads_last_wrongly, "neg", "", "return torch.cat((-x", "return torch.cat((x[..., 2:]"),
    (heads_first, heads_last_unturned, "add", "", "q = q * TABLE.cos() + half(q)", "return (q @ q"),
    (heads_first_scaled, halves_scaled, "", "mul", "return (k @ k", "q = k * scale"),
    (heads_first, garbled, "transpose", "", "q = self.fc(x).view(2, 5, 3, 4).transpose(1, 2)", "q = q * TABLE"),
    (table, sines, "cos", "sin", "return torch.stack((angles.cos()", "return torch.stack((angles.sin()"),
    (regrouped, joined_in_another_order, "transpose", "cat", "return self.fc(x).reshape", "return torch.cat(parts["),
    (biased, biased_backwards, "add", "sub", "return (y + TABLE", "return (y - TABLE"),
    (summed, summed_otherwise, "add", "sub", "return self.fc(x) + x", "y = self.fc(x) - TABLE"),
    (first_row, second_row, "getitem", "getitem", "one, two = y[:, 0]", "one, two = y[:, 1]"),
    (scaled_first, scaled_later, "mul", "mul", "q = self.fc(x) * 0.5", "q = q * 0.25"),
    (places, places_added, "mul", "add", "return self.fc(x) + (slopes *", "return self.fc(x) + (slopes +"),
    (slopes, other_slopes, "tensor", "tensor", "start = torch.tensor(2.0**-2)", "start = torch.tensor(2.0**-3)"),
    (rows, rows_from_one, "sub", "add", "index = ones.cumsum(1) - 1", "index = ones.cumsum(1) + 1"),
    (tokens_of_zeros, tokens_of_ones, "zeros", "ones", "types = torch.zeros", "types = torch.ones"),
    (attending, attending_by_heads, "transpose", "", "y = y.transpose(1, 2)", "return y.reshape"),
    (attending, attending_in_vain, "transpose", "transpose", "y = y.transpose(1, 2)", "y = y.transpose(1, 1)"),
    (halved, times_one, "mul", "mul", "q = q * 0.5", "q = q * 1.0"),
    (times_one, halved, "mul", "mul", "q = q * 1.0", "q = q * 0.5"),
]


def wide(forward: Forward) -> Any:
    torch.manual_seed(3)
    model = of("torch", forward)
    model.fc = torch.nn.Linear(12, 12)
    return model


def numbers() -> Any:
    return np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


def test_another_order_of_axes_is_no_fault() -> None:
    result = padiff.compare(wide(heads_first), wide(heads_last), numbers())
    assert result.aligned, str(result)


@pytest.mark.parametrize(
    ("base", "raw", "mine", "theirs", "line", "other"), CASES, ids=[raw.__name__ for _, raw, *_ in CASES]
)
def test_the_op_and_its_lines(base: Forward, raw: Forward, mine: str, theirs: str, line: str, other: str) -> None:
    found = padiff.compare(wide(base), wide(raw), numbers()).divergence
    assert found is not None and found.op is not None
    assert [same_thing(name) if name else "" for name in (found.op.base, found.op.raw)] == [mine, theirs]
    assert found.op.base_line is not None and found.op.base_line.text.startswith(line)
    assert found.op.raw_line is not None and found.op.raw_line.text.startswith(other)


def test_beside_what_is_left_out_the_rest_counts() -> None:
    """The mask is large, and the same on both sides: added once more, it does not explain what it drowns."""
    assert padiff.compare(
        wide(heads_first_scaled), wide(lambda self, x: halves_scaled(self, x, 0.5)), numbers()
    ).aligned
    raw = wide(lambda self, x: halves_scaled(self, x, 0.5, 1))
    found = padiff.compare(wide(heads_first_scaled), raw, numbers()).divergence
    assert found is not None
    assert "mask" not in {cause.name for cause in found.causes}
