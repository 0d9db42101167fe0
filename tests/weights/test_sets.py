"""Sets of equal-shaped layers: told apart by their names, else declared open and settled by running, never both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

WIDTH, HIDDEN = 12, 20
X = np.random.default_rng(0).normal(size=(2, 5, WIDTH)).astype("float32")
PAIRS = [("torch", "torch"), ("torch", "paddle"), ("paddle", "torch")]
frameworks = pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)


class Kit:
    """One framework's building blocks under common names."""

    def __init__(self, framework: str) -> None:
        torch_like = framework == "torch"
        self.framework = framework
        self.library: Any = torch if torch_like else paddle
        self.module: Any = torch.nn.Module if torch_like else paddle.nn.Layer
        self.list: Any = torch.nn.ModuleList if torch_like else paddle.nn.LayerList
        self.sequential: Any = torch.nn.Sequential if torch_like else paddle.nn.Sequential
        self.linear: Any = torch.nn.Linear if torch_like else paddle.nn.Linear
        self.norm: Any = torch.nn.LayerNorm if torch_like else paddle.nn.LayerNorm
        self.silu: Any = self.library.nn.functional.silu
        self.softmax: Any = self.library.nn.functional.softmax
        self.tanh: Any = self.library.tanh

    def cat(self, parts: Sequence[Any]) -> Any:
        return self.library.concat(list(parts), -1)

    def turned(self, x: Any) -> Any:
        return x.transpose(1, 2) if self.framework == "torch" else x.transpose([0, 2, 1])

    def filled(self, model: Any, seed: int) -> Any:
        """Every parameter random, so that no two layers can pass for each other."""
        generator = np.random.default_rng(seed)
        for parameter in model.parameters():
            value = generator.normal(0.0, 0.4, tuple(parameter.shape)).astype("float32")
            if self.framework == "torch":
                parameter.data.copy_(torch.from_numpy(value))
            else:
                parameter.set_value(value)
        return model


