"""The report in the documented door's words: the stage, the place in both trees, the numbers, the user's lines."""

from __future__ import annotations

from collections.abc import Sequence

from padiff.autodiff.log import count, say, wrapped, write_file
from padiff.autodiff.rounding import said_of_rounding, tolerance_that_holds
from padiff.autodiff.trees import around, draw, route, titled
from padiff.records import Comparison, Divergence, Numbers, SourceLine, Tolerance
from padiff.report import Report
from padiff.report.words import first_of, sure

STAGES = {
    "forward": "Forward Stage",
    "backward": "Backward Stage",
    "gradient": "Backward Stage",
    "weight": "Optimizer Stage",
    "buffer": "Forward Stage",
}
WHAT = {"loss": " (loss)", "parameter": " (parameters)", "buffer": " (buffers)"}
LISTS = {"gradient": "grads", "weight": "weights", "buffer": "buffers"}
INDENT = "    "
MOST_ALONE = 12
MOST_CAUSES = 3
MEAN_LOSS = "no loss functions were given: this loss is the mean of the outputs, small where they cancel"


def explain(report: Report, *, whole: bool, own_loss: bool) -> None:
    """Print what a comparison found; nothing much when the models agree.

    ``whole`` says that nothing was left out after the difference, ``own_loss`` that the user gave loss functions.
    """
    _alone(report)
    for note in report.notes:
        say(*wrapped(note, after=INDENT))
    divergence = report.divergence
    if divergence is None:
        return
    _place(report, divergence)
    # A tensor is known by where it was met first: what a call is given was met as what another returned.
    elsewhere = divergence.phase == "backward" and divergence.comparison.raw_call != divergence.raw_call
    title = "gradient of input" if elsewhere else title_of(divergence.comparison)
    own = _as_it_ran(report, divergence)
    lines = _fed_lines(divergence.comparison, title) if own is None else number_lines(own, report.tolerance, title)
    say("", *(INDENT + line for line in lines))
    note = divergence.note if own_loss or divergence.role != "loss" else MEAN_LOSS
    if note or divergence.causes:
        say("", *wrapped(note, INDENT))
    for cause in divergence.causes[:MOST_CAUSES]:
        say(*wrapped(f"likely cause: {cause} ({sure(cause)})", INDENT, 2 * INDENT))
    _rounding(report, whole, own_loss)
    _lists(report)
    _trees(report, divergence)
    for role, side, stack in zip(("base", "raw"), (report.base, report.raw), divergence.source, strict=True):
        _stack(f"{side.name}({role}_model)", stack)


def _alone(report: Report) -> None:
    """What has no partner; what lies inside a layer that is compared as one is only counted."""
    units = list(dict.fromkeys(one.inside for one in report.unmatched if one.inside))
    if units:
        shown = f"{count(len(units), 'layer')} ({first_of(units, 3)})"
        say(*wrapped(f"compared as one, not inside: {shown}", after=INDENT))
    rest = [one for one in report.unmatched if not one.inside]
    for one in rest[:MOST_ALONE]:
        say(*wrapped(f"no partner: {one}", after=INDENT))
    if len(rest) > MOST_ALONE:
        path = write_file("no_partner", [str(one) for one in report.unmatched])
        say(f"and {len(rest) - MOST_ALONE} more without partner, all listed in", f"    {path}")


def _place(report: Report, divergence: Divergence) -> None:
    base, raw = routes((report.base.name, report.raw.name), divergence.comparison)
    if divergence.role not in ("parameter", "buffer"):  # the call, not the tensor that told on it
        base = route(report.base.name, "base_model", divergence.base_path)
        raw = route(report.raw.name, "raw_model", divergence.raw_path)
    what = WHAT.get(divergence.role, "")
    if (divergence.phase, divergence.role) == ("forward", "input"):
        what = " (inputs)"
    say(
        "FAILED !!!",
        f"    Diff found in `{STAGES[divergence.phase]}`{what} in step: {divergence.step}",
        f"    Type of layer is: {divergence.base_kind} vs {divergence.raw_kind}",
        f"    Route: {base}",
        f"           {raw}",
        *_which_call(report, divergence),
        *([] if divergence.op is None else [f"    It starts with the {divergence.op.what}: {divergence.op}"]),
    )


def _which_call(report: Report, divergence: Divergence) -> list[str]:
    """For a layer that is called several times."""
    calls = [one for one in report.calls if (one.step, one.raw_path) == (divergence.step, divergence.raw_path)]
    told = next((one for one in calls if one.raw_call == divergence.raw_call), None)
    if told is None or len(calls) < 2 or divergence.role in ("parameter", "buffer"):
        return []
    return [f"    It is call {told.occurrence + 1} of the {len(calls)} of this layer"]


