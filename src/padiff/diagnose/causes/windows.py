"""What slides over an image: differences at the borders only, and interpolation computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from padiff.diagnose.causes.masks import are_masks
from padiff.diagnose.causes.trial import Trial, gap
from padiff.records import Array, Cause


def borders(trial: Trial) -> Iterator[Cause]:
    """Everything agrees but a frame of a few elements."""
    expected, found = trial.expected, trial.found
    sliding = (trial.scene.layer or "").startswith(("conv", "avg_pool", "max_pool", "lp_pool", "unfold", "fold"))
    if expected.ndim < 3 or (expected.ndim == 3 and not sliding) or are_masks(expected, found):
        return
    spatial = [axis for axis in range(2, expected.ndim) if expected.shape[axis] >= 5]
    for width in (1, 2, 3) if spatial else ():
        inner = tuple(
            slice(width, -width) if axis in spatial and expected.shape[axis] > 2 * width + 1 else slice(None)
            for axis in range(expected.ndim)
        )
        if inner == (slice(None),) * expected.ndim or not trial.agree(expected[inner], found[inner]):
            continue
        if gap(expected[inner], found[inner]) <= 0.05 * trial.gap and _frame(trial, spatial):
            yield _named_border(trial, width)
            return


def _frame(trial: Trial, spatial: list[int]) -> bool:
    """Whether, on every axis, most of an edge differs: no element or two that lie there, no slice of one axis."""
    apart = np.abs(trial.expected - trial.found) > 1e-2 * trial.gap

    def differs(axis: int) -> bool:
        along = np.moveaxis(apart, axis, 0)
        return any(edge.size >= 4 and edge.mean() > 0.5 for edge in (along[0], along[-1]))

    return all(differs(axis) for axis in spatial)


def _named_border(trial: Trial, width: int) -> Cause:
    expected, found = trial.expected, trial.found
    frame = f"only the outermost {width if width > 1 else ''} rows and columns differ".replace("  ", " ")
    close, digits = (1e-6, 4) if trial.spacing < 1e-4 else (4 * trial.spacing, 1)
    live = (np.abs(expected) > close * np.abs(expected).max()) & (np.abs(expected - found) > close * np.abs(expected))
    ratios = np.unique(np.round(found[live] / expected[live], digits)) if live.any() else np.zeros(9)
    if len(ratios) <= 6:
        told = ", ".join(f"{ratio:g}" for ratio in ratios[:4])
        return Cause("count_include_pad", f"{frame}, by factors of {told}: padding counts on one side only", 0.88)
    return Cause("padding", f"{frame}: what stands beyond the border differs", 0.85)


# ------------------------------------------------------------------ interpolation

Places = Callable[[int, int], Array]


def _aligned(size: int, wanted: int) -> Array:
    return np.arange(wanted) * ((size - 1) / max(wanted - 1, 1))


def _centred(size: int, wanted: int) -> Array:
    return (np.arange(wanted) + 0.5) * (size / wanted) - 0.5


def _cornered(size: int, wanted: int) -> Array:
    return np.arange(wanted) * (size / wanted)


def _linear(places: Places) -> Places:
    def matrix(size: int, wanted: int) -> Array:
        at = np.clip(places(size, wanted), 0, size - 1)
        left = np.minimum(at.astype(np.int64), size - 1)
        right = np.minimum(left + 1, size - 1)
        share = at - left
        made = np.zeros((wanted, size))
        np.add.at(made, (np.arange(wanted), left), 1 - share)
        np.add.at(made, (np.arange(wanted), right), share)
        return made

    return matrix


def _nearest(places: Places, offset: float) -> Places:
    def matrix(size: int, wanted: int) -> Array:
        at = np.clip(np.floor(places(size, wanted) + offset).astype(np.int64), 0, size - 1)
        made = np.zeros((wanted, size))
        made[np.arange(wanted), at] = 1.0
        return made

    return matrix


def _cubic(places: Places, a: float = -0.75) -> Places:
    def matrix(size: int, wanted: int) -> Array:
        at = places(size, wanted)
        left = np.floor(at).astype(np.int64)
        made = np.zeros((wanted, size))
        for step in (-1, 0, 1, 2):
            far = np.abs(at - left - step)
            near = (a + 2) * far**3 - (a + 3) * far**2 + 1
            wide = a * far**3 - 5 * a * far**2 + 8 * a * far - 4 * a
            np.add.at(made, (np.arange(wanted), np.clip(left + step, 0, size - 1)), np.where(far <= 1, near, wide))
        return made

    return matrix


_RESIZES: dict[str, Places] = {
    "linear with aligned corners": _linear(_aligned),
    "linear without aligned corners": _linear(_centred),
    "linear from the corner": _linear(_cornered),
    "nearest": _nearest(_cornered, 1e-9),
    "nearest from the centre": _nearest(_centred, 0.5),
    "nearest with aligned corners": _nearest(_aligned, 0.5),
    "cubic with aligned corners": _cubic(_aligned),
    "cubic without aligned corners": _cubic(_centred),
}


FEW = 4
"""Of the leading axes, batch and channels."""


def interpolation(trial: Trial) -> Iterator[Cause]:
    """Base resizes a tensor at hand in one way, raw in another."""
    shape = trial.expected.shape
    if len(shape) not in (3, 4):
        return
    for name, x in trial.at_hand.items():
        if x.ndim != len(shape) or x.shape[:2] != shape[:2] or x.shape == shape or max(*shape[2:], *x.shape[2:]) > 4096:
            continue
        few = x[:FEW, :FEW]  # mostly nothing was resized, and that shows in any part
        right = next((way for way in _RESIZES if _is_made(trial, _resized(few, shape, _RESIZES[way]))), None)
        if right is None:
            continue
        made = {way: _resized(x, shape, matrix) for way, matrix in _RESIZES.items()}
        for wrong, value in made.items():
            if wrong == right or not trial.models(made[right], value):
                continue
            text = f"base resizes {name} {right}, raw {wrong}"
            same = right.split()[0] == wrong.split()[0]
            yield Cause("align_corners" if same and right.split()[0] != "nearest" else "interpolation", text, 0.95)
            return


def _is_made(trial: Trial, few: Array) -> bool:
    """Whether base's values begin with these."""
    return gap(trial.expected[:FEW, :FEW], few) <= 0.3 * trial.gap


def _resized(x: Array, shape: tuple[int, ...], matrix: Places) -> Array:
    for axis in range(2, len(shape)):
        turned = np.moveaxis(x, axis, -1) @ matrix(x.shape[axis], shape[axis]).T
        x = np.moveaxis(turned, -1, axis)
    return x
