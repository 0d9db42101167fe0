"""What real models do and small examples don't: each of these once gave a wrong answer or a crash."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
SEQUENCE = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


class TorchModel(torch.nn.Module):
    """Runs what it is given on its parts."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


class PaddleModel(paddle.nn.Layer):
    """Runs what it is given on its parts."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def place(result: padiff.Result) -> tuple[str, str, str]:
    assert result.divergence is not None, str(result)
    return result.divergence.base_path, result.divergence.raw_path, result.divergence.phase


def test_power_operator() -> None:
    model = TorchModel(lambda self, x: self.fc(x) ** 2, fc=torch.nn.Linear(4, 4))
    assert padiff.compare(model, copy.deepcopy(model), X, loss=lambda out: (out**2).mean()).aligned


RECURRENT = {"LSTM": ("LSTM", "LSTM"), "GRU": ("GRU", "GRU"), "RNN": ("RNN", "SimpleRNN")}


def recurrent(kind: str) -> tuple[Any, Any]:
    def run(self: Any, x: Any) -> Any:
        return self.head(self.rnn(x)[0])

    torch_name, paddle_name = RECURRENT[kind]
    base = TorchModel(run, rnn=getattr(torch.nn, torch_name)(4, 5, batch_first=True), head=torch.nn.Linear(5, 2))
    raw = PaddleModel(run, rnn=getattr(paddle.nn, paddle_name)(4, 5), head=paddle.nn.Linear(5, 2))
    return base, raw


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_are_compared_as_one(kind: str) -> None:
    base, raw = recurrent(kind)
    clean = padiff.compare(base, raw, SEQUENCE)
    assert clean.aligned, str(clean)
    assert clean.coverage["parameters"] == 1.0
    raw.rnn.parameters()[1].set_value(raw.rnn.parameters()[1] * 1.5)
    assert place(padiff.compare(base, raw, SEQUENCE, weights="keep")) == ("rnn", "rnn", "forward")


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_gradients_and_weights_are_compared(kind: str) -> None:
    base, raw = recurrent(kind)
    raw.rnn.parameters()[0].register_hook(lambda gradient: gradient * 3)
    assert place(padiff.compare(base, raw, SEQUENCE)) == ("rnn", "rnn", "gradient")
    base, raw = recurrent(kind)
    optimizers = (
        torch.optim.SGD(base.parameters(), 0.1),
        paddle.optimizer.SGD(0.1, parameters=raw.head.parameters()),
    )
    assert place(padiff.compare(base, raw, SEQUENCE, optimizers=optimizers)) == ("rnn", "rnn", "weight")


def test_cells_that_return_their_state_twice() -> None:
    result = padiff.compare(torch.nn.LSTMCell(4, 5), paddle.nn.LSTMCell(4, 5), X)
    assert result.aligned, str(result)


def test_layers_that_are_only_in_base_are_refused() -> None:
    base = TorchModel(lambda self, x: x, a=torch.nn.Linear(4, 4), extra=torch.nn.Linear(4, 4), b=torch.nn.Linear(4, 4))
    raw = PaddleModel(lambda self, x: x, b=paddle.nn.Linear(4, 4), a=paddle.nn.Linear(4, 4))
    before = raw.a.weight.numpy().copy()
    assert padiff.assign_weight(base, raw) is False
    assert np.array_equal(before, raw.a.weight.numpy())
    five = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5)))
    three = paddle.nn.Sequential(*(paddle.nn.Linear(4, 4) for _ in range(3)))
    assert padiff.assign_weight(five, three) is False


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_gradients_the_caller_had_are_kept(framework: str) -> None:
    library = torch if framework == "torch" else paddle
    model = library.nn.Linear(4, 4)
    model(torch.from_numpy(X) if framework == "torch" else paddle.to_tensor(X)).sum().backward()
    before = model.weight.grad.numpy().copy()
    other = copy.deepcopy(model)
    assert padiff.compare(model, other, X).aligned
    assert np.array_equal(model.weight.grad.numpy(), before)


def test_backward_passes_of_the_models_own() -> None:
    """A gradient penalty in the loss, a force in the forward."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    other = copy.deepcopy(model)

    def penalty(which: Any) -> Callable[[Any], Any]:
        def loss(out: Any) -> Any:
            grads = torch.autograd.grad(out.sum(), list(which.parameters()), create_graph=True)
            return out.mean() + sum(g.pow(2).sum() for g in grads)

        return loss

    assert padiff.compare(model, other, X, loss=(penalty(model), penalty(other))).aligned

    def force(self: Any, x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        energy = self.net(x).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    model = TorchModel(force, net=model)
    assert padiff.compare(model, copy.deepcopy(model), X).aligned


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_against_plain(reentrant: bool) -> None:
    def plain(self: Any, x: Any) -> Any:
        return self.c(self.b(self.a(x)))

    def checkpointed(self: Any, x: Any) -> Any:
        return self.c(torch.utils.checkpoint.checkpoint(self.b, self.a(x), use_reentrant=reentrant))

    parts = {
        "a": torch.nn.Linear(4, 4),
        "b": torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()),
        "c": torch.nn.Linear(4, 4),
    }
    base = TorchModel(plain, **parts)
    raw = TorchModel(checkpointed, **copy.deepcopy(parts))
    for left, right in ((base, raw), (raw, base)):
        result = padiff.compare(left, right, X)
        assert result.aligned, str(result)
        assert not result.unmatched


