"""``assign_weight``: copying base's weights into raw, and what the log says about it."""

from __future__ import annotations

import traceback
from typing import Any

from padiff.autodiff.layer_map import LayerMap, as_layer_map
from padiff.autodiff.log import count, say, wrapped, write_file
from padiff.autodiff.options import refuse_option
from padiff.autodiff.roles import PLACES, take_models
from padiff.autodiff.told import weight_rules
from padiff.autodiff.trees import around, draw, route, titled
from padiff.engine.filling.matching import match
from padiff.engine.job import Job
from padiff.engine.pipeline import copy_weights
from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree
from padiff.records import ModuleTree, Rules, WeightPlan, WeightProblem
from padiff.report.words import first_of

ARGUMENTS = ("base_model", "raw_model", "layer_map")
INDENT = "    "
HINTS = (
    "In general:",
    "    - both models should define their layers and parameters in the same order;",
    "    - layers that correspond should hold their weights alike: parameter for parameter, buffer for buffer;",
    "    - where the code cannot change, a LayerMap pairs layers by hand;",
    "    - `<---  *** HERE ***` marks the place, (skip) layers without parameters or named in the layer map.",
)


def assign_weight(*args: Any, **kwargs: Any) -> bool:
    """Copy base's weights into raw; False, with nothing copied and the reason printed, when they don't fit.

    ``assign_weight(base_model, raw_model, layer_map=None)``, or the first generation's
    ``assign_weight(layer, module, layer_map=None)``, which copies the torch module's weights into the paddle layer.
    """
    if len(args) > len(ARGUMENTS):
        raise ArgumentError(f"assign_weight takes at most {len(ARGUMENTS)} arguments by position, {len(args)} came")
    given = dict(zip((*PLACES, "layer_map"), args, strict=False))
    for name, value in kwargs.items():
        if name not in (*ARGUMENTS, "layer", "module"):
            refuse_option("assign_weight", name, (*ARGUMENTS, "layer", "module"))
        if name in given:
            raise ArgumentError(f"{name} is given twice")
        given[name] = value
    first, second, base_first = take_models(given, "assign_weight")
    base, raw = (first, second) if base_first else (second, first)
    return fill(base, raw, as_layer_map(given.get("layer_map")))


def assign_by_keyword(base_model: Any, raw_model: Any, layer_map: Any = None) -> bool:
    """Keywords win over position."""
    return assign_weight(base_model=base_model, raw_model=raw_model, layer_map=layer_map)


def fill(base: LiveTree, raw: LiveTree, layer_map: LayerMap) -> bool:
    """Plan, check, copy, and say what happened."""
    rules = weight_rules(layer_map.rules(base, raw), base, raw)
    return carry_out(base, raw, rules, plan_for(base, raw, rules))


def plan_for(base: LiveTree, raw: LiveTree, rules: Rules) -> WeightPlan:
    return match(_job(base, raw, rules), run=False).plan


def carry_out(base: LiveTree, raw: LiveTree, rules: Rules, plan: WeightPlan) -> bool:
    """Copy if the plan stands, and say what happened."""
    if plan.problems:
        _failed(base, raw, rules, plan)
        return False
    try:
        copy_weights(_job(base, raw, rules), plan)
    except Exception as error:
        say("Assign weight Failed !!!", roles_line(base, raw, "no weights were overwritten"))
        say(*wrapped(f"{type(error).__name__}: {error}", INDENT))
        for frame in traceback.extract_tb(error.__traceback__)[-1:]:
            say(f"    raised at {frame.filename}: {frame.lineno} {frame.name}")
        return False
    for one in plan.unmatched:
        say(*wrapped(f"left alone: {one}", INDENT, 2 * INDENT))
    kept = [entry.path for entry in plan.entries if not entry.written]
    if kept:
        shown = f"{count(len(kept), 'buffer')} ({first_of(kept, 3)})"
        say(*wrapped(f"left as raw makes them: {shown}", INDENT, 2 * INDENT))
    say("Assign weight success !!!", roles_line(base, raw, _filled(plan)))
    return True


def roles_line(base: LiveTree, raw: LiveTree, what: str) -> str:
    """The one line that says which model is base and whose weights were overwritten."""
    return (
        f"base_model is {base.tree.name} ({base.adapter.name}), "
        f"raw_model is {raw.tree.name} ({raw.adapter.name}): {what}"
    )


def say_left_out(plan: WeightPlan) -> None:
    """Without a copy a plan that does not stand is no obstacle, but its parameters cannot be compared."""
    for problem in plan.problems:
        say(*wrapped(f"weights and grads not compared: {problem.message}", after=INDENT))
    for one in plan.unmatched:
        if one.kind == "parameter":
            say(*wrapped(f"weights and grads not compared: {one}", after=INDENT))


def _filled(plan: WeightPlan) -> str:
    written = sum(entry.written for entry in plan.entries)
    what = count(written, "tensor")
    if plan.special:
        what += f" and {count(len(plan.special), 'layer')} with an initialisation of yours"
    return f"{what} of raw_model {'was' if written == 1 and not plan.special else 'were'} overwritten"


def _failed(base: LiveTree, raw: LiveTree, rules: Rules, plan: WeightPlan) -> None:
    problem = plan.problems[0]
    say("Assign weight Failed !!!", roles_line(base, raw, "no weights were overwritten"), "")
    say(*_what(base.tree, raw.tree, problem))
    if len(plan.problems) > 1:
        say(f"    {count(len(plan.problems) - 1, 'more place')} may not fit either")
    files = []
    for tree, role, place, mapped in (
        (base.tree, "base_model", problem.base_node, {pair[0] for pair in rules.pairs} | rules.base_skip),
        (raw.tree, "raw_model", problem.raw_node, {pair[1] for pair in rules.pairs} | rules.raw_skip),
    ):
        skipped = {node.index for node in tree.nodes if not node.parameters or node.path in mapped}
        name = f"{tree.name}({role})"
        lines = draw(tree.name, tree.nodes, place, skipped)
        files.append(write_file(f"weight_init_{name}.log", titled(name, lines)))
        say("", *titled(name, around(lines)))
    say("", "Both trees are saved to", *(f"    {path}" for path in files), "")
    say(*wrapped(f"hint: {problem.hint}", after=" " * len("hint: ")), *HINTS)


def _what(base: ModuleTree, raw: ModuleTree, problem: WeightProblem) -> list[str]:
    return [
        "Error occurred between:",
        f"    base_model: `{problem.base_text}`",
        f"                `{route(base.name, 'base_model', problem.base_path)}`",
        f"    raw_model:  `{problem.raw_text}`",
        f"                `{route(raw.name, 'raw_model', problem.raw_path)}`",
        *wrapped(problem.message, INDENT),
    ]


def _job(base: LiveTree, raw: LiveTree, rules: Rules) -> Job:
    def nothing() -> Any:
        raise AssertionError("copying weights runs no model")

    return Job(base=base, raw=raw, arguments=nothing, rules=rules)
