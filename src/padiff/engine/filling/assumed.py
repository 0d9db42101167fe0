"""How both models use their tensors is seen in the runs in which they are compared, and raw is filled between them.

Base runs first, and is watched. Raw has to be filled before anybody has seen it run. Most models use their tensors in
the order in which they define them. So that order is taken for granted, and raw runs beside base as if all were known,
and is watched. When its forward is over, the plan is made again of what was seen.
Mostly the same tensors come from the same places, and nothing has to run twice. Only where they don't, raw is filled
anew and runs again. Which modules belong together is told by what was seen in any case. Raw that keeps its own weights
is not filled, and what was assumed of it never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from padiff.capture.observers import Late, Observer
from padiff.capture.one_step import Arguments, Step
from padiff.capture.session import Session
from padiff.capture.state import spared_collector
from padiff.capture.usage import UseWatch, first_use
from padiff.engine.families import floating
from padiff.engine.filling.decide import taken
from padiff.engine.filling.matching import Matching, modules_of
from padiff.engine.filling.on_the_way import OnTheWay
from padiff.engine.job import Job
from padiff.engine.matched import Matched
from padiff.engine.projection import Projection
from padiff.records import Array, StepTrace, WeightPlan
from padiff.weights import apply_plan


class Mistaken(Exception):
    """Raw turned out to be such that base has to run again, too."""

    def __init__(self, matching: Matching) -> None:
        super().__init__()
        self.matching = matching


class Trial:
    """The first runs of base and of raw, on what is assumed."""

    def __init__(
        self,
        job: Job,
        matching: Matching,
        matched: Matched,
        base: Session,
        raw: Session,
        *,
        fills: bool,
        projection: Projection | None,
    ) -> None:
        """``fills`` says whether raw is given base's weights; where it keeps its own, no run of it can be in vain.
        ``projection`` is what both follow backward, where no loss is given."""
        self._job, self._matched, self._base, self._raw = job, matched, base, raw
        self._assumed, self._fills = matching, fills
        self._unfilled = fills and matching.by_base is not None
        self.projection = projection
        self.found: Matching | None = None
        """What is known, once raw has run."""
        self.beyond: frozenset[str] = frozenset()
        """Outputs that base's backward began with, and that raw does not return."""

    @property
    def held(self) -> Matching:
        """What all stands on, as far as is known."""
        return self.found or self._assumed

    @property
    def knows_base(self) -> bool:
        """Whether base has been seen using its tensors."""
        return self._assumed.by_base is None

    def run_base(self, step: int, arguments: Arguments, *, backward: bool) -> StepTrace:
        """Base's forward, then what it says, then backward; raw can be filled afterwards."""
        by_base, watch = self._assumed.by_base, UseWatch(self._job.base)
        assert by_base is not None
        with (
            spared_collector(),
            self._base.begun(step, arguments, loss_fn=self._job.losses[0], backward=backward) as running,
        ):
            try:
                with watch.watching():
                    seen = running.forward()
            except Exception as error:
                watch.goes_on_as_defined()
                raise Mistaken(by_base(watch.usage(), error)) from error
            self._assumed = known = by_base(watch.usage(_returned(seen)), None)
            self.found = known if known.by_use is None else None
            self._stands(seen, known)
            return running.backward()

    def fill(self) -> None:
        """Fill raw, if that waited for base."""
        if self._unfilled:
            self._unfilled = False
            self._fill_anew()

    def run(
        self,
        base: StepTrace,
        step: int,
        arguments: Arguments,
        *,
        backward: bool,
        beside: Callable[[], Observer],
        between: Callable[[Step], None],
    ) -> StepTrace | None:
        """Raw's forward, then what it says, then backward; ``beside`` makes who is told of it all, when it is known
        what belongs together, and ``between`` happens when that was told. None where raw was filled wrongly: it is as
        before then, and filled rightly."""
        job, raw, late, watch = self._job, self._raw, Late(), UseWatch(self._job.raw)
        by_use = self._assumed.by_use
        assert by_use is not None
        way = OnTheWay(job, base, self._matched.plan if self._fills else WeightPlan(()))
        with (
            spared_collector(),
            raw.begun(step, arguments, loss_fn=job.losses[1], backward=backward, observer=late) as running,
        ):

            @contextmanager
            def unseen() -> Iterator[None]:
                with running.recorder.paused(), watch.paused():
                    yield

            try:
                with way.watching(unseen, watch), watch.watching():
                    seen = running.forward()
            except Exception:
                self.found = self._assumed
                late.hand_on(beside())
                raise
            self._matched.plan = taken(self._matched.plan, way.chosen)
            self.found = by_use(watch.usage(_returned(seen)), way.chosen, way.untold)
            if self._stands(base, self.found):
                late.hand_on(beside())
                between(running)
                return running.backward()
        raw.fill_anew(self._fill)
        return None

    def look_first(self, base: StepTrace, arguments: Arguments) -> None:
        """Have raw run just to see how it uses its tensors."""
        by_use = self._assumed.by_use
        assert by_use is not None
        usage, error = first_use(self._job.raw, arguments)
        self.found = self._assumed if error is not None else by_use(usage, {}, frozenset())
        if not self._stands(base, self.found):
            self._fill_anew()

    def _fill_anew(self) -> None:
        """Before raw has run."""
        self._raw.stand_ready()
        self._raw.fill_anew(self._fill)

    def _stands(self, base: StepTrace, found: Matching) -> bool:
        """Whether raw holds what it should; what belongs together is known from now on."""
        modules, before = modules_of(self._job, found), self._matched
        beyond = self._followed_beyond(base, found)
        if found.plan.problems or found.anchors is None or beyond is None:
            raise Mistaken(found)
        if any(modules.recorded(side) != before.modules.recorded(side) for side in (0, 1)):
            raise Mistaken(found)
        same = not self._fills or _filling(found.plan) == _filling(before.plan)
        self._matched.plan, self._matched.modules, self.beyond = found.plan, modules, beyond
        return same

    def _followed_beyond(self, base: StepTrace, found: Matching) -> frozenset[str] | None:
        """What base's backward began with that raw does not return; None where it began with nothing else, or along
        nothing that could be said of a tensor of raw's."""
        if found.outputs[0] is None or not self._job.backward or self._job.losses != (None, None):
            return frozenset()
        root = base.root
        followed = frozenset(slot.name for slot in (() if root is None else root.outputs) if slot.tracked)
        return followed - found.outputs[0] if self.projection and followed & found.outputs[0] else None

    def _fill(self) -> None:
        with self._base.again():  # as it was before the step, which it has run already
            apply_plan(self._job.base, self._job.raw, self._matched.plan)


def _filling(plan: WeightPlan) -> dict[str, object]:
    """Where each tensor comes from, whatever says so."""
    return {e.path: (e.sources, e.axis, e.stack, e.heads, e.written) for e in plan.entries}


def _returned(seen: StepTrace) -> tuple[tuple[str, Array], ...]:
    """The floating tensors that the model returned, each once."""
    root = seen.root
    found: dict[int, tuple[str, Array]] = {}
    for slot in () if root is None else root.outputs:
        if slot.tensor not in found and floating(slot.value):
            found[slot.tensor] = slot.name, slot.value.numpy()
    return tuple(found.values())
