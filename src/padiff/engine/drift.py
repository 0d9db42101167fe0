"""How far rounding moves parameters in one step of an optimizer: gradients are uncertain, and some optimizers take a
step of full length however small a gradient is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.compare.measure import rms
from padiff.records import Array, Noise

UNCERTAIN = 10.0
"""Below how many times its noise the sign of a gradient's element is not relied on."""


EDGE = 1e-4
"""Of the largest number there is: a square that is more than this may be none any more in one framework, which squares
before it multiplies by one less a beta, and still be one in another."""


class Drift:
    """Base's parameters and gradients before a step, and what the step made of them."""

    def __init__(self, base: Session, noise: Noise) -> None:
        self._base, self._noise = base, noise
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
                unsure = uncertain * self._noise.parameters[path]
                found[path] = uncertain_part(moved, self.gradients[path], unsure) + earlier.get(path, 0.0)
        return found


def uncertain_part(moved: Array, gradient: Array, unsure: float) -> float:
    """How much of what a step moved is not known, where elements of the gradient below ``unsure`` are not, nor those
    that an optimizer squares in vain."""
    size = np.abs(gradient.astype(np.float64))
    share = np.minimum(1.0, unsure / np.maximum(size, np.finfo(np.float64).tiny))
    if gradient.dtype.kind == "f":
        share = np.where(size > math.sqrt(EDGE * np.finfo(gradient.dtype).max), 1.0, share)  # also of a single number
    return rms(np.asarray(moved * share))


def relative_steps(base: Session, drift: Mapping[str, float]) -> dict[str, float]:
    """The same, relative to the parameters themselves."""
    adapter = base.live.adapter
    sizes = {path: rms(adapter.to_numpy(p)) for path, p in base.live.parameters().items() if path in drift}
    return {path: drift[path] / size for path, size in sizes.items() if size > 0}
