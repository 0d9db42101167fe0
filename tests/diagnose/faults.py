"""Faults at one place, in numpy: what base computes, what raw computes, and what the cause is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from padiff.diagnose.causes.functions import ACTIVATIONS, elu, leaky, softmax
from padiff.diagnose.scene import Scene
from padiff.records import DrawGap

Rng = np.random.Generator
Maker = Callable[[Rng], dict[str, Any]]
FAULTS: dict[str, tuple[frozenset[str], Maker]] = {}
"""Name of a fault to the causes that name it rightly (none: unknown is the right answer) and its maker."""


def fault(*causes: str) -> Callable[[Maker], Maker]:
    def put(maker: Maker) -> Maker:
        FAULTS[maker.__name__.strip("_")] = frozenset(causes), maker
        return maker

    return put


def agrees(base: Any, raw: Any, close: float = 2e-6) -> bool:
    """Within a relative root mean square."""
    if base.shape != raw.shape:
        return False
    one, other = base.astype(np.float64), raw.astype(np.float64)
    bad = ~(np.isfinite(one) & np.isfinite(other))
    if not np.array_equal(one[bad], other[bad], equal_nan=True):
        return False
    apart, size = (one - other)[~bad], one[~bad]
    return bool(np.sqrt(np.mean(apart**2)) <= close * np.sqrt(np.mean(size**2)) + 1e-30) if apart.size else True


def scene(fields: dict[str, Any], rng: Rng) -> Scene:
    """In single precision, each side with rounding of its own."""
    made = {"phase": "forward", "role": "output", "base_kind": "A", "raw_kind": "A", "layer": None} | fields
    for side in ("expected", "found"):
        values = np.asarray(made[side])
        if values.dtype == np.float64:
            made[side] = (values * (1 + 6e-8 * rng.normal(size=values.shape))).astype(np.float32)
    for name in (
        "given",
        "around",
        "handed",
        "base_weights",
        "raw_weights",
        "inner_weights",
        "gradients",
        "raw_gradients",
    ):
        made[name] = {k: _single(v) for k, v in made.get(name, {}).items()}
    for name in ("before", "gradient", "start"):
        made[name] = _single(made[name]) if made.get(name) is not None else None
    made["history"] = tuple(_single(values) for values in made.get("history", ()))
    return Scene(**({"agrees": agrees} | made))


def _single(values: Any) -> Any:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def shape(rng: Rng) -> tuple[int, ...]:
    return [(2, 12, 16), (3, 8, 32), (4, 6, 10, 10), (40, 24), (1, 16, 48)][rng.integers(5)]


def plus(rng: Rng, e: Any, f: Any, **fields: Any) -> dict[str, Any]:
    """With tensors at hand that have nothing to do with it."""
    around = {"decoy": rng.normal(size=e.shape), "other": rng.normal(size=e.shape) ** 2}
    return {"expected": e, "found": f} | fields | {"around": around | fields.get("around", {})}


@fault("pooling")
def another_pool(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 6, 2, 6, 2))
    layers = {"layer": "avg_pool2d", "raw_layer": "max_pool2d"}
    return {"expected": x.mean(axis=(3, 5)), "found": x.max(axis=(3, 5))} | layers


@fault("label smoothing")
def smoothed_labels(rng: Rng) -> dict[str, Any]:
    logits, labels = rng.normal(size=(20, 6)), rng.integers(0, 6, 20)
    chances, target = softmax(logits, -1), np.eye(6)[labels]
    targets = [target, 0.9 * target + 0.1 / 6]
    losses = [np.array(-(np.log(chances) * one).sum(-1).mean()) for one in targets]
    sent = [{"0": (chances - one) / 20} for one in targets]
    given = {"expected": losses[0], "found": losses[1], "given": {"0": logits}, "role": "loss"}
    return given | {"gradients": sent[0], "raw_gradients": sent[1]}


@fault("zeroed")
def indices_zeroed(rng: Rng) -> dict[str, Any]:
    ids = rng.integers(0, 2, size=(3, 9))
    ids[0, 0] = 1
    return {"expected": ids, "found": 0 * ids}


# ------------------------------------------------------------------ arithmetic


@fault("off by one")
def shifted_residual(rng: Rng) -> dict[str, Any]:
    x, y = rng.normal(size=(2, 3, 9, 16))
    shifted = np.concatenate([np.zeros((3, 1, 16)), y[:, :-1]], 1)
    return plus(rng, x + y, x + shifted, around={"branch": y, "dropout": shifted})


@fault("scale")
def scaled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng)) + 0.3
    return plus(rng, e, e * rng.choice([0.5, 2.0, 1.01, 1.37, 0.125, 1 / np.sqrt(e.shape[-1])]))


@fault("sign")
def sign(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, -e)


@fault("offset")
def offset(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, e + rng.choice([1.0, -0.01, 0.37]))


@fault("missing bias")
def missing_bias(rng: Rng) -> dict[str, Any]:
    f = rng.normal(size=shape(rng))
    b = rng.normal(size=f.shape[1] if f.ndim == 4 else f.shape[-1])
    return plus(rng, f + (b[:, None, None] if f.ndim == 4 else b), f, base_weights={"bias": b})


@fault("extra bias")
def extra_bias(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    b = rng.normal(size=e.shape[1] if e.ndim == 4 else e.shape[-1])
    return plus(rng, e, e + (b[:, None, None] if e.ndim == 4 else b), raw_weights={"bias": b})


@fault("weights differ")
def other_bias(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(20, 12))
    b, c = rng.normal(size=12), rng.normal(size=12)
    return plus(rng, e + b, e + c, base_weights={"bias": b}, raw_weights={"bias": c})


@fault("missing residual")
def missing_residual(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(2, *shape(rng)))
    return plus(rng, x + h, h, given={"x": x}, around={"mlp": h})


@fault("missing residual")
def missing_residual_of_another_shape(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(3, 8, 16)), rng.normal(size=(1, 8, 16))
    return {"expected": x + h, "found": h, "given": {"x": x}, "around": {"decoy": rng.normal(size=x.shape)}}


@fault("mask")
def mask_that_is_not_added(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 4, 6, 6))
    mask = np.where(np.tri(6) > 0, 0.0, -1e5)[None, None]
    return plus(rng, e + mask, e, given={"0": e, "1": mask})


@fault("mask")
def mask_without_window(rng: Rng) -> dict[str, Any]:
    """What differs lies in a corner: no frame that something slides over."""
    row, column = np.indices((9, 9))
    causal = np.where(column > row, -3e38, 0.0)[None, None]
    window = np.where((column > row) | (row - column >= 4), -3e38, 0.0)[None, None]
    return plus(rng, window, causal)


@fault("missing weight")
def missing_weight_about_zero(rng: Rng) -> dict[str, Any]:
    e, weight = rng.normal(size=(2, 12, 16)), 0.2 * rng.normal(size=16)
    return plus(rng, e * (1 + weight), e, base_weights={"weight": weight}, raw_weights={"weight": weight})


@fault("extra residual")
def extra_residual(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(2, *shape(rng)))
    return plus(rng, np.tanh(h), np.tanh(h) + x, given={"x": x}, around={"mlp": h})


@fault("residual scale", "scale")
def residual_scale(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(2, *shape(rng)))
    return plus(rng, x + np.tanh(h), 0.5 * x + np.tanh(h), given={"x": x})


@fault("misplaced residual")
def misplaced_residual(rng: Rng) -> dict[str, Any]:
    x, n, h = rng.normal(size=(3, *shape(rng)))
    return plus(rng, x + np.sin(h), n + np.sin(h), given={"x": x}, around={"norm": n})


@fault("scale")
def branch_scale(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(2, *shape(rng)))
    return plus(rng, x + np.tanh(h), x + 0.9 * np.tanh(h), given={"x": x})


@fault("missing pos_embed")
def missing_position(rng: Rng) -> dict[str, Any]:
    x, p = rng.normal(size=(2, 12, 16)), rng.normal(size=(1, 12, 16))
    return plus(rng, np.tanh(x) + p, np.tanh(x), given={"x": x}, base_weights={"pos_embed": p})


@fault("missing weight")
def missing_gamma(rng: Rng) -> dict[str, Any]:
    f, g = rng.normal(size=(2, 12, 16)), rng.normal(size=16) + 2
    return plus(rng, f * g, f, base_weights={"gamma": g})


@fault("operands")
def subtracted(rng: Rng) -> dict[str, Any]:
    a, b = rng.normal(size=(2, *shape(rng)))
    return plus(rng, a * b, a - b, around={"a": a, "b": b})


@fault("operands")
def gate_swapped(rng: Rng) -> dict[str, Any]:
    a, b = rng.normal(size=(2, *shape(rng)))
    silu = ACTIVATIONS["silu"]
    return plus(rng, silu(a) * b, silu(b) * a, around={"gate": a, "up": b})


@fault("operands", "activation")
def gate_halves(rng: Rng) -> dict[str, Any]:
    a, b = rng.normal(size=(2, *shape(rng)))
    silu = ACTIVATIONS["silu"]
    return plus(rng, silu(a) * b, silu(b) * a, around={"gate_up": np.concatenate([a, b], -1)})


# ------------------------------------------------------------------ activations


def activations(right: str, wrong: str, *causes: str, size: float = 3.0) -> None:
    @fault(*causes)
    def maker(rng: Rng) -> dict[str, Any]:
        x = size * rng.normal(size=shape(rng))
        return plus(rng, ACTIVATIONS[right](x), ACTIVATIONS[wrong](x), given={"x": x})

    FAULTS[f"{right} as {wrong}" + (" of small numbers" if size < 1 else "")] = FAULTS.pop("maker")


for pair in (("gelu", "gelu tanh"), ("gelu tanh", "gelu"), ("gelu", "quick gelu")):
    activations(*pair, "gelu variant")
for pair in (("relu", "gelu"), ("silu", "relu"), ("hardswish", "silu"), ("relu6", "relu"), ("mish", "silu")):
    activations(*pair, "activation")
for pair in (("tanh", "sigmoid"), ("elu", "selu"), ("softplus", "relu"), ("hardsigmoid", "sigmoid")):
    activations(*pair, "activation")
activations("tanh", "sigmoid", "activation", size=0.1)
activations("relu", "no activation", "missing activation")
activations("no activation", "silu", "extra activation")


@fault("activation slope")
def leaky_slope(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=shape(rng))
    return plus(rng, leaky(0.01)(x), leaky(0.2)(x), given={"x": x})


@fault("activation", "activation slope")
def leaky_as_relu(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=shape(rng))
    return plus(rng, leaky(0.1)(x), np.maximum(x, 0), given={"x": x})


@fault("activation slope", "activation")
def elu_alpha(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=shape(rng))
    return plus(rng, elu(1.0)(x), elu(0.5)(x), given={"x": x})


@fault("missing activation")
def missing_activation(rng: Rng) -> dict[str, Any]:
    f = rng.normal(size=shape(rng))
    return plus(rng, ACTIVATIONS[rng.choice(["relu", "gelu", "silu", "tanh", "sigmoid"])](f), f, role="input")


@fault("extra activation")
def extra_activation(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, ACTIVATIONS[rng.choice(["relu", "gelu", "silu", "tanh"])](e), role="input")


@fault("activation")
def gate_activation(rng: Rng) -> dict[str, Any]:
    a, b = rng.normal(size=(2, *shape(rng)))
    return plus(rng, ACTIVATIONS["silu"](a) * b, np.maximum(a, 0) * b, around={"gate": a, "up": b})


@fault("clamp")
def clamped(rng: Rng) -> dict[str, Any]:
    e = 3 * rng.normal(size=shape(rng))
    return plus(rng, e, np.clip(e, -1.3, 2.1))


# ------------------------------------------------------------------ linear and weights


@fault("transposed weight")
def transposed_weight(rng: Rng) -> dict[str, Any]:
    x, w, b = rng.normal(size=(2, 9, 16)), rng.normal(size=(16, 16)), rng.normal(size=16)
    weights = {"weight": w, "bias": b}
    return plus(rng, x @ w.T + b, x @ w + b, given={"x": x}, base_weights=weights, raw_weights=weights)


@fault("weights differ")
def one_weight(rng: Rng) -> dict[str, Any]:
    x, w = rng.normal(size=(2, 9, 16)), rng.normal(size=(8, 16))
    v = w.copy()
    v[2, 3] += 0.5
    return plus(rng, x @ w.T, x @ v.T, given={"x": x}, base_weights={"weight": w}, raw_weights={"weight": v.T})


@fault("swapped weights")
def swapped_weights(rng: Rng) -> dict[str, Any]:
    x, w, v = rng.normal(size=(2, 9, 16)), rng.normal(size=(8, 16)), rng.normal(size=(8, 16))
    fields = {"base_weights": {"weight": w}, "raw_weights": {"weight": v.T}, "siblings": {"k_proj": {"weight": v}}}
    return plus(rng, x @ w.T, x @ v.T, given={"x": x}, **fields)


@fault("tied weights")
def untied_weights(rng: Rng) -> dict[str, Any]:
    x, w, v = rng.normal(size=(2, 9, 16)), rng.normal(size=(8, 16)), rng.normal(size=(8, 16))
    fields = {"base_weights": {"weight": w}, "raw_weights": {"weight": v}, "base_ties": {"weight": ("embed.weight",)}}
    return plus(rng, x @ w.T, x @ v.T, given={"x": x}, **fields)


@fault("quantised")
def int8_weights(rng: Rng) -> dict[str, Any]:
    """Each output with a scale of its own; inputs as they are."""
    x, w = rng.normal(size=(40, 24)), rng.normal(size=(24, 16)) * np.exp(rng.normal(size=16))
    scale = np.abs(w).max(0) / 127
    return {
        "expected": x @ w,
        "found": x @ (np.rint(w / scale) * scale),
        "given": {"0": x},
        "base_weights": {"weight": w},
    }


@fault("quantised")
def float8_product(rng: Rng) -> dict[str, Any]:
    x, w = rng.normal(size=(5, 8, 24)), rng.normal(size=(16, 24))
    on_grid = [
        (t * (448 / np.abs(t).max())).astype(ml_dtypes.float8_e4m3fn).astype(float) / (448 / np.abs(t).max())
        for t in (x, w)
    ]
    return {
        "expected": x @ w.T,
        "found": on_grid[0] @ on_grid[1].T,
        "given": {"0": x},
        "base_weights": {"weight": w},
        "layer": "linear",
    }


@fault("not cleared")
def gradient_not_cleared(rng: Rng) -> dict[str, Any]:
    now, before = rng.normal(size=(12, 8)), rng.normal(size=(12, 8))
    return {"phase": "gradient", "role": "parameter", "expected": now, "found": now + before, "before": before}


@fault("precision")
def matmul_bfloat16(rng: Rng) -> dict[str, Any]:
    x, w = rng.normal(size=(2, 9, 64)), rng.normal(size=(32, 64))
    narrow = [t.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64) for t in (x, w)]
    return plus(
        rng, x @ w.T, narrow[0] @ narrow[1].T, given={"x": x}, base_weights={"weight": w}, raw_weights={"weight": w}
    )


@fault("precision")
def rounded_output(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    f = e.astype(np.float32).astype(rng.choice([np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)])).astype(np.float32)
    return plus(rng, e, f)


# ------------------------------------------------------------------ norms, softmax, reductions


def normal(x: Any, axes: Any = -1, eps: float = 1e-5, less: int = 0, centred: bool = True) -> Any:
    moved = x - x.mean(axis=axes, keepdims=True) if centred else x
    count = moved.size // moved.mean(axis=axes).size
    return moved / np.sqrt((moved**2).sum(axis=axes, keepdims=True) / (count - less) + eps)


def _norm(rng: Rng, right: dict[str, Any], wrong: dict[str, Any], size: float = 1.0) -> dict[str, Any]:
    x = size * rng.normal(size=(4, 12, 32)) * rng.uniform(0.1, 1, size=(4, 12, 1)) + 0.2 * size
    w, b = rng.normal(size=32) + 1, rng.normal(size=32)
    weights = {"weight": w, "bias": b}
    fields = {"given": {"x": x}, "base_weights": weights, "raw_weights": weights, "layer": "layer_norm"}
    return plus(rng, normal(x, **right) * w + b, normal(x, **wrong) * w + b, **fields)


@fault("eps")
def norm_eps(rng: Rng) -> dict[str, Any]:
    return _norm(rng, {"eps": 1e-5}, {"eps": 1e-6}, 0.05)


@fault("eps")
def norm_eps_small(rng: Rng) -> dict[str, Any]:
    return _norm(rng, {"eps": 1e-12}, {"eps": 1e-5}, 0.3)


@fault("eps")
def norm_eps_over_all(rng: Rng) -> dict[str, Any]:
    """The numbers are so small that eps is most of what they are divided by."""
    eps = {"base_settings": {"eps": 1e-6}, "raw_settings": {"eps": 1e-3}}
    return _norm(rng, {"eps": 1e-6, "centred": False}, {"eps": 1e-3, "centred": False}, 0.02) | eps


@fault("variance")
def norm_unbiased(rng: Rng) -> dict[str, Any]:
    return _norm(rng, {}, {"less": 1})


@fault("norm kind")
def norm_centred(rng: Rng) -> dict[str, Any]:
    return _norm(rng, {}, {"centred": False})


@fault("variance")
def norm_of_ones_own(rng: Rng) -> dict[str, Any]:
    made = _norm(rng, {}, {"less": 1})
    return made | {"raw_weights": {"gain": made["raw_weights"]["weight"], "shift": made["raw_weights"]["bias"]}}


@fault("axis")
def norm_axis(rng: Rng) -> dict[str, Any]:
    return _norm(rng, {}, {"axes": 1})


@fault("training mode")
def batch_statistics(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(6, 8, 5, 5)) * 2 + 0.3
    m, v = rng.normal(size=8), rng.uniform(0.5, 2, size=8)
    weights = {"weight": np.ones(8), "bias": np.zeros(8), "running_mean": m, "running_var": v}
    c = (slice(None), None, None)
    fields = {"given": {"x": x}, "base_weights": weights, "raw_weights": weights, "layer": "batch_norm"}
    return plus(rng, (x - m[c]) / np.sqrt(v[c] + 1e-5), normal(x, (0, 2, 3)), **fields)


@fault("axis")
def softmax_axis(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=shape(rng))
    return plus(rng, softmax(x, -1), softmax(x, 1 if x.ndim > 2 else 0), given={"x": x})


@fault("softmax dtype")
def softmax_dtype(rng: Rng) -> dict[str, Any]:
    x = 3 * rng.normal(size=(2, 4, 12, 12))
    narrow = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return plus(rng, softmax(x), softmax(narrow), given={"x": x})


@fault("scale")
def softmax_scale(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 12))
    return plus(rng, softmax(x / np.sqrt(16)), softmax(x), base_settings={"head_dim": 16})


@fault("reduction", "scale")
def mean_as_sum(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(3, 12, 16))
    return {"expected": x.mean(1), "found": x.sum(1), "given": {"x": x}}


@fault("reduction")
def mean_as_max(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(3, 12, 16))
    return {"expected": x.mean(1), "found": x.max(1), "given": {"x": x}}


@fault("reduction")
def first_as_mean(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(3, 12, 16))
    return {"expected": x[:, 0], "found": x.mean(1), "given": {"x": x}}


@fault("axis")
def mean_axis(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(3, 12, 12))
    return {"expected": x.mean(1), "found": x.mean(2), "given": {"x": x}}


# ------------------------------------------------------------------ layouts


@fault("transposed")
def axes_swapped(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(3, 8, 8, 4))
    return plus(rng, e, e.transpose(0, 2, 1, 3))


@fault("transposed")
def axes_swapped_shape(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(3, 8, 5, 4))
    return {"expected": e, "found": e.transpose(0, 2, 1, 3)}


@fault("off by one")
def rolled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, np.roll(e, rng.choice([1, -1]), axis=rng.integers(e.ndim) if min(e.shape) > 1 else -1))


@fault("off by one")
def sliced_off_by_one(rng: Rng) -> dict[str, Any]:
    long = rng.normal(size=(3, 13, 16))
    return plus(rng, long[:, :-1], long[:, 1:])


@fault("reversed")
def flipped(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, e[..., ::-1])


@fault("head order")
def qkv_interleaved(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 9, 48))
    return plus(rng, e, e.reshape(2, 9, 3, 4, 4).transpose(0, 1, 3, 2, 4).reshape(2, 9, 48))


@fault("head order")
def qkv_parts(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 9, 48))
    return plus(rng, e, np.concatenate([e[..., 16:32], e[..., :16], e[..., 32:]], -1))


@fault("head order")
def interleaved(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 9, 24))
    return plus(rng, e, e.reshape(2, 9, 4, 6).swapaxes(-1, -2).reshape(2, 9, 24))


@fault("head order")
def heads_unmerged(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 9, 24))
    return plus(rng, e, e.reshape(2, 9, 4, 6).transpose(0, 2, 1, 3).reshape(2, 9, 24), base_settings={"num_heads": 4})


@fault("order")
def channels_shuffled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(8, 9, 16))
    return plus(rng, e, e[..., rng.permutation(16)])


@fault("slice")
def cut_short(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(3, 12, 16))
    return {"expected": e, "found": e[:, :-1]}


@fault("ceil_mode or padding")
def one_more(rng: Rng) -> dict[str, Any]:
    f = rng.normal(size=(2, 4, 8, 8))
    return {"expected": f[:, :, :7, :7], "found": f, "layer": "max_pool2d"}


# ------------------------------------------------------------------ attention and rotary positions


def rotate(x: Any, base: float = 1e4, pairing: str = "halves", start: int = 0, sign: int = 1) -> Any:
    """Positions along the last axis but one."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * sign * (np.arange(x.shape[-2]) + start)[:, None] * base ** (-np.arange(half) / half))
    if pairing == "halves":
        z = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([z.real, z.imag], -1)
    z = (x[..., ::2] + 1j * x[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


@fault("rope pairing")
def rope_pairing(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, pairing="interleaved"), around={"q": x})


@fault("rope base")
def rope_base(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, 5e5), around={"q": x})


