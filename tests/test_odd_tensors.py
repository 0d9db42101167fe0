"""Tensors that are no plain arrays: stand-ins of functions that are transformed, nested, complex, rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(4, 5, 6)).astype("float32")


class Transformed(torch.nn.Module):
    """Calls a layer on each of a batch by itself, or takes its derivative."""

    def __init__(self, how: str, factor: float = 1.0) -> None:
        super().__init__()
        self.inner, self.last, self.how, self.factor = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3), how, factor

    def forward(self, x: Any) -> Any:
        if self.how == "vmap":
            made = torch.vmap(self.inner)(x)
        else:
            made = torch.vmap(torch.func.jacrev(lambda one: torch.sin(self.inner(one))))(x[:, 0])
        made = made * self.factor
        return self.last(made)


@pytest.mark.parametrize("how", ["vmap", "jacrev"])
def test_layers_called_in_transforms(how: str) -> None:
    result = padiff.compare(Transformed(how), Transformed(how), X)
    assert result.aligned, str(result)
    assert {one.raw_path for one in result.comparisons if one.phase == "gradient"} == {"inner", "last"}
    found = padiff.compare(Transformed(how), Transformed(how, 1.2), X).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.phase, found.op.raw) == ("", "forward", "torch.Tensor.mul")
    assert found.op.raw_line.text == "made = made * self.factor"


class Nested(torch.nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.inner, self.last, self.factor = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3), factor

    def forward(self, x: Any) -> Any:
        rows = torch.nested.nested_tensor([x[0, :3], x[1, :5]], layout=torch.jagged)
        padded = torch.nested.to_padded_tensor(self.inner(rows), 0.0)
        padded = padded * self.factor
        return self.last(padded)


def test_nested_tensors_are_left_alone() -> None:
    assert padiff.compare(Nested(), Nested(), X).aligned
    found = padiff.compare(Nested(), Nested(1.2), X).divergence
    assert found is not None and (found.raw_path, found.phase) == ("", "forward")
    assert "between its children inner (line " in found.note


class Spectrum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return torch.fft.fft(self.first(x))


class PaddleSpectrum(paddle.nn.Layer):
    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.first, self.cut = paddle.nn.Linear(6, 6), cut

    def forward(self, x: Any) -> Any:
        made = self.first(x)
        return paddle.fft.fft(0.5 * made + 0.5 * made.detach() if self.cut else made)


def test_gradients_of_complex_outputs() -> None:
    result = padiff.compare(Spectrum(), PaddleSpectrum(), X)
    assert result.aligned, str(result)
    assert any(one.phase == "gradient" for one in result.comparisons)
    found = padiff.compare(Spectrum(), PaddleSpectrum(cut=True), X).divergence
    assert found is not None and (found.raw_path, found.phase) == ("", "backward")


@pytest.mark.parametrize("kept", ["base", "raw"])
def test_gradients_that_are_rows_of_a_table(kept: str) -> None:
    one = torch.nn.Sequential(torch.nn.Embedding(9, 6, sparse=True), torch.nn.Linear(6, 3))
    other = paddle.nn.Sequential(paddle.nn.Embedding(9, 6, sparse=True), paddle.nn.Linear(6, 3))
    models = (one, other) if kept == "raw" else (other, one)
    result = padiff.compare(*models, np.array([[1, 3, 1], [7, 0, 3]]))
    assert result.aligned, str(result)
    assert any((c.raw_path, c.phase) == ("0", "gradient") for c in result.comparisons)
