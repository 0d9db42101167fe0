"""Raw, fed base's tensors, as often as it takes until nothing is in doubt that a run can tell.

All such doubts are about forward. So a run that leaves one ends before backward, and the next knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from padiff.engine.fed.cut_short import Idle, Kept, as_a_rule, cut_short
from padiff.engine.fed.going_along import ending_elsewhere
from padiff.engine.fed.local import LocalRun
from padiff.records import StepTrace

Sorts = frozenset[Hashable]
"""Of calls that are taken to begin where base's do (see ``Elsewhere``)."""


class Ran(NamedTuple):
    """A run of raw that was fed."""

    run: LocalRun
    trace: StepTrace
    alike: Sorts
    innocent: frozenset[int] | None
    """Raw calls of which it was known that they end elsewhere."""
    whole: bool
    """Whether it ran to its end, backward where that is wanted."""

    @property
    def in_question(self) -> Sorts:
        """Sorts of calls that may begin elsewhere, and in which something is wrong if they do."""
        return self.run.elsewhere.in_question(self.run.faults, self.trace.calls)

    @property
    def answered(self) -> bool:
        """Whether calls that were taken to begin where base's do turn out to."""
        return self.run.elsewhere.settled(self.alike, self.run.faults, self.trace.calls)


Doubtful = Callable[[Ran], bool]
"""Says after forward whether another run has to tell."""


class Feeding(Protocol):
    """Runs raw once."""

    def __call__(
        self,
        alike: Sorts,
        innocent: frozenset[int] | None,
        doubtful: Doubtful | None,
        *,
        ops: bool = False,
        masks: bool = False,
    ) -> Ran:
        """``ops`` asks for those of modules' own code, ``masks`` for base's in the place of raw's."""
        ...


@dataclass
class UntilSure:
    """What raw does with base's tensors, once it is known which calls begin and end where base's do."""

    fed: Feeding
    base: Callable[[], StepTrace] | None
    """Runs base forward with its ops watched; None where it is not to be asked."""
    kept: Kept
    idle: Idle
    _watched: StepTrace | None = field(default=None, init=False)

    def run(self) -> Ran:
        found = self._told()
        if not found.run.masks_in_question:
            return found
        other = self.fed(found.alike, found.innocent, None, masks=True)
        return found if other.run.meant_otherwise(found.run) else other

    def _told(self) -> Ran:
        found = self._judged_by_base(frozenset(), lambda ran: bool(ran.in_question))
        alike = found.in_question
        if alike:
            other = self._judged_by_base(alike, lambda ran: not ran.answered)
            if other.answered:
                return other
        return found if found.whole else self.fed(found.alike, found.innocent, None)

    def _judged_by_base(self, alike: Sorts, doubtful: Doubtful) -> Ran:
        """Where calls are in doubt, those that return something which base computes as well are none."""
        found = self.fed(alike, None, lambda ran: ran.run.unsure or doubtful(ran))
        if not found.run.unsure or self.base is None:
            return found
        if self._watched is None:
            self._watched = self.base()
        rivals = found.run.rivals
        likes = [like for one in rivals for like in found.run.likes(one)]
        innocent = ending_elsewhere([*rivals, *likes], self._watched)
        innocent -= {one.raw.index for one in (*rivals, *likes) if self.idle.left_out_by(one, found.trace)}
        innocent -= {one.raw.index for one in rivals if found.run.alone(one)}  # its author ends it where base's ends
        if all(one.raw.index in innocent for one in rivals):
            likes_of = as_a_rule(rivals, found.run.likes, innocent)
            watched = self.fed(alike, None, lambda _: True, ops=True).trace
            innocent -= cut_short(rivals, self._watched, watched, self.kept, likes_of)
        return self.fed(alike, innocent, doubtful)
