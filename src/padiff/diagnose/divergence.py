"""From comparisons to the place where it starts: the first call whose inputs agree and whose outputs don't."""

from __future__ import annotations

import linecache
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from padiff.diagnose import idle_gradients
from padiff.records import Call, Comparison, Divergence, Frame, ModuleTree, Slot, SourceLine, StepComparison

_Sources = tuple[tuple[SourceLine, ...], tuple[SourceLine, ...]]
_MOST_LINES = 30


def find_divergence(step: StepComparison, trees: tuple[ModuleTree, ModuleTree]) -> Divergence | None:
    """Where this step's difference starts, in the order forward, loss, backward, gradients, weights, buffers."""
    return (
        _in_forward(step)
        or _in_loss(step)
        or _in_backward(step)
        or _in_state(step, trees, "gradient", "")
        or _in_state(
            step, trees, "weight", "gradients agree and the weights after the step don't: look at the optimizer"
        )
        or _in_state(step, trees, "buffer", "outputs agree and what the layer remembers doesn't (running statistics)")
    )


# ------------------------------------------------------------------ forward


def _in_forward(step: StepComparison) -> Divergence | None:
    by_call = _by_call(step.comparisons, "forward")
    # Inside, inputs may differ in what they are (a mask of -inf, a mask of True) while every output agrees.
    differing = [
        c
        for c in step.comparisons
        if c.phase == "forward" and not c.agrees and (c.role == "output" or (c.role == "input" and c.raw_path == ""))
    ]
    if not differing:
        return None
    for base, raw in step.pairs:
        inputs, outputs = by_call[raw.index]
        wrong = next((c for c in outputs if not c.agrees), None)
        if wrong is not None and all(c.agrees for c in inputs):
            note, lines = _own_code(step, base, raw, by_call)
            return at_call(base, raw, wrong, note, lines)
    return _handed_on(step, by_call) or _at_first(step, differing)


def _handed_on(
    step: StepComparison, by_call: dict[int, tuple[list[Comparison], list[Comparison]]]
) -> Divergence | None:
    """Where no call is wrong by itself: the first that is given something wrong was given it by the code around it,
    also if what that returns agrees again, as after a norm."""
    pair_of = {raw.index: (base, raw) for base, raw in step.pairs}
    for _, raw in sorted(step.pairs, key=lambda pair: pair[1].index):
        inputs, outputs = by_call[raw.index]
        wrong = next((c for c in inputs if not c.agrees and c.outcome.reason == "values"), None)
        around = pair_of.get(raw.parent)
        if wrong is None or around is None or all(c.agrees for c in outputs):
            continue
        if not all(c.agrees for c in by_call[raw.parent][0]):
            continue
        note, lines = _own_code(step, *around, by_call)
        return at_call(*around, wrong, note, lines)
    return None


def _own_code(
    step: StepComparison, base: Call, raw: Call, by_call: dict[int, tuple[list[Comparison], list[Comparison]]]
) -> tuple[str, _Sources | None]:
    """When every child is right by itself, the difference arises between two of them: name the two, and the lines."""
    children = sorted((pair for pair in step.pairs if pair[1].parent == raw.index), key=lambda pair: pair[1].index)
    if not children:
        return "", None
    before: tuple[Call, Call] | None = None
    after: tuple[Call, Call] | None = None
    for pair in children:
        if any(not c.agrees for c in by_call[pair[1].index][0]):
            after = pair
            break
        before = pair
    note = between_words(before and before[1], after and after[1])
    lines = tuple(lines_between(before and before[side], after and after[side]) for side in (0, 1))
    return note, (lines[0], lines[1]) if any(lines) else None


def between_words(before: Call | None, after: Call | None) -> str:
    here = "the difference arises in the module's own code"
    if before is None:
        return f"{here} before its first child {_name(after)}"
    if after is None:
        return f"{here} after its last child {_name(before)}"
    return f"{here} between its children {_name(before)} and {_name(after)}"


def _name(call: Call | None) -> str:
    return "" if call is None else call.path + (f" (line {call.stack[-1].line})" if call.stack else "")


def lines_between(before: Call | None, after: Call | None) -> tuple[SourceLine, ...]:
    """The user's lines from one child's call to the next, where both stand in one function."""
    first = before.stack[-1] if before is not None and before.stack else None
    last = after.stack[-1] if after is not None and after.stack else None
    start, end = first or last, last or first
    if start is None or end is None:
        return ()
    if (start.file, start.function) != (end.file, end.function) or not 0 <= end.line - start.line <= _MOST_LINES:
        return source_lines([end])
    return source_lines(Frame(start.file, line, start.function) for line in range(start.line, end.line + 1))


def given_otherwise(step: StepComparison, first: Divergence) -> Divergence | None:
    """The models themselves, where they were given inputs of different shapes, and the call that is to blame was given
    such for that alone: it could not be fed base's."""

    def shape_of(call: int) -> Comparison | None:
        inputs = (c for c in step.comparisons if (c.phase, c.role, c.raw_call) == ("forward", "input", call))
        told = next(inputs, None)
        return told if told is not None and told.outcome.reason == "shape" else None

    root = next((raw for _, raw in step.pairs if raw.parent < 0), None)
    given = None if root is None or first.phase != "forward" else shape_of(root.index)
    return None if given is None or shape_of(first.raw_call) is None else _at_first(step, [given])


