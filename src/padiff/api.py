"""The native door."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from padiff.capture.one_step import check_arguments
from padiff.compare.tolerance import as_tolerance
from padiff.engine.captured.dumping import TraceWriter
from padiff.engine.filling.first_try import first_try
from padiff.engine.filling.matching import Matching, match
from padiff.engine.inputs import Inputs, fresh_arguments, one_or_two
from padiff.engine.job import Job
from padiff.engine.pipeline import copy_weights, run_job
from padiff.engine.plan import Plan
from padiff.engine.result import Result
from padiff.engine.widths import with_widths
from padiff.errors import ArgumentError, WeightError
from padiff.frameworks import adapter_of_model, adapter_of_optimizer, module_tree
from padiff.frameworks.tree import LiveTree
from padiff.records import Calibration, Rules, Tolerance
from padiff.report.progress import stages
from padiff.weights.rules import names_tensor

BIND = "bind the others by name, e.g. functools.partial(loss, label=label)"


def compare(
    base: Any,
    raw: Any,
    inputs: Any,
    *,
    loss: Any = None,
    optimizers: tuple[Any, Any] | None = None,
    steps: int = 1,
    weights: Literal["copy", "keep"] = "copy",
    tolerance: str | tuple[float, float] | Calibration | Tolerance = "auto",
    phase: Literal["forward", "both"] = "both",
    level: Literal["module", "op"] = "module",
    ops: Literal["own", "all"] = "own",
    rules: Mapping[str, Any] | None = None,
    randomness: Literal["replay", "own"] = "replay",
    dump: str | Path | None = None,
    progress: bool | None = None,
) -> Result:
    """Run both models on the same inputs and say whether they compute the same, and if not, where they part.

    ``base`` is trusted, ``raw`` is examined; base's weights are copied into raw first unless ``weights="keep"``.
    ``randomness="replay"`` gives raw what base drew (dropout, noise, samples); ``"own"`` lets each draw for itself.
    ``level="op"`` compares what the modules' own code calls as well, function by function; with ``ops="all"`` also what
    the framework's own layers call.
    ``dump`` is a folder in which both leave what they did, as dumps ``base`` and ``raw``; earlier ones are replaced.
    ``progress`` shows a bar on stderr when it takes over a second: always, never, or by default on a terminal.
    """
    _choice("weights", weights, ("copy", "keep"))
    _choice("phase", phase, ("forward", "both"))
    _choice("randomness", randomness, ("replay", "own"))
    _choice("level", level, ("module", "op"))
    _choice("ops", ops, ("own", "all"))
    if ops == "all" and level != "op":
        raise ArgumentError(f'ops is "all", but level is {level!r}: no op would be compared', 'level="op"')
    base_live = module_tree(adapter_of_model(base, "base"), base)
    raw_live = module_tree(adapter_of_model(raw, "raw"), raw)
    module_rules, weight_rules = rules_of(rules, base_live, raw_live)
    job = Job(
        base=base_live,
        raw=raw_live,
        arguments=fresh_arguments(base_live, raw_live, *one_or_two(inputs, base_live, raw_live)),
        losses=pair_of_losses(loss),
        projected=True,
        optimizers=pair_of_optimizers(optimizers, base_live, raw_live),
        steps=check_steps(steps),
        backward=phase == "both",
        tolerance=as_tolerance(tolerance),
        rules=module_rules,
        weight_rules=weight_rules,
        randomness=randomness,
        ops=ops if level == "op" else None,
    )
    job = with_widths(job)
    for live, side, arguments in zip((base_live, raw_live), ("base", "raw"), job.arguments(), strict=True):
        check_arguments(live, side, arguments)
    if job.steps > 1 and job.optimizers is None:
        raise ArgumentError(f"steps is {steps}, but optimizers is None: nothing would change between steps", "steps=1")
    with stages(progress) as shown:
        shown.now("matching weights")
        copies = weights == "copy"
        repeatable = dump is None and job.optimizers is None
        matching = match(job, run=True, lazily=repeatable, fills=copies)

        def run(matching: Matching) -> tuple[Result, Matching]:
            if copies and matching.by_base is None:
                _fits(matching)
                copy_weights(job, matching.plan)
            shown.now("running and comparing")
            shown.done(0, job.steps)
            with _dumps(dump, base_live, raw_live) as dumps:
                return run_job(
                    job,
                    matching,
                    copied=copies,
                    on_step=lambda done: shown.done(done.step + 1, job.steps),
                    watch=shown.follow,
                    dumps=dumps,
                )

        return first_try(matching, run)


def _fits(matching: Matching) -> None:
    """Raise where something stands in the way of filling raw."""
    if not matching.plan.problems:
        return
    if matching.raised is not None:
        raise matching.raised
    problem = matching.plan.problems[0]
    places = f"base {problem.base_path or '(model)'}, raw {problem.raw_path or '(model)'}"
    raise WeightError(f"base's weights don't fit into raw ({places}): {problem.message}", problem.hint)


@contextmanager
def _dumps(
    path: str | Path | None, base: LiveTree, raw: LiveTree
) -> Iterator[tuple[TraceWriter | None, TraceWriter | None]]:
    """Writers of what both models do; whole when the block ends, gone when it raises."""
    if path is None:
        yield None, None
        return
    writers = (TraceWriter(live, Path(path) / side, overwrite=True) for live, side in ((base, "base"), (raw, "raw")))
    with ExitStack() as stack:
        one, other = (stack.enter_context(writer) for writer in writers)
        yield one, other


def pair_of_losses(loss: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]:
    """One loss for both models, or a pair."""
    if loss is None:
        return None, None
    if isinstance(loss, (tuple, list)):
        if len(loss) != 2 or not all(one is None or callable(one) for one in loss):
            raise ArgumentError(f"loss is {loss!r}, expected one function for both models or a pair of functions")
        for one, side in zip(loss, ("base", "raw"), strict=True):
            _takes(one, 1, f"loss: the one of the {side} model", "one argument, what the model returns", BIND)
        return loss[0], loss[1]
    if not callable(loss):
        raise ArgumentError(f"loss is a {type(loss).__name__}, expected a function of the model's output")
    _takes(loss, 1, "loss", "one argument, what the model returns", BIND)
    return loss, loss


def _takes(function: Any, count: int, what: str, expected: str, hint: str) -> None:
    """Hold a function of the user's against how it will be called, before anything runs."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # None, and what is written in another language
        return
    try:
        signature.bind(*range(count))
    except TypeError as error:
        raise ArgumentError(
            f"{what} cannot be called with {expected}: {error}; its signature is {signature}", hint
        ) from None


