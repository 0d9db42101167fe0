"""``plan_weights``: to look at, change, save, run without padiff, load and carry out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import ArgumentError, WeightError
from tests.twins import batch, net

X = np.random.default_rng(0).normal(size=(3, 5, 12)).astype("float32")


class Separate(torch.nn.Module):
    """Attention with three projections, defined in another order than used."""

    def __init__(self) -> None:
        super().__init__()
        self.v_proj = torch.nn.Linear(12, 12)
        self.k_proj = torch.nn.Linear(12, 12)
        self.q_proj = torch.nn.Linear(12, 12)
        self.out = torch.nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        return self.out(((q @ k.transpose(-1, -2)) * 0.5).softmax(-1).matmul(v).transpose(1, 2).flatten(2))


class Fused(paddle.nn.Layer):
    """The same with one projection for all three."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = paddle.nn.Linear(12, 36)
        self.proj = paddle.nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).reshape([b, s, 3, 3, 4]).transpose([2, 0, 3, 1, 4]).unbind(0)
        scores = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * 0.5)
        return self.proj((scores @ v).transpose([0, 2, 1, 3]).reshape([b, s, 12]))


class Interleaved(Fused):
    """Fused head by head: each head's query, key and value lie together."""

    num_heads = 3

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q, k, v = self.qkv(x).reshape([b, s, 3, 3, 4]).transpose([3, 0, 2, 1, 4]).unbind(0)
        scores = paddle.nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) * 0.5)
        return self.proj((scores @ v).transpose([0, 2, 1, 3]).reshape([b, s, 12]))


@pytest.mark.parametrize("swap", [False, True])
def test_interleaved_by_heads(swap: bool) -> None:
    """Nothing but running can tell; the plan says that it was so."""
    base, raw = (Interleaved(), Separate()) if swap else (Separate(), Interleaved())
    plan = padiff.plan_weights(base, raw, X)
    assert "chosen because outputs match: head by head, 3 heads" in {e.evidence.split(" x")[0] for e in plan.entries}
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)


@pytest.mark.parametrize("swap", [False, True])
def test_fused_and_separate(swap: bool) -> None:
    base, raw = (Fused(), Separate()) if swap else (Separate(), Fused())
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    assert any("q_proj" in c.base_path + c.raw_path and c.role == "output" for c in result.comparisons)


def test_says_where_everything_comes_from() -> None:
    plan = padiff.plan_weights(Separate(), Fused(), X)
    by_path = {entry.path: [source.path for source in entry.sources] for entry in plan.entries}
    assert by_path["qkv.weight"] == ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
    assert by_path["proj.bias"] == ["out.bias"]
    text = str(plan)
    assert "q_proj.weight turned + k_proj.weight turned" in text
    assert "order of use" in text
    assert repr(plan) == "Plan(4 entries, 0 unsure, 0 problems)"


def test_nothing_is_written_before_apply() -> None:
    base, raw = Separate(), Fused()
    before = raw.qkv.weight.numpy().copy()
    plan = padiff.plan_weights(base, raw, X)
    assert np.array_equal(before, raw.qkv.weight.numpy())
    plan.apply()
    assert not np.array_equal(before, raw.qkv.weight.numpy())
    assert padiff.compare(base, raw, X, weights="keep").aligned