@fault("rope base")
def rope_base_apart(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, 5e5))


@fault("rope base")
def rope_base_flat(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, 5e4), around={"q": x.transpose(0, 2, 1, 3).reshape(2, 12, 64)})


@fault("rope position")
def rope_offset(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, start=1), around={"q": x})


@fault("rope sign")
def rope_sign(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), rotate(x, sign=-1), around={"q": x})


@fault("missing rope")
def rope_missing(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 4, 12, 16))
    return plus(rng, rotate(x), x, around={"q": x})


def table(base: float, pairing: str = "halves", function: Any = np.cos) -> Any:
    angles = np.arange(14)[:, None] * base ** (-np.arange(8) / 8)
    doubled = np.concatenate([angles, angles], -1) if pairing == "halves" else np.repeat(angles, 2, -1)
    return function(doubled)[None]


@fault("rope pairing")
def rope_mixed(rng: Rng) -> dict[str, Any]:
    """Tables laid out for halves, pairs formed of neighbours."""
    x = rng.normal(size=(2, 4, 14, 16))
    cos, sin = table(1e4)[0], table(1e4, function=np.sin)[0]
    halves = np.concatenate([-x[..., 8:], x[..., :8]], -1)
    neighbours = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    around = {"q": x, "cosines": cos, "sines": sin}
    return plus(rng, x * cos + halves * sin, x * cos + neighbours * sin, around=around)


