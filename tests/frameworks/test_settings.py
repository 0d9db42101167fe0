"""What modules were built with: one name and one convention in all frameworks, readable and changeable."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff.errors import ArgumentError
from padiff.frameworks import adapter_named
from padiff.frameworks.settings import optimizer_settings_of, settings_of, with_settings

TORCH, PADDLE = adapter_named("torch"), adapter_named("paddle")
P, T = paddle.nn, torch.nn

# Both modules, and the settings that must read alike.
ALIKE: list[tuple[Any, Any, dict[str, Any]]] = [
    (T.LayerNorm(4, eps=1e-6), P.LayerNorm(4, epsilon=1e-6), {"eps": 1e-6, "normalized_shape": (4,)}),
    (T.GroupNorm(2, 4), P.GroupNorm(2, 4), {"eps": 1e-5, "num_groups": 2, "num_channels": 4}),
    (T.BatchNorm2d(4, momentum=0.2), P.BatchNorm2D(4, momentum=0.8), {"momentum": 0.2, "eps": 1e-5}),
    (T.GELU("tanh"), P.GELU(approximate=True), {"approximate": "tanh"}),
    (T.GELU(), P.GELU(), {"approximate": "none"}),
    (T.Softmax(1), P.Softmax(1), {"dim": 1}),
    (T.LeakyReLU(0.3), P.LeakyReLU(0.3), {"negative_slope": 0.3}),
    (T.Hardtanh(-2, 3), P.Hardtanh(-2, 3), {"min_val": -2, "max_val": 3}),
    (T.Dropout(0.3), P.Dropout(0.3), {"p": 0.3}),
    (T.Flatten(1, 2), P.Flatten(1, 2), {"start_dim": 1, "end_dim": 2}),
    (T.Embedding(5, 4, 1), P.Embedding(5, 4, 1), {"padding_idx": 1, "num_embeddings": 5}),
    (
        T.Conv2d(4, 4, 3, stride=2, dilation=2, groups=2),
        P.Conv2D(4, 4, 3, stride=2, dilation=2, groups=2),
        {"stride": (2, 2), "dilation": (2, 2), "kernel_size": (3, 3), "groups": 2, "padding_mode": "zeros"},
    ),
    (T.MaxPool2d(2), P.MaxPool2D(2), {"kernel_size": 2, "stride": 2, "ceil_mode": False, "return_indices": False}),
    (
        T.AvgPool2d(2, count_include_pad=False),
        P.AvgPool2D(2),
        {"count_include_pad": False, "divisor_override": None, "stride": 2},
    ),
    (T.Upsample(None, 2, "bilinear", True), P.Upsample(None, 2, "bilinear", True), {"align_corners": True}),
    (T.MultiheadAttention(4, 2), P.MultiHeadAttention(4, 2), {"num_heads": 2, "embed_dim": 4, "head_dim": 2}),
    (
        T.LSTM(3, 4, batch_first=True, bidirectional=True),
        P.LSTM(3, 4, direction="bidirect"),
        {"batch_first": True, "bidirectional": True, "hidden_size": 4},
    ),
    (T.SmoothL1Loss(beta=0.5), P.SmoothL1Loss(delta=0.5), {"beta": 0.5, "reduction": "mean"}),
    (T.CosineSimilarity(dim=0), P.CosineSimilarity(axis=0), {"dim": 0, "eps": 1e-8}),
]


@pytest.mark.parametrize(("ours", "theirs", "expected"), ALIKE, ids=lambda x: type(x).__name__)
def test_one_name_and_convention(ours: Any, theirs: Any, expected: dict[str, Any]) -> None:
    for adapter, module in ((TORCH, ours), (PADDLE, theirs)):
        found = adapter.settings(module)
        assert {name: found[name] for name in expected} == expected
        assert found["training"] is True


class Own(torch.nn.Module):
    """A user's module."""

    slope = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.variance_epsilon = 1e-6
        self.n_heads = np.int64(4)
        self.scaling = 0.125
        self.act = torch.nn.functional.silu
        self.lin = torch.nn.Linear(2, 2)
        self.shapes = [(1, 2), [3]]
        self.dtype = torch.float32
        self.table = torch.zeros(2)

    def forward(self, x: Any) -> Any:
        return x * self.slope + self.variance_epsilon


def test_a_users_class() -> None:
    assert TORCH.settings(Own()) == {
        "eps": 1e-6,
        "num_heads": 4,
        "scale": 0.125,
        "act": "silu",
        "shapes": ((1, 2), (3,)),
        "slope": 0.5,
        "training": True,
    }


def test_changes_hold_inside_only() -> None:
    module = Own()
    before = dict(vars(module))
    x = torch.ones(3)
    with TORCH.changed_settings(module, {"eps": 1.0, "slope": 2.0, "training": False}):
        assert module(x).tolist() == [3.0, 3.0, 3.0]
        assert not module.lin.training
    assert vars(module) == before
    assert module.lin.training
    with pytest.raises(RuntimeError, match="half-way"), TORCH.changed_settings(module, {"eps": 1.0}):
        raise RuntimeError("half-way")
    assert vars(module) == before


