"""``assign_weight``: copying base's weights into raw, and what the log says about it."""

from __future__ import annotations

from typing import Any

from padiff.autodiff.layer_map import LayerMap, as_layer_map
from padiff.autodiff.log import say, write_file
from padiff.autodiff.roles import by_position, live_model
from padiff.autodiff.special_init import find_special_init
from padiff.autodiff.trees import around, draw, titled
from padiff.errors import ArgumentError
from padiff.frameworks.tree import LiveTree
from padiff.pipeline import Job, copy_weights, plan_of
from padiff.records import ModuleTree, Rules, WeightPlan, WeightProblem

HINTS = (
    "Hint:",
    "    1. Check that both models define their layers and parameters in the same order.",
    "    2. Check that corresponding layers are of one style: parameter with parameter, buffer with buffer,",
    "       embedding with embedding.",
    "    3. Where the code cannot change, pair the layers by hand with a `LayerMap`.",
    "    4. (skip) marks layers that hold no parameter themselves, or that the layer map names.",
)


def assign_weight(base_model: Any = None, raw_model: Any = None, layer_map: Any = None, **old: Any) -> bool:
    """Copy base's weights into raw; False, with nothing copied and the reason printed, when they don't fit.

    The first generation's ``assign_weight(layer, module)`` copies the torch module's weights into the paddle layer.
    """
    unknown = set(old) - {"layer", "module"}
    if unknown:
        raise ArgumentError(f"assign_weight has no argument {unknown.pop()!r}", "base_model, raw_model, layer_map")
    if old:
        base, raw = by_position(old.get("layer", base_model), old.get("module", raw_model or base_model))
    elif base_model is None or raw_model is None:
        raise ArgumentError(f"{'base_model' if base_model is None else 'raw_model'} is missing")
    else:
        base, raw = by_position(base_model, raw_model)
    return fill(base, raw, as_layer_map(layer_map))


def assign_by_keyword(base_model: Any, raw_model: Any, layer_map: Any = None) -> bool:
    """Keywords win over position."""
    return fill(live_model(base_model, "base_model"), live_model(raw_model, "raw_model"), as_layer_map(layer_map))


def fill(base: LiveTree, raw: LiveTree, layer_map: LayerMap) -> bool:
    """Plan, check, copy, and say what happened."""
    rules = layer_map.rules(base, raw)
    plan = plan_for(base, raw, rules)
    say(roles_line(base, raw))
    return carry_out(base, raw, rules, plan)


def plan_for(base: LiveTree, raw: LiveTree, rules: Rules) -> WeightPlan:
    return plan_of(_job(base, raw, rules))


def carry_out(base: LiveTree, raw: LiveTree, rules: Rules, plan: WeightPlan) -> bool:
    if plan.problems:
        _failed(base, raw, rules, plan)
        return False
    try:
        copy_weights(_job(base, raw, rules), plan)
    except Exception as error:
        say("Assign weight Failed !!!", f"    {type(error).__name__}: {error}", "    nothing was changed")
        return False
    for one in plan.unmatched:
        say(f"    left alone: {one}")
    say(f"Assign weight success !!! {len(plan.entries)} tensors of {raw.tree.name}(raw_model) overwritten")
    return True


def roles_line(base: LiveTree, raw: LiveTree) -> str:
    return (
        f"base model: {base.tree.name} ({base.adapter.name}), trusted; "
        f"raw model: {raw.tree.name} ({raw.adapter.name}), examined"
    )


def _failed(base: LiveTree, raw: LiveTree, rules: Rules, plan: WeightPlan) -> None:
    problem = plan.problems[0]
    say("Assign weight Failed !!!", "")
    say(*_what(base.tree, raw.tree, problem))
    if len(plan.problems) > 1:
        say(f"    and {len(plan.problems) - 1} more places that don't fit")
    files = []
    for tree, role, place, mapped in (
        (base.tree, "base_model", problem.base_node, {pair[0] for pair in rules.pairs} | rules.base_skip),
        (raw.tree, "raw_model", problem.raw_node, {pair[1] for pair in rules.pairs} | rules.raw_skip),
    ):
        skipped = {node.index for node in tree.nodes if not node.parameters or node.path in mapped}
        name = f"{tree.name}({role})"
        lines = titled(name, draw(tree, place, skipped))
        files.append(write_file(f"weight_init_{name}.log", lines))
        say("", *around(lines))
    say("", "Weight init log saved to", *(f"    {path}" for path in files))
    say("", "The place is marked with `<---  *** HERE ***`.", *HINTS, f"    hint for this case: {problem.hint}")


def _what(base: ModuleTree, raw: ModuleTree, problem: WeightProblem) -> list[str]:
    return [
        "Error occurred between:",
        f"    base_model: `{problem.base_text}`",
        f"                `{_route(base, 'base_model', problem.base_path)}`",
        f"    raw_model:  `{problem.raw_text}`",
        f"                `{_route(raw, 'raw_model', problem.raw_path)}`",
        f"    {problem.message}",
    ]


def _route(tree: ModuleTree, role: str, path: str) -> str:
    return f"{tree.name}({role}){'.' + path if path else ''}"


def _job(base: LiveTree, raw: LiveTree, rules: Rules) -> Job:
    def nothing() -> Any:
        raise AssertionError("copying weights runs no model")

    return Job(base=base, raw=raw, arguments=nothing, rules=rules, special=find_special_init)