def test_saved_script_runs_without_padiff_and_is_read_back(tmp_path: Path) -> None:
    base, raw = Separate(), Fused()
    plan = padiff.plan_weights(base, raw, X)
    plan.save("convert.py")
    script = Path("convert.py").read_text(encoding="utf-8")
    assert "padiff" not in script
    np.savez("source.npz", **{name: tensor.numpy() for name, tensor in base.state_dict().items()})
    subprocess.run([sys.executable, "convert.py", "source.npz", "target.npz"], check=True)
    plan.apply()
    made = np.load("target.npz")
    for name, tensor in raw.state_dict().items():
        assert np.array_equal(made[name], tensor.numpy()), name
    Path("edited.py").write_text(
        script.replace("'qkv.bias': (['q_proj.bias', 'k_proj.bias'", "'qkv.bias': (['k_proj.bias', 'q_proj.bias'"),
        encoding="utf-8",
    )
    plan.load("edited.py").apply()
    assert np.array_equal(raw.qkv.bias.numpy()[:12], base.k_proj.bias.detach().numpy())
    Path("bad.py").write_text("import os\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="no converter"):
        plan.load("bad.py")


def test_a_line_taken_out_of_a_script_is_not_filled() -> None:
    base, raw = Separate(), Fused()
    before = raw.qkv.bias.numpy().copy()
    plan = padiff.plan_weights(base, raw, X)
    plan.save("convert.py")
    lines = Path("convert.py").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("short.py").write_text("".join(line for line in lines if "'qkv.bias'" not in line), encoding="utf-8")
    plan.load("short.py")
    assert {entry.path for entry in plan.entries} == {"qkv.weight", "proj.weight", "proj.bias"}
    assert [str(one) for one in plan.unmatched] == ["raw qkv.bias (parameter): 'short.py' has no line for it"]
    assert "without partner: raw qkv.bias" in str(plan)
    plan.apply()
    assert np.array_equal(raw.qkv.bias.numpy(), before)
    assert np.array_equal(raw.qkv.weight.numpy()[:, :12], base.q_proj.weight.detach().numpy().T)


def test_a_loaded_script_writes_no_buffer_that_raw_computes() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, name: str, by: float) -> None:
            super().__init__()
            setattr(self, name, torch.nn.Linear(12, 12))
            self.layer = name
            self.register_buffer("angles", torch.arange(12.0) * by, persistent=False)

        def forward(self, x: Any) -> Any:
            return getattr(self, self.layer)(x) * self.angles

    raw = Scaled("second", 2.0)
    plan = padiff.plan_weights(Scaled("first", 1.0), raw, X)
    plan.save("convert.py")
    plan.load("convert.py").apply()
    assert torch.equal(raw.angles, torch.arange(12.0) * 2.0)


def test_a_function_that_returns_another_shape() -> None:
    base, raw = Separate(), Fused()
    before = raw.qkv.weight.numpy().copy()

    def halved(arrays: Any) -> Any:
        return arrays["out.bias"][:6]

    def turned(arrays: Any) -> Any:
        return np.concatenate([arrays[f"{part}_proj.weight"] for part in "qkv"])

    cases = {"proj.bias": (halved, "[6]", "[12]"), "qkv.weight": (turned, "[36, 12]", "[12, 36]")}
    for path, (function, given, wanted) in cases.items():
        plan = padiff.plan_weights(base, raw, X, rules={path: function})
        with pytest.raises(ArgumentError) as caught:
            plan.apply()
        said = f"rules: {function.__name__}, the rule for {path!r}, returned an array of shape {given}, expected"
        assert str(caught.value).startswith(f"{said} an array of shape {wanted}")
        assert np.array_equal(raw.qkv.weight.numpy(), before)
    with pytest.raises(ArgumentError, match=r"the rule for 'proj\.bias', returned NoneType"):
        padiff.plan_weights(base, raw, X, rules={"proj.bias": lambda arrays: None}).apply()
    column = {"proj.bias": lambda arrays: arrays["out.bias"][:, None]}
    assert padiff.compare(base, raw, X, rules=column).aligned


def test_rules_override_entry_by_entry() -> None:
    base, raw = Separate(), Fused()
    swapped = padiff.concat(
        padiff.transpose("k_proj.weight"), padiff.transpose("q_proj.weight"), padiff.transpose("v_proj.weight"), axis=1
    )
    plan = padiff.plan_weights(base, raw, X, rules={"qkv.weight": swapped})
    plan.apply()
    assert np.array_equal(raw.qkv.weight.numpy()[:, :12], base.k_proj.weight.detach().numpy().T)
    assert not padiff.compare(base, raw, X, rules={"qkv.weight": swapped}).aligned
    rules = {"q_proj.*": padiff.split("qkv.*", 1, 3, axis=0)}
    plan = padiff.plan_weights(Fused(), Separate(), X, rules={"q_proj.bias": padiff.split("qkv.bias", 1, 3)})
    entry = next(e for e in plan.entries if e.path == "q_proj.bias")
    assert (entry.sources[0].start, entry.sources[0].stop, entry.evidence) == (12, 24, "rule")
    with pytest.raises(ArgumentError, match="its rule gives"):
        padiff.plan_weights(Fused(), Separate(), X, rules=rules)
    plan = padiff.plan_weights(base, raw, X, rules={"proj.bias": lambda arrays: arrays["out.bias"] * 0 + 7})
    plan.apply()
    assert (raw.proj.bias.numpy() == 7).all()


