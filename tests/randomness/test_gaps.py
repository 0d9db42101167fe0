"""Where the two models draw something else, the result says where and what."""

from __future__ import annotations

from typing import Any

import paddle
import pytest
import torch

import padiff
from tests.randomness.models import KINDS, Draw, data, net, pf, tf
from tests.twins import PAIRS, randomise, write


class TorchDrops(torch.nn.Module):
    """Two layers, each with a dropout of its own."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.drop1, self.drop2 = (torch.nn.Dropout(share) for share in shares)
        self.late = False

    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.first(x))
        if self.late:
            return self.drop2(self.drop1(self.second(h)))
        return self.drop2(self.second(self.drop1(h)))


class PaddleDrops(paddle.nn.Layer):
    """The same."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self.first, self.second = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)
        self.drop1, self.drop2 = (paddle.nn.Dropout(share) for share in shares)
        self.late = False

    def forward(self, x: Any) -> Any:
        h = paddle.tanh(self.first(x))
        if self.late:
            return self.drop2(self.drop1(self.second(h)))
        return self.drop2(self.second(self.drop1(h)))


def drops(framework: str, *shares: float) -> Any:
    model = {"torch": TorchDrops, "paddle": PaddleDrops}[framework](*shares)
    randomise(model)
    model.train()
    return model


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_another_share_is_the_cause(base: str, raw: str) -> None:
    result = padiff.compare(drops(base, 0.2, 0.3), drops(raw, 0.2, 0.5), data(12, 8))
    found = result.divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase) == ("drop2", "drop2", "forward")
    assert str(found.causes[0]) == "dropout: p is 0.5 in raw and 0.3 in base; with base's value the outputs agree"
    assert result.notes == (
        "random draws don't correspond: base drop2 draws a mask of [12, 8] that keeps 0.7, raw drop2 draws a mask of "
        "[12, 8] that keeps 0.5",
    )


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_another_share_in_a_modules_own_code(base: str, raw: str) -> None:
    other: dict[str, Draw] = {"torch": lambda x: tf.dropout(x, 0.5), "paddle": lambda x: pf.dropout(x, 0.5)}
    found = padiff.compare(net(base, KINDS["dropout"]), net(raw, other), data()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
    assert "between its children first" in found.note
    assert (
        str(found.causes[0])
        == "dropout: base drops 0.3 of the values and raw 0.5; scaled as base scales, the outputs agree"
    )


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_another_share_of_a_drop_path_written_otherwise(base: str, raw: str) -> None:
    other: dict[str, Draw] = {
        "torch": lambda x: x / 0.9 * torch.floor(0.9 + torch.rand(6, 1)),
        "paddle": lambda x: x / 0.9 * (paddle.rand([6, 1]) < 0.9).astype("float32"),
    }
    found = padiff.compare(net(base, KINDS["drop path"]), net(raw, other), data()).divergence
    assert found is not None
    assert found.causes[0].name == "dropout"
    assert "base drops 0.4 of the values and raw 0.1" in found.causes[0].evidence


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_dropout_on_one_side_only(base: str, raw: str) -> None:
    result = padiff.compare(drops(base, 0.2, 0.3), drops(raw, 0.2, 0.0), data(12, 8))
    assert result.divergence is not None
    assert result.divergence.raw_path == "drop2"
    assert (
        result.divergence.causes[0].evidence == "p is 0.0 in raw and 0.3 in base; with base's value the outputs agree"
    )
    told = "random draws don't correspond: base drop2 draws a mask of [12, 8] that keeps 0.7, raw draws nothing there"
    assert result.notes == (told,)
    result = padiff.compare(drops(base, 0.0, 0.3), drops(raw, 0.2, 0.3), data(12, 8))
    assert result.divergence is not None
    assert result.divergence.raw_path == "drop1"
    told = "random draws don't correspond: raw drop1 draws a mask of [12, 8] that keeps 0.8, base draws nothing there"
    assert result.notes == (told,)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_dropout_at_another_place(base: str, raw: str) -> None:
    other = drops(raw, 0.2, 0.3)
    other.late = True
    found = padiff.compare(drops(base, 0.2, 0.3), other, data(12, 8)).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
    assert "between its children first" in found.note


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_wrong_weight_is_found_behind_dropout(base: str, raw: str) -> None:
    models = drops(base, 0.2, 0.3), drops(raw, 0.2, 0.3)
    assert padiff.compare(*models, data(12, 8)).aligned
    bias = models[1].second.bias
    write(bias, bias.detach().numpy() + 0.01)
    result = padiff.compare(*models, data(12, 8), weights="keep")
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("second", "forward")
    assert result.notes == ()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (
            {"torch": lambda x: x + torch.randn_like(x), "paddle": lambda x: x + paddle.randn(x.shape)},
            {"torch": lambda x: x + torch.rand_like(x), "paddle": lambda x: x + paddle.rand(x.shape)},
            "base (model) draws gaussian numbers of [6, 8] with mean 0, std 1, raw (model) draws uniform numbers of "
            "[6, 8] with low 0, high 1",
        ),
        (
            {"torch": lambda x: x + torch.randn(6, 1), "paddle": lambda x: x + paddle.randn([6, 1])},
            {"torch": lambda x: x + torch.randn(1, 8), "paddle": lambda x: x + paddle.randn([1, 8])},
            "base (model) draws gaussian numbers of [6, 1] with mean 0, std 1, raw (model) draws gaussian numbers of "
            "[1, 8] with mean 0, std 1",
        ),
    ],
    ids=["kind", "shape"],
)
def test_other_draws_are_told_side_by_side(
    base: str, raw: str, ours: dict[str, Draw], theirs: dict[str, Draw], told: str
) -> None:
    result = padiff.compare(net(base, ours), net(raw, theirs), data())
    assert not result.aligned
    assert result.notes == (f"random draws don't correspond: {told}",)
    assert result.divergence is not None
    assert str(result.divergence.causes[0]) == f"random draws: {told}"


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_each_model_may_draw_for_itself(base: str, raw: str) -> None:
    result = padiff.compare(net(base, KINDS["dropout"]), net(raw, KINDS["two dropouts"]), data(), randomness="own")
    assert not result.aligned
    assert result.replayed == 0
    assert result.notes == ()


def test_what_may_be_asked_for() -> None:
    with pytest.raises(padiff.errors.ArgumentError, match="randomness is 'none', expected 'replay' or 'own'"):
        padiff.compare(drops("torch", 0.1, 0.1), drops("torch", 0.1, 0.1), data(), randomness="none")  # type: ignore[arg-type]


def test_the_log_says_that_draws_were_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    models = drops("torch", 0.2, 0.3), drops("paddle", 0.2, 0.3)
    assert padiff.auto_diff(*models, ({"x": data()}, {"x": data()}), atol=1e-4) is True
    line = "[AutoDiff] 2 random draws of base_model replayed in raw_model (dropout, noise, samples)"
    assert line in capsys.readouterr().out.splitlines()