@fault("rope base")
def table_base(rng: Rng) -> dict[str, Any]:
    function = rng.choice(np.array([np.cos, np.sin]))
    return {"expected": table(1e4, function=function), "found": table(1e6, function=function)}


@fault("rope pairing")
def table_pairing(rng: Rng) -> dict[str, Any]:
    return {"expected": table(1e4), "found": table(1e4, "interleaved")}


def attend(q: Any, k: Any, v: Any, causal: int | None = 0, scale: float | None = None) -> Any:
    scores = q @ k.swapaxes(-1, -2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if causal is not None:
        row, column = np.indices(scores.shape[-2:])
        scores = np.where(column > row + causal, -1e30, scores)
    return softmax(scores) @ v


def _attention(rng: Rng, right: Any, wrong: Any, kv_heads: int = 4, **fields: Any) -> dict[str, Any]:
    q = rng.normal(size=(2, 4, 12, 16))
    k, v = rng.normal(size=(2, 2, kv_heads, 12, 16))
    merged = [t.transpose(0, 2, 1, 3).reshape(2, 12, -1) for t in (right(q, k, v), wrong(q, k, v), q, k, v)]
    around = {"q_proj": merged[2], "k_proj": merged[3], "v_proj": merged[4]}
    settings = {"base_settings": {"num_heads": 4}, "raw_settings": {"num_heads": 4}}
    return plus(rng, merged[0], merged[1], around=around, role="input", **settings, **fields)


@fault("mask")
def attention_no_mask(rng: Rng) -> dict[str, Any]:
    return _attention(rng, attend, lambda q, k, v: attend(q, k, v, None))


@fault("mask off by one")
def attention_mask_off_by_one(rng: Rng) -> dict[str, Any]:
    return _attention(rng, attend, lambda q, k, v: attend(q, k, v, 1))


@fault("mask off by one")
def attention_mask_excludes_self(rng: Rng) -> dict[str, Any]:
    return _attention(rng, attend, lambda q, k, v: attend(q, k, v, -1))


@fault("scale")
def attention_scale(rng: Rng) -> dict[str, Any]:
    return _attention(rng, attend, lambda q, k, v: attend(q, k, v, scale=1.0))


@fault("rope pairing")
def attention_rope(rng: Rng) -> dict[str, Any]:
    def way(pairing: str) -> Any:
        return lambda q, k, v: attend(rotate(q, pairing=pairing), rotate(k, pairing=pairing), v)

    tables = {"cos": table(1e4)[:, :12], "sin": table(1e4, function=np.sin)[:, :12]}
    return _attention(rng, way("halves"), way("interleaved"), given=tables)


@fault("rope base")
def attention_rope_base(rng: Rng) -> dict[str, Any]:
    def way(base: float) -> Any:
        return lambda q, k, v: attend(rotate(q, base), rotate(k, base), v)

    return _attention(rng, way(1e4), way(1e5))


@fault("missing rope")
def attention_rope_on_query_only(rng: Rng) -> dict[str, Any]:
    return _attention(rng, lambda q, k, v: attend(rotate(q), rotate(k), v), lambda q, k, v: attend(rotate(q), k, v))


@fault("head order")
def attention_groups(rng: Rng) -> dict[str, Any]:
    return _attention(
        rng,
        lambda q, k, v: attend(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1)),
        lambda q, k, v: attend(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1))),
        kv_heads=2,
    )


