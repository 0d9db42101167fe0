"""Real modules of torch and paddle with one thing wrong, base and raw in all pairs of frameworks, raw run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff.diagnose.causes import differing_settings, explain
from padiff.diagnose.scene import Scene
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_named
from padiff.frameworks.lookup import layer_spec
from tests.diagnose.faults import agrees

T, P = torch.nn, paddle.nn
ADAPTERS = {"torch": adapter_named("torch"), "paddle": adapter_named("paddle")}
rng = np.random.default_rng(0)
IMAGE = rng.normal(size=(2, 4, 11, 11)).astype(np.float32)
TOKENS = rng.normal(size=(3, 9, 16)).astype(np.float32) * rng.uniform(0.05, 1, size=(3, 9, 1)).astype(np.float32)


def adapter_of(module: Any) -> Any:
    return ADAPTERS["torch" if isinstance(module, torch.nn.Module) else "paddle"]


def copy_weights(base: Any, raw: Any) -> None:
    """Own parameters and statistics, in order, turned where layouts ask for it; random, those without partner too."""
    ours, theirs = adapter_of(base), adapter_of(raw)
    random = np.random.default_rng(1)
    sources = [*ours.own_parameters(base), *[b for b in ours.own_buffers(base) if "num_batches" not in b[0]]]
    targets = [*theirs.own_parameters(raw), *[b for b in theirs.own_buffers(raw) if "num_batches" not in b[0]]]
    turned = isinstance(base, T.Linear) != isinstance(raw, T.Linear) and isinstance(base, (T.Linear, P.Linear))
    for source, target in zip_longest(sources, targets):
        shape = ours.shape(source[1]) if source is not None else theirs.shape(target[1])
        values = random.uniform(0.5, 1.5, size=shape).astype(np.float32)
        if source is not None:
            ours.assign(source[1], values)
        if target is not None:
            theirs.assign(target[1], np.ascontiguousarray(values.T) if turned and values.ndim == 2 else values)


def run(module: Any, *inputs: Any) -> Any:
    adapter = adapter_of(module)
    state = adapter.random_state()
    with adapter.no_grad():
        out = module(*[adapter.to_native(x) for x in inputs])
    adapter.restore_random_state(state)
    return adapter.to_numpy(out[0] if isinstance(out, tuple) else out).copy()


def place(base: Any, raw: Any, *inputs: Any) -> Scene:
    """The scene at one module, as the engine fills it in."""
    adapter = adapter_of(raw)

    def retry(changes: Mapping[str, Any]) -> Any:
        try:
            with adapter.changed_settings(raw, changes):
                return run(raw, *inputs)
        except ArgumentError:
            return None

    def weights(module: Any) -> dict[str, Any]:
        own = adapter_of(module)
        return {n: own.to_numpy(t) for n, t in (*own.own_parameters(module), *own.own_buffers(module))}

    spec = layer_spec(adapter_of(base), type(base))
    return Scene(
        phase="forward",
        role="output",
        base_kind=type(base).__name__,
        raw_kind=type(raw).__name__,
        layer=spec.layer if spec else None,
        expected=run(base, *inputs),
        found=run(raw, *inputs),
        given={f"x{i}": x for i, x in enumerate(inputs)},
        base_weights=weights(base),
        raw_weights=weights(raw),
        base_settings=adapter_of(base).settings(base),
        raw_settings=adapter_of(raw).settings(raw),
        agrees=agrees,
        retry=retry,
    )


Build = Callable[[], Any]
# What is built rightly, what is built wrongly, the input, and what the first cause is called.
CASES: dict[str, tuple[dict[str, Build], dict[str, Build], Any, str]] = {
    "layer norm eps": (
        {"torch": lambda: T.LayerNorm(16, eps=1e-5), "paddle": lambda: P.LayerNorm(16, 1e-5)},
        {"torch": lambda: T.LayerNorm(16, eps=1e-6), "paddle": lambda: P.LayerNorm(16, 1e-6)},
        TOKENS,
        "eps",
    ),
    "batch norm eps": (
        {"torch": lambda: T.BatchNorm2d(4).eval(), "paddle": lambda: evaluated(P.BatchNorm2D(4))},
        {
            "torch": lambda: T.BatchNorm2d(4, eps=1e-3).eval(),
            "paddle": lambda: evaluated(P.BatchNorm2D(4, epsilon=1e-3)),
        },
        IMAGE,
        "eps",
    ),
    "batch norm in training": (
        {"torch": lambda: T.BatchNorm2d(4).eval(), "paddle": lambda: evaluated(P.BatchNorm2D(4))},
        {"torch": lambda: T.BatchNorm2d(4), "paddle": lambda: P.BatchNorm2D(4)},
        IMAGE,
        "training mode",
    ),
    "group norm groups": (
        {"torch": lambda: T.GroupNorm(2, 4), "paddle": lambda: P.GroupNorm(2, 4)},
        {"torch": lambda: T.GroupNorm(4, 4), "paddle": lambda: P.GroupNorm(4, 4)},
        IMAGE,
        "num_groups",
    ),
    "gelu": (
        {"torch": lambda: T.GELU(), "paddle": lambda: P.GELU()},
        {"torch": lambda: T.GELU("tanh"), "paddle": lambda: P.GELU(True)},
        TOKENS,
        "gelu variant",
    ),
    "leaky relu": (
        {"torch": lambda: T.LeakyReLU(0.01), "paddle": lambda: P.LeakyReLU(0.01)},
        {"torch": lambda: T.LeakyReLU(0.2), "paddle": lambda: P.LeakyReLU(0.2)},
        TOKENS,
        "activation slope",
    ),
    "relu as silu": (
        {"torch": lambda: T.ReLU(), "paddle": lambda: P.ReLU()},
        {"torch": lambda: T.SiLU(), "paddle": lambda: P.Silu()},
        TOKENS,
        "activation",
    ),
    "softmax axis": (
        {"torch": lambda: T.Softmax(-1), "paddle": lambda: P.Softmax(-1)},
        {"torch": lambda: T.Softmax(1), "paddle": lambda: P.Softmax(1)},
        TOKENS,
        "axis",
    ),
    "linear without bias": (
        {"torch": lambda: T.Linear(16, 8), "paddle": lambda: P.Linear(16, 8)},
        {"torch": lambda: T.Linear(16, 8, bias=False), "paddle": lambda: P.Linear(16, 8, bias_attr=False)},
        TOKENS,
        "missing bias",
    ),
    "linear with bias": (
        {"torch": lambda: T.Linear(16, 8, bias=False), "paddle": lambda: P.Linear(16, 8, bias_attr=False)},
        {"torch": lambda: T.Linear(16, 8), "paddle": lambda: P.Linear(16, 8)},
        TOKENS,
        "extra bias",
    ),
    "conv without bias": (
        {"torch": lambda: T.Conv2d(4, 4, 3), "paddle": lambda: P.Conv2D(4, 4, 3)},
        {"torch": lambda: T.Conv2d(4, 4, 3, bias=False), "paddle": lambda: P.Conv2D(4, 4, 3, bias_attr=False)},
        IMAGE,
        "missing bias",
    ),
    "conv padding mode": (
        {"torch": lambda: T.Conv2d(4, 4, 3, padding=1), "paddle": lambda: P.Conv2D(4, 4, 3, padding=1)},
        {
            "torch": lambda: T.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
            "paddle": lambda: P.Conv2D(4, 4, 3, padding=1, padding_mode="reflect"),
        },
        IMAGE,
        "padding_mode",
    ),
    "conv padding": (
        {"torch": lambda: T.Conv2d(4, 4, 3, padding=1), "paddle": lambda: P.Conv2D(4, 4, 3, padding=1)},
        {"torch": lambda: T.Conv2d(4, 4, 3), "paddle": lambda: P.Conv2D(4, 4, 3)},
        IMAGE,
        "padding",
    ),
    "conv stride": (
        {"torch": lambda: T.Conv2d(4, 4, 3, stride=2), "paddle": lambda: P.Conv2D(4, 4, 3, stride=2)},
        {"torch": lambda: T.Conv2d(4, 4, 3), "paddle": lambda: P.Conv2D(4, 4, 3)},
        IMAGE,
        "stride",
    ),
    "pool counts padding": (
        {
            "torch": lambda: T.AvgPool2d(3, 2, 1, count_include_pad=False),
            "paddle": lambda: P.AvgPool2D(3, 2, 1, exclusive=True),
        },
        {"torch": lambda: T.AvgPool2d(3, 2, 1), "paddle": lambda: P.AvgPool2D(3, 2, 1, exclusive=False)},
        IMAGE,
        "count_include_pad",
    ),
    "pool ceil mode": (
        {"torch": lambda: T.MaxPool2d(2), "paddle": lambda: P.MaxPool2D(2)},
        {"torch": lambda: T.MaxPool2d(2, ceil_mode=True), "paddle": lambda: P.MaxPool2D(2, ceil_mode=True)},
        IMAGE,
        "ceil_mode",
    ),
    "align corners": (
        {
            "torch": lambda: T.Upsample(None, 2, "bilinear", True),
            "paddle": lambda: P.Upsample(None, 2, "bilinear", True),
        },
        {
            "torch": lambda: T.Upsample(None, 2, "bilinear", False),
            "paddle": lambda: P.Upsample(None, 2, "bilinear", False),
        },
        IMAGE,
        "align_corners",
    ),
    "dropout in training": (
        {"torch": lambda: T.Dropout(0.3).eval(), "paddle": lambda: evaluated(P.Dropout(0.3))},
        {"torch": lambda: T.Dropout(0.3), "paddle": lambda: P.Dropout(0.3)},
        TOKENS,
        "training mode",
    ),
    "elu alpha": (
        {"torch": lambda: T.ELU(1.0), "paddle": lambda: P.ELU(1.0)},
        {"torch": lambda: T.ELU(0.5), "paddle": lambda: P.ELU(0.5)},
        TOKENS,
        "alpha",
    ),
    "local response": (
        {"torch": lambda: T.LocalResponseNorm(3, 0.1), "paddle": lambda: P.LocalResponseNorm(3, 0.1)},
        {"torch": lambda: T.LocalResponseNorm(3, 0.2), "paddle": lambda: P.LocalResponseNorm(3, 0.2)},
        IMAGE,
        "alpha",
    ),
}


def evaluated(layer: Any) -> Any:
    layer.eval()
    return layer


@pytest.mark.parametrize("raw_framework", ["torch", "paddle"])
@pytest.mark.parametrize("base_framework", ["torch", "paddle"])
@pytest.mark.parametrize("name", CASES)
def test_first_cause(name: str, base_framework: str, raw_framework: str) -> None:
    right, wrong, x, cause = CASES[name]
    base, raw = right[base_framework](), wrong[raw_framework]()
    copy_weights(base, raw)
    scene = place(base, raw, x)
    found = explain(scene)
    assert found, f"no cause; settings {differing_settings(scene.base_settings, scene.raw_settings)}"
    assert found[0].name == cause, "\n".join(map(str, found))


@pytest.mark.parametrize("raw_framework", ["torch", "paddle"])
@pytest.mark.parametrize("base_framework", ["torch", "paddle"])
@pytest.mark.parametrize("name", CASES)
def test_equal_modules_have_no_cause(name: str, base_framework: str, raw_framework: str) -> None:
    right, _, x, _ = CASES[name]
    base, raw = right[base_framework](), right[raw_framework]()
    copy_weights(base, raw)
    scene = place(base, raw, x)
    assert agrees(scene.expected, scene.found)
    assert differing_settings(scene.base_settings, scene.raw_settings) == ()
    assert explain(scene) == ()


def test_running_again_leaves_the_module_as_it_was() -> None:
    base, raw = T.LayerNorm(16), P.LayerNorm(16, 1e-3)
    copy_weights(base, raw)
    explain(place(base, raw, TOKENS))
    assert raw._epsilon == 1e-3


def test_transposed_square_weight() -> None:
    base, raw = T.Linear(16, 16), P.Linear(16, 16)
    values = ADAPTERS["torch"].to_numpy(base.weight)
    ADAPTERS["paddle"].assign(raw.weight, values)
    ADAPTERS["paddle"].assign(raw.bias, ADAPTERS["torch"].to_numpy(base.bias))
    assert explain(place(base, raw, TOKENS))[0].name == "transposed weight"


def test_head_count() -> None:
    base, raw = T.MultiheadAttention(16, 4, batch_first=True), T.MultiheadAttention(16, 2, batch_first=True)
    raw.load_state_dict(base.state_dict())
    assert differing_settings(*(ADAPTERS["torch"].settings(m) for m in (base, raw))) == (
        ("num_heads", 4, 2),
        ("head_dim", 4, 8),
    )
    found = explain(place(base, raw, TOKENS, TOKENS, TOKENS))
    assert found[0].name.startswith("head count")


class RMSNorm(torch.nn.Module):
    """A user's norm, whose eps has a name of its own."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))
        self.variance_epsilon = eps

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight


