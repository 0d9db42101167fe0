"""Which call of base a call of raw stands beside, when the modules alone don't tell and the values do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from padiff.align import PASSIVE, CallPairing
from padiff.compare.layouts import agree_in_any_layout
from padiff.records import Array, Call, ModuleTree, Slot, Tolerance, Value

MOST_UNFINISHED = 32
"""Calls whose outputs differ that are remembered until others complete them."""

Same = Callable[[Slot, Slot], bool]
"""Whether two tensors agree; may be asked often."""


class Partners:
    """Pairs raw's calls with base's as they end."""

    def __init__(self, pairing: CallPairing, base_tree: ModuleTree, tolerance: Tolerance) -> None:
        self._pairing, self._base_tree, self._tolerance = pairing, base_tree, tolerance
        self._alike = pairing.alike
        self._unfinished: dict[int, tuple[Array, Call]] = {}
        """Raw tensor that differs from base's to base's output and the call: an activation may follow, or what base has
        merged with it."""
        self.rectified: list[int] = []
        """Raw calls of norms that returned their partner's output with negatives set to zero."""

    def of(self, call: Call, same: Same) -> Call | None:
        """Base's call beside one of raw's that has just ended."""
        base = self._pairing.base_call(call) or self._look_alike(call, same)
        if base is None or self._idle_elsewhere(base, call, same):
            return None
        base = self._chain(base, call, same)
        self._pairing.pair(base, call)
        return base

    def finishes(self, call: Call) -> Call | None:
        """Raw's call that this one completes to what base's returned in one: an activation after a norm, a norm after a
        convolution that base has folded into one, an adapter around a layer that base has merged."""
        if not self._unfinished or len(call.outputs) != 1:
            return None
        fed = [slot.origin for slot in call.inputs[:1] if slot.origin in self._unfinished]
        around = [origin for origin, (_, first) in self._unfinished.items() if first.parent == call.index]
        for origin in dict.fromkeys((*fed, *around)):  # one that returns what it was given is both
            expected, first = self._unfinished[origin]
            if len(call.inputs) != 1 and origin in fed and origin not in around:
                continue
            del self._unfinished[origin]
            if agree_in_any_layout(expected, call.outputs[0].value.numpy(), self._tolerance):
                return first
        return None

    def _idle_elsewhere(self, base: Call, raw: Call, same: Same) -> bool:
        """Two that pass on what they are given, at different places: before or after a scale is all the same."""
        if raw.parent < 0 or len(raw.inputs) != 1 or len(base.inputs) != 1:
            return False
        return self.idles(base) and not alters(raw) and not _same_given(base, raw, same)

    def idles(self, base: Call) -> bool:
        """Whether a call of base passes on what it is given, in models built differently."""
        return not self._alike and not self._base_tree.nodes[base.node].children and not alters(base)

    def _look_alike(self, call: Call, same: Same) -> Call | None:
        """Among base's calls that could be the partner, the one that returned the same; else one of its kind and
        place that was given the same."""
        candidates = [one for one in self._pairing.candidates(call) if len(one.outputs) == len(call.outputs) == 1]
        for base in candidates:
            if same(base.outputs[0], call.outputs[0]) and _same_given(base, call, same):
                return base
        if not candidates:
            return self._further(call, same)
        shape, hint = call.outputs[0].value.shape, self._pairing.hinted(call)
        alike = [one for one in candidates if one.node == hint or one.kind.lower() == call.kind.lower()]
        alike = [one for one in alike if self._base_tree.nodes[one.node].layer not in PASSIVE or alters(call)]
        alike = [one for one in alike if _same_given(one, call, same)]
        alike.sort(key=lambda one: one.outputs[0].value.shape != shape)  # a pool that rounds up returns another shape
        if alike:
            return alike[0]
        active = [one for one in candidates if self._base_tree.nodes[one.node].layer not in PASSIVE]
        active = [one for one in active if one.outputs[0].value.shape == shape and _same_given(one, call, same)]
        if len(active) == 1 and alters(call):
            return active[0]
        later = self._further(call, same)
        if later is not None:
            return later
        # Given other things already, it tells nothing by itself; its place in the tree still says whose partner it is.
        return next((one for one in candidates if one.node == hint and one.outputs[0].value.shape == shape), None)

    def _further(self, call: Call, same: Same) -> Call | None:
        """One of its kind that was given the same, after other calls that have no partner."""
        kind = call.kind.lower()
        for base in self._pairing.further(call):
            alone = len(base.outputs) == len(call.outputs) == 1
            if alone and base.kind.lower() == kind and _same_given(base, call, same):
                return base
        return None

    def _chain(self, base: Call, call: Call, same: Same) -> Call:
        """A norm with its own activation beside a norm and an activation, or a layer beside one and what it was merged
        with: base's two, if raw returned what they do."""
        if len(base.outputs) != 1 or len(call.outputs) != 1:
            return base
        norm, near = not self._alike and _is_norm(self._base_tree, base), self._pairing.lone_near(call)
        beyond = self._pairing.lone_beyond(base)
        if not (norm or near or beyond):
            return base
        if same(base.outputs[0], call.outputs[0]) or not _same_given(base, call, same):
            return base
        after = [(one, False) for one in self._pairing.candidates_after(base)] if norm else []
        for other, around in (*after, *beyond):
            fed = around or (other.inputs and other.inputs[0].origin == base.outputs[0].origin)
            if fed and len(other.outputs) == 1 and same(other.outputs[0], call.outputs[0]):
                return other if around else replace(base, path=f"{base.path} + {other.path}", outputs=other.outputs)
        if norm or near:
            expected = np.array(base.outputs[0].value.numpy())  # base's own may be let go before the rest is seen
            self._unfinished[call.outputs[0].origin] = (expected, call)
            if len(self._unfinished) > MOST_UNFINISHED:
                del self._unfinished[next(iter(self._unfinished))]
        if norm and _rectified(base.outputs[0].value, call.outputs[0].value):
            self.rectified.append(call.index)
        return base


def _same_given(base: Call, raw: Call, same: Same) -> bool:
    return bool(base.inputs and raw.inputs) and same(base.inputs[0], raw.inputs[0])


def alters(call: Call) -> bool:
    """Whether a call returned anything else than what it was given."""
    if not call.inputs or len(call.outputs) != 1 or call.inputs[0].value.shape != call.outputs[0].value.shape:
        return True
    if call.inputs[0].value.overwritten or call.outputs[0].value.overwritten:
        return True
    given, returned = call.inputs[0].value.numpy(), call.outputs[0].value.numpy()
    row = (0,) * (given.ndim - 1)  # tells nearly always
    if given.size and not np.array_equal(given[row], returned[row], equal_nan=True):
        return True
    return not np.array_equal(given, returned, equal_nan=True)


def _rectified(base: Value, raw: Value) -> bool:
    if base.shape != raw.shape:
        return False
    expected, found = np.maximum(base.numpy(), 0), raw.numpy()
    return bool(np.abs(expected - found).max(initial=0) <= 1e-4 * np.abs(expected).max(initial=0))


def _is_norm(tree: ModuleTree, call: Call) -> bool:
    return "norm" in (tree.nodes[call.node].layer or tree.nodes[call.node].kind).lower()