def pair_of_optimizers(
    optimizers: Any, base: LiveTree, raw: LiveTree, name: str = "optimizers"
) -> tuple[Any, Any] | None:
    """Two optimizers, or two functions that step and clear, each for its own model."""
    if optimizers is None:
        return None
    if not isinstance(optimizers, (tuple, list)) or len(optimizers) != 2:
        raise ArgumentError(
            f"{name} is a {type(optimizers).__name__}, expected a pair, one optimizer per model",
            "a function without arguments that steps and clears the gradients will do, too",
        )
    for live, optimizer, side in zip((base, raw), optimizers, ("base", "raw"), strict=True):
        adapter = adapter_of_optimizer(optimizer)
        if adapter is None and not callable(optimizer):
            raise ArgumentError(
                f"{name}: the one of the {side} model is a {type(optimizer).__name__}, expected a {live.adapter.name} "
                "optimizer or a function without arguments that steps and clears the gradients"
            )
        if adapter is not None and adapter.name != live.adapter.name:
            raise ArgumentError(
                f"{name}: the one of the {side} model ({live.adapter.name}) is a {adapter.name} optimizer",
                "give the optimizers in the order of the models",
            )
        if adapter is None:
            what = f"{name}: the function of the {side} model"
            _takes(optimizer, 0, what, "no argument", "it is to step and clear the gradients by itself")
    theirs = {id(parameter) for parameter in raw.parameters().values()}
    common = next((path for path, parameter in base.parameters().items() if id(parameter) in theirs), None)
    if common is not None:
        raise ArgumentError(
            f"{name}: both models hold {common}, one and the same tensor, which two optimizers would step",
            "compare with a copy of the model (copy.deepcopy)",
        )
    return optimizers[0], optimizers[1]