def test_a_users_norm() -> None:
    assert explain(place(RMSNorm(1e-6), RMSNorm(1e-3), TOKENS))[0].name == "eps"
    hidden = place(RMSNorm(1e-6), RMSNorm(1e-3), TOKENS)
    blind = Scene(**(vars(hidden) | {"base_settings": {}, "raw_settings": {}}))
    assert explain(blind)[0].name == "eps"


class Attention(torch.nn.Module):
    """A user's attention with everything in its own code."""

    def __init__(self, scale: float | None = None, mask: int = 1, merge: bool = True) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(16, 16) for _ in range(3))
        self.how = (scale, mask, merge)

    def forward(self, x: Any) -> tuple[Any, dict[str, Any]]:
        scale, mask, merge = self.how
        made = {name: getattr(self, name)(x) for name in ("q_proj", "k_proj", "v_proj")}
        q, k, v = (t.view(*x.shape[:2], 4, 4).transpose(1, 2) for t in made.values())
        scores = q @ k.transpose(-1, -2) * (0.5 if scale is None else scale)
        scores = scores.masked_fill(torch.ones(9, 9).triu(mask).bool(), -torch.inf)
        out = scores.softmax(-1) @ v
        return (out.transpose(1, 2) if merge else out).reshape(x.shape), made


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"scale": 1.0}, "scale"),
        ({"mask": 2}, "mask off by one"),
        ({"mask": 9}, "mask"),
        ({"merge": False}, "head order"),
    ],
)
def test_a_users_attention(wrong: dict[str, Any], cause: str) -> None:
    base, raw = Attention(), Attention(**wrong)
    raw.load_state_dict(base.state_dict())
    x = torch.from_numpy(8 * TOKENS)
    with torch.no_grad():
        (expected, made), (found, _) = base(x), raw(x)
    scene = Scene(
        phase="forward",
        role="input",
        base_kind="Attention",
        raw_kind="Attention",
        layer=None,
        expected=expected.numpy(),
        found=found.numpy(),
        given={"x": x.numpy()},
        around={name: t.numpy() for name, t in made.items()},
        base_settings={"num_heads": 4},
        raw_settings={"num_heads": 4},
        agrees=agrees,
    )
    assert explain(scene)[0].name == cause


