"""Who is to blame for what a call is given: the code that gives it, not the call, and not who passed it on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import padiff
from padiff.records import Divergence


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = x @ self.inner(x).transpose(1, 2)
        if mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ x


class Block(nn.Module):
    def __init__(self, *, masked: bool = True, normed: bool = True) -> None:
        super().__init__()
        self.norm, self.mix, self.act, self.last = nn.LayerNorm(8), Mixing(), nn.ReLU(), nn.Linear(8, 8)
        self.masked, self.normed = masked, normed

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        made = self.norm(x)
        x = x + self.mix(made, mask=mask if self.masked else None)
        return x + self.act(self.last(made if self.normed else x))


class Net(nn.Module):
    def __init__(self, *blocks: dict[str, bool], masking: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for options in blocks)
        self.masking = masking

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((5, 5), -1e9).triu(1)
        for block in self.blocks:
            x = block(x, mask) if self.masking else block(x)
        return x


def found(raw: nn.Module, **more: Any) -> Divergence:
    torch.manual_seed(0)
    base = Net({}, {}, {})
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    result = padiff.compare(base, raw, x, **more)
    assert result.divergence is not None
    assert len(result.divergences) == 1  # what follows from it is no second fault
    return result.divergence


def test_a_mask_that_is_not_given() -> None:
    divergence = found(Net({}, {"masked": False}, {}))
    assert (divergence.raw_path, divergence.phase) == ("blocks.1", "forward")
    assert [cause.name for cause in divergence.causes] == ["mask"]
    assert divergence.causes[0].evidence == "raw gives blocks.1.mix no mask, base one of shape [5, 5]"
    assert "between its children blocks.1.norm" in divergence.note


def test_a_mask_that_nobody_is_given() -> None:
    """The outermost that does not give it is to blame."""
    divergence = found(Net({}, {}, {}, masking=False))
    assert (divergence.raw_path, divergence.phase) == ("", "forward")
    assert [cause.name for cause in divergence.causes] == ["missing input"]


class Unmasked(Mixing):
    """Masks by itself, and needs to be given nothing."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, torch.full((5, 5), -1e9).triu(1))


def test_a_mask_that_is_not_needed() -> None:
    raw = Net({"masked": False}, {"masked": False}, {"masked": False})
    for block in raw.blocks:
        assert isinstance(block, Block)
        block.mix.__class__ = Unmasked
    torch.manual_seed(0)
    assert padiff.compare(Net({}, {}, {}), raw, torch.randn(2, 5, 8)).aligned


def test_the_wrong_tensor_chosen() -> None:
    """What a block was given is right, and the block gives it where something else belongs."""
    divergence = found(Net({}, {}, {"normed": False}))
    assert (divergence.raw_path, divergence.phase) == ("blocks.2", "forward")
    assert "between its children blocks.2.mix" in divergence.note


def test_shapes_that_differ_have_causes() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, padding=1), nn.Conv2d(4, 2, 1))
    raw = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2), nn.Conv2d(4, 2, 1))
    result = padiff.compare(base, raw, torch.randn(2, 3, 8, 8))
    divergence = result.divergence
    assert divergence is not None
    assert len(result.divergences) == 1
    assert divergence.raw_path == "1"
    assert divergence.settings == (("padding", 1, 0),)
    assert divergence.causes[0].name == "padding"


class Cut(nn.Module):
    def __init__(self, *, inner: bool = False, outer: bool = False) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.passed = torch.Tensor.detach if outer else torch.Tensor.view_as
        if inner:
            forward = self.second.forward
            self.second.forward = lambda input: forward(input.detach())  # type: ignore[method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.first(self.norm(x))
        return self.passed(made, *([] if self.passed is torch.Tensor.detach else [made])) + self.second(made).tanh()


def cut(**where: bool) -> Divergence:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 8), Cut(), nn.Linear(8, 8))
    raw = nn.Sequential(nn.Linear(8, 8), Cut(**where), nn.Linear(8, 8))
    result = padiff.compare(base, raw, torch.randn(4, 8))
    assert result.divergence is not None
    assert len(result.divergences) == 1
    return result.divergence


def test_a_layer_that_sends_nothing_back() -> None:
    divergence = cut(inner=True)
    assert (divergence.raw_path, divergence.phase) == ("1.second", "backward")
    assert divergence.causes[0].name == "no gradient"


