"""Every kind of bug changes what it says it changes, where it says it, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.benchmarks.test_smoke import from_the_root as from_the_root

NAMES = ("twins: torch, torch", "twins: torch, paddle", "decoder: torch, torch", "decoder: torch, paddle", "residual")
IN_PLAIN = {
    "activation: gelu for relu",
    "activation: gelu for silu",
    "activation: leaky for relu",
    "activation: relu for gelu",
    "activation: tanh for erf",
    "attention: mask ignored",
    "attention: mask off by one",
    "attention: scale missing",
    "attention: scale of another size",
    "attention: softmax along another axis",
    "attention: softmax in bfloat16",
    "bias: missing",
    "bias: one value wrong",
    "fed: negated",
    "fed: one channel zero",
    "fed: rounded to bfloat16",
    "fed: shifted by one",
    "fed: times 1.01",
    "gradient: cut between two modules",
    "gradient: cut in a module",
    "gradient: times 1.5 between two modules",
    "gradient: times 1.5 through a module",
    "loss: square for mean",
    "loss: sum for mean",
    "mask: ignored",
    "mask: off by one",
    "norm: eps 1e-3",
    "norm: eps ten times",
    "norm: momentum",
    "optimizer: betas",
    "optimizer: decay missing",
    "optimizer: decay of AdamW",
    "optimizer: eps",
    "optimizer: lr",
    "optimizer: momentum",
    "output: negated",
    "output: one channel zero",
    "output: one value not a number",
    "output: rounded to bfloat16",
    "output: shifted by one",
    "output: times 1.001",
    "output: times 1.01",
    "own code: a child called twice",
    "own code: a child left out",
    "parameter gradient: times 1.5",
    "residual: missing between two children",
    "residual: missing at the end",
    "rotary: another base",
    "rotary: neighbours for halves",
    "statistics: variance wrong",
    "weight: off by 1e-3",
    "weight: one row wrong",
    "weight: transposed",
    "weight: two rows swapped",
}
"""Kinds that can be planted where only the frameworks are; the others need a library's models."""


def in_training(source: Any) -> Any:
    def build() -> Any:
        base, raw, inputs = source.build()
        base.train()
        raw.train()
        return base, raw, inputs

    return replace(source, name=f"{source.name}, in training", build=build)


@pytest.fixture(scope="module", params=[*NAMES, "residual, in training"])
def stage(request: pytest.FixtureRequest) -> Any:
    from benchmarks.localise.sources import plain_sources
    from benchmarks.localise.stage import staged

    name = request.param.removesuffix(", in training")
    source = next(source for source in plain_sources() if source.name.startswith(name))
    return staged(source if name == request.param else in_training(source))


def first_of_each(stage: Any) -> Iterator[Any]:
    """One bug of every kind, in the middle of those that are possible."""
    from benchmarks.localise.run import KINDS

    for kind in KINDS:
        bugs = list(kind(stage))
        if bugs:
            yield bugs[len(bugs) // 2]


def outputs(stage: Any) -> list[Any]:
    return [array for call in stage.run_raw() for array in call.outputs]


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True))


def test_every_bug_changes_its_place_and_comes_out_again(stage: Any) -> None:
    from benchmarks.localise.run import _effect
    from benchmarks.localise.stage import quiet

    before = outputs(stage)
    stage.restore()
    seen = {"calls": stage.run_raw()}
    stage.restore()
    paths = list(stage.modules)
    done = []
    for bug in first_of_each(stage):
        if bug.plant is nullcontext:
            continue
        with quiet():
            effect = _effect(stage, bug, seen)
        stage.restore()
        if not bug.kind.startswith(("norm: eps", "gradient: cut")):  # may be too faint, or cut what reaches nobody
            assert effect >= bug.floor, (bug.kind, bug.place, effect)
        assert equal(outputs(stage), before), bug.kind
        stage.restore()
        from benchmarks.localise.either import modules_of

        assert list(modules_of(stage.raw)) == paths
        assert bug.place in bug.expected
        done.append(bug.kind)
    assert len(done) > 20