def check_steps(steps: Any) -> int:
    if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < 1:
        raise ArgumentError(f"steps is {steps!r}, expected a whole number of at least 1")
    return int(steps)


def plan_weights(
    base: Any, raw: Any, inputs: Any = None, *, rules: Mapping[str, Any] | None = None, layer_map: Any = None
) -> Plan:
    """Say for every parameter and buffer of raw where it comes from, without writing anything.

    With ``inputs`` both models run once, and the order in which they use their tensors joins the evidence.
    """
    base_live = module_tree(adapter_of_model(base, "base"), base)
    raw_live = module_tree(adapter_of_model(raw, "raw"), raw)
    module_rules, weight_rules = rules_of(rules, base_live, raw_live)
    if layer_map is not None:
        from padiff.autodiff.layer_map import as_layer_map  # that door is built on this one

        mapped = as_layer_map(layer_map).rules(base_live, raw_live)
        module_rules = replace(mapped, pairs=(*mapped.pairs, *module_rules.pairs))
    pair = (Inputs(), Inputs()) if inputs is None else one_or_two(inputs, base_live, raw_live)
    job = Job(
        base=base_live,
        raw=raw_live,
        arguments=fresh_arguments(base_live, raw_live, *pair),
        rules=module_rules,
        weight_rules=weight_rules,
    )
    if inputs is not None:
        for live, side, arguments in zip((base_live, raw_live), ("base", "raw"), job.arguments(), strict=True):
            check_arguments(live, side, arguments)
    job = with_widths(job)
    return Plan(job, match(job, run=inputs is not None))


def rules_of(rules: Any, base: LiveTree, raw: LiveTree) -> tuple[Rules, dict[str, Any]]:
    """Rules about modules, which pair them, and rules about tensors, which fill them."""
    if rules is None:
        return Rules(), {}
    if not isinstance(rules, Mapping):
        raise ArgumentError(
            f"rules is a {type(rules).__name__}, expected a dict of paths",
            'write it as {"path in raw": "path in base"}',
        )
    base_paths, raw_paths = base.tree.by_path(), raw.tree.by_path()
    pairs: list[tuple[str, str]] = []
    weights: dict[str, Any] = {}
    for key, rule in rules.items():
        if isinstance(rule, str) and key in raw_paths and rule in base_paths:
            pairs.append((rule, key))
        elif isinstance(rule, str) and "*" in key and not names_tensor(key, raw):
            pairs += _starred(key, rule, base_paths, raw_paths)
        elif isinstance(rule, str) and key in raw_paths:
            raise ArgumentError(f"rules: base has no module {rule!r}", 'rules are written {"raw.path": "base.path"}')
        else:
            weights[key] = rule
    return Rules(pairs=tuple(pairs)), weights


def _starred(key: str, rule: str, base: Mapping[str, Any], raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of modules that a rule with ``*`` names."""
    found: list[tuple[str, str]] = []
    pattern = re.compile(re.escape(key).replace(r"\*", r"([^.]+)"))
    for path in raw:
        hit = pattern.fullmatch(path)
        if hit:
            partner = rule
            for star in hit.groups():
                partner = partner.replace("*", star, 1)
            if partner not in base:
                raise ArgumentError(f"rules: base has no module {partner!r}, which {key!r} names for {path!r}")
            found.append((partner, path))
    if not found:
        raise ArgumentError(f"rules: raw has neither module nor tensor that {key!r} names")
    return found


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(f"{name} is {value!r}, expected {' or '.join(map(repr, allowed))}")
