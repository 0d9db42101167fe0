"""What the log says when two models part: the stage, the place in both trees, the numbers, the user's lines."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.autodiff.log import say, write_file
from padiff.autodiff.trees import around, draw, titled
from padiff.records import Comparison, Divergence, ModuleTree, SourceLine, Tolerance
from padiff.result import Result

STAGES = {
    "forward": "Forward Stage",
    "backward": "Backward Stage",
    "gradient": "Backward Stage",
    "weight": "Optimizer Stage",
    "buffer": "Forward Stage",
}
LISTS = {"gradient": "grads", "weight": "weights", "buffer": "buffers"}


def explain(result: Result) -> None:
    """Print what a comparison found; nothing much when the models agree."""
    for one in result.unmatched:
        say(f"no partner: {one}")
    for note in result.notes:
        say(note)
    divergence = result.divergence
    if divergence is None:
        return
    _place(result, divergence)
    _numbers(divergence.comparison)
    if divergence.note:
        say(f"    {divergence.note}")
    _lists(result)
    _rounding(result)
    _trees(result, divergence)
    for side, stack in zip(("base_model", "raw_model"), divergence.source, strict=True):
        _stack(side, stack)


def _place(result: Result, divergence: Divergence) -> None:
    what = {"loss": " (loss)", "parameter": " (parameters)", "buffer": " (buffers)"}.get(divergence.role, "")
    say("FAILED !!!")
    say(f"    Diff found in `{STAGES[divergence.phase]}`{what} in step: {divergence.step}")
    say(f"    Type of layer is: {divergence.base_kind} vs {divergence.raw_kind}")
    tensor = divergence.comparison.name if divergence.role in ("parameter", "buffer") else ""
    say(f"    Route: {_route(result.base, 'base_model', divergence.base_path, tensor)}")
    say(f"           {_route(result.raw, 'raw_model', divergence.raw_path, tensor)}")


def _route(tree: ModuleTree, role: str, path: str, tensor: str) -> str:
    return ".".join(part for part in (f"{tree.name}({role})", path, tensor) if part)


def _numbers(comparison: Comparison) -> None:
    say("", *number_lines(comparison), "")


def number_lines(comparison: Comparison) -> list[str]:
    """The figures of one comparison that differs."""
    outcome, numbers = comparison.outcome, comparison.outcome.numbers
    lines = [f"{comparison.role} {comparison.name}: {outcome.message}" if comparison.name else outcome.message]
    if numbers is not None and numbers.size:
        many = 0 if numbers.mismatched is None else numbers.mismatched
        lines += [
            f"Mismatched elements: {many} / {numbers.size} ({100 * many / numbers.size:.3g}%)",
            f"Max absolute difference: {numbers.max_abs:.8g}",
        ]
        if numbers.max_rel is not None:
            lines.append(f"Max relative difference: {numbers.max_rel:.8g}")
    return lines


def _lists(result: Result) -> None:
    """Complete lists of parameters and buffers that differ, one file per phase."""
    for phase, name in LISTS.items():
        differing = [c for c in result.steps[-1].comparisons if c.phase == phase and not c.agrees]
        if not differing:
            continue
        lines: list[str] = []
        for comparison in differing:
            lines += [
                "=" * 25,
                f"{name} value is different, step {comparison.step}.",
                f"between base_model: {comparison.base_kind}",
                f"        raw_model:  {comparison.raw_kind}",
                "base_model path:",
                f"    {_route(result.base, 'base_model', comparison.base_path, comparison.name)}",
                "raw_model path:",
                f"    {_route(result.raw, 'raw_model', comparison.raw_path, comparison.name)}",
                "",
                *number_lines(comparison),
            ]
        path = write_file(f"{name}_diff", lines)
        say(f"Diff found when compare {name}, please check report", f"    {path}")


def _rounding(result: Result) -> None:
    """When every difference is of the size of rounding, say so and name a tolerance that would hold."""
    differing = [c for c in result.steps[-1].comparisons if not c.agrees]
    found = [c.outcome.suggestion for c in differing]
    if not found or any(one is None for one in found):
        return
    rtol = max(one.rtol for one in found if one is not None)
    atol = max(one.atol for one in found if one is not None)
    mode = result.tolerance.mode
    holds = Tolerance(rtol, atol, mode)
    say(
        f"All {len(differing)} differences are of the size of rounding noise: the models agree but for the bounds.",
        f"    atol={holds.atol:g}, rtol={holds.rtol:g} would hold here (compare_mode={mode})",
    )


def _trees(result: Result, divergence: Divergence) -> None:
    files = []
    for tree, role, path in (
        (result.base, "base_model", divergence.base_path),
        (result.raw, "raw_model", divergence.raw_path),
    ):
        name = f"{tree.name}({role})"
        place = next((node.index for node in tree.nodes if node.path == path), -1)
        lines = titled(name, draw(tree, place))
        files.append(write_file(f"report_{name}", lines))
        say("", *around(lines))
    say("", "Check model struct:", f"Logs: {files[0]}", f"      {files[1]}")


def _stack(role: str, stack: Sequence[SourceLine]) -> None:
    if not stack:
        return
    say("", f"{role} stack (your own lines):")
    for line in stack:
        say(f"    File {line.file}: {line.line}    {line.function}", f"        {line.text}")