def routes(names: tuple[str, str], comparison: Comparison) -> tuple[str, str]:
    """Both sides' address of a parameter or buffer; base may keep it under another name, or in parts."""
    path = ".".join(part for part in (comparison.raw_path, comparison.name) if part)
    held = comparison.role in ("parameter", "buffer")
    sources = (comparison.sources or (path,)) if held else (comparison.base_path,)
    base = " + ".join(route(names[0], "base_model", source) for source in sources)
    return base, route(names[1], "raw_model", path)


# ------------------------------------------------------------------ numbers


def number_lines(comparison: Comparison, tolerance: Tolerance, title: str) -> list[str]:
    """The figures of one comparison that differs."""
    outcome, numbers = comparison.outcome, comparison.outcome.numbers
    if outcome.reason != "values" or numbers is None:
        return _told(comparison, title)
    if tolerance.mode == "mean":
        over = f"mean absolute error {numbers.mean_abs:.3g}, allowed {outcome.allowed or 0.0:.3g}"
    else:
        over = f"{count(numbers.mismatched or 0, 'element')} over the bound"
    return [f"{title}: {over} ({tolerance})", *_figures(numbers)]


def _told(comparison: Comparison, title: str) -> list[str]:
    """What differs and is no number."""
    message = comparison.outcome.message
    return wrapped(message if message.startswith(f"{comparison.role} ") else f"{title}: {message}")


def _as_it_ran(report: Report, divergence: Divergence) -> Comparison | None:
    """The tensor that tells, held against the user's bounds; None where these let it pass as raw ran by itself."""

    def place(one: Comparison) -> tuple[object, ...]:
        return one.phase, one.role, one.step, one.raw_path, one.raw_call, one.name

    told = place(divergence.comparison)
    return next((one for one in report.comparisons if not one.agrees and place(one) == told), None)


def _fed_lines(comparison: Comparison, title: str) -> list[str]:
    """The figures where raw was fed base's tensors, and judged by what rounding explains."""
    outcome, numbers = comparison.outcome, comparison.outcome.numbers
    if outcome.reason != "values" or numbers is None:
        return _told(comparison, title)
    over = (
        f"rms error {numbers.rmse:.3g} when raw is fed base's tensors, rounding explains {outcome.allowed or 0.0:.3g}"
    )
    return [f"{title}: {over}", *_figures(numbers)]


def title_of(comparison: Comparison) -> str:
    """What a compared tensor is called."""
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


def _lists(report: Report) -> None:
    """Complete lists of parameters and buffers that differ, one file per phase."""
    for phase, name in LISTS.items():
        compared = [c for c in report.last_step if c.phase == phase]
        differing = [c for c in compared if not c.agrees]
        if not differing:
            continue
        lines: list[str] = []
        for comparison in differing:
            lines += listed_difference(name, comparison, (report.base.name, report.raw.name), report.tolerance)
        path = write_file(f"{name}_diff", lines)
        say("", f"{len(differing)} of {len(compared)} {name} differ, and are listed in", f"    {path}")


def listed_difference(name: str, comparison: Comparison, names: tuple[str, str], tolerance: Tolerance) -> list[str]:
    """One parameter or buffer that differs, as the files list it."""
    base, raw = routes(names, comparison)
    return [
        "=" * 25,
        f"{name} differ in step {comparison.step}",
        f"between base_model: {comparison.base_kind}",
        f"        raw_model:  {comparison.raw_kind}",
        "base_model path:",
        f"    {base}",
        "raw_model path:",
        f"    {raw}",
        "",
        *number_lines(comparison, tolerance, title_of(comparison)),
    ]


def _rounding(report: Report, whole: bool, own_loss: bool) -> None:
    found = tolerance_that_holds(report, own_loss=own_loss)
    if found is None:
        return
    differing = sum(not c.agrees for c in report.last_step)
    far = "would hold" if whole else "would hold up to here; what comes after was not run"
    say("", *said_of_rounding(differing, "models", found, far))


# ------------------------------------------------------------------ trees and stacks


def _trees(report: Report, divergence: Divergence) -> None:
    sides = [(report.base, "base_model", divergence.base_path), (report.raw, "raw_model", divergence.raw_path)]
    files = []
    for side, role, path in sides:
        name = f"{side.name}({role})"
        place = next((index for index, module in enumerate(side.modules) if module.path == path), -1)
        lines = draw(side.name, side.modules, place)
        files.append(write_file(f"report_{name}", titled(name, lines)))
        say("", *titled(name, around(lines)))
    say("", "Both trees are saved to", *(f"    {file}" for file in files))


def _stack(name: str, stack: Sequence[SourceLine]) -> None:
    if not stack:
        return
    say("", f"Stack of {name}, your own source lines:")
    for line in stack:
        say(f"    File {line.file}: {line.line} {line.function}", f"        {line.text}")