@fault("scale")
def attention_any_scale(rng: Rng) -> dict[str, Any]:
    scale = 16**-0.5 * float(rng.uniform(0.3, 3.0))
    return _attention(rng, attend, lambda q, k, v: attend(q, k, v, scale=scale))


@fault("softmax axis")
def attention_softmax_axis(rng: Rng) -> dict[str, Any]:
    def turned(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) / 4, -2) @ v

    return _attention(rng, lambda q, k, v: attend(q, k, v, None), turned)


@fault("mask")
def attention_filled_with_zero(rng: Rng) -> dict[str, Any]:
    def filled(q: Any, k: Any, v: Any) -> Any:
        row, column = np.indices((12, 12))
        return softmax(np.where(column > row, 0.0, q @ k.swapaxes(-1, -2) / 4)) @ v

    return _attention(rng, attend, filled)


@fault("mask")
def attention_looks_besides(rng: Rng) -> dict[str, Any]:
    """At what is left out, with scores of its own."""

    def other(q: Any, k: Any, v: Any) -> Any:
        row, column = np.indices((12, 12))
        return softmax(np.where(column > row, rng.normal(size=(2, 4, 12, 12)), q @ k.swapaxes(-1, -2) / 4)) @ v

    return _attention(rng, attend, other)


@fault("mask off by one")
def attention_one_more(rng: Rng) -> dict[str, Any]:
    """The first position that is left out, with a score of its own."""

    def other(q: Any, k: Any, v: Any) -> Any:
        row, column = np.indices((12, 12))
        scores = np.where(column == row + 1, rng.normal(size=(2, 4, 12, 12)), q @ k.swapaxes(-1, -2) / 4)
        return softmax(np.where(column > row + 1, -1e30, scores)) @ v

    return _attention(rng, attend, other)


