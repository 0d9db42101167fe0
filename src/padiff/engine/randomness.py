"""Base's random draws, listened to and replayed: in raw, and in base whenever it runs again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from padiff.align import CallPairing
from padiff.capture.draws import Listener
from padiff.capture.replay import Replay, itself
from padiff.capture.session import Session
from padiff.engine.job import Job
from padiff.engine.matched import Matched
from padiff.frameworks.lookup import codes_of, has_code
from padiff.frameworks.tree import LiveTree
from padiff.records import Call, DrawGap, ModulePairs, StepTrace

SHARES = frozenset({"p", "dropout", "dropout_p", "drop_prob", "dropout_rate", "drop_rate"})
"""Where modules keep how much they drop."""
_DRAWS = re.compile(r"rand(n|int|perm)?(_like)?|bernoulli_?|multinomial")
"""Functions that draw, by their names in the code of modules. A dropout there says with its share whether it does."""
MOST_TOLD = 4

Run = Callable[[], StepTrace]


class Randomness:
    """Sees to it that both models draw the same, step by step.

    Listening costs something for every op, so nobody listens to a model that does not look as if it drew. If its
    generator has moved nevertheless, it runs once more with somebody listening.
    """

    def __init__(self, job: Job, matched: Matched, base: Session, raw: Session) -> None:
        self._job, self._matched, self._base, self._raw = job, matched, base, raw
        self._replays = job.randomness == "replay"
        self._draws = {session.side: self._replays and looks_random(session.live) for session in (base, raw)}
        self.gaps: tuple[DrawGap, ...] = ()
        """Where the draws of the last step do not correspond."""
        self.unheard = False
        """Whether the last step drew inside compiled code, where nothing is heard or replayed."""
        self.replayed = 0
        """How many of base's draws raw was given in the last step, however often it ran."""

    def run_base(self, run: Run, again: Run) -> StepTrace:
        """Base's first run of a step; ``again`` is the same run without backward."""
        if not self._replays:
            return run()
        base, raw = self._base, self._raw
        base.listen = Listener if self._draws["base"] else None
        trace = run()
        log = base.listener
        if log is None and base.drew:
            self._draws["base"] = True
            base.listen = Listener
            with base.again():
                again()
            log = base.listener
        base.listen = partial(itself, log) if log is not None and log.draws else None
        raw.draw_like(base)
        self._log = log or Listener()
        heard = bool(self._log.draws or self._log.unseen or self._draws["raw"])
        raw.listen = partial(self._beside, trace.calls) if heard else None
        return trace

    def run_raw(self, calls: Sequence[Call], run: Run, again: Run) -> StepTrace:
        """Raw's first run of a step beside base's ``calls``."""
        trace = run()
        raw = self._raw
        self.gaps, self.unheard, self.replayed = (), False, 0
        if not self._replays:
            return trace
        if self._base.deaf or raw.deaf:
            self.unheard = self._base.drew or raw.drew
            return trace
        if raw.listen is None and raw.drew:  # what it draws and base doesn't
            self._draws["raw"] = True
            raw.listen = partial(self._beside, calls)
            with raw.again():
                again()
        if isinstance(raw.listener, Replay):
            self.gaps = raw.listener.gaps()
            self.replayed = raw.listener.replayed
        return trace

    @property
    def quiet(self) -> bool:
        """Nobody listens, as things look."""
        return not (self._draws["base"] or self._draws["raw"])

    def begins_to_listen(self) -> bool:
        """Whether base has not been listened to so far, and will be from now on."""
        begins = self._replays and not self._draws["base"]
        self._draws["base"] = self._replays
        return begins

    def notes(self) -> list[str]:
        """What the user should know of it."""
        if self.unheard:
            return [
                "random numbers that compiled code draws are not replayed: both models began with equal generators, "
                "which is no help across frameworks (eval() switches dropout off)"
            ]
        return told_gaps(self.gaps)

    def _beside(self, calls: Sequence[Call]) -> Replay:
        return replay_beside(self._job, self._matched.modules, calls, self._log, twins=self._matched.twins)


def replay_beside(job: Job, modules: ModulePairs, calls: Sequence[Call], log: Listener, *, twins: bool) -> Replay:
    """Hands base's draws to a run of raw. Anew for each: how often a module was called is counted."""
    pairing = CallPairing(job.base.tree, job.raw.tree, modules, calls, twins=twins)
    nodes = job.base.tree.nodes
    dividing = [
        call.index
        for call in calls
        if pairing.held(call)
        # Built differently, modules that hold others end elsewhere: before a dropout here, after it there.
        and (pairing.alike or not nodes[call.node].children or nodes[call.node].atomic)
    ]
    return Replay(log, partial(_partners, pairing), dividing)


def told_gaps(gaps: Sequence[DrawGap]) -> list[str]:
    """Draws that don't correspond, in words."""
    told = [gap for gap in gaps if gap.masked or gap.covered or gap.reason != "parameters"]
    found = [f"random draws don't correspond: {gap}" for gap in told[:MOST_TOLD]]
    if len(told) > MOST_TOLD:
        found.append(f"random draws don't correspond in {len(told) - MOST_TOLD} more places")
    return found


def _partners(pairing: CallPairing, call: Call) -> Sequence[Call]:
    return pairing.together(call) or ()


def looks_random(live: LiveTree) -> bool:
    """Whether some module that trains is there to drop something, or has code that draws: a guess that saves a run."""
    training = [module for module in live.modules if live.adapter.is_training(module)]
    may_drop = (module for module in training if not SHARES.isdisjoint(vars(module)))
    if any(any(_share(vars(module).get(name)) for name in SHARES) for module in may_drop):
        return True
    kinds = {type(module): module for module in training if has_code(live.adapter, module)}
    return any(_DRAWS.fullmatch(name) for one in kinds.values() for code in codes_of(one) for name in code.co_names)


def _share(value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value < 1.0
