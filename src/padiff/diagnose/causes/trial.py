"""A scene made ready for trying hypotheses: cut to a cheap size, in double, with what is at hand in its shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np

from padiff.compare.kinds import kind_of
from padiff.diagnose.scene import Scene
from padiff.records import Array

_MOST = 1 << 20
"""Elements that hypotheses are tried on."""
_SAMPLE = 2048
_LEADING = 8192
"""Elements that mostly tell that two tensors are apart."""
_GAIN = 0.3
"""A hypothesis must leave less than this share of the difference, besides agreeing."""
_FITTED = 2e-5
_MANY = 32
_MOST_AT_HAND = 48


class Trial:
    """Both tensors and what they were made of, and the two questions asked of every hypothesis."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.same_shape = scene.expected.shape == scene.found.shape
        self._cut = _window(scene.expected, scene.found) if self.same_shape else ()
        self.expected = plain(self.cut(scene.expected))
        self.found = plain(self.cut(scene.found)) if self.same_shape else plain(scene.found)
        self.gap = gap(self.expected, self.found) if self.same_shape else math.inf
        self.finite = bool(np.isfinite(self.expected).all() and np.isfinite(self.found).all())

    @cached_property
    def spacing(self) -> float:
        """Of the dtype with the fewest digits that had a part in it: what is fitted to values is no surer."""
        dtypes = (self.scene.expected.dtype, self.scene.found.dtype)
        return max(self.scene.narrow, *(kind_of(dtype).eps for dtype in dtypes))

    def within(self, bound: float) -> float:
        """A relative bound for what single precision holds, or what is held here."""
        return max(bound, self.spacing)

    def near(self, value: float, *wanted: float) -> bool:
        """Whether a number that was fitted may be one of some; over many elements it is surer than any of them is."""
        close = max(_FITTED, self.spacing / 8)
        return any(abs(value - one) <= close * abs(one) for one in wanted)

    # --- what is at hand

    def cut(self, array: Array) -> Array:
        """The stretch of another tensor that belongs to the stretch looked at."""
        places = [place if self._shared(axis, array.shape) else slice(None) for axis, place in enumerate(self._cut)]
        return array[tuple(places[: array.ndim])]

    def _shared(self, axis: int, shape: tuple[int, ...]) -> bool:
        """Whether another tensor has this axis too, its last one only if it has all of them."""
        own = self.scene.expected.shape
        return axis < len(shape) and shape[axis] == own[axis] and (axis < len(shape) - 1 or shape == own)

    @cached_property
    def at_hand(self) -> dict[str, Array]:
        """Every tensor that could have gone into it, by a name to print."""
        scene = self.scene
        named: dict[str, Array] = {f"its input {name}".strip(): t for name, t in scene.given.items()}
        sides = (("returned", scene.around), ("was given", scene.handed))
        for path in {**scene.around, **scene.handed}:  # nearest first
            named |= {f"what {path} {word}": t[path] for word, t in sides if path in t}
        if scene.phase in ("backward", "gradient"):
            named = {f"the gradient of its output {n}".strip(): t for n, t in scene.gradients.items()} | named
        return {
            name: plain(self.cut(t))
            for name, t in list(named.items())[:_MOST_AT_HAND]
            if t.size and t.dtype.kind != "O"
        }

    @cached_property
    def like(self) -> dict[str, Array]:
        """What is at hand in the shape of the tensors: as it is, in parts, or with heads apart."""
        found: dict[str, Array] = {}
        shape = self.expected.shape
        for name, tensor in self.at_hand.items():
            if not np.isfinite(tensor).all():
                continue
            for part, piece in _pieces(tensor, self.expected.size):
                for view in _views(piece, shape):
                    found.setdefault(f"{part} of {name}" if part else name, view)
        return dict(list(found.items())[:_MANY])

    @cached_property
    def masked(self) -> dict[str, Array]:
        """What is at hand in the shape of the tensors and leaves some out by minus infinity, with a number there."""
        found: dict[str, Array] = {}
        for name, tensor in self.at_hand.items():
            if tensor.shape != self.expected.shape:
                continue
            out = np.isneginf(tensor)
            if out.any() and np.isfinite(tensor[~out]).all():
                found[name] = np.where(out, -1e30, tensor)
        return found

    @cached_property
    def spread(self) -> dict[str, Array]:
        """What is at hand or held by the module and smaller, spread over the shape of the tensors."""
        found: dict[str, Array] = {}
        shape = self.expected.shape
        for name, tensor in (self.at_hand | self.base_weights).items():
            if 1 < tensor.size < self.expected.size and np.isfinite(tensor).all() and float(tensor.std()) > 0:
                fitting = (_broadcast(view, shape) for view in (tensor, _as_channels(tensor, len(shape))))
                view = next((view for view in fitting if view is not None), None)
                if view is not None:
                    found[name] = view
        return dict(list(found.items())[:_MANY])

    @cached_property
    def base_weights(self) -> dict[str, Array]:
        return {_weight_name(name): plain(t) for name, t in self.scene.base_weights.items() if t.dtype.kind != "O"}

    @cached_property
    def raw_weights(self) -> dict[str, Array]:
        return {_weight_name(name): plain(t) for name, t in self.scene.raw_weights.items() if t.dtype.kind != "O"}

    # --- the questions

    def repairs(self, candidate: Array) -> bool:
        """Whether raw's tensor, treated so, agrees with base's."""
        most = _GAIN * self.gap
        if candidate.shape != self.expected.shape or further(self.expected, candidate, most):
            return False
        return gap(self.expected, candidate) <= most and self.agree(self.expected, candidate)

    def models(self, base: Array, raw: Array) -> bool:
        """Whether base computed the one and raw the other."""
        if base.shape != self.expected.shape or raw.shape != self.expected.shape:
            return False
        most = _GAIN * self.gap
        if further(self.expected, base, most) or further(self.found, raw, most):
            return False
        if not (gap(self.expected, base) <= most and gap(self.found, raw) <= most):
            return False
        return self.agree(self.expected, base) and self.agree(raw, self.found)

    def agree(self, base: Array, raw: Array) -> bool:
        """The scene's own word, given tensors of the dtypes it knows."""
        return self.scene.agrees(_cast(base, self.scene.expected), _cast(raw, self.scene.found))

    # --- a few elements, to rule out most hypotheses

    @cached_property
    def _places(self) -> Array:
        size = self.expected.size
        spread = np.linspace(0, size - 1, min(_SAMPLE, size)).astype(np.int64)
        apart = np.abs(self.expected - self.found).ravel()
        most = np.argpartition(apart, size - _SAMPLE // 2)[size - _SAMPLE // 2 :] if size > _SAMPLE else spread
        return np.unique(np.concatenate([spread, most]))

    def few(self, tensor: Array) -> Array:
        """The elements of a tensor of this shape at the places looked at first."""
        return tensor.reshape(-1)[self._places]

    @cached_property
    def few_expected(self) -> Array:
        return self.few(self.expected)

    @cached_property
    def few_found(self) -> Array:
        return self.few(self.found)

    @cached_property
    def _few_gap(self) -> float:
        return gap(self.few_expected, self.few_found)

    def may_repair(self, few: Array) -> bool:
        """Whether a hypothesis is worth trying on everything: raw's few elements, treated so, come close to base's."""
        return gap(self.few_expected, few) <= _GAIN * self._few_gap

    def may_be_base(self, few: Array) -> bool:
        return self.may_repair(few)

    def may_be_raw(self, few: Array) -> bool:
        return gap(self.few_found, few) <= _GAIN * self._few_gap

    @cached_property
    def rich(self) -> bool:
        """Whether there is enough in the tensors that one fitted number agreeing everywhere is no accident."""
        return self.expected.size >= 8 and float(self.few_expected.std()) > 1e-6 * rms(self.few_expected)

    @cached_property
    def hollow(self) -> bool:
        """Whether base's tensor is no more than what may be lost here: whatever makes raw's small comes to it."""
        return self.agree(self.expected, np.zeros_like(self.expected))

    def dimensions(self) -> dict[str, float]:
        """Lengths at hand: of axes and of settings that count something."""
        found: dict[str, float] = {}
        scene = self.scene
        for source in (scene.raw_settings, scene.base_settings):
            for name, value in source.items():
                if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                    found[name] = value
        shapes = [scene.expected.shape, scene.found.shape]
        shapes += [t.shape for t in (*scene.given.values(), *scene.around.values(), *scene.base_weights.values())]
        for shape in shapes:
            for length in shape:
                if length > 1:
                    found.setdefault(str(length), length)
        heads = found.get("num_heads")
        if heads:
            for length in list(found.values()):
                if length % heads == 0 and length > heads:
                    found.setdefault(f"{int(length)}/{int(heads)} heads", length / heads)
        return found

    def numbers(self, *names: str) -> Iterator[float]:
        """Settings of either side by name, where they are numbers."""
        for source in (self.scene.base_settings, self.scene.raw_settings):
            for name in names:
                value = source.get(name)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield float(value)


def both(trial: Trial, name: str) -> str:
    """A setting of both sides, to be told after something else; nothing where neither has it."""
    sides = (("raw", trial.scene.raw_settings.get(name)), ("base", trial.scene.base_settings.get(name)))
    known = [f"{value!r} in {side}" for side, value in sides if value is not None]
    return f"; {name} is {' and '.join(known)}" if known else ""


def rms(array: Array) -> float:
    if not array.size:
        return 0.0
    return math.sqrt(float(np.mean(np.square(np.abs(array)))))


def gap(one: Array, other: Array) -> float:
    """Root of the mean squared difference; elements that are not finite count where they are not the same."""
    if one.shape != other.shape:
        return math.inf
    with np.errstate(all="ignore"):
        apart = one - other
    if not np.isfinite(apart).all():
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        apart = np.where(same, 0.0, apart)
        if not np.isfinite(apart).all():
            return math.inf
    return rms(apart)


def leading(array: Array) -> Array:
    """The first of the rows of an array, so many that looking at them costs next to nothing."""
    while array.ndim > 1 and array.size > _LEADING:
        array = array[0]
    return array


def further(one: Array, other: Array, most: float) -> bool:
    """Whether their first rows alone put two arrays of one shape further apart than that."""
    with np.errstate(all="ignore"):
        return surely_over(leading(one) - leading(other), most, one.size)


def surely_over(apart: Array, most: float, size: int) -> bool:
    """Whether these differences, of so many in all, make the root of the mean square larger than that."""
    return float(np.vdot(apart, apart).real) > most * most * size * (1 + 1e-6)


def factor(target: Array, source: Array) -> float:
    """What ``source`` must be multiplied by to come closest to ``target``."""
    square = float(np.dot(source.ravel(), source.ravel()))
    return float(np.dot(target.ravel(), source.ravel())) / square if square > 0 else math.nan


def plain(array: Array) -> Array:
    """As double, or complex double."""
    with np.errstate(all="ignore"):
        wide: Array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide


def _cast(array: Array, like: Array) -> Array:
    with np.errstate(all="ignore"):
        if like.dtype.kind in "iub":
            array = np.rint(array)
        cast: Array = array.astype(like.dtype)
    return cast


def _window(expected: Array, found: Array) -> tuple[slice, ...]:
    """The stretch of the leading axes to look at: small enough, and around where the two differ most."""
    places: list[slice] = []
    one, other = expected, found
    for axis in range(expected.ndim):
        last = axis == expected.ndim - 1
        if one.size <= (4 * _MOST if last and axis else _MOST):  # the last axis is cut only where it must be
            break
        keep = max(1, one.shape[axis] * _MOST // one.size)
        start = min(max(0, _most_apart(one, other, axis) - keep // 2), one.shape[axis] - keep)
        places.append(slice(start, start + keep))
        here = (*(slice(None),) * axis, places[-1])
        one, other = one[here], other[here]
    return tuple(places)


def _most_apart(one: Array, other: Array, axis: int) -> int:
    """Where along an axis the two differ most."""
    others = tuple(a for a in range(one.ndim) if a != axis)
    count = max(1, one.shape[axis] * _MOST // one.size)
    best, place = -1.0, 0
    for start in range(0, one.shape[axis], count):
        here = (*(slice(None),) * axis, slice(start, start + count))
        a, b = (t[here].astype(np.float32) for t in (one, other))
        apart = np.nan_to_num(np.abs(a - b), nan=3e38, posinf=3e38)
        most = apart.max(axis=others) if others else apart
        index = int(np.argmax(most))
        if float(most[index]) > best:
            best, place = float(most[index]), start + index
    return place


def _pieces(tensor: Array, size: int) -> Iterator[tuple[str, Array]]:
    """A tensor itself, or its equal parts along the last axis where one of them has the size wanted."""
    if tensor.size == size:
        yield "", tensor
        return
    for count, names in ((2, ("the first half", "the second half")), (3, ("the first third", "the second third", ""))):
        if tensor.ndim and tensor.size == count * size and tensor.shape[-1] % count == 0:
            for name, piece in zip(names, np.split(tensor, count, axis=-1), strict=False):
                yield name or "the last third", piece


def _views(tensor: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    """Ways to read a tensor in another shape of the same size: as it is, heads apart or together, channels last."""
    if tensor.shape == shape:
        yield tensor
        return
    if len(shape) == 4 and tensor.ndim == 3:
        batch, heads, length, width = shape
        if tensor.shape == (batch, length, heads * width):
            yield tensor.reshape(batch, length, heads, width).transpose(0, 2, 1, 3)
            return
    if len(shape) == 3 and tensor.ndim == 4:
        if (tensor.shape[0], tensor.shape[2]) == shape[:2]:
            yield tensor.transpose(0, 2, 1, 3).reshape(shape)
            return
        if tensor.shape[1] == shape[2] and tensor.shape[2] * tensor.shape[3] == shape[1]:
            yield tensor.reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1)
            return
    if len(shape) == 3 == tensor.ndim and (tensor.shape[0], tensor.shape[2], tensor.shape[1]) == shape:
        yield tensor.transpose(0, 2, 1)
        return
    yield tensor.reshape(shape)


def _broadcast(tensor: Array | None, shape: tuple[int, ...]) -> Array | None:
    try:
        return None if tensor is None else np.broadcast_to(tensor, shape)
    except ValueError:
        return None


def _as_channels(tensor: Array, ndim: int) -> Array | None:
    return tensor.reshape(-1, *(1,) * (ndim - 2)) if tensor.ndim == 1 and ndim > 2 else None


_WEIGHT_NAMES = {"_mean": "running_mean", "_variance": "running_var", "_weight": "weight"}


def _weight_name(name: str) -> str:
    """Paddle's and torch's names for one thing, as one."""
    return _WEIGHT_NAMES.get(name, name)


Unary = Callable[[Array], Array]
Named = Mapping[str, Array]
