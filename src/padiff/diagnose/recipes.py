"""How ops that do several things at once are spelled out, as a table: a new one is a new row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from padiff.diagnose.recurrent_recipes import CELLS
from padiff.diagnose.steps import Made, Steps
from padiff.records import Array


def _attention(steps: Steps) -> None:
    query, key, *rest = steps.given
    own = bool(rest) and rest[0].exact.shape[:-1] == key.exact.shape[:-1]
    value, mask = (rest[0], rest[1:]) if own else (key, rest)  # a tensor that is key and value may be told once
    if steps.kind.startswith("paddle"):
        query, key, value = (steps.do("heads", "transpose", _heads_first, one) for one in (query, key, value))
    groups = query.exact.shape[-3] // key.exact.shape[-3] if query.exact.ndim > 2 else 1
    if groups > 1:
        key, value = (
            steps.do("groups", "repeat_interleave", lambda one: one.repeat(groups, -3), one) for one in (key, value)
        )
    scale = steps.options.get("scale") or steps.options.get("softmax_scale") or query.exact.shape[-1] ** -0.5
    if steps.options.get("is_causal") or steps.options.get("causal"):
        seen = np.tri(query.exact.shape[-2], key.exact.shape[-2]) > 0
        mask = [*mask, steps.do("mask", "triu", lambda: seen)]
    found = _attended(steps, query, key, value, mask, scale)
    if steps.kind.startswith("paddle"):
        steps.do("heads", "transpose", _heads_first, found)


def _attended(steps: Steps, query: Made, key: Made, value: Made, mask: Sequence[Made], scale: float) -> Made:
    turned = steps.do("key", "transpose", lambda one: one.swapaxes(-1, -2), key)
    scores = steps.do("scores", "matmul", np.matmul, query, turned)
    scores = steps.do("scale", "mul", lambda one: one * scale, scores)
    for one in mask:
        scores = steps.do("mask", "masked_fill" if one.exact.dtype.kind == "b" else "add", _masked, scores, one)
    weights = steps.do("softmax", "softmax", _softmax, scores)
    return steps.do("weighted sum", "matmul", np.matmul, weights, value)


def _with_projections(steps: Steps) -> None:
    """``multi_head_attention_forward``: sequences first, weights of query, key and value in one tensor."""
    (query, key, value), heads = steps.given[:3], steps.options["num_heads"]
    rest = steps.rest(
        *("in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "out_proj_weight", "out_proj_bias"),
        *("key_padding_mask", "attn_mask"),
        first=3,
    )
    if "bias_k" in rest or "key_padding_mask" in rest:
        return
    given = [steps.do("batch", "transpose", lambda one: one.swapaxes(0, 1), one) for one in (query, key, value)]
    weight, bias = rest["in_proj_weight"], rest.get("in_proj_bias")
    if query.tensor == key.tensor == value.tensor:
        whole = _affine(steps, "projections", given[0], weight, bias)
        parts = [steps.do("projections", "split", lambda one, n=n: np.split(one, 3, -1)[n], whole) for n in range(3)]
    else:
        stretches = [
            [steps.do("weights", "split", lambda one, n=n: np.split(one, 3)[n], one) for one in (weight, bias) if one]
            for n in range(3)
        ]
        parts = [
            _affine(steps, "projections", one, *held, *[None][: 2 - len(held)])
            for one, held in zip(given, stretches, strict=True)
        ]
    size = parts[0].exact.shape[-1] // heads
    query, key, value = (
        steps.do("heads", "transpose", lambda one: one.reshape(*one.shape[:2], heads, size).swapaxes(1, 2), one)
        for one in parts
    )
    mask = [rest["attn_mask"]] if "attn_mask" in rest else []
    found = _attended(steps, query, key, value, mask, size**-0.5)
    found = steps.do("heads", "transpose", lambda one: _heads_first(one).reshape(*given[0].exact.shape), found)
    found = _affine(steps, "output", found, rest["out_proj_weight"], rest.get("out_proj_bias"))
    steps.do("batch", "transpose", lambda one: one.swapaxes(0, 1), found)


def _affine(steps: Steps, part: str, x: Made, weight: Made, bias: Made | None) -> Made:
    more = () if bias is None else (bias,)
    return steps.do(part, "linear", lambda one, two, *rest: one @ two.T + sum(rest), x, weight, *more)


def _heads_first(array: Array) -> Array:
    return np.swapaxes(array, -2, -3)


def _masked(scores: Array, mask: Array) -> Array:
    return np.where(mask, scores, -np.inf) if mask.dtype.kind == "b" else np.add(scores, mask, dtype=scores.dtype)


def _softmax(scores: Array, axis: int = -1) -> Array:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def _layer_norm(steps: Steps) -> None:
    axes = _last_axes(steps)
    mean = steps.do("mean", "mean", lambda one: one.mean(axes, keepdims=True), steps.given[0])
    centred = steps.do("centring", "sub", np.subtract, steps.given[0], mean)
    _normalised(steps, centred, axes, 1e-5)


def _rms_norm(steps: Steps) -> None:
    _normalised(steps, steps.given[0], _last_axes(steps), float(np.finfo(np.float32).eps))


def _last_axes(steps: Steps) -> tuple[int, ...]:
    size = steps.options.get("normalized_shape")
    return tuple(range(-(len(size) if isinstance(size, tuple) else 1), 0))


def _normalised(steps: Steps, x: Made, axes: tuple[int, ...], default: float) -> None:
    eps = steps.options.get("eps")
    eps = default if eps is None else eps
    squares = steps.do("squares", "pow", np.square, x)
    variance = steps.do("variance", "mean", lambda one: one.mean(axes, keepdims=True), squares)
    shifted = steps.do("eps", "add", lambda one: one + eps, variance)
    root = steps.do("root", "rsqrt", lambda one: 1 / np.sqrt(one), shifted)
    found = steps.do("scaling", "mul", np.multiply, x, root)
    rest = steps.rest("weight", "bias")
    if "weight" in rest:
        found = steps.do("weight", "mul", np.multiply, found, rest["weight"])
    if "bias" in rest:
        steps.do("bias", "add", np.add, found, rest["bias"])


def _linear(steps: Steps) -> None:
    x, weight, *bias = steps.given
    if not steps.kind.startswith("paddle"):
        weight = steps.do("weight", "transpose", lambda one: one.swapaxes(-1, -2), weight)
    found = steps.do("product", "matmul", np.matmul, x, weight)
    for one in bias:
        steps.do("bias", "add", np.add, found, one)


def _gelu(steps: Steps) -> None:
    (x,) = steps.given
    if steps.options.get("approximate") in ("tanh", True):
        cubed = steps.do("cube", "pow", lambda one: one**3, x)
        cubed = steps.do("factor", "mul", lambda one: one * 0.044715, cubed)
        inner = steps.do("sum", "add", np.add, x, cubed)
        inner = steps.do("factor", "mul", lambda one: one * math.sqrt(2 / math.pi), inner)
        bent = steps.do("tanh", "tanh", np.tanh, inner)
    else:
        inner = steps.do("factor", "mul", lambda one: one / math.sqrt(2), x)
        bent = steps.do("erf", "erf", np.vectorize(math.erf, otypes=[np.float64]), inner)
    raised = steps.do("sum", "add", lambda one: one + 1, bent)
    half = steps.do("half", "mul", lambda one: one * 0.5, x)
    steps.do("product", "mul", np.multiply, half, raised)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _silu(steps: Steps) -> None:
    gate = steps.do("sigmoid", "sigmoid", _sigmoid, steps.given[0])
    steps.do("product", "mul", np.multiply, steps.given[0], gate)


def _glu(steps: Steps) -> None:
    axis = steps.options.get("dim", -1)
    kept, gate = (
        steps.do("half", "split", lambda one, part=part: np.split(one, 2, axis)[part], steps.given[0])
        for part in (0, 1)
    )
    gate = steps.do("sigmoid", "sigmoid", _sigmoid, gate)
    steps.do("product", "mul", np.multiply, kept, gate)


def _swiglu(steps: Steps) -> None:
    x, *rest = steps.given
    other = rest[0] if rest else None
    if other is None:
        half = x.exact.shape[-1] // 2
        x, other = (
            steps.do("half", "getitem", lambda one, part=part: one[..., part], steps.given[0])
            for part in (slice(half), slice(half, None))
        )
    gate = steps.do("silu", "silu", lambda one: one * _sigmoid(one), x)
    steps.do("product", "mul", np.multiply, gate, other)


def _soft(steps: Steps) -> None:
    axis = steps.options.get("dim", -1)
    most = steps.do("maximum", "max", lambda one: one.max(axis, keepdims=True), steps.given[0])
    shifted = steps.do("shift", "sub", np.subtract, steps.given[0], most)
    powers = steps.do("powers", "exp", np.exp, shifted)
    whole = steps.do("sum", "sum", lambda one: one.sum(axis, keepdims=True), powers)
    steps.do("share", "div", np.divide, powers, whole)


def _sum_with_product(steps: Steps) -> None:
    """``addmm``, ``baddbmm``, ``addcmul``: something, and a product beside it, each perhaps times a number."""
    added, one, two = steps.given
    by_elements = steps.kind.endswith("addcmul")
    found = steps.do("product", *(("mul", np.multiply) if by_elements else ("matmul", np.matmul)), one, two)
    factor = steps.options.get("value" if by_elements else "alpha", 1)
    if factor != 1:
        found = steps.do("factor", "mul", lambda one: one * factor, found)
    share = steps.options.get("beta", 1)
    if share != 1:
        added = steps.do("factor", "mul", lambda one: one * share, added)
    steps.do("sum", "add", np.add, added, found)


def _length(steps: Steps) -> None:
    axis, keep = steps.options.get("dim"), bool(steps.options.get("keepdim"))
    if steps.options.get("p", 2) not in (2, "fro", None):
        return
    squares = steps.do("squares", "pow", np.square, steps.given[0])
    whole = steps.do("sum", "sum", lambda one: one.sum(axis, keepdims=keep), squares)
    steps.do("root", "sqrt", np.sqrt, whole)


def _normalize(steps: Steps) -> None:
    axis, eps = steps.options.get("dim", 1), steps.options.get("eps", 1e-12)
    squares = steps.do("squares", "pow", np.square, steps.given[0])
    whole = steps.do("sum", "sum", lambda one: one.sum(axis, keepdims=True), squares)
    root = steps.do("length", "sqrt", np.sqrt, whole)
    least = steps.do("eps", "clip", lambda one: np.maximum(one, eps), root)
    steps.do("share", "div", np.divide, steps.given[0], least)


RECIPES: dict[str, Callable[[Steps], None]] = {
    **CELLS,
    "multi_head_attention_forward": _with_projections,
    "scaled_dot_product_attention": _attention,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "baddbmm": _sum_with_product,
    "addmm": _sum_with_product,
    "addcmul": _sum_with_product,
    "gelu": _gelu,
    "silu": _silu,
    "swiglu": _swiglu,
    "glu": _glu,
    "softmax": _soft,
    "normalize": _normalize,
    "norm": _length,
}
"""What an op does, by the one word for it, to how it is spelled out."""
