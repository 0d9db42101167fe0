"""One fused projection against several: every layout that authors use, and swaps that stay swaps."""

from __future__ import annotations

import runpy
from collections import OrderedDict
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import PadiffError
from tests.twins import counted

WIDTH, HEADS = 12, 3
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
PARTS = {"q": 0, "k": 1, "v": 2}
LAYOUTS = {
    "part, head, size": (0, 1, 2),
    "head, part, size": (1, 0, 2),
    "head, size, part": (1, 2, 0),
}
"""Which of (part, head, size in the head) comes first in a fused axis."""


class Separate(torch.nn.Module):
    """Attention of separate projections; with fewer key heads than query heads, each serves several."""

    def __init__(self, names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"), key_heads: int = HEADS) -> None:
        super().__init__()
        self.names, self.key_heads = names, key_heads
        key_width = WIDTH // HEADS * key_heads
        for name, width in zip(names, (WIDTH, key_width, key_width), strict=True):
            setattr(self, name, torch.nn.Linear(WIDTH, width))
        self.o_proj = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (getattr(self, name)(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for name in self.names)
        k, v = (one.repeat_interleave(HEADS // self.key_heads, 1) for one in (k, v))
        return self.o_proj(((q @ k.transpose(-1, -2)) * 0.5).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class Fused(paddle.nn.Layer):
    """The same with one projection, its axis laid out as said, its parts in the order said."""

    def __init__(self, layout: str, order: str = "qkv", name: str = "qkv", knows_heads: bool = True) -> None:
        super().__init__()
        self.layout, self.order, self.fused = LAYOUTS[layout], order, name
        setattr(self, name, paddle.nn.Linear(WIDTH, 3 * WIDTH))
        self.proj = paddle.nn.Linear(WIDTH, WIDTH)
        if knows_heads:
            self.num_heads = HEADS

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        sizes = (3, HEADS, WIDTH // HEADS)
        made = getattr(self, self.fused)(x).reshape([b, s, *(sizes[axis] for axis in self.layout)])
        made = made.transpose([2 + self.layout.index(axis) for axis in (0, 1)] + [0, 1, 2 + self.layout.index(2)])
        q, k, v = (made[self.order.index(part)].transpose([1, 0, 2, 3]) for part in "qkv")
        return self.proj((self.shares(q, k) @ v).transpose([0, 2, 1, 3]).reshape([b, s, WIDTH]))

    def shares(self, q: Any, k: Any) -> Any:
        return paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * 0.5)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("knows_heads", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, knows_heads: bool, swap: bool) -> None:
    pair = (Separate(), Fused(layout, knows_heads=knows_heads))
    base, raw = pair[::-1] if swap else pair
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    assert any("q_proj" in one.base_path + one.raw_path for one in result.comparisons)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_script_knows_the_layout(layout: str) -> None:
    for base, raw in ((Separate(), Fused(layout)), (Fused(layout), Separate())):
        plan = padiff.plan_weights(base, raw, X)
        plan.save("convert.py")
        made = runpy.run_path("convert.py")["convert"]({n: t.numpy() for n, t in base.state_dict().items()})
        plan.apply()
        for name, tensor in raw.state_dict().items():
            assert np.array_equal(made[name], tensor.numpy()), name


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("order", "name"), [("kqv", "kqv"), ("vqk", "to_vqk"), ("kvq", "key_value_query")])
def test_the_fused_name_spells_the_order(order: str, name: str, swap: bool) -> None:
    pair = (Separate(), Fused("part, head, size", order, name))
    base, raw = pair[::-1] if swap else pair
    plan = padiff.plan_weights(base, raw, X)
    assert not plan.unsure
    assert padiff.compare(base, raw, X).aligned


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fused_name_that_says_nothing(layout: str, order: str, swap: bool) -> None:
    pair = (Separate(), Fused(layout, order, "mixed"))
    base, raw = pair[::-1] if swap else pair
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.plan is not None
    said = {e.evidence for e in result.plan.entries if "mixed" in str(e)}
    assert all("chosen because outputs match" in evidence for evidence in said)


@pytest.mark.parametrize("order", ["kqv", "qvk", "vkq"])
@pytest.mark.parametrize("name", ["qkv", "in_proj", "query_key_value", "c_attn"])
def test_parts_taken_for_each_other_diverge(order: str, name: str) -> None:
    """The name says query, key, value; forward takes them otherwise: that is a bug, not a layout."""
    result = padiff.compare(Separate(), Fused("part, head, size", order, name), X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("", ""), str(result)
    assert result.plan is not None
    fused = next(entry for entry in result.plan.entries if entry.path == f"{name}.weight")
    assert [source.path for source in fused.sources] == ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
    assert fused.confidence < 0.95
    assert fused.alternatives


class Grouped(paddle.nn.Layer):
    """Fused, one key and value head for several query heads, group by group."""

    def __init__(self, key_heads: int, *, by_group: bool) -> None:
        super().__init__()
        self.key_heads, self.by_group = key_heads, by_group
        self.num_heads = HEADS
        self.num_key_value_heads = key_heads
        size = WIDTH // HEADS
        self.wqkv = paddle.nn.Linear(WIDTH, (HEADS + 2 * key_heads) * size)
        self.wo = paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        size, each = WIDTH // HEADS, HEADS // self.key_heads
        made = self.wqkv(x)
        if self.by_group:
            made = made.reshape([b, s, self.key_heads, each + 2, size])
            q, k, v = made[:, :, :, :each], made[:, :, :, each], made[:, :, :, each + 1]
        else:
            q, k, v = made.split([HEADS * size, self.key_heads * size, self.key_heads * size], -1)
        q, k, v = (one.reshape([b, s, -1, size]).transpose([0, 2, 1, 3]) for one in (q, k, v))
        k, v = (one.repeat_interleave(each, 1) for one in (k, v))
        scores = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * 0.5)
        return self.wo((scores @ v).transpose([0, 2, 1, 3]).reshape([b, s, WIDTH]))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("by_group", [False, True])
def test_grouped_queries(by_group: bool, swap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.weights.test_fused.HEADS", 6)
    pair = (Separate(key_heads=3), Grouped(3, by_group=by_group))
    base, raw = pair[::-1] if swap else pair
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)


class GateUp(torch.nn.Module):
    """A gated perceptron, fused or not; one behind the other, or element by element, or up before gate."""

    def __init__(self, how: str, name: str = "gate_up_proj") -> None:
        super().__init__()
        self.how, self.fused = how, name
        if how == "separate":
            self.gate_proj = torch.nn.Linear(WIDTH, 20)
            self.up_proj = torch.nn.Linear(WIDTH, 20)
        else:
            setattr(self, name, torch.nn.Linear(WIDTH, 40))
        self.down_proj = torch.nn.Linear(20, WIDTH)

    def forward(self, x: Any) -> Any:
        if self.how == "separate":
            gate, up = self.gate_proj(x), self.up_proj(x)
        else:
            made = getattr(self, self.fused)(x)
            gate, up = (made[..., ::2], made[..., 1::2]) if self.how == "alternating" else made.chunk(2, -1)
            if self.how == "up first":
                gate, up = up, gate
        return self.down_proj(torch.nn.functional.silu(gate) * up)


GATES = [
    ("behind", "gate_up_proj", True),
    ("alternating", "gate_up_proj", True),
    ("up first", "up_gate_proj", True),
    ("up first", "w12", True),
    ("up first", "gate_up_proj", False),
    ("behind", "up_gate_proj", False),
]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("how", "name", "equal"), GATES, ids=lambda value: str(value))
def test_gates(how: str, name: str, equal: bool, swap: bool) -> None:
    pair = (GateUp("separate"), GateUp(how, name))
    base, raw = pair[::-1] if swap else pair
    try:
        result = padiff.compare(base, raw, X)
    except PadiffError as error:
        pytest.fail(str(error))
    assert result.aligned is equal, str(result)


class Scaled(Fused):
    """With a bug of its own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 1.01


@pytest.mark.parametrize("order", ["qkv", "vkq"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_not_taken_for_the_bug(layout: str, order: str) -> None:
    """Outputs match under no option, since something else is wrong: each choice is settled at its own place."""
    base = torch.nn.Sequential(Separate(), Separate(), Separate())
    parts = [cls(layout, order, "mixed", knows_heads=False) for cls in (Fused, Scaled, Fused)]
    raw = paddle.nn.Sequential(*parts)
    result = padiff.compare(base, raw, X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("1", "1"), str(result)
    assert result.plan is not None
    fused = next(entry for entry in result.plan.entries if entry.path == "0.mixed.weight")
    assert "chosen because outputs of 0 match" in fused.evidence


def untried(*_: Any) -> Any:
    raise AssertionError("options were tried one by one")


@pytest.mark.parametrize("scaled", [None, 0, 1])
def test_a_default_that_fits_is_settled_as_raw_runs(monkeypatch: pytest.MonkeyPatch, scaled: int | None) -> None:
    """No run is made for the choice's sake, whether the models agree or something is wrong in one of the blocks."""
    monkeypatch.setattr("padiff.engine.filling.matching.decide", untried)
    base = torch.nn.Sequential(Separate(), Separate())
    made = ("part, head, size", "qkv", "mixed")
    raw = paddle.nn.Sequential(*((Scaled if number == scaled else Fused)(*made) for number in range(2)))
    calls = counted(base, raw)
    result = padiff.compare(base, raw, X)
    assert result.plan is not None
    (choice,) = result.plan.choices
    assert choice.chosen == 0
    match = "outputs of layers in 0 match" if scaled == 0 else "outputs of 0 match"
    assert all(match in entry.evidence for entry in result.plan.entries if "mixed" in entry.path)
    assert not any(entry.alternatives for entry in result.plan.entries)
    assert not any("filled otherwise" in note for note in result.notes)
    if scaled is not None:
        assert result.divergence is not None
        assert result.divergence.raw_path == str(scaled)
    else:
        assert result.aligned, str(result)
        assert calls == [2, 1]


def test_no_option_takes_a_run_where_the_place_itself_is_wrong() -> None:
    base = torch.nn.Sequential(Separate())
    raw = paddle.nn.Sequential(Scaled("part, head, size", "qkv", "mixed"))
    calls = counted(base, raw)
    result = padiff.compare(base, raw, X)
    assert result.plan is not None and result.divergence is not None
    assert result.divergence.raw_path == "0"
    assert calls == [4, 2]


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
def test_what_one_part_sends_back_wrong_is_no_second_place(part: str) -> None:
    """It is wrong in forward, and its gradient shows only in the sum that all parts send back."""
    made = [Fused("part, head, size") for _ in range(2)]
    base = paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), *made)
    raw = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), Separate(), Separate())
    assert padiff.compare(base, raw, X).aligned
    getattr(raw[1], part).register_forward_hook(lambda _, given, made: made * 1.01)
    result = padiff.compare(base, raw, X)
    assert [(one.raw_path, one.phase) for one in result.divergences] == [(f"1.{part}", "forward")], str(result)