def test_the_tree_stays_while_a_bug_is_in(stage: Any) -> None:
    from benchmarks.localise.either import modules_of

    modules = dict(modules_of(stage.raw))
    for bug in first_of_each(stage):
        with bug.plant():
            assert modules_of(stage.raw) == modules, bug.kind


def test_plain_pairs_have_every_kind() -> None:
    from benchmarks.localise.run import KINDS
    from benchmarks.localise.sources import plain_sources
    from benchmarks.localise.stage import staged

    found = set()
    for source in plain_sources():
        if source.name.startswith(NAMES) or source.name.startswith("attention"):
            for one in (source, in_training(source)) if source.name.startswith("residual") else (source,):
                stage = staged(one)
                found |= {bug.kind for kind in KINDS for bug in kind(stage)}
    assert found == IN_PLAIN


def test_what_a_parent_feeds_is_the_parents_fault(stage: Any) -> None:
    """The child's own hooks see the changed input; the child by itself is as before."""
    from benchmarks.localise.in_own_code import KINDS

    bug = next(bug for kind in KINDS for bug in kind(stage) if bug.kind == "fed: times 1.01")
    call = next(call for call in stage.calls if call.path == bug.watched)
    with bug.plant():
        changed = next(call for call in stage.run_raw() if call.path == bug.watched)
    stage.restore()
    assert bug.place == call.caller
    np.testing.assert_allclose(changed.inputs[0], call.inputs[0] * 1.01, rtol=1e-5)


def test_exact_near_far() -> None:
    from benchmarks.localise.bug import Bug
    from benchmarks.localise.judge import judge_cause, judge_place

    bug = Bug("x", "blocks.1.mlp", ("blocks.1.mlp",), nullcontext, causes=("gelu",))
    places = {
        "blocks.1.mlp": "exact",
        "blocks.1": "near",
        "blocks.1.mlp.fc1": "near",
        "blocks.1.mlp.fc1.inner": "far",
        "blocks.1.norm": "far",
        "blocks": "far",
        "": "far",
    }
    assert {path: judge_place(bug, path, "forward") for path in places} == places
    assert judge_place(bug, "blocks.1.mlp", "backward") == "near"
    assert judge_cause(bug, ["eps", "scale", "GELU variant"]) == "right"
    assert judge_cause(bug, ["eps", "scale", "bias", "GELU variant"]) == "wrong"
    assert judge_cause(bug, ["unknown"]) == "none"
    assert judge_cause(replace(bug, causes=()), ["eps"]) == "undefined"
    top = replace(bug, place="", expected=("",))
    assert judge_place(top, "blocks", "forward") == "near"
    assert judge_place(top, "blocks.1", "forward") == "far"


def test_partners_are_told_by_numbers() -> None:
    from benchmarks.localise.partners import Partners
    from benchmarks.localise.watch import Seen

    generator = np.random.default_rng(0)
    x, q, k, out = (generator.normal(size=(2, 5, 6)) for _ in range(4))
    base = [Seen("", None, [x], [out]), Seen("q", "", [x], [q]), Seen("k", "", [x], [k])]
    raw = [
        Seen("", None, [x], [out]),
        Seen("wrap", "", [x], [q]),
        Seen("wrap.fused", "wrap", [x], [np.concatenate([q, k], -1)]),
        Seen("wrap.turned", "wrap", [x], [q.transpose(0, 2, 1) * (1 + 1e-6)]),
        Seen("wrap.own", "wrap", [x], [x**2]),
        Seen("wrap.drop", "wrap", [q], [q]),
    ]
    partners = Partners(base, raw)
    assert [partners.has(call.path) for call in raw] == [True, True, True, True, False, False]
    assert partners.wrapped("wrap")
    assert partners.wrapped("wrap.turned")
    assert not partners.wrapped("wrap.fused")
    assert partners.caller("wrap.own") == "wrap"
