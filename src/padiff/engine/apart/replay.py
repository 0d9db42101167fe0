"""A run of raw that was fed base's tensors, gone through again: what each call added by itself.

The same judge sits beside raw while it runs (see ``sync``) and here afterwards. What it decides depends on what it is
shown alone, so here it decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from padiff.align import CallPairing
from padiff.capture.feeding import See
from padiff.engine.apart.stored import fed_noise, reference_calls, stored_noise
from padiff.engine.explaining.scenes import RecordedOps, Scenes
from padiff.engine.fed.beside import Other
from padiff.engine.fed.local import LocalRun, Reference
from padiff.engine.fed.local_comparing import Key
from padiff.engine.fed.localise import Located
from padiff.engine.job import Job
from padiff.engine.ops.ops_beside import OpsBeside
from padiff.engine.state import State
from padiff.records import Call, Comparison, DrawGap, ModulePairs, StepComparison, StepTrace, Tolerance, WeightPlan
from padiff.store import StepDump


def synchronised(step: StepDump) -> bool:
    """Whether raw was fed base's tensors in this step."""
    return bool(step.extra.get("fed"))


def reference_from(base: StepDump, local: Mapping[Key, float]) -> Reference:
    """Base's step as raw is held against it call by call; without borders only forward can be."""
    trace, calls = base.trace(), reference_calls(base)
    if calls is None or base.borders is None:
        return Reference(trace, {}, {}, {})
    return Reference(replace(trace, calls=calls), base.borders.contributions, base.borders.arrivals, local)


def follows(reference: Reference) -> bool:
    """Whether backward can be followed border by border."""
    return bool(reference.arrivals or reference.contributions)


def judge(
    job: Job, modules: ModulePairs, reference: Reference, *, twins: bool, backward: bool
) -> tuple[LocalRun, CallPairing]:
    """Who feeds raw and looks at what it makes of that."""
    tolerance = local_tolerance(job)

    def pairing() -> CallPairing:
        return CallPairing(job.base.tree, job.raw.tree, modules, reference.trace.calls, twins=twins)

    own = pairing()
    beside = Other(pairing(), job.base.tree, tolerance)
    return LocalRun(reference, beside, tolerance, loosely=not own.alike, backward=backward), own


def local_tolerance(job: Job) -> Tolerance:
    return job.tolerance if job.tolerance.mode == "auto" else Tolerance(mode="auto")