def test_what_cannot_be_changed_is_said() -> None:
    with pytest.raises(ArgumentError, match="changes names 'epps', which a Own does not have"):
        TORCH.changed_settings(Own(), {"epps": 1}).__enter__()
    with pytest.raises(ArgumentError, match="changes names 'act', which is a function"):
        TORCH.changed_settings(Own(), {"act": "gelu"}).__enter__()


IMAGE = np.random.default_rng(0).normal(size=(2, 4, 7, 7)).astype("float32")
SIGNAL = IMAGE[:, :, 0]


def run(adapter: Any, module: Any, x: Any) -> Any:
    with adapter.no_grad():
        return adapter.to_numpy(module(adapter.to_native(x))).copy()


# How to build it with other settings, the changes, and the input.
CHANGES: list[tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any], Any]] = [
    (T.Conv2d, {}, {"padding": 1}, {"padding": 1}, IMAGE),
    (T.Conv2d, {"padding": 1}, {"padding_mode": "reflect"}, {"padding_mode": "reflect", "padding": 1}, IMAGE),
    (T.Conv2d, {}, {"stride": (2, 2)}, {"stride": 2}, IMAGE),
    (P.Conv2D, {}, {"padding": (1, 1)}, {"padding": 1}, IMAGE),
    (P.Conv2D, {"padding": 1}, {"padding_mode": "reflect"}, {"padding_mode": "reflect", "padding": 1}, IMAGE),
    (P.Conv2D, {"padding": 1, "padding_mode": "reflect"}, {"padding_mode": "zeros"}, {"padding": 1}, IMAGE),
    (P.Conv1D, {"padding": 1}, {"padding_mode": "reflect"}, {"padding_mode": "reflect", "padding": 1}, SIGNAL),
    (P.Conv2D, {}, {"dilation": 2}, {"dilation": 2}, IMAGE),
]


@pytest.mark.parametrize(("cls", "built", "changes", "wanted", "x"), CHANGES)
def test_a_changed_module_computes_as_if_built_so(
    cls: Any, built: dict[str, Any], changes: dict[str, Any], wanted: dict[str, Any], x: Any
) -> None:
    adapter = TORCH if cls.__module__.startswith("torch") else PADDLE
    module, other = cls(4, 4, 3, **built), cls(4, 4, 3, **wanted)
    for name, tensor in adapter.own_parameters(module):
        adapter.assign(dict(adapter.own_parameters(other))[name], adapter.to_numpy(tensor))
    before = run(adapter, module, x)
    with adapter.changed_settings(module, changes):
        inside = run(adapter, module, x)
    np.testing.assert_allclose(inside, run(adapter, other, x), rtol=1e-5, atol=1e-6)
    assert np.array_equal(run(adapter, module, x), before)


def test_momentum_is_written_in_the_frameworks_convention() -> None:
    layer = P.BatchNorm2D(4)
    with PADDLE.changed_settings(layer, {"momentum": 0.3}):
        assert layer._momentum == pytest.approx(0.7)
    assert layer._momentum == 0.9
    gelu = P.GELU()
    with PADDLE.changed_settings(gelu, {"approximate": "tanh"}):
        assert gelu._approximate is True
    pool = P.AvgPool2D(2)
    with PADDLE.changed_settings(pool, {"count_include_pad": True}):
        assert pool.exclusive is False


def test_optimizers() -> None:
    one = torch.optim.AdamW(T.Linear(2, 2).parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.2)
    other = paddle.optimizer.AdamW(0.1, 0.8, 0.9, parameters=P.Linear(2, 2).parameters(), weight_decay=0.2)
    wanted = {"kind": "AdamW", "lr": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.2}
    for adapter, optimizer in ((TORCH, one), (PADDLE, other)):
        found = adapter.optimizer_settings(optimizer)
        assert {name: found[name] for name in wanted} == wanted
    plain = paddle.optimizer.SGD(0.1, P.Linear(2, 2).parameters(), weight_decay=0.4)
    assert PADDLE.optimizer_settings(plain) == {"kind": "SGD", "lr": 0.1, "weight_decay": 0.4}
    sgd = paddle.optimizer.Momentum(0.1, 0.8, P.Linear(2, 2).parameters(), weight_decay=0.3)
    found = PADDLE.optimizer_settings(sgd)
    assert (found["momentum"], found["weight_decay"], found["nesterov"]) == (0.8, 0.3, False)


class Bare:
    """An adapter of somebody else's that has never heard of settings."""

    def is_training(self, module: Any) -> bool:
        return True

    def set_training(self, module: Any, flag: bool) -> None:
        pass

    def children(self, module: Any) -> list[tuple[str, Any]]:
        return []

    def layer_table(self) -> dict[str, Any]:
        return {}


class Thing:
    def __init__(self) -> None:
        self.epsilon = 1e-3


def test_an_adapter_may_leave_settings_out() -> None:
    adapter: Any = Bare()
    thing = Thing()
    assert settings_of(adapter, thing) == {"eps": 1e-3, "training": True}
    with with_settings(adapter, thing, {"eps": 1.0}):
        assert thing.epsilon == 1.0
    assert thing.epsilon == 1e-3
    assert settings_of(TORCH, T.ELU(0.5))["alpha"] == 0.5
    assert optimizer_settings_of(adapter, thing) == {}
    elu = T.ELU(0.5)
    with with_settings(TORCH, elu, {"alpha": 2.0}):
        assert elu.alpha == 2.0