def test_wildcards() -> None:
    base, raw = net("torch"), net("paddle")
    rules = {"blocks.*.one.weight": padiff.transpose("blocks.*.two.weight")}
    padiff.plan_weights(base, raw, batch(), rules=rules).apply()
    for place in range(3):
        expected = base.blocks[place].two.weight.detach().numpy().T
        assert np.array_equal(raw.blocks[place].one.weight.numpy(), expected)
    found = padiff.compare(base, raw, batch(), weights="keep").divergence
    assert found is not None
    assert found.raw_path == "blocks.0.one"
    assert padiff.compare(base, raw, batch(), rules={"blocks.*": "blocks.*"}).aligned


WRONG_RULES = [
    ({"nothing.weight": "head.weight"}, "raw has no tensor that 'nothing.weight' names"),
    ({"head.weight": "haed.weight"}, "base has no tensor 'haed.weight'"),
    ({"head.weight": 3}, "expected a path of base"),
    ({"blocks.*": "blacks.*"}, "base has no module 'blacks.0'"),
    ({"head.bias": "embed.bias"}, "its rule gives"),
]


@pytest.mark.parametrize(("rules", "message"), WRONG_RULES, ids=lambda value: str(value)[:30])
def test_wrong_rules(rules: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        padiff.plan_weights(net("torch"), net("paddle"), rules=rules)


def test_a_plan_with_problems_does_not_apply() -> None:
    plan = padiff.plan_weights(torch.nn.Sequential(torch.nn.Linear(4, 5)), paddle.nn.Sequential(paddle.nn.Linear(4, 6)))
    assert plan.problems
    with pytest.raises(WeightError):
        plan.apply()


def test_values_do_not_overrule_names() -> None:
    """A bad converter exchanged two layers of raw: copying puts them right."""
    base, raw = Separate(), Fused()
    padiff.plan_weights(base, raw, X).apply()
    twins = torch.nn.Sequential(Separate(), Separate())
    other = paddle.nn.Sequential(Fused(), Fused())
    padiff.plan_weights(twins, other, X).apply()
    first, second = other[0].proj.weight.numpy().copy(), other[1].proj.weight.numpy().copy()
    other[0].proj.weight.set_value(second)
    other[1].proj.weight.set_value(first)
    assert padiff.compare(twins, other, X).aligned
    assert np.array_equal(other[0].proj.weight.numpy(), first)


def test_a_right_module_rule_does_no_harm() -> None:
    assert padiff.compare(Separate(), Fused(), X, rules={"proj": "out"}).aligned
    assert padiff.plan_weights(Separate(), Fused(), X, rules={"proj": "out"}).problems == ()


def test_a_function_fills_what_has_no_partner() -> None:
    class Table(torch.nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.register_parameter("t" + "x" * len(shape), torch.nn.Parameter(torch.randn(*shape)))
            self.fc = torch.nn.Linear(12, 12)

        def forward(self, x: Any) -> Any:
            return self.fc(x) * next(self.parameters()).sum()

    base, raw = Table(4, 3), Table(2, 6, 1)
    rules = {"txxx": lambda arrays: arrays["txx"].reshape(2, 6, 1)}
    assert padiff.compare(base, raw, X, rules=rules).aligned


def test_layer_map_as_a_dict() -> None:
    base, raw = Separate(), Fused()
    assert not padiff.plan_weights(base, raw, X, layer_map={base.out: raw.proj}).problems


def test_rules_on_buffers_are_compared_as_buffers() -> None:
    base, raw = torch.nn.BatchNorm1d(12), paddle.nn.BatchNorm1D(12)
    result = padiff.compare(base, raw, X[:, 0], rules={"_mean": "running_mean"})
    assert result.aligned, str(result)
    assert {c.name for c in result.comparisons if c.phase == "buffer"} == {"_mean", "_variance"}


class Apart(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.proj = (torch.nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Any) -> Any:
        scores = (self.query(x) @ self.key(x).mT * 0.5).softmax(-1)
        return x + self.proj(scores @ self.value(x))


class Together(torch.nn.Module):
    def __init__(self, width: int, factor: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.proj, self.factor = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width), factor

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(x).chunk(3, -1)
        return x + self.factor * self.proj((query @ key.mT * 0.5).softmax(-1) @ value)


def test_what_is_open_is_tried_in_blocks_of_other_widths() -> None:
    """Element by element is 12 in the one and 20 in the other; nothing matches, so that everything is tried."""
    base = torch.nn.Sequential(Apart(12), torch.nn.Linear(12, 20), Apart(20))
    raw = torch.nn.Sequential(Together(12), torch.nn.Linear(12, 20), Together(20, 1.5))
    found = padiff.compare(base, raw, X).divergence
    assert found is not None
    assert found.raw_path == "2"
