"""What is followed backward where no loss is given: every output along a direction of chance, the same in both models.

A mean would not do. After a last norm or a softmax it is constant, and its gradients are rounding: whatever is wrong in
backward before that is lost in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from padiff.capture.held import Held
from padiff.capture.one_step import Probed
from padiff.compare.layouts import arranged_alike
from padiff.engine.job import Job
from padiff.engine.outputs import paired_values
from padiff.frameworks import Adapter
from padiff.records import Direction, Value

MOST_DRAWN = 65521
"""Numbers drawn for one output; a longer one repeats them. A prime, so that they fall differently in every row."""
GRAIN = 16
"""Directions are whole multiples of one part in so many: exact in every dtype, and so are the gradients they make."""

LENGTH = 1 / 8
"""Of a direction, nearly. Optimizers take steps along it: long ones would drive a net out of bounds in a few."""


def direction(place: int, shape: Sequence[int]) -> Direction:
    """The direction of an output, by its place among the outputs and its shape: always the same."""
    count = math.prod(shape)
    drawn = np.random.default_rng([place, *shape]).standard_normal(min(count, MOST_DRAWN))
    grains = np.clip(np.rint(GRAIN * drawn), -4 * GRAIN, 4 * GRAIN)
    scale = LENGTH * 2.0 ** -round(math.log2(math.sqrt(count)))
    return Direction((grains * (scale / GRAIN)).astype(np.float32), tuple(shape))


class Projection:
    """Base draws the directions; raw takes along those of the outputs that correspond, in its own layout."""

    def __init__(self, job: Job) -> None:
        self._adapters = job.base.adapter, job.raw.adapter
        self._directions: dict[tuple[int, tuple[int, ...]], Direction] = {}
        self._base: list[tuple[str, Held]] = []
        self._drawn: dict[str, Direction] = {}
        """Names of base's outputs in its latest run to their directions."""

    @staticmethod
    def possible(job: Job) -> bool:
        """Whether it is asked for, and both frameworks can."""
        can = all(hasattr(live.adapter, "projected_loss") for live in (job.base, job.raw))
        return job.projected and job.losses == (None, None) and can

    def of_base(self, outputs: Sequence[tuple[str, Any]]) -> list[Probed]:
        """What gradients go back to, each with its direction; where none do, everything."""
        adapter = self._adapters[0]
        held = {id(tensor): (name, tensor) for name, tensor in reversed(outputs)}
        once = list(reversed(held.values()))
        followed = [(name, tensor) for name, tensor in once if adapter.requires_grad(tensor)] or once
        self._base = _held(adapter, outputs)
        self._drawn = {}
        found: list[Probed] = []
        for place, (name, tensor) in enumerate(followed):
            shape = adapter.shape(tensor)
            if math.prod(shape):
                key = place, shape
                if key not in self._directions:
                    self._directions[key] = direction(*key)
                self._drawn[name] = self._directions[key]
                found.append((tensor, self._drawn[name]))
        return found

    def of_raw(self, outputs: Sequence[tuple[str, Any]]) -> list[Probed]:
        tensors = dict(outputs)
        found: list[Probed] = []
        for (name, _), (own, raw) in paired_values(self._base, _held(self._adapters[1], outputs)):
            drawn = self.along(name, raw)
            if drawn is not None:
                found.append((tensors[own], drawn))
        return found

    def follows(self, name: str) -> bool:
        """Whether one of base's outputs has a direction; of several names for one tensor the first has."""
        return name in self._drawn

    def along(self, name: str, raw: Value) -> Direction | None:
        """The direction of one of base's outputs, for the tensor of raw's that corresponds; None where it has none, or
        the two are laid out in ways that nobody can tell."""
        base, drawn = dict(self._base)[name], self._drawn.get(name)
        if drawn is None or base.shape == raw.shape:
            return drawn
        arranged = arranged_alike(base.numpy(), raw.numpy(), drawn.spread)
        return None if arranged is None else Direction(arranged, arranged.shape)


def _held(adapter: Adapter, outputs: Sequence[tuple[str, Any]]) -> list[tuple[str, Held]]:
    """One value for each tensor, however often it is returned."""
    known = {id(tensor): Held(adapter, adapter.detach(tensor)) for _, tensor in outputs}
    return [(name, known[id(tensor)]) for name, tensor in outputs]
