"""What optimizers remember from step to step, compared: a wrong beta shows there at once, and in weights a step later.

Adam corrects its moments in the first step so that betas cancel out, and later steps are uncertain where gradients are
small. What it remembers is certain from the first step on, where the gradients agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from padiff.capture.held import HostValue
from padiff.compare.measure import rms
from padiff.engine.free.drift import EDGE, gradients_apart
from padiff.engine.job import Job
from padiff.engine.state import State
from padiff.frameworks.settings import optimizer_moments_of
from padiff.frameworks.stepping import optimizer_in
from padiff.records import Array, Comparison, Noise, Value, WeightPlan

MOMENTS = ("moment1", "moment2", "velocity")
"""Running sums of gradients, of their squares, and of what momentum adds up."""
LAST_PLACE = 6e-8
"""One less a beta is made in single precision by some: so much of the beta, which is more of what is left."""

ALWAYS_KEPT = 1 << 16
"""Elements of moments that a step's dump holds in any case."""
SHARE_KEPT = 0.05
"""And of the parameters' elements, as many more: a dump takes hardly more than its trace."""

ByPath = Mapping[str, Array]


class Moments:
    """Both optimizers' moments after each step, and how far rounding may have moved base's."""

    def __init__(self, job: Job, plan: WeightPlan) -> None:
        self._job, self._plan = job, plan
        self._shares: dict[tuple[str, str], float] = {}
        """Which share of a gradient, or of its square, a moment takes in."""
        self._noise: dict[tuple[str, str], float] = {}
        self.now: dict[str, tuple[ByPath, ByPath]] = {}
        """Base's and raw's as they are."""

    def held(self, name: str) -> tuple[ByPath, ByPath] | None:
        """What both remember now under a name; None where one of them tells nothing of it."""
        base, raw = self.now.get(name) or (self._read(0).get(name), self._read(1).get(name))
        return (base, raw) if base and raw else None

    def compare(self, step: int, noise: Noise, gradients: ByPath, compared: Sequence[Comparison]) -> list[Comparison]:
        """After a step of both; ``gradients`` are those of base that it was made with, ``compared`` says how far raw's
        were from them."""
        return self.compare_read((self._read(0), self._read(1)), step, noise, gradients, compared)

    def compare_read(
        self,
        sides: tuple[Mapping[str, ByPath], Mapping[str, ByPath]],
        step: int,
        noise: Noise,
        gradients: ByPath,
        compared: Sequence[Comparison],
        *,
        times: int = 1,
    ) -> list[Comparison]:
        """The same, of moments that were read before: base's and raw's. ``times`` says how many steps were made since
        the last that was compared."""
        self.now = {
            name: (sides[0][name], sides[1][name]) for name in MOMENTS if sides[0].get(name) and sides[1].get(name)
        }
        apart = gradients_apart(self._plan, compared)
        found: list[Comparison] = []
        for name, both in self.now.items():
            base, raw = (_held_by_all(one) for one in both) if name == "moment2" else both
            allowed = {
                path: self._allowed(
                    name, path, moment, gradients[path], times * max(noise.parameters[path], apart.get(path, 0.0))
                )
                for path, moment in base.items()
                if path in gradients and path in noise.parameters
            }
            state = State(self._job, self._plan, step, Noise(weights=allowed))
            known = {path: base[path] for path in allowed}
            for one in state.tensors("weight", "parameter", _values(known), _values(raw)):
                if one.outcome.reason != "structure":  # a parameter that only one side's optimizer has seen
                    found.append(replace(one, name=f"{one.name}: {name}"))
        return found

    def _read(self, side: int) -> dict[str, ByPath]:
        assert self._job.optimizers is not None
        live, optimizer = (self._job.base, self._job.raw)[side], self._job.optimizers[side]
        held = optimizer_in(live.adapter, optimizer)
        if held is None:
            return {}
        tensors = optimizer_moments_of(live.adapter, held, live.parameters())
        return {
            name: {path: np.array(live.adapter.to_numpy(tensor)) for path, tensor in held.items()}
            for name, held in tensors.items()
        }

    def _allowed(self, name: str, path: str, moment: Array, gradient: Array, noise: float) -> float:
        taken = np.square(gradient.astype(np.float64)) if name == "moment2" else gradient
        size, own = _size(taken), _size(moment)
        share = self._shares.setdefault((name, path), own / size if size else 1.0)
        moved = noise * (2 * float(np.abs(gradient).max(initial=0.0)) + noise) if name == "moment2" else noise
        key = name, path
        self._noise[key] = self._noise.get(key, 0.0) + share * moved
        return self._noise[key] + LAST_PLACE / min(max(share, 1e-6), 1.0) * own


def _held_by_all(moments: ByPath) -> ByPath:
    """Running sums of squares up to where whether they are numbers says nothing."""
    return {
        path: np.minimum(moment, EDGE * np.finfo(moment.dtype).max) if moment.dtype.kind == "f" else moment
        for path, moment in moments.items()
    }


def _size(array: Array) -> float:
    """The root mean square, also of squares of gradients that are next to nothing."""
    peak = float(np.abs(array).max(initial=0.0))
    return peak * rms(array.astype(np.float64) / peak) if peak and np.isfinite(peak) else peak


def few_of(sizes: Mapping[str, int], moments: int) -> set[str]:
    """Parameters whose moments a dump keeps: all where that is little, else the small ones, up to a small share of what
    parameters take. A wrong setting of an optimizer shows in each."""
    allowed = max(ALWAYS_KEPT, SHARE_KEPT * sum(sizes.values()))
    found: set[str] = set()
    for path, size in sorted(sizes.items(), key=lambda one: one[1]):
        allowed -= size * moments
        if allowed < 0:
            break
        found.add(path)
    return found


def _values(arrays: ByPath) -> dict[str, Value | None]:
    return {path: HostValue(array) for path, array in arrays.items()}
