"""What can be told when a model's own code raises half-way: everything up to there was compared, and is not lost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from padiff.capture.one_step import Stopped, note
from padiff.diagnose import find_divergence
from padiff.engine.explaining.why import explained_places
from padiff.engine.fed.second_look import wants_second_look
from padiff.records import Divergence, Interruption, StepComparison, StepTrace

if TYPE_CHECKING:
    from padiff.engine.step import Step

Told = tuple[StepComparison, list[Divergence], Interruption]


def told_of(step: Step, error: Exception) -> Told | None:
    """What the step compared before the exception, where it starts to differ, and the exception in words; None for
    one that is not the models' own."""
    session = step.base if step.base.stopped_by(error) else step.raw
    stopped, other = session.stopped_by(error), ""
    if stopped is None:
        return None
    done = step.done
    if done is None:
        if session is step.base:
            assert stopped.trace is not None
            raw, other = _raw_beside(step, stopped.trace)
        elif step.free.watcher is None:
            raw = _both_again(step)
        else:
            raw = stopped.trace
        if step.free.watcher is None or raw is None:
            return None
        done = replace(step.free.watcher.finish(replace(raw, ran_backward=False)), unmatched=())
    found = [] if stopped.where == "optimizer" else _places(step, done, again=session is step.raw)
    _let_go(done)
    return done, found, _interruption(session.side, stopped, step.step, done, found, other)


def hand_over(error: Exception, result: Any, interruption: Interruption) -> None:
    """The exception stays the user's own; it carries what was found before it, and says so below its traceback."""
    with suppress(AttributeError):  # a class without room for it
        error.padiff_result = result  # type: ignore[attr-defined]
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[-1] += f"\npadiff: {interruption}"
    else:
        note(error, f"padiff: {interruption}")


def _raw_beside(step: Step, base: StepTrace) -> tuple[StepTrace | None, str]:
    """Raw held against what base did until it raised, and what raw raises then, in words."""
    try:
        return step.free.run_raw(base, backward=base.ran_backward), ""
    except Exception as error:
        stopped = step.raw.stopped
        return (None, "") if stopped is None else (stopped.trace, _words(error))


def _both_again(step: Step) -> StepTrace | None:
    """Where they did not run side by side: now they do, as far as raw comes."""
    job = step.job
    with step.base.again(), step.raw.again():
        base = step.base.run(step.step, job.arguments()[0], loss_fn=job.losses[0], backward=job.backward)
        return _raw_beside(step, base)[0]


def _places(step: Step, done: StepComparison, *, again: bool) -> list[Divergence]:
    """Where it starts to differ: by feeding raw up to where it raises, where base runs through."""
    if not wants_second_look(done.comparisons, step.job.tolerance):
        return []
    second = step.second_look(done, half_way=True) if again else None
    if second is not None:
        return explained_places(second)
    first = find_divergence(done, (step.job.base.tree, step.job.raw.tree))
    return [] if first is None else [first]


def _interruption(
    side: str, stopped: Stopped, step: int, done: StepComparison, found: list[Divergence], other: str
) -> Interruption:
    agrees: dict[int, bool] = {}
    for one in done.comparisons:
        if one.phase == "forward" and one.role == "output" and one.raw_call >= 0:
            agrees[one.raw_call] = agrees.get(one.raw_call, True) and one.agrees
    if not found:  # what differs turned out to be rounding that has grown
        agrees = dict.fromkeys(agrees, True)
    differed = sum(not one for one in agrees.values())
    return Interruption(
        "base" if side == "base" else "raw",
        stopped.where,
        step,
        _words(stopped.error),
        stopped.path,
        len(agrees) - differed,
        differed,
        _place(found[0]) if found else "",
        other,
    )


def _place(divergence: Divergence) -> str:
    base, raw = divergence.base_path or "the model itself", divergence.raw_path or "the model itself"
    return raw if base == raw else f"{base} vs {raw}"


def _words(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _let_go(done: StepComparison) -> None:
    """Nothing will be compared any more."""
    for trace in (done.base, done.raw):
        for call in trace.calls:
            for slot in (*call.inputs, *call.outputs):
                slot.value.release()
        for gradient in trace.gradients.values():
            gradient.release()
