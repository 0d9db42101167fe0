"""Never half-alive: an exception of a model's own comes through, with everything that was found before it."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from padiff.report import load
from tests.twins import FRAMEWORKS, PAIRS, after, batch, net, read, sgd

LAYERS = 20
AT = 16


class Failed(RuntimeError):
    """Raised by the models of these tests."""


def stack(framework: str) -> Any:
    """Twenty layers in a row."""
    nn = torch.nn if framework == "torch" else paddle.nn
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(LAYERS)))


def fails(module: Any, what: str = "no such thing") -> None:
    def boom(*_: Any, **__: Any) -> Any:
        raise Failed(what)

    module.forward = boom


def hooks(model: Any) -> int:
    if isinstance(model, torch.nn.Module):
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    layers = model.sublayers(include_self=True)
    return sum(len(m._forward_post_hooks) + len(m._forward_pre_hooks) for m in layers)


def raised(*args: Any, **kwargs: Any) -> tuple[Failed, padiff.Result]:
    with pytest.raises(Failed) as caught:
        padiff.compare(*args, **kwargs)
    result = caught.value.padiff_result  # type: ignore[attr-defined]
    assert isinstance(result, padiff.Result)
    assert not result.aligned
    return caught.value, result


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_the_sixteen_before_layer_seventeen(base: str, raw: str, tmp_path: Path) -> None:
    one, other = stack(base), stack(raw)
    fails(other[AT])
    error, result = raised(one, other, batch())
    found = result.interruption
    assert found is not None
    assert (found.side, found.where, found.path, found.step) == ("raw", "forward", str(AT), 0)
    assert (found.agreed, found.differed, found.first) == (AT, 0, "")
    assert found.error == "Failed: no such thing"
    assert result.divergence is None
    outputs = [c.raw_path for c in result.comparisons if c.role == "output"]
    assert outputs == [str(place) for place in range(AT)]
    assert all(c.agrees for c in result.comparisons)
    assert not result.unmatched  # what base did afterwards is no finding
    (note,) = error.__notes__
    notes = note.splitlines()
    assert notes[0] == f"padiff: raised by the raw model Sequential ({raw}) in 16, forward of step 0"
    assert notes[1] == f"padiff: {found}"
    assert "the 16 calls compared before agree" in notes[1]
    assert traceback.extract_tb(error.__traceback__)[-1].name == "boom"
    assert result.notes[0] == str(found)
    assert "before raw raised Failed: no such thing" in str(result)
    assert hooks(one) == hooks(other) == 0
    for ending in ("html", "json", "xml", "md", "txt"):
        result.save(tmp_path / f"report.{ending}")
    assert load(tmp_path / "report.json").interruption == found
    assert "no such thing" in (tmp_path / "report.xml").read_text()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_earlier_divergence_is_told_first(framework: str) -> None:
    one, other = stack("torch"), stack(framework)
    fails(other[AT])
    after(other[3], lambda out: out * 1.01)
    error, result = raised(one, other, batch())
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("3", "forward")
    assert result.divergence.causes[0].name == "scale"
    assert result.interruption is not None
    assert result.interruption.first == "3"
    assert result.interruption.agreed + result.interruption.differed == AT
    assert error.__notes__[0].splitlines()[1].startswith("padiff: raw differs from base from 3 on")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_base_may_raise(framework: str) -> None:
    one, other = stack(framework), stack("torch")
    fails(one[AT])
    _, result = raised(one, other, batch())
    assert result.interruption is not None
    assert (result.interruption.side, result.interruption.agreed, result.interruption.other) == ("base", AT, "")
    assert result.divergence is None
    after(other[5], lambda out: out + 0.01)
    _, result = raised(one, other, batch())
    assert result.divergence is not None
    assert result.divergence.raw_path == "5"


def test_both_raise() -> None:
    one, other = stack("torch"), stack("paddle")
    fails(one[AT], "of base")
    fails(other[AT], "of raw")
    error, result = raised(one, other, batch())
    assert str(error) == "of base"
    assert result.interruption is not None
    assert result.interruption.other == "Failed: of raw"
    assert str(result.interruption).endswith("raw raised, too: Failed: of raw")


class TorchFails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise Failed("on the way back")


class PaddleFails(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise Failed("on the way back")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_in_backward(framework: str) -> None:
    one, other = stack("torch"), stack(framework)
    after(other[9], (TorchFails if framework == "torch" else PaddleFails).apply)
    with pytest.raises(Exception, match="on the way back") as caught:
        padiff.compare(one, other, batch())
    result = caught.value.padiff_result  # type: ignore[attr-defined]
    assert result.interruption.where == "backward"
    assert result.interruption.agreed == LAYERS + 1
    assert result.divergence is None
    backward = {c.raw_path for c in result.comparisons if c.phase == "backward"}
    assert {"19", "15", "10"} <= backward
    assert "8" not in backward


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_in_the_loss_and_in_the_optimizer(framework: str) -> None:
    one, other = stack("torch"), stack(framework)

    def boom(*_: Any) -> Any:
        raise Failed("given by the user")

    _, result = raised(one, other, batch(), loss=(lambda out: out.mean(), boom))
    assert result.interruption is not None
    assert (result.interruption.where, result.interruption.agreed) == ("loss", LAYERS + 1)
    _, result = raised(one, other, batch(), optimizers=(sgd(one), boom))
    assert result.interruption is not None
    assert (result.interruption.where, result.interruption.path) == ("optimizer", None)
    assert any(c.phase == "gradient" for c in result.comparisons)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_in_a_later_step(framework: str) -> None:
    one, other = stack("torch"), stack(framework)
    calls = []

    def late(out: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise Failed("third call")
        return out

    after(other[AT], late)
    _, result = raised(one, other, batch(), optimizers=(sgd(one), sgd(other)), steps=4)
    assert result.interruption is not None
    assert result.interruption.step == 2
    assert [step.step for step in result.steps] == [0, 1, 2]
    assert {c.step for c in result.comparisons if c.phase == "weight"} == {0, 1}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_everything_is_as_it_was(framework: str) -> None:
    one, other = net("torch"), net(framework)
    other.train()
    fails(other.head)
    before = {name: read(tensor) for name, tensor in other.state_dict().items() if "bn" in name}
    x = batch()
    with pytest.raises(Failed):
        padiff.compare(one, other, x, weights="keep")
    assert {name: read(t).tolist() for name, t in other.state_dict().items() if "bn" in name} == {
        name: value.tolist() for name, value in before.items()
    }
    assert all(parameter.grad is None for parameter in other.parameters())
    assert all(m.training for m in (other.modules() if framework == "torch" else other.sublayers(include_self=True)))
    assert hooks(one) == hooks(other) == 0


@pytest.mark.parametrize("single_step", [False, True])
def test_the_log_tells_what_was_compared(single_step: bool, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = stack("torch"), stack("paddle")
    fails(other[AT])
    inputs = ({"input": batch()}, {"input": batch()})
    with pytest.raises(Failed) as caught:
        padiff.auto_diff(one, other, inputs, atol=1e-4, single_step=single_step)
    log = capsys.readouterr().out
    assert "forward stage compared. (32 tensors)" in log
    assert "raw raised Failed: no such thing (in 16, forward of step 0); the 16 calls compared before" in log
    assert log.splitlines()[-1] == "[AutoDiff] FAILED !!!"
    assert "in 16, forward of step 0" in caught.value.__notes__[0]


def test_where_names_do_not_tell_the_exception_comes_before_the_weights() -> None:
    class Fused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused = torch.nn.Linear(6, 12)

        def forward(self, x: Any) -> Any:
            raise Failed("early")

    class Apart(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

        def forward(self, x: Any) -> Any:
            return torch.cat([self.one(x), self.two(x)], -1)

    with pytest.raises(Failed, match="early") as caught:
        padiff.compare(Apart(), Fused(), batch())
    assert "raised by the raw model Fused (torch)" in caught.value.__notes__[0]


class Renamed(paddle.nn.Layer):
    """Twenty layers in a row, under names that say nothing and defined the other way round."""

    def __init__(self) -> None:
        super().__init__()
        for place in range(LAYERS):
            self.add_sublayer(f"layer_{chr(ord('z') - place)}", paddle.nn.Linear(6, 6 if place < LAYERS - 1 else 7))

    def forward(self, x: Any) -> Any:
        for layer in self.children():
            x = paddle.tanh(layer(x))
        return x


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(LAYERS - 1))
        self.head = torch.nn.Linear(6, 7)

    def forward(self, x: Any) -> Any:
        for layer in self.body:
            x = torch.tanh(layer(x))
        return torch.tanh(self.head(x))


@pytest.mark.parametrize("side", ["raw", "base"])
@pytest.mark.parametrize("wrong", [False, True])
def test_models_built_differently(side: str, wrong: bool) -> None:
    """Names don't tell how to fill raw: what was used before the exception does, and the sixteen are compared."""
    one, other = Plain(), Renamed()
    assert padiff.compare(one, other, batch()).aligned
    layers = list(other.children())
    fails(layers[AT] if side == "raw" else one.body[AT])
    if wrong:
        after(layers[5], lambda out: out * 1.01)
    error, result = raised(one, other, batch())
    found = result.interruption
    assert found is not None
    assert (found.side, found.where) == (side, "forward")
    assert found.agreed + found.differed == AT
    if not wrong:
        assert result.divergence is None
        assert found.agreed == AT
    else:
        assert result.divergence is not None
        assert (result.divergence.base_path, result.divergence.raw_path) == ("body.5", "layer_u")
    assert "run first" not in error.__notes__[0]
