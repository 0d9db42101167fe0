"""Plant, compare, judge, take out again."""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import padiff
from benchmarks.localise import in_functions, in_gradients, in_norms, in_outputs, in_own_code, in_training, in_weights
from benchmarks.localise.bug import Bug, Kind
from benchmarks.localise.counted import counting
from benchmarks.localise.either import (
    array,
    is_floating,
    is_torch,
    is_trained,
    like,
    modules_of,
    own_tensors,
    tensors_in,
    write,
)
from benchmarks.localise.judge import Judgement, judged
from benchmarks.localise.stage import NotClean, Source, Stage, arguments, quiet, staged
from benchmarks.localise.watch import Seen, distance

KINDS: tuple[Kind, ...] = (
    *in_weights.KINDS,
    *in_norms.KINDS,
    *in_outputs.KINDS,
    *in_own_code.KINDS,
    *in_functions.KINDS,
    *in_gradients.KINDS,
    *in_training.KINDS,
)
DEPTHS = ((0.0, 0.34), (0.34, 0.67), (0.67, 1.01))
"""Early, middle and late in the model."""


@dataclass
class Outcome:
    """What came of one pair."""

    judgements: list[Judgement] = field(default_factory=list)
    faint: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Kinds of bugs that were planted and changed nothing worth the name."""
    unclean: list[str] = field(default_factory=list)
    """What disagrees before, or after, anything is planted."""
    clean_runs: list[tuple[float, float]] = field(default_factory=list)
    """How often base and raw ran with nothing planted, in plain runs."""


def run_source(source: Source, kinds: Sequence[str], limit: int, seed: int) -> Outcome:
    """Some bugs of every kind that fits the pair, at different depths."""
    outcome = Outcome()
    try:
        stage = staged(source)
    except NotClean as error:
        outcome.unclean.append(str(error))
        return outcome
    with counting(stage.base, stage.raw) as counted:
        clean = _compare(stage, {})
    outcome.clean_runs.append(counted.plain())
    stage.restore()
    if isinstance(clean, Exception) or not clean.aligned:
        outcome.unclean.append(f"before: {_words(clean)}")
        return outcome
    before = stage.run_raw()
    stage.restore()
    seen: dict[str, Any] = {"calls": before, "clean": {}}
    for bug in chosen(stage, kinds, seed):
        if len(outcome.judgements) >= limit:
            break
        _one(stage, bug, seen, outcome)
        stage.restore()
    after = _compare(stage, {})
    if isinstance(after, Exception) or not after.aligned:
        outcome.unclean.append(f"after: {_words(after)}")
    gc.collect()
    return outcome


def chosen(stage: Stage, kinds: Sequence[str], seed: int) -> Iterator[Bug]:
    """Every kind once, at a depth of chance, then every kind again at another depth, and so on."""
    chance = random.Random(f"{seed} {stage.name}")
    stacks: list[list[Bug]] = []
    for kind in KINDS:
        bugs = [bug for bug in kind(stage) if not kinds or any(bug.kind.startswith(name) for name in kinds)]
        chance.shuffle(bugs)
        depths = list(range(len(DEPTHS)))
        chance.shuffle(depths)
        by_depth = [[bug for bug in bugs if DEPTHS[depth][0] <= bug.depth < DEPTHS[depth][1]] for depth in depths]
        picks: list[Bug] = []
        while any(by_depth):
            picks += [group.pop() for group in by_depth if group]
        if picks:
            stacks.append(picks[::-1])
    chance.shuffle(stacks)
    while stacks:
        for stack in stacks:
            yield stack.pop()
        stacks = [stack for stack in stacks if stack]


def _one(stage: Stage, bug: Bug, seen: dict[str, Any], outcome: Outcome) -> None:
    if bug.clean is not None and not _clean_options(stage, bug, seen, outcome):
        return
    with quiet():
        try:
            effect = _effect(stage, bug, seen)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            outcome.faint[f"{bug.kind} (cannot be planted: {type(error).__name__})"] += 1
            stage.restore()
            return
    stage.restore()
    if effect < bug.floor:
        outcome.faint[bug.kind] += 1
        return
    start = time.perf_counter()
    options = dict(bug.options()) if bug.options else {}
    with quiet(), bug.plant(), counting(stage.base, stage.raw) as counted:
        said = _compare(stage, options, bug.weights)
    base, raw = (runs / options.get("steps", 1) for runs in counted.plain())
    outcome.judgements.append(judged(stage.name, bug, effect, said, time.perf_counter() - start, (base, raw)))


def _clean_options(stage: Stage, bug: Bug, seen: dict[str, Any], outcome: Outcome) -> bool:
    """Whether the pair agrees under the same options without the mistake."""
    assert bug.clean is not None
    if bug.kind not in seen["clean"]:
        said = _compare(stage, dict(bug.clean()))
        stage.restore()
        fine = not isinstance(said, Exception) and said.aligned
        seen["clean"][bug.kind] = fine
        if not fine:
            outcome.unclean.append(f"{bug.kind}, without the mistake: {_words(said)}")
    return bool(seen["clean"][bug.kind])


def _compare(stage: Stage, options: dict[str, Any], weights: Any = "copy") -> Any:
    try:
        with quiet():
            return padiff.compare(
                stage.base, stage.raw, stage.inputs, weights=weights, phase=stage.source.phase, **options
            )
    except Exception as error:  # counted: a bug must be found, not raise
        return error


def _words(said: Any) -> str:
    if isinstance(said, Exception):
        return f"{type(said).__name__}: {said}"
    return str(said.divergence).splitlines()[0] if said.divergence is not None else "not aligned, no divergence"


# ------------------------------------------------------------------ how much a bug changes


def _effect(stage: Stage, bug: Bug, seen: dict[str, Any]) -> float:
    """The relative change at the bug's place, by a plain run of raw."""
    if bug.watch == "nothing":
        return float("inf")
    path = bug.watched or bug.place
    if bug.watch == "gradient":
        before = seen.setdefault("gradients", None) or _gradients_that_mean_something(stage)
        seen["gradients"] = before
        with bug.plant():
            return _change_of_gradients(before, _gradients(stage))
    if bug.watch == "buffer":
        own = own_tensors(stage.modules[path])
        stage.run_raw()
        clean = [array(tensor) for tensor in own.values() if not is_trained(tensor)]
        stage.restore()
        with bug.plant():
            stage.run_raw()
        return distance(clean, [array(tensor) for tensor in own.values() if not is_trained(tensor)])
    with bug.plant():
        after = stage.run_raw()
    if not _shows(stage, seen["calls"], after, path):
        return 0.0
    if bug.watch == "input":
        return _change(seen["calls"], after, path, "inputs")
    # What base has nothing to hold against can be seen around it at best, and may be lost there: q and k by themselves.
    return min(_change(seen["calls"], after, one, "outputs") for one in {path, stage.partners.visible(path)})


