"""Raw is given what base drew: that it draws with another chance must not get lost thereby."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.randomness.models import Draw, data, net, pf, tf
from tests.twins import FRAMEWORKS, PAIRS, randomise

NOTE = "raw was given what base drew, so its numbers do not show it"


def masked(keep: float) -> dict[str, Draw]:
    """A mask that scales nothing."""
    return {
        "torch": lambda x: x * torch.bernoulli(torch.full_like(x, keep)),
        "paddle": lambda x: x * paddle.bernoulli(paddle.full_like(x, keep)),
    }


def by_chances(factor: float) -> dict[str, Draw]:
    """Each element with a chance of its own."""
    return {
        "torch": lambda x: x * torch.bernoulli(torch.sigmoid(x) * factor).detach(),
        "paddle": lambda x: x * paddle.bernoulli(pf.sigmoid(x) * factor).detach(),
    }


def chosen(sharpness: float) -> dict[str, Draw]:
    """One row of the batch by weight."""
    return {
        "torch": lambda x: x[torch.multinomial(torch.softmax(x[:, 0] * sharpness, -1), 3)],
        "paddle": lambda x: x[paddle.multinomial(pf.softmax(x[:, 0] * sharpness, -1), 3)],
    }


def counted(rate: float) -> dict[str, Draw]:
    return {
        "torch": lambda x: x + torch.poisson(torch.full_like(x, rate)),
        "paddle": lambda x: x + paddle.poisson(paddle.full_like(x, rate)),
    }


OTHERS = {
    "mask": (masked(0.7), masked(0.5), "a mask of [6, 8] that keeps 0.5"),
    "chances": (by_chances(0.9), by_chances(0.6), "a mask of [6, 8] with mean chance 0."),
    "choice": (chosen(1.0), chosen(-1.0), "a choice of [3] with high 6, mean index"),
    "counts": (counted(2.0), counted(3.0), "poisson numbers of [6, 8] with mean rate 3"),
}


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", OTHERS)
def test_another_chance_is_a_divergence(kind: str, base: str, raw: str) -> None:
    draws, others, words = OTHERS[kind]
    result = padiff.compare(net(base, draws), net(raw, draws), data())
    assert result.aligned, str(result)
    assert result.notes == ()
    result = padiff.compare(net(base, draws), net(raw, others), data())
    found = result.divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase, found.note) == ("", "", "forward", NOTE)
    assert found.causes[0].name == ("dropout" if kind in ("mask", "chances") else "random draws")
    assert words in str(found)
    lines = [one[-1].text for one in found.source]
    assert all(what in line for what, line in zip((f'"{base}": lambda x', f'"{raw}": lambda x'), lines, strict=True))
    assert result.coverage["calls"] == 1.0


def test_a_layer_that_does_not_scale() -> None:
    def model(share: float) -> Any:
        made = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Dropout(share, mode="downscale_in_infer"))
        randomise(made)
        made.train()
        return made

    assert padiff.compare(model(0.3), model(0.3), data()).aligned
    found = padiff.compare(model(0.3), model(0.5), data()).divergence
    assert found is not None
    assert (found.raw_path, found.raw_kind) == ("1", "Dropout")
    assert str(found.causes[0]) == "dropout: base drops 0.3 of the values and raw 0.5"


def test_in_dumps(tmp_path: Path) -> None:
    draws, others, _ = OTHERS["choice"]
    model = net("torch", draws)
    with padiff.capture(model, tmp_path / "a"):
        model(torch.as_tensor(data()))
    for who, agrees in ((draws, True), (others, False)):
        model = net("paddle", who)
        with padiff.capture(model, tmp_path / "b", base=tmp_path / "a", overwrite=True):
            model(paddle.to_tensor(data()))
        result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
        assert result.aligned is agrees, str(result)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.note) == ("", NOTE)


@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_dropout_in_inference_mode(raw: str) -> None:
    """There ops arrive whole that are made of others elsewhere."""
    draws: dict[str, Draw] = {"torch": lambda x: tf.dropout(x, 0.3), "paddle": lambda x: pf.dropout(x, 0.3)}
    with torch.inference_mode(), paddle.no_grad():
        result = padiff.compare(net("torch", draws), net(raw, draws), data())
    assert result.aligned, str(result)
    assert result.replayed == 1


@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_gradients_switched_off_for_raw_alone(raw: str) -> None:
    base = "paddle" if raw == "torch" else "torch"
    with {"torch": torch, "paddle": paddle}[raw].no_grad():  # type: ignore[attr-defined]
        result = padiff.compare(net(base, masked(0.7)), net(raw, masked(0.7)), data())
    assert result.aligned, str(result)
    assert "gradients are switched off for raw here" in result.notes[0]


@pytest.mark.parametrize("keep", [0.9, 0.5])
def test_a_chance_that_bfloat16_rounds_is_the_same(keep: float) -> None:
    """It is rounded itself, and so is what it is added to."""

    class Dropped(torch.nn.Module):
        def __init__(self, keep: float) -> None:
            super().__init__()
            self.fc, self.out, self.keep = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), keep

        def forward(self, x: Any) -> Any:
            x = self.fc(x)
            kept = (self.keep + torch.rand(x.shape[0], 1, dtype=x.dtype)).floor_()
            return self.out(x / self.keep * kept)

    for seed in range(12):
        torch.manual_seed(seed)
        base, raw, other = Dropped(keep), Dropped(keep).bfloat16(), Dropped(keep - 0.02).bfloat16()
        assert padiff.compare(base, raw, data(2, 8)).aligned
        found = padiff.compare(base, other, data(2, 8)).divergence
        assert found is not None
        assert found.causes[0].name in ("dropout", "keep")