def test_paddle_recompute_against_plain() -> None:
    from paddle.distributed.fleet.utils import recompute

    base = TorchModel(
        lambda self, x: self.c(self.b(self.a(x))),
        a=torch.nn.Linear(4, 4),
        b=torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()),
        c=torch.nn.Linear(4, 4),
    )
    raw = PaddleModel(
        lambda self, x: self.c(recompute(self.b, self.a(x))),
        a=paddle.nn.Linear(4, 4),
        b=paddle.nn.Sequential(paddle.nn.Linear(4, 4), paddle.nn.Tanh()),
        c=paddle.nn.Linear(4, 4),
    )
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)


CANCELLING = {
    "layer norm": (lambda: torch.nn.LayerNorm(4), lambda: paddle.nn.LayerNorm(4), X),
    "group norm": (
        lambda: torch.nn.GroupNorm(2, 4),
        lambda: paddle.nn.GroupNorm(2, 4),
        X[:, :, None, None].repeat(3, 2),
    ),
    "bias before a norm": (
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)),
        lambda: paddle.nn.Sequential(paddle.nn.Linear(4, 5), paddle.nn.BatchNorm1D(5), paddle.nn.Linear(5, 3)),
        np.random.default_rng(1).normal(size=(9, 4)).astype("float32"),
    ),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_values_that_cancel_are_no_difference(name: str) -> None:
    base, raw, x = CANCELLING[name]
    result = padiff.compare(base(), raw(), x)
    assert result.aligned, str(result)


def test_special_init_pairs_classes_in_both_doors() -> None:
    class MyTorch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Any) -> Any:
            return x @ self.w

    class MyPaddle(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.flat = self.create_parameter([16])

        def forward(self, x: Any) -> Any:
            return x @ self.flat.reshape([4, 4])

    def fill(base: Any, raw: Any) -> None:
        raw.flat.set_value(base.w.detach().numpy().reshape(-1))

    padiff.add_special_init("torch", "MyTorch", "paddle", "MyPaddle", fill)
    base = torch.nn.Sequential(torch.nn.Linear(4, 4), MyTorch())
    raw = paddle.nn.Sequential(paddle.nn.Linear(4, 4), MyPaddle())
    assert padiff.compare(base, raw, X).aligned
    assert padiff.auto_diff(base, raw, ({"input": X}, {"input": X}), atol=1e-4) is True


@pytest.mark.parametrize("how", ["detach", "no_grad"])
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_a_cut_gradient_is_blamed_where_it_is_cut(how: str, framework: str) -> None:
    def whole(self: Any, x: Any) -> Any:
        return self.b(self.a(x))

    def cut(self: Any, x: Any) -> Any:
        if how == "detach":
            return self.b(self.a(x).detach())
        with (torch if framework == "torch" else paddle).no_grad():
            h = self.a(x)
        return self.b(h)

    base = TorchModel(whole, a=torch.nn.Linear(4, 4), b=torch.nn.Linear(4, 4))
    if framework == "torch":
        raw = TorchModel(cut, a=torch.nn.Linear(4, 4), b=torch.nn.Linear(4, 4))
    else:
        raw = PaddleModel(cut, a=paddle.nn.Linear(4, 4), b=paddle.nn.Linear(4, 4))
    result = padiff.compare(base, raw, X)
    assert place(result)[:2] == ("", ""), str(result)  # the code around a is to blame, not a
    assert "follow" in result.divergence.note


def test_backward_that_never_ran_is_said() -> None:
    model = torch.nn.Linear(4, 4)
    other = copy.deepcopy(model)
    with torch.no_grad():
        result = padiff.compare(model, other, X)
    assert result.aligned
    assert "backward was not run" in "\n".join(result.notes)


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_buffers_put_in_anothers_place_are_put_back(framework: str) -> None:
    def counting(self: Any, x: Any) -> Any:
        self.count = self.count + 1
        return self.fc(x) * self.count

    if framework == "torch":
        model: Any = TorchModel(counting, fc=torch.nn.Linear(4, 4))
        model.register_buffer("count", torch.ones(1))
    else:
        model = PaddleModel(counting, fc=paddle.nn.Linear(4, 4))
        model.register_buffer("count", paddle.ones([1]))
    assert padiff.compare(model, copy.deepcopy(model), X).aligned
    assert model.count.item() == 1.0


def test_a_model_against_itself() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    result = padiff.compare(model, model, X)
    assert result.aligned, str(result)


def test_wrong_rules_and_unfitting_weights_are_explained() -> None:
    from padiff.errors import ArgumentError, WeightError

    model = torch.nn.Linear(4, 4)
    with pytest.raises(ArgumentError, match="rules is a int"):
        padiff.compare(model, copy.deepcopy(model), X, rules=5)  # type: ignore[arg-type]
    with pytest.raises(WeightError, match=r"base 0\.weight, raw 0\.weight"):
        padiff.compare(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.nn.Sequential(torch.nn.Linear(4, 5)), X)


class Positions(torch.nn.Module):
    """A buffer of whole numbers, as such or as floats: casting a model as a whole does that in paddle."""

    def __init__(self, kind: torch.dtype, first: int = 0) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("places", torch.arange(first, first + 4).to(kind))

    def forward(self, x: Any) -> Any:
        return self.fc(x) + self.places


def test_whole_numbers_in_a_buffer_of_floats() -> None:
    x = np.ones((2, 4), "float32")
    assert padiff.compare(Positions(torch.int64), Positions(torch.float32), x).aligned
    found = padiff.compare(Positions(torch.int64), Positions(torch.float32, first=1), x, weights="keep").divergence
    assert found is not None