@fault("mask")
def attention_padding_ignored(rng: Rng) -> dict[str, Any]:
    mask = np.zeros((2, 1, 1, 12))
    mask[:, ..., -3:] = -1e9

    def padded(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ k.swapaxes(-1, -2) / 4 + mask) @ v

    return _attention(rng, padded, lambda q, k, v: attend(q, k, v, None), given={"1": mask})


@fault("scale")
def attention_of_one_matrix(rng: Rng) -> dict[str, Any]:
    """Query, key and value made at once: one after the other, or head by head."""
    fields = _attention(rng, attend, lambda q, k, v: attend(q, k, v, scale=1.0))
    parts = [fields["around"][name] for name in ("q_proj", "k_proj", "v_proj")]
    if rng.random() < 0.5:
        fused = np.concatenate(parts, -1)
    else:
        fused = np.stack([part.reshape(2, 12, 4, 16) for part in parts], 3).reshape(2, 12, -1)
    return fields | {"around": {"attn.qkv": fused}}


@fault("scale")
def attention_as_one_module(rng: Rng) -> dict[str, Any]:
    """All that is known are what it was given and its weights."""
    x = rng.normal(size=(2, 12, 32))
    inner, bias = rng.normal(size=(96, 32)) / 5, rng.normal(size=96) / 5
    out, last = rng.normal(size=(32, 32)) / 5, rng.normal(size=32)

    def made(scale: float) -> Any:
        q, k, v = (t.reshape(2, 12, 4, 8).transpose(0, 2, 1, 3) for t in np.split(x @ inner.T + bias, 3, -1))
        return attend(q, k, v, None, scale).transpose(0, 2, 1, 3).reshape(2, 12, 32) @ out.T + last

    weights = {"in_proj_weight": inner, "in_proj_bias": bias}
    return plus(
        rng,
        made(8**-0.5),
        made(1.0),
        given={"query": x, "key": x, "value": x},
        base_weights=weights,
        raw_weights=weights,
        inner_weights={"out_proj.weight": out, "out_proj.bias": last},
        base_settings={"num_heads": 4, "batch_first": True},
        raw_settings={"num_heads": 4, "batch_first": True},
    )