def test_a_block_that_gives_its_own_layer_something_cut_off_beside_a_residual() -> None:
    class Residual(nn.Module):
        def __init__(self, *, stops: bool) -> None:
            super().__init__()
            self.norm, self.feed = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
            if stops:
                forward = self.feed.forward
                self.feed.forward = lambda input: forward(input.detach())  # type: ignore[method-assign]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.norm(x)
            return made + self.feed(made)

    torch.manual_seed(0)
    base, raw = (nn.Sequential(nn.Linear(8, 8), Residual(stops=stops), nn.Linear(8, 8)) for stops in (False, True))
    result = padiff.compare(base, raw, torch.randn(4, 8))
    assert [(one.raw_path, one.phase) for one in result.divergences] == [("1.feed", "backward")]


def test_own_code_that_sends_less_back() -> None:
    divergence = cut(outer=True)
    assert (divergence.raw_path, divergence.phase) == ("1", "backward")
    assert divergence.causes[0].name == "no gradient"
    assert "torch.Tensor.detach" in divergence.causes[0].evidence


def test_untied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self, *, tied: bool) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            if tied:
                self.head.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(x).tanh())

    torch.manual_seed(0)
    base, raw = Tied(tied=True), Tied(tied=False)
    optimizers = tuple(torch.optim.SGD(model.parameters(), 0.1) for model in (base, raw))
    ids = torch.tensor([[0, 1, 2], [3, 4, 6]])
    divergence = padiff.compare(base, raw, ids, optimizers=optimizers).divergence
    assert divergence is not None
    assert divergence.raw_path in ("table", "head")
    assert "tied weights" in [cause.name for cause in divergence.causes]


def test_untied_weights_of_one_name() -> None:
    """Base's code takes up the table itself for its head, which raw keeps a matrix of its own for."""

    class Reusing(nn.Module):
        def __init__(self, *, apart: bool) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Parameter(torch.randn(7, 4)) if apart else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.table(x).tanh(), self.table.weight if self.head is None else self.head)

    torch.manual_seed(0)
    base, raw = Reusing(apart=False), Reusing(apart=True)
    with torch.no_grad():
        raw.head.copy_(base.table.weight)
    optimizers = tuple(torch.optim.SGD(model.parameters(), 0.1) for model in (base, raw))
    ids, rules = torch.tensor([[0, 1, 2], [3, 4, 6]]), {"head": "table.weight"}
    divergence = padiff.compare(base, raw, ids, optimizers=optimizers, rules=rules).divergence
    assert divergence is not None
    assert (divergence.raw_path, divergence.phase) == ("", "weight")  # the head is the model's own
    assert divergence.causes[0].name == "tied weights"


class NormAct(nn.BatchNorm2d):
    """A norm that comes with its activation."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


@pytest.mark.parametrize("swapped", [False, True], ids=["raw's", "base's"])
def test_settings_of_a_norm_with_its_activation(swapped: bool) -> None:
    torch.manual_seed(0)
    eps = (1e-2, 1e-5) if swapped else (1e-5, 1e-2)
    apart = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps[0]), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    both = nn.Sequential(nn.Conv2d(3, 4, 3), NormAct(4, eps[1]), nn.Identity(), nn.Conv2d(4, 2, 1)).eval()
    models = (both, apart) if swapped else (apart, both)
    divergence = padiff.compare(*models, torch.randn(2, 3, 8, 8)).divergence
    assert divergence is not None
    assert divergence.raw_path == "1"
    assert [cause.name for cause in divergence.causes] == ["eps"]


def test_a_head_that_is_no_longer_tied_to_tables_that_are() -> None:
    """Base has one matrix under three names, the plan goes by another than the first, and raw ties two of them."""

    class Tables(torch.nn.Module):
        def __init__(self, *, tied: bool) -> None:
            super().__init__()
            self.shared = torch.nn.Embedding(7, 4)
            self.source, self.target = torch.nn.Embedding(7, 4), torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            for table in (self.source, self.target, *((self.head,) if tied else ())):
                table.weight = self.shared.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.source(x).tanh() + self.target(x))

    torch.manual_seed(0)
    base, raw = Tables(tied=True), Tables(tied=False)
    ids = torch.tensor([[0, 1, 2], [3, 4, 6]])
    assert padiff.compare(base, raw, ids).aligned  # the sum of their gradients is base's
    for optimizer in (torch.optim.SGD, torch.optim.AdamW):
        raw.load_state_dict(base.state_dict())
        optimizers = tuple(optimizer(model.parameters(), 0.1) for model in (base, raw))
        divergence = padiff.compare(base, raw, ids, optimizers=optimizers).divergence
        assert divergence is not None
        assert (divergence.raw_path, divergence.phase) == ("shared", "weight")
        assert "tied weights" in [cause.name for cause in divergence.causes]