class Wrong(Fused):
    """A fused attention whose scores are scaled otherwise, as they are in all of its blocks."""

    def shares(self, q: Any, k: Any) -> Any:
        scores = q @ k.transpose([0, 1, 3, 2])
        return paddle.nn.functional.softmax(scores * 0.6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_told_by_what_is_computed_where_all_of_it_is_wrong(layout: str) -> None:
    """No block returns what base's does, whatever its layout: the one by which most of it is computed is taken."""
    base = torch.nn.Sequential(Separate(), Separate())
    raw = paddle.nn.Sequential(Wrong(layout, name="mixed"), Wrong(layout, name="mixed"))
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert result.divergence.raw_path == "0", str(result)
    assert result.divergence.op is not None
    assert result.divergence.op.raw_line is not None
    assert "0.6" in (result.divergence.op.raw_line.text or ""), str(result)


class OfOnePlace(torch.nn.Module):
    """Attention whose query is made of the first place alone, as of a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q(x[:, :1]), self.k(x), self.v(x)
        return self.proj(torch.softmax(q @ k.transpose(1, 2) * 0.5, -1) @ v)


class OfAll(paddle.nn.Layer):
    """The same, with one projection that is applied to all places."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.out, self.qkv, self.scale = paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.Linear(WIDTH, 3 * WIDTH), scale

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(paddle.nn.functional.softmax(q[:, :1] @ k.transpose([0, 2, 1]) * self.scale) @ v)


@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_a_part_that_is_applied_to_some_places_only(scale: float) -> None:
    base = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), OfOnePlace())
    result = padiff.compare(base, paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), OfAll(scale)), X)
    assert result.aligned == (scale == 0.5), str(result)
    assert result.divergence is None or (result.divergence.raw_path, result.divergence.phase) == ("1", "forward")