class Replay:
    """Goes through one step of raw's again."""

    def __init__(self, job: Job, plan: WeightPlan, modules: ModulePairs, twins: bool) -> None:
        self._job, self._plan, self._modules, self._twins = job, plan, modules, twins

    def run(
        self, base: StepDump, raw: StepDump, local: Mapping[Key, float], draws: tuple[DrawGap, ...] = ()
    ) -> tuple[Located, StepComparison]:
        """What each call added, and everything that was compared; ``draws`` are those that do not correspond."""
        job, trace = self._job, raw.trace()
        reference = reference_from(base, local)
        backward = follows(reference) and raw.borders is not None and trace.ran_backward
        run, pairing = judge(job, self._modules, reference, twins=self._twins, backward=backward)
        sent, arrived = self._forward(run, trace.calls)
        if backward:
            self._backward(raw, sent, arrived)
        run.finish()
        judged = self._state(reference.trace, raw, run, base)
        faults = run.faults
        gradients = [one for one in judged if one.phase == "gradient"]
        if not pairing.alike and gradients and all(one.agrees for one in gradients):
            # They were put right in every call: only what sends nothing back at all is known to be wrong.
            faults = [fault for fault in faults if fault.phase == "forward" or fault.comparison.outcome.numbers is None]
        pairs = tuple(run.pairs)
        ops = self._ops(pairs, base)
        for one, other in pairs:  # leaves without tensors among them, whose partners were told while it went along
            pairing.pair(one, other)
        unmatched = (*pairing.unmatched(trace.calls), *ops.unmatched)
        scenes = Scenes(
            job,
            self._plan,
            reference,
            trace,
            {call.index: one for one, call in pairs},
            Recorded(trace),  # type: ignore[arg-type]
            Recorded(reference.trace),  # type: ignore[arg-type]
            never,
            draws,
            recorded=recorded_ops(base, raw),
        )
        comparisons = tuple(run.compared.comparisons)
        # Where nobody is to blame, what differs is a border that the two draw at different places.
        shown = comparisons if faults else tuple(one for one in comparisons if one.agrees)
        located = Located(tuple(faults), comparisons, tuple(judged), pairs, unmatched, pairing.alike, scenes)
        done = StepComparison(
            raw.number,
            reference.trace,
            trace,
            pairs,
            (*shown, *judged),
            unmatched,
            pairing.alike,
            ops=tuple(ops.comparisons),
            op_pairs=tuple(ops.pairs),
        )
        return located, done

    def _ops(self, pairs: Sequence[tuple[Call, Call]], base: StepDump) -> OpsBeside:
        """What the own code of paired calls did, where both dumps hold it."""
        found, tolerance = OpsBeside(base.number), local_tolerance(self._job)
        noise, _ = stored_noise(base)
        known = {} if noise is None else noise.tensors

        def allowed(tensor: int, *, gradients: bool = False) -> Tolerance:
            predicted = known.get(tensor, math.inf)
            return replace(tolerance, predicted=predicted) if math.isfinite(predicted) else tolerance

        for one, other in pairs:
            if one.ops and other.ops:
                found.compare(one, other, allowed)
        return found

    def _forward(self, run: LocalRun, calls: tuple[Call, ...]) -> tuple[dict[tuple[int, int], See], dict[int, See]]:
        """Every call begins and ends as it did; hands back who waits for which gradient."""
        sent: dict[tuple[int, int], See] = {}
        arrived: dict[int, See] = {}
        for call, moment in in_order(calls):
            if moment == "begins":
                begun = run.feed(replace(call, outputs=(), tensors=(0, 0), ops=()))
                sent.update({(call.index, tensor): feed.see for tensor, feed in begun.items() if feed.see is not None})
                continue
            feeds = run.hand_on(call) if moment == "ends" else run.tagged(call)
            arrived.update({tensor: feed.see for tensor, feed in feeds.items() if feed.see is not None})
            if moment == "ends":
                for slot in (*call.inputs, *call.outputs):
                    slot.value.release()
        return sent, arrived

    def _backward(self, raw: StepDump, sent: Mapping[tuple[int, int], See], arrived: Mapping[int, See]) -> None:
        borders = raw.borders
        assert borders is not None
        for call, tensor in raw.extra.get("fed_order", []):
            see = arrived.get(tensor) if call < 0 else sent.get((call, tensor))
            value = borders.arrivals.get(tensor) if call < 0 else borders.contributions.get((call, tensor))
            if see is not None and value is not None:
                see(value)
                value.release()

    def _state(self, base: StepTrace, raw: StepDump, run: LocalRun, step: StepDump) -> list[Comparison]:
        job, trace = self._job, raw.trace()
        tolerance = local_tolerance(job)
        state = State(replace(job, tolerance=tolerance), self._plan, raw.number, fed_noise(step))
        found: list[Comparison] = []
        if base.loss is not None and trace.loss is not None:
            found += state.loss(base.loss, trace.loss, run.compared.comparisons)
        if base.ran_backward and trace.ran_backward:
            found += state.tensors("gradient", "parameter", base.parameter_gradients, trace.parameter_gradients)
        return found


def recorded_ops(base: StepDump, raw: StepDump) -> RecordedOps | None:
    """What the own code of both sides' modules did; None where a dump does not hold it."""
    traces = base.trace(), raw.trace()
    if not all(any(not op.tag for call in trace.calls for op in call.ops) for trace in traces):
        return None
    noise, _ = stored_noise(base)
    return RecordedOps(traces, {} if noise is None else noise.tensors)


class Recorded:
    """Stands where a model would be run again: it does what it did."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace

    @contextmanager
    def again(self) -> Iterator[None]:
        yield

    def run(self, *_: Any, **__: Any) -> StepTrace:
        return self._trace


Moment = Literal["begins", "tags", "ends"]


def in_order(calls: tuple[Call, ...]) -> Iterator[tuple[Call, Moment]]:
    """Calls as they began and ended, from the order in which they ended; and tags as they were set in between."""
    waiting = iter(sorted(calls, key=lambda call: call.index))
    tags = {call.index: [op for op in reversed(call.ops) if op.tag] for call in calls if call.ops}
    begun = -1
    for call in calls:
        while begun < call.index:
            entered = next(waiting)
            begun = entered.index
            around = tags.get(entered.parent, [])
            while around and around[-1].begun <= begun:
                yield around.pop(), "tags"
            yield entered, "begins"
        for tag in reversed(tags.pop(call.index, [])):
            yield tag, "tags"
        yield call, "ends"


def never(look: Callable[..., None], backward: bool) -> None:
    """Nothing can be tried again."""