def _one_module_beside_three(rng: Rng, wrong: Callable[[Any, Any, Any], Any], turned: bool = False) -> dict[str, Any]:
    """Base is one module, raw has a layer for each projection, and one of them returns something else."""
    x = rng.normal(size=(2, 12, 32))
    inner, bias = rng.normal(size=(96, 32)) / 5, rng.normal(size=96) / 5
    out, last = rng.normal(size=(32, 32)) / 5, rng.normal(size=32)
    layers = list(zip(("q_proj", "k_proj", "v_proj"), np.split(inner, 3), np.split(bias, 3), strict=True))
    right = {name: x @ weight.T + more for name, weight, more in layers}
    some = layers[rng.integers(3)]
    raw = right | {some[0]: wrong(x, *some[1:])}

    def made(parts: Any, weight: Any) -> Any:
        q, k, v = (t.reshape(2, 12, 4, 8).transpose(0, 2, 1, 3) for t in parts.values())
        return attend(q, k, v, None).transpose(0, 2, 1, 3).reshape(2, 12, 32) @ weight + last

    return plus(
        rng,
        made(right, out.T),
        made(raw, out if turned else out.T),
        given={"query": x, "key": x, "value": x},
        around=raw,
        base_weights={"in_proj_weight": inner, "in_proj_bias": bias},
        inner_weights={"out_proj.weight": out, "out_proj.bias": last},
        base_settings={"num_heads": 4, "batch_first": True},
        raw_settings={"num_heads": 4},
    )


@fault("scale")
def one_projection_is_given_more(rng: Rng) -> dict[str, Any]:
    return _one_module_beside_three(rng, lambda x, weight, bias: 1.01 * x @ weight.T + bias)


@fault("transposed weight")
def one_projection_the_other_way_round(rng: Rng) -> dict[str, Any]:
    return _one_module_beside_three(rng, lambda x, weight, bias: x @ weight + bias)


@fault("missing bias")
def one_projection_without_its_bias(rng: Rng) -> dict[str, Any]:
    return _one_module_beside_three(rng, lambda x, weight, bias: x @ weight.T)


@fault("off by one")
def one_projection_a_step_later(rng: Rng) -> dict[str, Any]:
    return _one_module_beside_three(rng, lambda x, weight, bias: np.roll(x, 1, 1) @ weight.T + bias)


@fault("transposed weight")
def last_projection_the_other_way_round(rng: Rng) -> dict[str, Any]:
    return _one_module_beside_three(rng, lambda x, weight, bias: x @ weight.T + bias, turned=True)


@fault("nan")
def nan_of_a_mask(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 9, 8))
    mask = np.where(np.triu(np.ones((9, 9)), 1) > 0, -np.inf, 0.0)
    return {"expected": e, "found": np.where(np.arange(8) > -1, np.nan, e), "given": {"mask": mask}}


@fault("left out")
def module_left_out(rng: Rng) -> dict[str, Any]:
    x, h = rng.normal(size=(2, 2, 12, 16))
    y = np.tanh(h @ rng.normal(size=(16, 16)))
    return plus(rng, x + y, x + h, given={"0": x}, around={"mlp": y}, handed={"mlp": h})


@fault("head order")
def weight_parts(rng: Rng) -> dict[str, Any]:
    x, weight = rng.normal(size=(2, 12, 16)), rng.normal(size=(48, 16))
    one, two, three = np.split(weight, 3)
    other = np.concatenate([two, one, three])
    weights = {"base_weights": {"weight": weight}, "raw_weights": {"weight": other}}
    return plus(rng, x @ weight.T, x @ other.T, given={"0": x}, **weights)


@fault("sign")
def negated_before_bias(rng: Rng) -> dict[str, Any]:
    y, bias = rng.normal(size=(2, 12, 16)), rng.normal(size=16)
    return plus(rng, y + bias, bias - y, inner_weights={"dense.bias": bias})


@fault("mask off by one")
def mask_off_by_one(rng: Rng) -> dict[str, Any]:
    e, f = (np.where(np.triu(np.ones((9, 9)), k), -np.inf, 0.0)[None, None] for k in (1, 2))
    return {"expected": e, "found": f}