def model_of(
    kit: Kit, make: Callable[[Kit], dict[str, Any]], names: Sequence[str], body: Any, defined: Sequence[int] = ()
) -> Any:
    """A module with the parts that ``make`` gives under ``names``, and ``body(kit, parts, x)`` for forward."""

    class Model(kit.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.names = list(names)
            parts = list(make(kit).values())
            for place in defined or range(len(parts)):
                setattr(self, names[place], parts[place])

        def forward(self, x: Any) -> Any:
            return body(kit, [getattr(self, name) for name in self.names], x)

    return Model()


def sources(result_or_plan: Any) -> dict[str, str]:
    """Module of raw to the module of base that fills it."""
    plan = result_or_plan.plan if isinstance(result_or_plan, padiff.Result) else result_or_plan
    return {
        entry.path.rpartition(".")[0]: entry.sources[0].path.rpartition(".")[0]
        for entry in plan.entries
        if len(entry.sources) == 1
    }


# --- sets that running settles


def non_local(order: Sequence[int]) -> Any:
    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        made = {place: parts[place](x) for place in order}
        scores = kit.softmax(made[0] @ kit.turned(made[1]), -1)
        return x + parts[3](scores @ made[2])

    return body


def projections(kit: Kit) -> dict[str, Any]:
    return {name: kit.linear(WIDTH, WIDTH) for name in ("theta", "phi", "g", "out")}


def weighted_sum(order: Sequence[int]) -> Any:
    """Branches that differ in what is done with them."""

    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        made = {place: parts[place](x) for place in order}
        return sum((place + 1.0) * kit.tanh(made[place]) for place in sorted(made))

    return body


def four(kit: Kit) -> dict[str, Any]:
    return {str(place): kit.linear(WIDTH, WIDTH) for place in range(4)}


def branches(kit: Kit) -> dict[str, Any]:
    return {
        str(place): kit.sequential(kit.linear(WIDTH, HIDDEN), kit.norm(HIDDEN), kit.linear(HIDDEN, 4))
        for place in range(3)
    }


def joined(order: Sequence[int]) -> Any:
    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        made = {place: parts[place](x) for place in order}
        return kit.cat([made[place] for place in sorted(made)])

    return body


OPEN = {
    "non-local": (
        (projections, ("theta", "phi", "g", "out"), non_local((0, 1, 2))),
        (projections, ("uno", "due", "tre", "fine"), non_local((2, 0, 1))),
        {"uno": "theta", "due": "phi", "tre": "g", "fine": "out"},
    ),
    "sum": (
        (four, ("lin0", "lin1", "lin2", "lin3"), weighted_sum((0, 1, 2, 3))),
        (four, ("red", "green", "blue", "grey"), weighted_sum((3, 1, 0, 2))),
        {"red": "lin0", "green": "lin1", "blue": "lin2", "grey": "lin3"},
    ),
    "two": (
        (lambda kit: dict(list(four(kit).items())[:2]), ("conv_a", "conv_b"), weighted_sum((0, 1))),
        (lambda kit: dict(list(four(kit).items())[:2]), ("left", "right"), weighted_sum((1, 0))),
        {"left": "conv_a", "right": "conv_b"},
    ),
    "branches": (
        (branches, ("x0", "x1", "x2"), joined((0, 1, 2))),
        (branches, ("near", "middle", "far"), joined((1, 2, 0))),
        {
            f"{raw}.{layer}": f"{base}.{layer}"
            for raw, base in (("near", "x0"), ("middle", "x1"), ("far", "x2"))
            for layer in range(3)
        },
    ),
}


@frameworks
@pytest.mark.parametrize("case", OPEN)
def test_names_that_say_nothing_are_settled_by_running(case: str, frameworks: tuple[str, str]) -> None:
    (base_make, base_names, base_body), (raw_make, raw_names, raw_body), expected = OPEN[case]
    one, two = Kit(frameworks[0]), Kit(frameworks[1])
    base = one.filled(model_of(one, base_make, base_names, base_body), 1)
    raw = two.filled(model_of(two, raw_make, raw_names, raw_body), 2)
    plan = padiff.plan_weights(base, raw, X)
    assert sources(plan) == expected
    chosen = {e.path.rpartition(".")[0] for e in plan.entries if "chosen because outputs match" in e.evidence}
    assert chosen == {path for path in expected if path != "fine"}
    assert not plan.unsure
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage == {"calls": 1.0, "outputs": 1.0, "parameters": 1.0}


@pytest.mark.parametrize("case", OPEN)
def test_without_inputs_the_alternatives_are_named(case: str) -> None:
    (base_make, base_names, base_body), (raw_make, raw_names, raw_body), _ = OPEN[case]
    base = model_of(Kit("torch"), base_make, base_names, base_body)
    raw = model_of(Kit("paddle"), raw_make, raw_names, raw_body)
    plan = padiff.plan_weights(base, raw)
    assert not plan.problems
    assert len(plan.unsure) == len(plan.entries)
    for entry in plan.entries:
        owner, _, name = entry.sources[0].path.rpartition(".")
        first, _, inner = owner.partition(".")
        tail = f".{inner}.{name}" if inner else f".{name}"
        assert entry.confidence < 0.95
        assert set(entry.alternatives) == {f"{other}{tail}" for other in base_names if other != first}


def test_what_no_option_settles_stays_unsure() -> None:
    """Something else is wrong: the default stays, with what else it could have been."""
    kit = Kit("torch")
    (base_make, base_names, base_body), (raw_make, raw_names, raw_body), _ = OPEN["non-local"]
    base = kit.filled(model_of(kit, base_make, base_names, base_body), 1)
    raw = kit.filled(model_of(kit, raw_make, raw_names, lambda *all: raw_body(*all) * 1.1), 2)
    plan = padiff.plan_weights(base, raw, X)
    by_path = {entry.path: entry for entry in plan.entries}
    assert sources(plan) == {"tre": "theta", "uno": "phi", "due": "g", "fine": "out"}
    assert by_path["uno.weight"].confidence == 0.6
    assert by_path["uno.weight"].alternatives == ("theta.weight", "g.weight")
    assert by_path["fine.weight"].confidence == 1.0
    result = padiff.compare(base, raw, X)
    assert not result.aligned
    assert len(result.notes) == 1
    assert result.notes[0].startswith("6 of raw's tensors could be filled otherwise: tre.weight <- theta.weight, or ")


def blocks_of(kit: Kit, names: tuple[str, ...], body: Any, make: Any = four, count: int = 3, odd: int = -1) -> Any:
    """``body(order)`` for every block; the odd one takes its first two parts for each other."""

    def block(place: int) -> Any:
        given = (names[1], names[0], *names[2:]) if place == odd else names
        made = model_of(kit, make, names, body)
        made.names = list(given)
        return made

    return kit.sequential(*(block(place) for place in range(count)))


@frameworks
@pytest.mark.parametrize("count", [2, 3])
def test_blocks_are_settled_alike(frameworks: tuple[str, str], count: int) -> None:
    """One choice for all blocks; a block that differs from its likes is no choice, it is a bug."""
    one, two = Kit(frameworks[0]), Kit(frameworks[1])
    base = one.filled(blocks_of(one, ("lin0", "lin1", "lin2", "lin3"), weighted_sum((0, 1, 2, 3)), count=count), 1)
    names, body = ("red", "green", "blue", "grey"), weighted_sum((3, 1, 0, 2))
    result = padiff.compare(base, two.filled(blocks_of(two, names, body, count=count), 2), X)
    assert result.aligned, str(result)
    odd = count - 1
    result = padiff.compare(base, two.filled(blocks_of(two, names, body, count=count, odd=odd), 2), X)
    assert not result.aligned
    assert result.divergence is not None
    assert result.divergence.raw_path == str(odd), str(result)
    assert any("chosen because outputs of 0 match" in entry.evidence for entry in result.plan.entries)


# --- sets that names tell apart: a swap is a divergence, whatever running would say


def pre_norm(swapped: bool) -> Any:
    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        first, second, mix, up, down = parts
        if swapped:
            first, second = second, first
        x = x + mix(first(x))
        return x + down(kit.tanh(up(second(x))))

    return body


def pre_norm_parts(kit: Kit) -> dict[str, Any]:
    return {
        "norm1": kit.norm(WIDTH),
        "norm2": kit.norm(WIDTH),
        "mix": kit.linear(WIDTH, WIDTH),
        "up": kit.linear(WIDTH, HIDDEN),
        "down": kit.linear(HIDDEN, WIDTH),
    }


NORMS = [
    ("norm1", "norm2"),
    ("n1", "n2"),
    ("ln_1", "ln_2"),
    ("input_layernorm", "post_attention_layernorm"),
    ("layernorm_before", "layernorm_after"),
    ("attention_norm", "ffn_norm"),
    ("self_attn_layer_norm", "final_layer_norm"),
    ("ln_attn", "ln_mlp"),
    ("first_norm", "second_norm"),
    ("norm_a", "norm_b"),
    ("norm0", "norm1"),
]


@pytest.mark.parametrize("raw_names", NORMS, ids="-".join)
@pytest.mark.parametrize("base_names", NORMS[:4], ids="-".join)
def test_swapped_norms_diverge(base_names: tuple[str, str], raw_names: tuple[str, str]) -> None:
    base_rest, raw_rest = ("mix", "up", "down"), ("attn", "c_fc", "c_proj")
    one, two = Kit("torch"), Kit("paddle")
    base = one.filled(one.sequential(*_pre_norms(one, (*base_names, *base_rest))), 1)
    right = two.filled(two.sequential(*_pre_norms(two, (*raw_names, *raw_rest))), 2)
    assert padiff.compare(base, right, X).aligned
    wrong = two.filled(two.sequential(*_pre_norms(two, (*raw_names, *raw_rest), swapped=True)), 2)
    result = padiff.compare(base, wrong, X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("0", "0"), str(result)
    assert sources(result)[f"1.{raw_names[0]}"] == f"1.{base_names[0]}"


def _pre_norms(kit: Kit, names: tuple[str, ...], swapped: bool = False) -> list[Any]:
    return [model_of(kit, pre_norm_parts, names, pre_norm(swapped), (1, 0, 4, 2, 3)) for _ in range(2)]


def gated(order: Sequence[int], swapped: bool) -> Any:
    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        made = {place: parts[place](x) for place in order}
        gate, up = (made[1], made[0]) if swapped else (made[0], made[1])
        return parts[2](kit.silu(gate) * up)

    return body


def gated_parts(kit: Kit) -> dict[str, Any]:
    return {
        "gate": kit.linear(WIDTH, HIDDEN),
        "up": kit.linear(WIDTH, HIDDEN),
        "down": kit.linear(HIDDEN, WIDTH),
    }


GATES = [
    ("gate_proj", "up_proj", "down_proj"),
    ("wg", "wu", "wd"),
    ("gate", "up", "down"),
    ("w1", "w3", "w2"),
    ("fc_g", "fc_u", "fc_d"),
]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("raw_names", GATES, ids="-".join)
@pytest.mark.parametrize("base_names", GATES[:3], ids="-".join)
def test_swapped_gates_diverge(base_names: Any, raw_names: Any, order: tuple[int, int]) -> None:
    one, two = Kit("torch"), Kit("paddle")
    base = one.filled(model_of(one, gated_parts, base_names, gated((0, 1), False)), 1)
    right = two.filled(model_of(two, gated_parts, raw_names, gated(order, False)), 2)
    result = padiff.compare(base, right, X)
    assert result.aligned, str(result)
    wrong = two.filled(model_of(two, gated_parts, raw_names, gated(order, True)), 2)
    result = padiff.compare(base, wrong, X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("", ""), str(result)
    assert sources(result) == dict(zip(raw_names, base_names, strict=True))


NUMBERED = [
    (("branch1", "branch2", "branch3"), ("path0", "path1", "path2")),
    (("x0", "x1", "x2"), ("conv_1", "conv_2", "conv_3")),
    (("alpha", "beta", "gamma_"), ("a", "b", "g")),
    (("left_arm", "right_arm", "tail"), ("arm_left", "arm_right", "stub")),
]


@pytest.mark.parametrize(("base_names", "raw_names"), NUMBERED, ids=lambda names: "-".join(names))
def test_parallel_branches_with_telling_names(base_names: Any, raw_names: Any) -> None:
    one, two = Kit("torch"), Kit("paddle")
    base = one.filled(model_of(one, branches, base_names, joined((0, 1, 2))), 1)
    right = two.filled(model_of(two, branches, raw_names, joined((2, 0, 1))), 2)
    plan = padiff.plan_weights(base, right, X)
    assert not plan.unsure
    assert not any("outputs match" in entry.evidence for entry in plan.entries)
    assert padiff.compare(base, right, X).aligned

    def wrong_way(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        return joined((2, 0, 1))(kit, [parts[1], parts[0], parts[2]], x)

    wrong = two.filled(model_of(two, branches, raw_names, wrong_way), 2)
    result = padiff.compare(base, wrong, X)
    assert not result.aligned
    assert result.divergence is not None
    assert (result.divergence.base_path, result.divergence.raw_path) == ("", ""), str(result)


@pytest.mark.parametrize("names", [("uno", "due"), ("omega", "alpha")])
def test_layers_used_one_after_the_other_are_not_open(names: tuple[str, str]) -> None:
    """The output of the one feeds the other, in place or not: order of use tells, nothing is tried."""

    def body(kit: Kit, parts: Sequence[Any], x: Any) -> Any:
        x = x.clone()
        x += kit.tanh(parts[0](x))
        return parts[1](x)

    def two_of(kit: Kit) -> dict[str, Any]:
        return dict(list(four(kit).items())[:2])

    one, two = Kit("torch"), Kit("paddle")
    base = one.filled(model_of(one, two_of, ("begin", "finish"), body), 1)
    raw = two.filled(model_of(two, two_of, names, body), 2)
    plan = padiff.plan_weights(base, raw, X)
    assert sources(plan) == {names[0]: "begin", names[1]: "finish"}
    assert not plan.weight_plan.choices
    assert not plan.unsure
    assert padiff.compare(base, raw, X, phase="forward").aligned


TOLD_AT_REST = [
    (
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("value", "query", "key", "proj"),
        ("v_proj", "q_proj", "k_proj", "o_proj"),
    ),
    (("norm1", "norm2"), ("n2", "n1"), ("norm2", "norm1")),
    (("gate", "up"), ("wu", "wg"), ("up", "gate")),
]


@pytest.mark.parametrize(("base_names", "raw_names", "expected"), TOLD_AT_REST, ids=lambda names: "-".join(names))
def test_names_go_before_the_order_of_definition(base_names: Any, raw_names: Any, expected: Any) -> None:
    """No model is run: what names tell is not overruled by what was written first."""

    def made(kit: Kit, names: Sequence[str]) -> Any:
        return model_of(kit, lambda kit: {name: kit.linear(WIDTH, WIDTH) for name in names}, names, joined((0,)))

    base, raw = made(Kit("torch"), base_names), made(Kit("paddle"), raw_names)
    plan = padiff.plan_weights(base, raw)
    assert sources(plan) == dict(zip(raw_names, expected, strict=True))
    assert not plan.unsure
    assert padiff.assign_weight(base, raw)
    first = getattr(base, expected[0]).weight.detach().numpy().T
    assert np.array_equal(getattr(raw, raw_names[0]).weight.numpy(), first)
