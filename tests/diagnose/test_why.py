"""Planted mistakes, found and explained by ``padiff.compare``: place and cause, on pairs of frameworks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.engine.explaining import after_step, why
from padiff.records import Cause, Divergence
from tests.diagnose.small_decoder import SIZE, decoder, sentences
from tests.twins import after, batch, net, read, sgd, write

PAIRS = [("torch", "torch"), ("torch", "paddle"), ("paddle", "torch")]
pairs = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


@pytest.fixture(autouse=True)
def unforgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong while a cause is looked for shows here."""
    monkeypatch.setattr(why, "FORGIVEN", ())
    monkeypatch.setattr(sys.modules["padiff.diagnose.causes.explain"], "FORGIVEN", ())


def compared(base: Any, raw: Any, *, weights: Any = "copy", inputs: Any = None, **more: Any) -> Divergence:
    inputs = batch() if inputs is None else inputs
    found = padiff.compare(base, raw, inputs, weights=weights, **more).divergence
    assert found is not None
    return found


def first(divergence: Divergence) -> Cause:
    assert divergence.causes, f"no cause at {divergence.raw_path}"
    return divergence.causes[0]


# ------------------------------------------------------------------ in a decoder

SWITCHED: list[tuple[str, dict[str, Any], str, str]] = [
    ("scale missing", {"scale": 1.0}, "layers.1", "scale"),
    ("scale of the width", {"scale": 24**-0.5}, "layers.1", "scale"),
    ("mask missing", {"masked": False}, "layers.1", "mask"),
    ("mask too far", {"ahead": 1}, "layers.1", "mask off by one"),
    ("mask not to itself", {"ahead": -1}, "layers.1", "mask off by one"),
    ("rotary base", {"theta": 500000.0}, "layers.1", "rope base"),
    ("rotary pairs", {"neighbours": True}, "layers.1", "rope pairing"),
    ("softmax axis", {"softmax_axis": -2}, "layers.1", "softmax axis"),
    ("softmax dtype", {"half_softmax": True}, "layers.1", "softmax dtype"),
    ("heads repeated otherwise", {"in_turn": False}, "layers.1", "head order"),
    ("residual missing", {"residual": False}, "layers.1", "missing residual"),
    ("residual branch scaled", {"twice": 2.0}, "layers.1", "scale"),
    ("gelu", {"tanh": True}, "layers.1", "gelu variant"),
    ("rounded", {"bf16": True}, "layers.1", "precision"),
]


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def decoders(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return decoder(request.param[0]), decoder(request.param[1])


@pytest.mark.parametrize(("switches", "path", "cause"), [one[1:] for one in SWITCHED], ids=[one[0] for one in SWITCHED])
def test_in_a_decoder(
    decoders: tuple[Any, Any], switches: dict[str, Any], path: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, raw = decoders
    for name, value in switches.items():
        monkeypatch.setattr(raw.layers[1].switches, name, value)
    found = compared(base, raw, inputs=sentences(), phase="forward")
    assert (found.raw_path, found.phase) == (path, "forward")
    names = [one.name for one in found.causes]
    assert cause in names[: 2 if cause == "scale" else 1], "\n".join(map(str, found.causes))


def test_clean_decoders_have_nothing_to_explain(decoders: tuple[Any, Any]) -> None:
    assert padiff.compare(*decoders, sentences()).aligned


def test_a_cut_gradient(decoders: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    base, raw = decoders
    monkeypatch.setattr(raw.layers[1].switches, "cut", True)
    found = compared(base, raw, inputs=sentences())
    assert (found.raw_path, found.phase) == ("layers.1", "backward")
    assert first(found).name == "no gradient"
    assert "no gradient comes back to what layers.1.out returned in raw" in first(found).evidence


@pairs
def test_a_module_that_is_not_followed(pair: tuple[str, str]) -> None:
    base, raw = (net(framework) for framework in pair)
    after(raw.blocks[1].act, lambda y: y.detach())
    found = compared(base, raw)
    assert (found.raw_path, found.phase, first(found).name) == ("blocks.1.act", "backward", "no gradient")
    assert "raw does not follow gradients through it" in first(found).evidence


def test_scores_are_told_with_their_ratio(decoders: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    base, raw = decoders
    monkeypatch.setattr(raw.layers[0].switches, "scale", 3.0 * SIZE**-0.5)
    found = compared(base, raw, inputs=sentences(), phase="forward")
    told = next(one for one in found.causes if one.name == "scale")
    assert told.evidence.startswith("raw's scores are base's times 3 ")


# ------------------------------------------------------------------ in modules and weights


def swap_activation(raw: Any) -> None:
    raw.blocks[1].act = torch.nn.ReLU() if isinstance(raw, torch.nn.Module) else paddle.nn.ReLU()


def set_eps(raw: Any) -> None:
    setattr(raw.blocks[1].norm, "eps" if isinstance(raw, torch.nn.Module) else "_epsilon", 1e-3)


def no_bias(raw: Any) -> None:
    write(raw.blocks[1].fc1.bias, np.zeros(12))


def turn_weight(raw: Any) -> None:
    write(raw.blocks[1].one.weight, read(raw.blocks[1].one.weight).T)


def not_a_number(output: Any) -> Any:
    mask = np.zeros(tuple(output.shape), dtype="float32")
    mask.flat[5] = np.nan
    return output + (torch.from_numpy(mask) if isinstance(output, torch.Tensor) else paddle.to_tensor(mask))


PLANTED: list[tuple[str, Callable[[Any], None], str, str, str]] = [
    ("eps", set_eps, "blocks.1.norm", "eps", "copy"),
    ("activation", swap_activation, "blocks.1.act", "activation", "copy"),
    ("missing bias", no_bias, "blocks.1.fc1", "missing bias", "keep"),
    ("transposed weight", turn_weight, "blocks.1.one", "transposed weight", "keep"),
    ("residual", lambda raw: setattr(raw.blocks[1], "residual", False), "blocks.1", "residual", "copy"),
    ("sign", lambda raw: after(raw.blocks[0].two, lambda y: -y), "blocks.0.two", "sign", "copy"),
    ("scale", lambda raw: after(raw.blocks[2].fc2, lambda y: y * 1.25), "blocks.2.fc2", "scale", "copy"),
    ("nan", lambda raw: after(raw.blocks[2].fc2, not_a_number), "blocks.2.fc2", "nan", "copy"),
]


@pairs
@pytest.mark.parametrize(("plant", "path", "cause", "weights"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED])
def test_in_a_module(pair: tuple[str, str], plant: Callable[[Any], None], path: str, cause: str, weights: str) -> None:
    base, raw = (net(framework) for framework in pair)
    if weights == "keep":
        padiff.compare(base, raw, batch(), phase="forward")
    plant(raw)
    found = compared(base, raw, weights=weights, phase="forward")
    assert (found.raw_path, first(found).name) == (path, cause), "\n".join(map(str, found.causes))


@pairs
def test_a_gradient(pair: tuple[str, str]) -> None:
    base, raw = (net(framework) for framework in pair)
    raw.blocks[1].scale_gradient = True
    found = compared(base, raw)
    assert (found.raw_path, found.phase) == ("blocks.1", "backward")
    causes = {cause.name: cause.evidence for cause in found.causes}
    assert "with base's value" in causes["scale_gradient"]  # a setting of raw's own
    assert "1.5" in causes["scale"]


# ------------------------------------------------------------------ losses, optimizers, statistics


def momentum(model: Any, keep: float) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=keep)
    return paddle.optimizer.Momentum(0.05, keep, parameters=model.parameters())


def adamw(model: Any, **settings: Any) -> Any:
    known = {"eps": 1e-3, "betas": (0.9, 0.999), "decay": 0.01} | settings
    if isinstance(model, torch.nn.Module):
        return torch.optim.AdamW(
            model.parameters(), lr=0.01, eps=known["eps"], betas=known["betas"], weight_decay=known["decay"]
        )
    return paddle.optimizer.AdamW(
        0.01, *known["betas"], epsilon=known["eps"], parameters=model.parameters(), weight_decay=known["decay"]
    )


def adam(model: Any, decay: float) -> Any:
    if isinstance(model, torch.nn.Module):
        return torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3, weight_decay=decay)
    return paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=model.parameters(), weight_decay=decay)


Make = Callable[[Any], Any]
OPTIMIZERS: list[tuple[str, Make, Make, int, str]] = [
    ("lr", lambda m: sgd(m), lambda m: sgd(m, lr=0.2), 1, "lr"),
    ("decay missing", lambda m: sgd(m, weight_decay=0.1), sgd, 1, "weight decay"),
    ("momentum", lambda m: momentum(m, 0.9), lambda m: momentum(m, 0.8), 3, "momentum"),
    ("eps", adamw, lambda m: adamw(m, eps=1e-2), 1, "eps"),
    ("betas", adamw, lambda m: adamw(m, betas=(0.8, 0.999)), 3, "betas"),
    ("decay", adamw, lambda m: adamw(m, decay=0.3), 1, "weight decay"),
    ("decay in the gradient", lambda m: adamw(m, decay=0.2), lambda m: adam(m, 0.2), 1, "weight decay"),
    ("another optimizer", adamw, lambda m: sgd(m, lr=0.01), 1, "optimizer"),
]


@pairs
@pytest.mark.parametrize(
    ("right", "wrong", "steps", "cause"), [one[1:] for one in OPTIMIZERS], ids=[one[0] for one in OPTIMIZERS]
)
def test_an_optimizer(pair: tuple[str, str], right: Make, wrong: Make, steps: int, cause: str) -> None:
    base, raw = (net(framework) for framework in pair)
    found = compared(base, raw, optimizers=(right(base), wrong(raw)), steps=steps)
    assert found.phase == "weight"
    assert cause in first(found).name, "\n".join(map(str, found.causes))


def test_an_optimizer_of_another_family() -> None:
    """Its first step looks like the other's at ten times the rate: that is no clipping, and no eps."""
    base, raw = net("torch"), net("torch")
    given = torch.optim.Adam(base.parameters(), lr=0.01), torch.optim.RMSprop(raw.parameters(), lr=0.01)
    found = compared(base, raw, optimizers=given)
    assert [one.name for one in found.causes] == ["optimizer"]
    assert first(found).evidence == "base steps with Adam, raw with RMSprop"


@pairs
def test_an_optimizer_that_is_a_function(pair: tuple[str, str]) -> None:
    """Its settings are not known; what it did is."""
    base, raw = (net(framework) for framework in pair)
    ours, theirs = sgd(base), sgd(raw, lr=0.2)
    hidden = [ours, theirs]
    found = compared(base, raw, optimizers=(lambda: hidden[0].step(), lambda: hidden[1].step()))
    assert (found.phase, first(found).name) == ("weight", "lr")
    assert "raw's step is base's times 2" in first(found).evidence
    assert found.causes[1].name == "gradient clipping"  # which nobody can tell from it here


@pytest.mark.parametrize("most", [2, 16])
@pairs
def test_a_rate_that_changes_later(pair: tuple[str, str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not all gradients since the first step are known."""
    monkeypatch.setattr(after_step, "MOST_STEPS", most)
    base, raw = (net(framework) for framework in pair)
    ours, theirs = sgd(base), sgd(raw)
    steps = 0

    def later() -> None:
        nonlocal steps
        steps += 1
        if steps == 4 and pair[1] == "torch":
            theirs.param_groups[0]["lr"] = 0.15
        elif steps == 4:
            theirs.set_lr(0.15)
        theirs.step()
        theirs.zero_grad() if pair[1] == "torch" else theirs.clear_grad()

    found = compared(base, raw, optimizers=(ours, later), steps=6)
    assert (found.phase, found.step, first(found).name) == ("weight", 3, "lr")
    told = re.match(r"raw's step is base's times ([0-9.]+); lr is 0.15 in raw and 0.1 in base$", first(found).evidence)
    assert told is not None
    assert float(told[1]) == pytest.approx(1.5, rel=1e-4)


def test_only_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weight that is named was too large to keep, another is told of."""
    monkeypatch.setattr(after_step, "MOST_BYTES", 3 * 4 * 5 * 8)
    base, raw = net("torch"), net("paddle")
    found = compared(base, raw, optimizers=(sgd(base), sgd(raw, lr=0.2)))
    assert found.phase == "weight"
    assert first(found).name == "lr"
    assert first(found).evidence.startswith("at head.weight, ")


LOSSES: list[tuple[str, Make, Make, str]] = [
    ("sum", lambda y: y.mean(), lambda y: y.sum(), "reduction"),
    ("square", lambda y: y.mean(), lambda y: (y * y).mean(), "loss function"),
    ("sign", lambda y: y.abs().mean(), lambda y: -y.abs().mean(), "sign"),
]


@pairs
@pytest.mark.parametrize(("right", "wrong", "cause"), [one[1:] for one in LOSSES], ids=[one[0] for one in LOSSES])
def test_a_loss(pair: tuple[str, str], right: Make, wrong: Make, cause: str) -> None:
    base, raw = (net(framework) for framework in pair)
    found = compared(base, raw, loss=(right, wrong))
    assert found.comparison.role == "loss"
    assert cause in [one.name for one in found.causes], "\n".join(map(str, found.causes))


def test_a_factor_of_a_cross_entropy() -> None:
    """A divisor that counts nothing is none."""
    base, raw = net("torch"), net("torch")
    right = partial(torch.nn.functional.cross_entropy, target=torch.arange(7) % 5)
    found = compared(base, raw, loss=(right, lambda y: 1.1 * right(y)))
    assert (first(found).name, first(found).evidence[-25:]) == ("scale", "raw's is base's times 1.1"), found.causes


@pairs
def test_the_momentum_of_statistics(pair: tuple[str, str]) -> None:
    base, raw = (net(framework).train() or net(framework) for framework in pair)
    base.train()
    raw.train()
    setattr(raw.bn, "momentum" if pair[1] == "torch" else "_momentum", 0.3 if pair[1] == "torch" else 0.7)
    found = compared(base, raw, phase="forward")
    assert (found.raw_path, found.phase, first(found).name) == ("bn", "buffer", "momentum")
    assert "raw takes in 3 times" in first(found).evidence


# ------------------------------------------------------------------ what must not happen


def test_what_goes_wrong_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    base, raw = net("torch"), net("torch")
    set_eps(raw)

    def broken(scene: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(why, "explain", broken)
    with pytest.raises(ZeroDivisionError):
        compared(base, raw, phase="forward")
    monkeypatch.setattr(why, "FORGIVEN", (Exception,))
    found = compared(base, raw, phase="forward")
    assert (found.raw_path, found.causes) == ("blocks.1.norm", ())


def test_randomness_of_base_is_said_first() -> None:
    """A layer that draws from a generator of its own repeats nothing."""
    base, raw = net("torch"), net("torch")
    own = np.random.default_rng(0)
    after(base.blocks[1].fc2, lambda y: y + torch.from_numpy(own.normal(size=y.shape).astype("float32")))
    tolerance = padiff.Tolerance(rtol=1e-4, atol=1e-5)
    found = compared(base, raw, phase="forward", tolerance=tolerance)
    assert (found.raw_path, first(found).name) == ("blocks.1.fc2", "nondeterminism")


class Spans(torch.nn.Module):
    """Tells where something begins and where it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 2)

    def forward(self, ids: Any) -> Any:
        begin, end = self.out(self.words(ids)).split(1, -1)
        return begin.squeeze(-1), end.squeeze(-1)


class Beginnings(Spans):
    """Tells where it begins twice."""

    def forward(self, ids: Any) -> Any:
        begin, _ = self.out(self.words(ids)).split(1, -1)
        return begin.squeeze(-1), begin.squeeze(-1)


def test_ids_open_no_gate_and_one_of_two_is_no_largest() -> None:
    base = Spans()
    base.out.bias.data[0] = 5.0
    ids = np.random.default_rng(0).integers(4, 40, size=(4, 11))
    found = padiff.compare(base, Beginnings(), ids).divergence
    assert found is not None and found.raw_path == ""
    first = str(found.causes[0])
    assert ("second" in first or "last" in first) and "sigmoid" not in first and "largest" not in first, first
