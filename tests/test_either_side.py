"""What one side leaves out is found wherever it is left out, in base as in raw: gradients that are not followed, an
input that is not handed on, a sum that is not made."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.records import Divergence

WIDTH = 8


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Any, mask: Any = None) -> Any:
        scores = torch.tanh(self.query(x)) * self.key(x)
        return self.out(scores if mask is None else scores * mask)


class Block(torch.nn.Module):
    residual = True

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = torch.nn.LayerNorm(WIDTH), Attention(), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        attended = self.attention(self.norm(x))
        return self.mlp(torch.relu(x + attended if self.residual else attended))


class Chained(Block):
    residual = False


class Net(torch.nn.Module):
    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.first, self.blocks = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Sequential(block(), block())

    def forward(self, x: Any) -> Any:
        return self.blocks(self.first(x))


# ------------------------------------------------------------------ mistakes


def without_gradients(self: Attention, x: Any) -> Any:
    with torch.no_grad():
        return Attention.forward(self, x)


def detached(self: Attention, x: Any) -> Any:
    return Attention.forward(self, x).detach()


def given_detached(self: Attention, x: Any) -> Any:
    return Attention.forward(self, x.detach())


def query_detached(self: Attention, x: Any) -> Any:
    return self.out(torch.tanh(self.query(x).detach()) * self.key(x))


def children_without_gradients(self: Block, x: Any) -> Any:
    with torch.no_grad():
        attended = self.attention(self.norm(x))
    return self.mlp(torch.relu(x + attended))


def child_detached(self: Block, x: Any) -> Any:
    return self.mlp(torch.relu(x + self.attention(self.norm(x)).detach()))


def child_given_detached(self: Block, x: Any) -> Any:
    return self.mlp(torch.relu(x + self.attention(self.norm(x).detach())))


def residual_detached(self: Block, x: Any) -> Any:
    return self.mlp(torch.relu(x.detach() + self.attention(self.norm(x))))


IN_ATTENTION = [without_gradients, detached, given_detached, query_detached]
IN_BLOCK = [children_without_gradients, child_detached, child_given_detached, residual_detached]
CASES: list[tuple[type[Block], str, Callable[..., Any]]] = [
    *((block, "blocks.1.attention", mistake) for block in (Block, Chained) for mistake in IN_ATTENTION),
    *((Block, "blocks.1", mistake) for mistake in IN_BLOCK),
]
sides = pytest.mark.parametrize("side", ["base", "raw"])


def batch() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, WIDTH)).astype("float32")


def compared(base: Any, raw: Any, inputs: Any = None) -> Divergence:
    found = padiff.compare(base, raw, batch() if inputs is None else inputs, progress=False).divergence
    assert found is not None
    return found


def changed(side: str, path: str, mistake: Callable[..., Any], make: Callable[[], Any]) -> tuple[Any, Any]:
    models = make(), make()
    module = models[side == "raw"].get_submodule(path)
    module.forward = MethodType(mistake, module)
    return models


@sides
@pytest.mark.parametrize(("block", "path", "mistake"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_gradients_that_are_not_followed(side: str, block: type[Block], path: str, mistake: Callable[..., Any]) -> None:
    found = compared(*changed(side, path, mistake, lambda: Net(block)))
    assert (found.raw_path, found.phase) == (path, "backward")
    assert found.causes[0].name == "no gradient"
    assert side in f"{found.note} {found.causes[0].evidence}"


class Writing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.act = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.ReLU(True)

    def forward(self, x: Any) -> Any:
        return x + self.act(self.norm(self.first(x)))


def detached_before_writing(self: Writing, x: Any) -> Any:
    return x + self.act(self.norm(self.first(x)).detach())


@sides
def test_before_a_child_that_writes_into_what_it_is_given(side: str) -> None:
    models = changed(side, "1", detached_before_writing, lambda: torch.nn.Sequential(Writing(), Writing()))
    result = padiff.compare(*models, batch(), progress=False)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase, result.notes) == ("1", "backward", ())
    assert f"{side} stops following gradients" in result.divergence.note


class Tables(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, left: Any, right: Any) -> Any:
        return self.last(self.table(left) + self.table(right))


def one_use_detached(self: Tables, left: Any, right: Any) -> Any:
    return self.last(self.table(left).detach() + self.table(right))


@sides
def test_one_of_two_uses_of_a_table(side: str) -> None:
    left, right = np.arange(4)[None], np.arange(4, 8)[None]
    found = compared(*changed(side, "", one_use_detached, Tables), (left, right))
    assert (found.raw_path, found.phase, found.causes[0].name) == ("", "backward", "no gradient")
    assert f"{side} stops following gradients in the module's own code, after table" in found.note


# ------------------------------------------------------------------ what is handed on


class Masking(Net):
    def forward(self, x: Any) -> Any:
        mask = (torch.arange(WIDTH) < WIDTH - 2).to(x.dtype)
        x = self.first(x)
        for block in self.blocks:
            x = x + block.attention(block.norm(x), mask=mask)
        return x


def hands_no_mask_on(self: Masking, x: Any) -> Any:
    mask = (torch.arange(WIDTH) < WIDTH - 2).to(x.dtype)
    x = self.first(x)
    x = x + self.blocks[0].attention(self.blocks[0].norm(x), mask=mask)
    return x + self.blocks[1].attention(self.blocks[1].norm(x))


@sides
def test_a_mask_that_is_not_handed_on(side: str) -> None:
    found = compared(*changed(side, "", hands_no_mask_on, Masking))
    assert (found.raw_path, found.phase) == ("", "forward")
    assert found.causes[0].name == "mask"
    assert f"{side} gives blocks.1.attention no mask" in found.causes[0].evidence


# ------------------------------------------------------------------ another shape


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.last = (
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.Dropout(0.0),
            torch.nn.Linear(WIDTH, WIDTH),
        )
        self.table = torch.nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Any) -> Any:
        return self.last(self.dropout(self.first(x) + self.table))


def only_positions(self: Positions, x: Any) -> Any:
    self.first(x)
    return self.last(self.dropout(self.table))


@sides
def test_a_child_that_is_given_another_shape_is_not_to_blame(side: str) -> None:
    found = compared(*changed(side, "", only_positions, Positions))
    assert (found.raw_path, found.phase) == ("", "forward")
    assert "between its children first" in found.note
    assert found.causes[0].name == ("missing residual" if side == "raw" else "extra residual")


# ------------------------------------------------------------------ modules that base lacks


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(x)))


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return x * self.factor


class WithIdentity(Plain):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.extra = Times(factor)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.extra(torch.tanh(self.up(x))))


class Wrapped(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.up, self.factor = torch.nn.Linear(WIDTH, WIDTH), factor

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.up(x)) * self.factor


class WithWrapper(torch.nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.extra, self.down = Wrapped(factor), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.extra(x))


@pytest.mark.parametrize("block", [WithIdentity, WithWrapper])
def test_a_module_that_base_lacks_is_named_itself(block: Callable[..., torch.nn.Module]) -> None:
    base = torch.nn.Sequential(Plain(), Plain())
    assert padiff.compare(base, torch.nn.Sequential(block(), block()), batch(), progress=False).aligned
    found = compared(base, torch.nn.Sequential(block(), block(1.1)))
    assert (found.raw_path, found.phase) == ("1.extra", "forward")
    assert "scale" in [cause.name for cause in found.causes]


class Rectifying(torch.nn.BatchNorm2d):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(super().forward(x))


class WithNorm(torch.nn.Module):
    def __init__(self, norm: Any, after: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Conv2d(3, WIDTH, 3), norm(WIDTH), torch.nn.Conv2d(WIDTH, 3, 3)
        self.after = after

    def forward(self, x: Any) -> Any:
        return self.last(self.after(self.norm(self.first(x))))


def test_a_norm_is_not_blamed_for_what_is_done_after_it() -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype("float32")
    base = torch.nn.Sequential(WithNorm(Rectifying), WithNorm(Rectifying)).eval()
    right = WithNorm(torch.nn.BatchNorm2d, torch.relu)
    for after, path in ((torch.relu, None), (torch.nn.functional.gelu, "1")):
        raw = torch.nn.Sequential(right, WithNorm(torch.nn.BatchNorm2d, after)).eval()
        found = padiff.compare(base, raw, images, progress=False).divergence
        assert (None if found is None else found.raw_path) == path


# ------------------------------------------------------------------ another framework


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.norm, self.mlp = paddle.nn.LayerNorm(WIDTH), paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        normed = self.norm(x)
        return x + self.mlp(normed.detach() if self.cut else normed)


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


@pytest.mark.parametrize("as_base", [True, False])
def test_in_another_framework(as_base: bool) -> None:
    first, cut = TorchBlock(), PaddleBlock(cut=True)
    models = (
        (paddle.nn.Sequential(PaddleBlock(cut=False), cut), torch.nn.Sequential(first, TorchBlock()))
        if as_base
        else (torch.nn.Sequential(first, TorchBlock()), paddle.nn.Sequential(PaddleBlock(cut=False), cut))
    )
    found = compared(*models)
    assert (found.raw_path, found.phase, found.causes[0].name) == ("1", "backward", "no gradient")
    assert ("base" if as_base else "raw") + " stops following gradients" in found.note
