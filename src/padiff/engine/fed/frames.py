"""A convolution that pads in base and is given padded pictures in raw: whether the frame is what base's makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from padiff.compare.layouts import agree_in_any_layout
from padiff.frameworks.settings import settings_of
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, Tolerance

_MODES: Mapping[str, Any] = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class Frames:
    """Knows by the layers' settings what lies around a picture."""

    def __init__(self, base: LiveTree, raw: LiveTree) -> None:
        self._base, self._raw = base, raw

    def otherwise(self, base: Call, raw: Call) -> bool:
        """Whether raw's convolution, which pads less, is given something else than base's makes of its input."""
        if not base.inputs or not raw.inputs or base.inputs[0].value.overwritten or raw.inputs[0].value.overwritten:
            return False
        wanted = self._padded(base, raw)
        found = raw.inputs[0].value
        if wanted is None or len(wanted.shape) != len(found.shape):
            return False
        return not agree_in_any_layout(wanted, found.numpy(), Tolerance(mode="auto"))

    def _padded(self, base: Call, raw: Call) -> Array | None:
        """Base's input with the frame that raw's layer does not add itself; None where that is not known."""
        one, other = self._base.tree.nodes[base.node], self._raw.tree.nodes[raw.node]
        spatial = re.fullmatch(r"conv(\d)d", one.layer or "")
        if spatial is None or one.layer != other.layer:
            return None
        count = int(spatial[1])
        own = settings_of(self._base.adapter, self._base.modules[one.index])
        mine = _padding(own, count)
        theirs = _padding(settings_of(self._raw.adapter, self._raw.modules[other.index]), count)
        mode = _MODES.get(str(own.get("padding_mode", "zeros")))
        if mine is None or theirs is None or mode is None or any(a < b for a, b in zip(mine, theirs, strict=True)):
            return None
        if mine == theirs or (any(theirs) and mode != "constant"):
            return None
        array = base.inputs[0].value.numpy()
        last = 1 if str(own.get("data_format", "")).endswith("C") else 0
        sides = [(a - b, a - b) for a, b in zip(mine, theirs, strict=True)]
        first = array.ndim - count - last
        return np.pad(array, [(0, 0)] * first + sides + [(0, 0)] * last, mode=mode) if first >= 0 else None


def _padding(settings: Mapping[str, Any], count: int) -> tuple[int, ...] | None:
    """What a layer adds on both ends of each axis; None where it says it in words or differs between the ends."""
    padding = settings.get("padding")
    if isinstance(padding, int):
        return (padding,) * count
    known = isinstance(padding, (tuple, list)) and len(padding) == count and all(isinstance(p, int) for p in padding)
    return tuple(padding) if known and padding is not None else None