@fault("mask inverted")
def mask_inverted(rng: Rng) -> dict[str, Any]:
    e = np.tril(np.ones((9, 9), dtype=bool))[None]
    return {"expected": e, "found": ~e}


@fault("mask off by one")
def weights_mask_off_by_one(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 3, 9, 9))
    e, f = (softmax(np.where(np.triu(np.ones((9, 9)), k), -1e30, x)) for k in (1, 2))
    return {"expected": e, "found": f}


# ------------------------------------------------------------------ randomness and numbers


@fault("nondeterminism")
def not_repeating(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, 2 * e, repeats=lambda: False)


@fault("dropout")
def dropout_active(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    p = rng.choice([0.1, 0.5])
    return plus(rng, e, np.where(rng.random(e.shape) < p, 0.0, e / (1 - p)), given={"x": e})


@fault("zeroed")
def tokens_zeroed(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(4, 12, 16))
    return plus(rng, e, np.where(np.arange(12)[:, None] > 8, 0.0, e))


@fault("dropout")
def dropout_of_what_is_positive(rng: Rng) -> dict[str, Any]:
    """Behind a ReLU and a pooling there is nothing below zero that could have been kept."""
    expected = np.abs(rng.normal(size=(4, 6, 16))) + 0.01
    kept = rng.random(expected.shape) < 0.9
    return {"expected": expected, "found": np.where(kept, expected / 0.9, 0.0)}


@fault("dropout")
def dropout_unscaled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(4, 12, 16))
    settings = {"base_settings": {"p": 0.3}, "raw_settings": {"p": 0.3}}
    return plus(rng, e, np.where(rng.random(e.shape) < 0.3, 0.0, e), **settings)


@fault("dropout")
def dropout_scaled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, e * 0.9, given={"x": e}, base_settings={"p": 0.1}, raw_settings={"p": 0.1})


@fault("dropout")
def dropout_of_another_share(rng: Rng) -> dict[str, Any]:
    """The masks correspond, as far as they go; what is kept is scaled by what each side keeps."""
    e = np.where(rng.random((4, 12, 16)) < 0.1, 0.0, rng.normal(size=(4, 12, 16)) / 0.9)
    gap = DrawGap("parameters", "drop", "drop", "a mask", "a mask", masked=True, keeps=(0.9, 0.7))
    return plus(rng, e, e * 0.9 / 0.7, draws=(gap,))


@fault("dropout")
def dropout_channels(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(4, 32, 6, 6))
    return plus(rng, e, np.where(rng.random((4, 32, 1, 1)) < 0.2, 0.0, e / 0.8))


@fault("nan")
def nan_weight(rng: Rng) -> dict[str, Any]:
    x, w = rng.normal(size=(9, 16)), rng.normal(size=(8, 16))
    v = w.copy()
    v[2, 3] = np.nan
    return plus(rng, x @ w.T, x @ v.T, given={"x": x}, base_weights={"weight": w}, raw_weights={"weight": v})


@fault("overflow")
def overflow(rng: Rng) -> dict[str, Any]:
    e = 1e5 * rng.normal(size=(9, 16))
    return plus(rng, e, np.where(np.abs(e) > 65504, np.inf * np.sign(e), e))


@fault("integer")
def truncated(rng: Rng) -> dict[str, Any]:
    e = 20 * rng.normal(size=shape(rng))
    return plus(rng, e, np.trunc(e))


@fault("off by one")
def index_off_by_one(rng: Rng) -> dict[str, Any]:
    e = rng.integers(0, 90, size=(4, 12))
    return {"expected": e, "found": e + 1}


# ------------------------------------------------------------------ windows


@fault("padding")
def padding_mode(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 4, 9, 9))
    f = e.copy()
    for edge in ((..., 0), (..., -1), (..., 0, slice(None)), (..., -1, slice(None))):
        f[edge] += rng.normal(size=f[edge].shape)
    return plus(rng, e, f, layer="conv2d")


@fault("count_include_pad")
def count_include_pad(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(2, 4, 9, 9))
    f = e.copy()
    f[..., [0, -1], :] *= 2 / 3
    f[..., [0, -1]] *= 2 / 3
    return plus(rng, e, f, layer="avg_pool2d")


@fault("align_corners")
def align_corners(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(2, 3, 6, 5))
    places = {True: [np.linspace(0, n - 1, 2 * n) for n in (6, 5)]}
    places[False] = [np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1) for n in (6, 5)]

    def resized(at: Any) -> Any:
        rows = np.stack([[np.interp(at[1], np.arange(5), row) for row in image] for image in x.reshape(-1, 6, 5)])
        out = np.stack([[np.interp(at[0], np.arange(6), c) for c in image.T] for image in rows])
        return out.swapaxes(-1, -2).reshape(2, 3, 12, 10)

    return {"expected": resized(places[True]), "found": resized(places[False]), "given": {"x": x}}


# ------------------------------------------------------------------ training


@fault("no gradient")
def detached(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(8, 16))
    return {"expected": e, "found": np.zeros_like(e), "phase": "gradient", "role": "parameter"}


@fault("scale")
def gradient_scaled(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(8, 16))
    return {"expected": e, "found": 4 * e, "phase": "backward", "role": "input"}


@fault("gradient clipping")
def gradient_clipped(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(8, 16))
    return {"expected": e, "found": np.clip(e, -0.5, 0.5), "phase": "gradient", "role": "parameter"}


@fault("missing residual")
def gradient_of_a_branch(rng: Rng) -> dict[str, Any]:
    g, f = rng.normal(size=(2, 8, 16))
    return {"expected": f + g, "found": f, "phase": "backward", "role": "input", "gradients": {"": g}}