def _shows(stage: Stage, before: list[Seen], after: list[Seen], place: str) -> bool:
    """Whether anything changes that base has, too. What nobody reads is not wrong: some modules are given a tensor for
    its dtype; and a head that only raw has, and whose output nobody takes, is nobody's to judge, nor is an output of
    the module at the bug's place that the code around it throws away."""
    if [call.path for call in before] != [call.path for call in after]:
        return True
    return any(
        distance(one.outputs if not one.path else one.outputs[:1], other.outputs if not one.path else other.outputs[:1])
        for one, other in zip(before, after, strict=True)
        if stage.partners.has(one.path) and (one.path != place or not place)
    )


def _change(before: list[Seen], after: list[Seen], path: str, what: Literal["inputs", "outputs"]) -> float:
    one = next((call for call in before if call.path == path), None)
    other = next((call for call in after if call.path == path), None)
    return float("inf") if one is None or other is None else distance(getattr(one, what), getattr(other, what))


def _gradients_that_mean_something(stage: Stage) -> dict[str, np.ndarray | None]:
    """Without those that are made of rounding, as of the bias of a key, which softmax takes out again: moving the
    weights by a rounding step makes others of them."""
    found = _gradients(stage)
    signs = np.random.default_rng(2)
    for parameter in stage.raw.parameters():
        values = array(parameter)
        write(parameter, values * (1 + 2.0**-22 * signs.choice((-1.0, 1.0), values.shape)))
    moved = _gradients(stage)
    stage.restore()
    return {name: one for name, one in found.items() if _change_of_gradients({name: one}, moved) < 0.1}


def _gradients(stage: Stage) -> dict[str, np.ndarray | None]:
    """Of a projection of all outputs that is the same every time."""
    args, kwargs = arguments(stage.inputs, 1, stage.raw)
    generator = np.random.default_rng(1)
    loss = 0.0
    for output in tensors_in(stage.raw(*args, **kwargs)):
        if is_floating(output):
            loss = loss + (output * like(generator.standard_normal(tuple(output.shape)), output)).sum()
    loss.backward()  # type: ignore[attr-defined]
    found: dict[str, np.ndarray | None] = {}
    for path, module in modules_of(stage.raw).items():
        for name, tensor in own_tensors(module).items():
            if is_trained(tensor):
                found[f"{path}.{name}"] = None if tensor.grad is None else array(tensor.grad)
    for parameter in stage.raw.parameters():
        if is_torch(parameter):
            parameter.grad = None
        else:
            parameter.clear_gradient(False)
    return found


def _change_of_gradients(before: dict[str, Any], after: dict[str, Any]) -> float:
    worst = 0.0
    for name, one in before.items():
        other = after[name]
        if one is None and other is None:
            continue
        none = np.zeros(1) if one is None else np.zeros_like(one)
        worst = max(worst, distance([none if one is None else one], [none if other is None else other]))
    return worst
