"""What the log says when two models part: the stage, the place in both trees, the numbers, the user's lines."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.autodiff.log import count, say, wrapped, write_file
from padiff.autodiff.trees import around, draw, route, titled
from padiff.compare.tolerance import round_up
from padiff.records import Comparison, Divergence, ModuleTree, Numbers, SourceLine, StepComparison, Tolerance
from padiff.result import Result

STAGES = {
    "forward": "Forward Stage",
    "backward": "Backward Stage",
    "gradient": "Backward Stage",
    "weight": "Optimizer Stage",
    "buffer": "Forward Stage",
}
WHAT = {"loss": " (loss)", "parameter": " (parameters)", "buffer": " (buffers)", "input": " (inputs)"}
LISTS = {"gradient": "grads", "weight": "weights", "buffer": "buffers"}
INDENT = "    "
MEAN_LOSS = "no loss functions were given: this loss is the mean of the outputs, small where they cancel"


def explain(result: Result, *, whole: bool, own_loss: bool) -> None:
    """Print what a comparison found; nothing much when the models agree.

    ``whole`` says that nothing was left out after the difference, ``own_loss`` that the user gave loss functions.
    """
    for one in result.unmatched:
        say(*wrapped(f"no partner: {one}", after=INDENT))
    for note in result.notes:
        say(*wrapped(note, after=INDENT))
    divergence = result.divergence
    if divergence is None:
        return
    _place(result, divergence)
    say("", *(INDENT + line for line in number_lines(divergence.comparison, result.tolerance)))
    note = divergence.note if own_loss or divergence.role != "loss" else MEAN_LOSS
    if note:
        say("", *wrapped(note, INDENT))
    _rounding(result, whole, own_loss)
    _lists(result)
    _trees(result, divergence)
    for role, tree, stack in zip(("base", "raw"), (result.base, result.raw), divergence.source, strict=True):
        _stack(f"{tree.name}({role}_model)", stack)


def _place(result: Result, divergence: Divergence) -> None:
    tensor = divergence.comparison.name if divergence.role in ("parameter", "buffer") else ""
    say(
        "FAILED !!!",
        f"    Diff found in `{STAGES[divergence.phase]}`{WHAT.get(divergence.role, '')} in step: {divergence.step}",
        f"    Type of layer is: {divergence.base_kind} vs {divergence.raw_kind}",
        f"    Route: {route(result.base, 'base_model', divergence.base_path, tensor)}",
        f"           {route(result.raw, 'raw_model', divergence.raw_path, tensor)}",
    )


# ------------------------------------------------------------------ numbers


def number_lines(comparison: Comparison, tolerance: Tolerance) -> list[str]:
    """The figures of one comparison that differs."""
    outcome, numbers = comparison.outcome, comparison.outcome.numbers
    if outcome.reason != "values" or numbers is None:
        return wrapped(f"{_title(comparison)}: {outcome.message}")
    if tolerance.mode == "mean":
        over = f"mean absolute error {numbers.mean_abs:.3g}, allowed {outcome.allowed or 0.0:.3g}"
    else:
        over = f"{count(numbers.mismatched or 0, 'element')} over the bound"
    return [f"{_title(comparison)}: {over} ({tolerance})", *_figures(numbers)]


def _title(comparison: Comparison) -> str:
    role, name = comparison.role, comparison.name
    what = name if role in ("loss", "parameter", "buffer") else f"{role} {name}".strip()
    return f"gradient of {what}" if comparison.phase in ("backward", "gradient") else what


def _figures(numbers: Numbers) -> list[str]:
    many = numbers.mismatched or 0
    where = "" if not numbers.worst else f" at {list(numbers.worst)}"
    values = "" if numbers.base_worst is None else f" (base {numbers.base_worst:.8g}, raw {numbers.raw_worst:.8g})"
    lines = [
        f"Mismatched elements: {many} / {numbers.size} ({100 * many / numbers.size:.3g}%)",
        f"Max absolute difference: {numbers.max_abs:.8g}{where}{values}",
    ]
    return lines if numbers.max_rel is None else [*lines, f"Max relative difference: {numbers.max_rel:.8g}"]


def _lists(result: Result) -> None:
    """Complete lists of parameters and buffers that differ, one file per phase."""
    for phase, name in LISTS.items():
        compared = [c for c in result.steps[-1].comparisons if c.phase == phase]
        differing = [c for c in compared if not c.agrees]
        if not differing:
            continue
        lines: list[str] = []
        for comparison in differing:
            lines += [
                "=" * 25,
                f"{name} differ in step {comparison.step}",
                f"between base_model: {comparison.base_kind}",
                f"        raw_model:  {comparison.raw_kind}",
                "base_model path:",
                f"    {route(result.base, 'base_model', comparison.base_path, comparison.name)}",
                "raw_model path:",
                f"    {route(result.raw, 'raw_model', comparison.raw_path, comparison.name)}",
                "",
                *number_lines(comparison, result.tolerance),
            ]
        path = write_file(f"{name}_diff", lines)
        say("", f"{len(differing)} of {len(compared)} {name} differ, and are listed in", f"    {path}")


# ------------------------------------------------------------------ rounding


def _rounding(result: Result, whole: bool, own_loss: bool) -> None:
    """When every difference is of the size of rounding, say so and name a tolerance that would hold."""
    step, tolerance = result.steps[-1], result.tolerance
    differing = [c for c in step.comparisons if not c.agrees]
    found: list[Tolerance] = []
    for comparison in differing:
        one = comparison.outcome.suggestion
        if one is None and comparison.role == "loss" and not own_loss:
            one = _for_mean_loss(step, comparison, tolerance)
        if one is None:
            return
        found.append(one)
    rtol, atol = max(one.rtol for one in found), max(one.atol for one in found)
    many = "The difference is" if len(found) == 1 else f"All {len(found)} differences are"
    far = "would hold" if whole else "would hold up to here; what comes after was not run"
    say(
        "",
        f"{many} of the size of rounding noise: but for the bounds, the models agree.",
        f"    atol={atol:g}, rtol={rtol:g} (compare_mode={tolerance.mode}) {far}",
    )


def _for_mean_loss(step: StepComparison, loss: Comparison, tolerance: Tolerance) -> Tolerance | None:
    """The mean of the outputs cannot be further apart than the outputs are on average; its own size says nothing."""
    outputs = [c.outcome for c in step.comparisons if c.phase == "forward" and c.role == "output" and c.raw_path == ""]
    numbers = [one.numbers for one in outputs if one.numbers is not None and (one.agrees or one.suggestion is not None)]
    apart = loss.outcome.numbers
    if apart is None or not numbers or len(numbers) < len(outputs):
        return None
    explained = sum(2 * one.mean_abs + 1e-6 * one.base_mean_abs for one in numbers)
    if apart.max_abs > explained:
        return None
    return Tolerance(tolerance.rtol, round_up(apart.max_abs), tolerance.mode)


# ------------------------------------------------------------------ trees and stacks


def _trees(result: Result, divergence: Divergence) -> None:
    sides: list[tuple[ModuleTree, str, str]] = [
        (result.base, "base_model", divergence.base_path),
        (result.raw, "raw_model", divergence.raw_path),
    ]
    files = []
    for tree, role, path in sides:
        name = f"{tree.name}({role})"
        place = next((node.index for node in tree.nodes if node.path == path), -1)
        lines = draw(tree, place)
        files.append(write_file(f"report_{name}", titled(name, lines)))
        say("", *titled(name, around(lines)))
    say("", "Both trees are saved to", *(f"    {file}" for file in files))


def _stack(name: str, stack: Sequence[SourceLine]) -> None:
    if not stack:
        return
    say("", f"Stack of {name}, your own source lines:")
    for line in stack:
        say(f"    File {line.file}: {line.line} {line.function}", f"        {line.text}")