# ------------------------------------------------------------------ loss and backward


def _in_loss(step: StepComparison) -> Divergence | None:
    wrong = next((c for c in step.comparisons if c.role == "loss" and not c.agrees), None)
    if wrong is None:
        return None
    note = "the outputs agree and the loss doesn't: look at the loss functions"
    return divergence_of(wrong, (), (), note)


def _in_backward(step: StepComparison) -> Divergence | None:
    gradients = [c for c in step.comparisons if c.phase == "backward"]
    differing = [c for c in gradients if not c.agrees]
    if not step.alike:  # written into, or made anew, the same tensor has a gradient of its own on one side only
        differing = [c for c in differing if c.outcome.reason != "structure"]
        gradients = [c for c in gradients if c.agrees or c.outcome.reason != "structure"]
    parameters = [c for c in step.comparisons if c.phase == "gradient"]
    if not step.alike and parameters and all(c.agrees or c.outcome.reason == "structure" for c in parameters):
        # Built differently, equal values may be joined to the graph differently (a sum kept, or made anew for each
        # use), and share the same gradient differently. What comes out of it for the parameters agrees, where it does.
        return None
    if not differing:
        return None
    agrees = {c.tensor: c for c in gradients}
    candidates: list[tuple[Call, Call, Comparison]] = []
    blamed: set[int] = set()
    for base, raw in step.pairs:  # children come before their parents
        before = [agrees[s.tensor] for s in raw.outputs if s.tensor in agrees]
        after = [agrees[s.tensor] for s in raw.inputs if s.tensor in agrees]
        returned = {s.tensor for s in raw.outputs}
        wrong = next((c for c in after if not c.agrees and c.tensor not in returned), None)
        if wrong is not None and before and all(c.agrees for c in before):
            if raw.index not in blamed:
                candidates.append((base, raw, wrong))
            blamed.add(raw.index)
        if raw.index in blamed:
            blamed.add(raw.parent)
    if candidates:
        base, raw, wrong = max(candidates, key=lambda found: found[1].index)
        note = "the gradient of its output agrees and that of its input doesn't"
        return replace(at_call(base, raw, wrong, note), role="input")
    return _in_own_backward(step, agrees) or _at_root_or_first(step, differing)


def _in_own_backward(step: StepComparison, gradients: Mapping[int, Comparison]) -> Divergence | None:
    """The innermost call whose results have the right gradient while what a child of it returned has a wrong one: where
    nothing that it was given is followed, its own code shows nowhere else."""
    children: dict[int, list[Call]] = defaultdict(list)
    for _, raw in step.pairs:
        children[raw.parent].append(raw)
    found: list[tuple[Call, Call, Call, Comparison]] = []
    for base, raw in step.pairs:
        returned = {slot.tensor for slot in raw.outputs}
        before = [gradients[tensor] for tensor in returned if tensor in gradients]
        if not before or not all(one.agrees for one in before):
            continue
        for child in children[raw.index]:
            for slot in child.outputs:
                met = gradients.get(slot.tensor)
                if met is not None and not met.agrees and slot.tensor not in returned:
                    found.append((base, raw, child, met))
    if not found:
        return None
    base, raw, child, wrong = max(found, key=lambda one: (one[1].index, one[2].index))
    note = f"the gradient of its output agrees and that of what {_name(child)} returns doesn't"
    return at_call(base, raw, wrong, note)


def _at_root_or_first(step: StepComparison, differing: Sequence[Comparison]) -> Divergence:
    root = next((pair for pair in step.pairs if pair[1].parent < 0), None)
    if root is not None:
        returned = {slot.tensor for slot in root[1].outputs}
        wrong = next((c for c in differing if c.tensor in returned), None)
        if wrong is not None:
            return at_call(*root, wrong, "the gradient of the model's output differs: look at the loss functions")
    return _at_first(step, differing)


# ------------------------------------------------------------------ parameter gradients, weights, buffers


def _in_state(step: StepComparison, trees: tuple[ModuleTree, ModuleTree], phase: str, note: str) -> Divergence | None:
    differing = [c for c in step.comparisons if c.phase == phase and not c.agrees]
    if not differing:
        return None
    many = f"{len(differing)} of {sum(c.phase == phase for c in step.comparisons)} {differing[0].role}s differ"
    if phase == "weight":
        noise = idle_gradients.idle(step.comparisons, differing)
        telling = [c for c in differing if c not in noise]
        differing, note = (telling, note) if telling else (differing, idle_gradients.NOTE)
    # Backward computes from the end: the last module in order of calls is the first whose gradient is wrong.
    order: dict[str, int] = {}
    for _, raw in step.pairs:
        order[raw.path] = raw.index
    pick: Callable[..., Comparison] = max if phase == "gradient" else min
    wrong = pick(differing, key=lambda c: order.get(c.raw_path, -1))
    cut = _cut(step) if phase == "gradient" and wrong.outcome.reason == "structure" else None
    if cut is not None:
        return at_call(*cut[0], wrong, cut[1])
    stacks = _stacks(step, wrong.raw_path)
    return divergence_of(wrong, *stacks, f"{many}; {note}" if note else many)