class KeysFirst(Separate):
    """Its query is what it computes last."""

    def forward(self, x: Any) -> Any:
        made = {name: getattr(self, name)(x) for name in ("k_proj", "v_proj", "q_proj")}
        q, k, v = (made[name].unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for name in self.names)
        return self.o_proj(((q @ k.transpose(-1, -2)) * 0.5).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class TwoOfThree(paddle.nn.Layer):
    """Keys and values of one projection, the query of its own."""

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        self.proj, self.kv, self.q = (paddle.nn.Linear(WIDTH, size * WIDTH) for size in (1, 2, 1))
        self.scale = scale

    def forward(self, x: Any) -> Any:
        parts = (*self.kv(x).chunk(2, -1), self.q(x))
        k, v, q = (one.reshape([0, 0, HEADS, -1]).transpose([0, 2, 1, 3]) for one in parts)
        mixed = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * self.scale, -1) @ v
        return self.proj(mixed.transpose([0, 2, 1, 3]).flatten(2))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("separate", [Separate, KeysFirst])
def test_keys_and_values_joined_without_the_query(separate: Any, swap: bool) -> None:
    def models(scale: float = 0.5) -> list[Any]:
        base = torch.nn.Sequential(OrderedDict(first=separate(), second=separate()))
        raw = paddle.nn.Sequential(("a", TwoOfThree()), ("b", TwoOfThree(scale)))
        return [raw, base] if swap else [base, raw]

    result = padiff.compare(*models(), X)
    assert result.aligned, result.divergence
    found = padiff.compare(*models(scale=0.4), X).divergence
    assert found is not None
    assert {found.base_path, found.raw_path} == {"second", "b"}