@fault("masked gradient")
def gradient_masked(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=(8, 16))
    f = np.where(np.arange(8)[:, None] < 3, 0.0, e)
    return {"expected": e, "found": f, "phase": "gradient", "role": "parameter"}


@fault("straight-through gradient")
def gradient_straight(rng: Rng) -> dict[str, Any]:
    g, x = rng.normal(size=(2, 8, 16))
    fields = {"phase": "backward", "role": "input", "gradients": {"": g}}
    return {"expected": g * (1 - np.tanh(x) ** 2), "found": g.astype(np.float32)} | fields


@fault("tied weights")
def gradient_untied(rng: Rng) -> dict[str, Any]:
    e, f = rng.normal(size=(2, 8, 16))
    fields = {"phase": "gradient", "role": "parameter", "base_ties": {"weight": ("embed.weight",)}}
    return {"expected": e + f, "found": f} | fields


def _step(rng: Rng, right: Any, wrong: Any, **fields: Any) -> dict[str, Any]:
    w, g = rng.normal(size=(2, 12, 16))
    return {
        "expected": w + right(w, g),
        "found": w + wrong(w, g),
        "before": w,
        "gradient": g,
        "phase": "weight",
        "role": "parameter",
    } | fields


@fault("lr")
def learning_rate(rng: Rng) -> dict[str, Any]:
    return _step(rng, lambda w, g: -0.1 * g, lambda w, g: -0.05 * g)


@fault("weight decay")
def weight_decay(rng: Rng) -> dict[str, Any]:
    return _step(rng, lambda w, g: -0.1 * (g + 0.01 * w), lambda w, g: -0.1 * g)


@fault("weight decay")
def coupled_decay(rng: Rng) -> dict[str, Any]:
    def adam(w: Any, g: Any) -> Any:
        return -0.1 * g / (np.abs(g) + 1e-8)

    return _step(rng, lambda w, g: adam(w, g) - 0.01 * w, lambda w, g: adam(w, g + 0.1 * w))


@fault("optimizer")
def sgd_as_adam(rng: Rng) -> dict[str, Any]:
    return _step(rng, lambda w, g: -0.1 * g, lambda w, g: -0.1 * g / (np.abs(g) + 1e-8))


@fault("not updated")
def not_updated(rng: Rng) -> dict[str, Any]:
    made = _step(rng, lambda w, g: -0.1 * g, lambda w, g: 0 * w)
    return made | {"found": made["before"].astype(np.float32)}


@fault("bias correction")
def bias_correction(rng: Rng) -> dict[str, Any]:
    return _step(rng, lambda w, g: -0.01 * np.sign(g), lambda w, g: -0.01 * np.sign(g) * 0.1 / np.sqrt(0.001))


@fault("nesterov")
def nesterov(rng: Rng) -> dict[str, Any]:
    return _step(rng, lambda w, g: -0.1 * g, lambda w, g: -0.19 * g, base_settings={"momentum": 0.9})


def _statistic(rng: Rng, wrong: Any, **fields: Any) -> dict[str, Any]:
    x = rng.normal(size=(6, 8, 5, 5)) * rng.uniform(0.5, 2, size=(1, 8, 1, 1))
    before = rng.uniform(0.5, 2, size=8)
    new = x.var(axis=(0, 2, 3))
    return {
        "expected": 0.9 * before + 0.1 * new,
        "found": wrong(before, new),
        "before": before,
        "given": {"x": x},
        "phase": "buffer",
        "role": "buffer",
        "tensor": "running_var",
        "base_settings": {"momentum": 0.1},
        "raw_settings": {"momentum": 0.1},
    } | fields


@fault("momentum")
def momentum(rng: Rng) -> dict[str, Any]:
    return _statistic(rng, lambda b, n: 0.8 * b + 0.2 * n, raw_settings={"momentum": 0.2})


@fault("variance")
def running_variance(rng: Rng) -> dict[str, Any]:
    return _statistic(rng, lambda b, n: 0.9 * b + 0.1 * n * 150 / 149)


@fault("reduction")
def loss_sum(rng: Rng) -> dict[str, Any]:
    x = rng.normal(size=(8, 10))
    loss = np.array((x**2).mean())
    return {"expected": loss, "found": loss * 80, "role": "loss", "given": {"": x}}


# ------------------------------------------------------------------ what nothing known explains


@fault()
def noise(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(
        rng, e, e + 10.0 ** rng.integers(-5, 1) * rng.normal(size=e.shape), given={"x": rng.normal(size=e.shape)}
    )


@fault()
def one_element(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    f = e.copy()
    f.flat[rng.integers(e.size)] += 0.5
    return plus(rng, e, f, given={"x": rng.normal(size=e.shape)})


@fault()
def curved(rng: Rng) -> dict[str, Any]:
    e = rng.normal(size=shape(rng))
    return plus(rng, e, e + 0.01 * e**3, given={"x": rng.normal(size=e.shape)})


@fault()
def another_tensor(rng: Rng) -> dict[str, Any]:
    e, f = rng.normal(size=(2, *shape(rng)))
    return plus(rng, e, f, given={"x": rng.normal(size=e.shape)})


@fault()
def inner_activation(rng: Rng) -> dict[str, Any]:
    """Two steps apart: what lies between is not at hand."""
    x, w = rng.normal(size=(2, 9, 16)), rng.normal(size=(16, 16))
    return plus(rng, np.maximum(x @ w, 0) @ w, np.tanh(x @ w) @ w, given={"x": x})


@fault()
def random_gradient(rng: Rng) -> dict[str, Any]:
    e, f = rng.normal(size=(2, 8, 16))
    return {"expected": e, "found": f, "phase": "gradient", "role": "parameter", "gradients": {"": e * f}}


@fault()
def odd_loss(rng: Rng) -> dict[str, Any]:
    loss = np.array(rng.uniform(0.5, 2))
    return {"expected": loss, "found": loss * 1.2345, "role": "loss", "given": {"": rng.normal(size=(8, 10))}}
