"""From what each call adds by itself to places: every independent fault, in the order of computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from padiff.diagnose.divergence import at_call, between_words, divergence_of, lines_between, source_lines
from padiff.records import Call, Comparison, Divergence, Fault, Role, SourceLine


def divergences_of(
    faults: Sequence[Fault], state: Sequence[Comparison], pairs: Sequence[tuple[Call, Call]]
) -> list[tuple[Divergence, Fault | None]]:
    """One for each place, forward before the loss before backward; what follows from an earlier one is left out."""
    base_of = {raw.index: base for base, raw in pairs}
    found: list[tuple[Divergence, Fault | None]] = []
    places: set[str] = set()
    for phase in ("forward", "loss", "backward", "gradient"):
        if phase in ("loss", "gradient"):
            for wrong in state:
                if wrong.agrees:
                    continue
                if (wrong.role == "loss") == (phase == "loss") and wrong.raw_path not in places:
                    places.add(wrong.raw_path)
                    found.append((_of_state(wrong, pairs), None))
            continue
        for fault in faults:
            if fault.phase == phase and fault.raw.path not in places:
                places.add(fault.raw.path)
                found.append((_of_call(fault, pairs, base_of), fault))
    return found


def _of_call(fault: Fault, pairs: Sequence[tuple[Call, Call]], base_of: dict[int, Call]) -> Divergence:
    note = ""
    lines: tuple[tuple[SourceLine, ...], ...] | None = None
    base, raw = fault.base, fault.raw
    before, after = fault.before, fault.after
    given = fault.between and after is not None and after.index == raw.index
    if fault.phase == "backward" and fault.comparison.outcome.reason == "structure":
        note = f"{fault.side} does not follow gradients through it (no_grad, detach)"
        if fault.between:
            child = after.path if after else "a child"
            note = f"{fault.side} stops following gradients in the module's own code, before {child}"
            if fault.comparison.role == "output":
                note = f"{fault.side} stops following gradients in the module's own code, after {child}"
    elif fault.phase == "backward":
        note = "the gradient of its output agrees and that of its input doesn't"
        if fault.of_loss:
            note = "outputs and loss agree and the gradient that the loss sends back doesn't"
            note = f"{note}: look at the loss functions"
        elif fault.between:
            note = f"the gradient that arrives at the output of {after.path if after else 'a child'} differs"
    elif given:
        note = "the two models were given different inputs"
    elif fault.between:
        note = between_words(before, after)
        # A wrapper that base lacks has no partner; what is called inside it, and was given the wrong thing, has one.
        inner = next((one for one, _ in pairs if one.index == fault.comparison.base_call), None)
        base_after = _side(after, "base", base_of) or inner
        lines = (lines_between(_side(before, "base", base_of), base_after), lines_between(before, after))
    else:
        last = next((call for _, call in reversed(pairs) if call.parent == raw.index), None)
        if last is not None:
            note = between_words(last, None)
            lines = tuple(lines_between(_side(last, side, base_of), None) for side in ("base", "raw"))
    if "@" in fault.comparison.raw_path and not given:
        told = f"the tensor tagged {fault.comparison.raw_path.rpartition('@')[2]!r} differs"
        note = f"{told}; {note}" if fault.phase == "forward" else f"the gradient of {told.removeprefix('the ')}"
    own = (lines[0], lines[1]) if lines is not None and any(lines) else None
    role: Role = "input" if given or fault.phase == "backward" else "output"
    return replace(at_call(base, raw, fault.comparison, note, own), role=role)


def _side(call: Call | None, side: str, base_of: dict[int, Call]) -> Call | None:
    if call is None or side == "raw":
        return call
    return base_of.get(call.index)


def _of_state(wrong: Comparison, pairs: Sequence[tuple[Call, Call]]) -> Divergence:
    if wrong.role == "loss":
        return divergence_of(wrong, (), (), "the outputs agree and the loss doesn't: look at the loss functions")
    for base, raw in pairs:
        if raw.path == wrong.raw_path:
            return divergence_of(wrong, source_lines(base.stack), source_lines(raw.stack), "")
    return divergence_of(wrong, (), (), "")
