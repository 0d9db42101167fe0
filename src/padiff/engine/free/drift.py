"""How far rounding moves parameters in one step of an optimizer: gradients are uncertain, and some optimizers take a
step of full length however small a gradient is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.compare.measure import rms
from padiff.frameworks.tree import join
from padiff.records import Array, Comparison, Noise, WeightPlan

UNCERTAIN = 10.0
"""Below how many times its noise the sign of a gradient's element is not relied on."""


EDGE = 1e-4
"""Of the largest number there is: a square that is more than this may be none any more in one framework, which squares
before it multiplies by one less a beta, and still be one in another."""


class Drift:
    """Base's parameters and gradients before a step, and what the step made of them. ``apart`` says how far raw's
    gradients are from base's where that was found to be no fault: numbers that cross a kink."""

    def __init__(self, base: Session, noise: Noise, apart: Mapping[str, float]) -> None:
        self._base, self._noise, self._apart = base, noise, apart
        adapter = base.live.adapter
        self._before: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        """Base's, as they were."""
        for path, parameter in base.live.parameters().items():
            gradient = adapter.gradient(parameter)
            if gradient is not None and path in noise.parameters:
                self._before[path] = np.array(adapter.to_numpy(parameter))
                self.gradients[path] = np.array(unscaled(Held(adapter, gradient), base.scale).numpy())

    def noise(self, earlier: Mapping[str, float], uncertain: float = 1.0) -> dict[str, float]:
        """The root mean square deviation of every parameter after the step; ``earlier`` is what it was before.

        Elements of gradients below ``uncertain`` times their noise count as not known at all.
        """
        adapter = self._base.live.adapter
        found: dict[str, float] = {}
        for path, parameter in self._base.live.parameters().items():
            if path in self._before:
                moved = adapter.to_numpy(parameter).astype(np.float64) - self._before[path]
                gradient, apart = self.gradients[path], self._apart.get(path, 0.0)
                noise = self._noise.parameters[path]
                unsure, off = max(uncertain * noise, apart), max(noise, apart)
                found[path] = uncertain_part(moved, gradient, unsure, off) + earlier.get(path, 0.0)
        return found


def gradients_apart(plan: WeightPlan, compared: Iterable[Comparison]) -> dict[str, float]:
    """Base's parameters to how far raw's gradients are from theirs."""
    sources = {entry.path: [source.path for source in entry.sources] for entry in plan.entries}
    found: dict[str, float] = {}
    for one in compared:
        if one.phase == "gradient" and one.outcome.numbers is not None:
            for path in sources.get(join(one.raw_path, one.name), ()):
                found[path] = max(found.get(path, 0.0), one.outcome.numbers.rmse)
    return found


def uncertain_part(moved: Array, gradient: Array, unsure: float, off: float) -> float:
    """How much of what a step moved is not known, where elements of the gradient below ``unsure`` are not, nor those
    that an optimizer squares in vain. Where raw's may be ``off`` by more than base's gradient is at all, as where a
    norm takes out what a bias adds, its step may be longer by as much."""
    size = np.abs(gradient.astype(np.float64))
    share = np.minimum(1.0, unsure / np.maximum(size, np.finfo(np.float64).tiny))
    if gradient.dtype.kind == "f":
        share = np.where(size > math.sqrt(EDGE * np.finfo(gradient.dtype).max), 1.0, share)  # also of a single number
    length = rms(gradient)
    longer = rms(moved) * off / length if off > length > 0 else 0.0
    return rms(np.asarray(moved * share)) + longer


def relative_steps(base: Session, drift: Mapping[str, float]) -> dict[str, float]:
    """The same, relative to the parameters themselves."""
    adapter = base.live.adapter
    sizes = {path: rms(adapter.to_numpy(p)) for path, p in base.live.parameters().items() if path in drift}
    return {path: drift[path] / size for path, size in sizes.items() if size > 0}