def _cut(step: StepComparison) -> tuple[tuple[Call, Call], str] | None:
    """Where one side stops following gradients and the other goes on: a detach, a no_grad."""
    pair_of = {raw.index: (base, raw) for base, raw in step.pairs}
    made: set[int] = set()
    """Raw tensors that a call returned without following them: the cut is inside, or before."""
    for base, raw in sorted(step.pairs, key=lambda pair: pair[1].index):
        for one, other in _beside(step, base.inputs, raw.inputs):
            if one.tracked != other.tracked and other.tensor not in made and raw.parent in pair_of:
                side = "raw" if one.tracked else "base"
                note = f"{side} stops following gradients in the module's own code, before {raw.path}"
                return pair_of[raw.parent], note
        for one, other in _beside(step, base.outputs, raw.outputs):
            if one.tracked != other.tracked:
                if all(a.tracked == b.tracked for a, b in _beside(step, base.inputs, raw.inputs)):
                    side = "raw" if one.tracked else "base"
                    inner = _cut_inside(step, raw)
                    return inner or ((base, raw), f"{side} does not follow gradients through it (no_grad, detach)")
                made.add(other.tensor)
    return None


def _beside(step: StepComparison, base: Sequence[Slot], raw: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
    """Slots in order; in models built differently those that may be the same: a mask is not another's second input."""
    pairs = list(zip(base, raw, strict=False))
    if step.alike:
        return pairs
    return [(a, b) for a, b in pairs if math.prod(a.value.shape) == math.prod(b.value.shape)]


def _cut_inside(step: StepComparison, raw: Call) -> tuple[tuple[Call, Call], str] | None:
    """The innermost child whose output is no longer followed although its input is."""
    for base, child in step.pairs:  # children come before their parents
        if child.parent != raw.index:
            continue
        differs = any(a.tracked != b.tracked for a, b in _beside(step, base.outputs, child.outputs))
        given = all(a.tracked == b.tracked for a, b in _beside(step, base.inputs, child.inputs))
        if differs and given:
            note = "one side does not follow gradients through it (no_grad, detach)"
            return _cut_inside(step, child) or ((base, child), note)
    return None


def _stacks(step: StepComparison, raw_path: str) -> tuple[tuple[SourceLine, ...], tuple[SourceLine, ...]]:
    for base, raw in step.pairs:
        if raw.path == raw_path:
            return source_lines(base.stack), source_lines(raw.stack)
    return (), ()


# ------------------------------------------------------------------ records


def _at_first(step: StepComparison, differing: Sequence[Comparison]) -> Divergence:
    given = [c for c in differing if c.phase == "forward" and c.role == "input" and c.raw_path == ""]
    first = (given or differing)[0]  # the model's own call ends last, but its inputs come before everything
    pair = next((pair for pair in step.pairs if pair[1].index == first.raw_call), None)
    note = "the two models were given different inputs" if given else ""
    if pair is None:
        return divergence_of(first, (), (), note)
    return at_call(*pair, first, note)


def at_call(base: Call, raw: Call, wrong: Comparison, note: str, lines: _Sources | None = None) -> Divergence:
    """At a call, which need not be where the tensor that tells was met."""
    return replace(
        divergence_of(wrong, *(lines or (source_lines(base.stack), source_lines(raw.stack))), note),
        base_path=base.path,
        raw_path=raw.path,
        base_kind=base.kind,
        raw_kind=raw.kind,
        base_call=base.index,
        raw_call=raw.index,
    )


def divergence_of(
    wrong: Comparison, base: tuple[SourceLine, ...], raw: tuple[SourceLine, ...], note: str
) -> Divergence:
    return Divergence(
        base_path=wrong.base_path,
        raw_path=wrong.raw_path,
        base_kind=wrong.base_kind,
        raw_kind=wrong.raw_kind,
        phase=wrong.phase,
        step=wrong.step,
        role=wrong.role,
        comparison=wrong,
        source=(base, raw),
        note=note,
        base_call=wrong.base_call,
        raw_call=wrong.raw_call,
    )


def _by_call(comparisons: Iterable[Comparison], phase: str) -> dict[int, tuple[list[Comparison], list[Comparison]]]:
    """Raw call to the comparisons of its inputs and of its outputs."""
    found: dict[int, tuple[list[Comparison], list[Comparison]]] = defaultdict(lambda: ([], []))
    for comparison in comparisons:
        if comparison.phase == phase and comparison.role in ("input", "output"):
            found[comparison.raw_call][0 if comparison.role == "input" else 1].append(comparison)
    return found


def source_lines(stack: Iterable[Frame]) -> tuple[SourceLine, ...]:
    """Frames with the text of their lines."""
    return tuple(SourceLine(f.file, f.line, f.function, linecache.getline(f.file, f.line).strip()) for f in stack)