def step(optimizer: Any, values: Any, gradient: Any, **options: Any) -> Any:
    weight = torch.nn.Parameter(torch.from_numpy(values.copy()))
    weight.grad = torch.from_numpy(gradient.copy())
    optimizer([weight], **options).step()
    return weight.detach().numpy()


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.SGD, {"lr": 0.01}), "lr"),
        ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}), "weight decay"),
        (
            (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
            (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1}),
            "weight decay",
        ),
        ((torch.optim.Adam, {"lr": 0.1}), (torch.optim.SGD, {"lr": 0.1}), "optimizer"),
        ((torch.optim.Adam, {"lr": 0.1, "eps": 1e-8}), (torch.optim.Adam, {"lr": 0.1, "eps": 1e-3}), "eps"),
        (
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
            (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
            "nesterov",
        ),
    ],
)
def test_optimizers(right: tuple[Any, Any], wrong: tuple[Any, Any], cause: str) -> None:
    random = np.random.default_rng(0)
    values, gradient = random.normal(size=(2, 12, 16)).astype(np.float32)
    settings = []
    for optimizer, options in (right, wrong):
        made = optimizer([torch.nn.Parameter(torch.zeros(1))], **options)
        settings.append(ADAPTERS["torch"].optimizer_settings(made))
    scene = Scene(
        phase="weight",
        role="parameter",
        base_kind="Linear",
        raw_kind="Linear",
        layer="linear",
        expected=step(right[0], values, gradient, **right[1]),
        found=step(wrong[0], values, gradient, **wrong[1]),
        before=values,
        gradient=gradient,
        base_settings=settings[0],
        raw_settings=settings[1],
        agrees=agrees,
    )
    found = explain(scene)
    assert found and found[0].name == cause, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        (lambda: T.BatchNorm2d(4), lambda: T.BatchNorm2d(4, momentum=0.3), "momentum"),
        (lambda: T.BatchNorm2d(4), lambda: P.BatchNorm2D(4, momentum=0.7), "momentum"),
        (lambda: T.BatchNorm2d(4), lambda: P.BatchNorm2D(4), "variance"),
        (lambda: T.BatchNorm2d(4), lambda: T.BatchNorm2d(4).eval(), "not updated"),
    ],
)
def test_running_statistics(right: Build, wrong: Build, cause: str) -> None:
    base, raw = right(), wrong()
    buffers = []
    for module in (base, raw):
        run(module, IMAGE)
        own = dict(adapter_of(module).own_buffers(module))
        name = "running_var" if cause == "variance" else "running_mean"
        tensor = own.get(name, own.get({"running_var": "_variance", "running_mean": "_mean"}[name]))
        buffers.append(adapter_of(module).to_numpy(tensor).copy())
    before = np.ones(4, np.float32) if cause == "variance" else np.zeros(4, np.float32)
    scene = Scene(
        phase="buffer",
        role="buffer",
        base_kind="BatchNorm2d",
        raw_kind="BatchNorm2d",
        layer="batch_norm",
        expected=buffers[0],
        found=buffers[1],
        before=before,
        given={"x": IMAGE},
        base_settings=adapter_of(base).settings(base),
        raw_settings=adapter_of(raw).settings(raw),
        agrees=agrees,
    )
    found = explain(scene)
    assert found and found[0].name == cause, "\n".join(map(str, found))
