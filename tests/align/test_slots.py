"""Which tensor of one call belongs to which of its partner: keys of dicts, positions, shapes."""

from __future__ import annotations

import numpy as np
import pytest

from padiff.align import pair_slots
from padiff.engine.outputs import places_in_common
from padiff.records import Slot

CASES = {
    "one each, whatever they are called": ({"": (2, 3)}, {"logits": (6,)}, [("", "logits")]),
    "equal keys in another order": ({"a": (2,), "b": (3,)}, {"b": (3,), "a": (2,)}, [("a", "a"), ("b", "b")]),
    "positions": ({"0": (2,), "1": (3,)}, {"x": (2,), "y": (4,)}, [("0", "x"), ("1", "y")]),
    "a key in common": ({"aux": (2, 3), "logits": (2, 3)}, {"logits": (2, 3), "pool": (2,)}, [("logits", "logits")]),
    "a key in common, another shape": ({"a": (2,), "b": (3,)}, {"c": (5,), "a": (4,)}, [("a", "a")]),
    "another layout under another key": (
        {"logits": (2,), "feat": (1, 2, 3)},
        {"features": (1, 3, 2), "logits": (2,)},
        [("logits", "logits"), ("feat", "features")],
    ),
    "one position more": ({"0": (2,), "1": (3,)}, {"0": (3,)}, [("1", "0")]),
    "other keys of one shape": ({"a": (2,), "b": (3,), "c": (9,)}, {"x": (3,), "y": (2,)}, [("a", "y"), ("b", "x")]),
}


class Tensor:
    """A value of which only the shape matters."""

    dtype = "float32"
    overwritten = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def numpy(self) -> np.ndarray:
        return np.full(self.shape, 0.5)

    def release(self) -> None: ...


def slots(shapes: dict[str, tuple[int, ...]]) -> list[Slot]:
    return [Slot(name, number, Tensor(shape)) for number, (name, shape) in enumerate(shapes.items())]


@pytest.mark.parametrize("case", CASES)
def test_slots(case: str) -> None:
    base, raw, expected = CASES[case]
    pairs, base_alone, raw_alone = pair_slots(slots(base), slots(raw))
    assert [(one.name, other.name) for one, other in pairs] == expected
    assert {one.name for one in base_alone} == base.keys() - {one for one, _ in expected}
    assert {other.name for other in raw_alone} == raw.keys() - {other for _, other in expected}


def test_a_tensor_that_is_returned_again_among_all_states() -> None:
    """Which place it has in the order is not known: the last state, or the first thing returned."""
    states = slots({"last": (2, 48, 3), "states.0": (2, 16, 12), "states.1": (2, 32, 6)})
    base = [*states, Slot("states.2", states[0].tensor, states[0].value)]
    raw = slots({"0": (2, 16, 12), "1": (2, 32, 6), "2": (2, 48, 3)})
    pairs, *alone = pair_slots(base, raw)
    assert alone == [[], []]
    assert [(one.name, other.name) for one, other in pairs] == [("last", "2"), ("states.0", "0"), ("states.1", "1")]


def test_what_modules_are_given_with_axes_merged() -> None:
    base = slots({"queries": (2, 3, 5, 8), "keys": (6, 1, 7, 8), "mask": (2, 1, 4)})
    raw = slots({"0": (6, 5, 8), "1": (6, 7, 8), "2": (2, 4)})
    pairs, base_alone, raw_alone = pair_slots(base, raw, loosely=True)
    assert [(one.name, other.name) for one, other in pairs] == [("queries", "0"), ("keys", "1")]
    assert [slot.name for slot in (*base_alone, *raw_alone)] == ["mask", "2"]


class Places(Tensor):
    dtype = "int64"

    def numpy(self) -> np.ndarray:
        return np.arange(int(np.prod(self.shape))).reshape(self.shape)


def test_tables_for_a_batch_of_one_or_for_none() -> None:
    """Distances of places are no angles, and what marks places may say something else in another shape."""
    base = [
        Slot("x", 0, Tensor((2, 4, 8))),
        Slot("distances", 1, Places((1, 4, 4))),
        Slot("angles", 2, Tensor((1, 4, 4))),
    ]
    raw = [Slot("0", 0, Tensor((2, 4, 8))), Slot("1", 1, Tensor((4, 4))), Slot("2", 2, Places((4, 4)))]
    pairs, *alone = pair_slots(base, raw, loosely=True)
    assert sorted((one.name, other.name) for one, other in pairs) == [("angles", "1"), ("distances", "2"), ("x", "0")]
    assert alone == [[], []]
    flags = [Slot("x", 0, Tensor((2, 4, 8))), Slot("mask", 1, Zeros((1, 4, 4)))]
    pairs, *_ = pair_slots(flags, raw[:2], loosely=True)
    assert [(one.name, other.name) for one, other in pairs] == [("x", "0")]


class Zeros(Tensor):
    def numpy(self) -> np.ndarray:
        return np.zeros(self.shape)


def test_a_default_loss_goes_over_what_both_return() -> None:
    tensor, pooled = np.zeros((2, 3)), np.zeros(2)
    both = [("logits", tensor), ("aux", tensor)]
    assert places_in_common(both, both[::-1]) == (None, None)
    assert places_in_common(both, [("pool", pooled), ("logits", tensor)]) == ({"logits"}, {"logits"})
    assert places_in_common([("0", tensor), ("1", pooled)], [("logits", tensor)]) == ({"0"}, {"logits"})
    assert places_in_common([("", tensor)], [("", pooled)]) == (None, None)


class Flags(Tensor):
    dtype = "bool"

    def __init__(self, *flags: int) -> None:
        super().__init__((len(flags),))
        self._flags = flags

    def numpy(self) -> np.ndarray:
        return np.array(self._flags, bool)


def test_masks_of_which_one_author_passes_more() -> None:
    """They belong together by what they say, unless that is the same of all places."""
    base = [Slot("0", 0, Tensor((2, 3))), Slot("1", 1, Flags(1, 1, 1)), Slot("2", 2, Flags(0, 0, 1))]
    base.append(Slot("3", 3, Flags(1, 0, 0)))
    raw = [Slot("0", 0, Tensor((2, 3))), Slot("1", 1, Flags(1, 1, 1)), Slot("2", 2, Flags(1, 0, 0))]
    pairs, base_alone, raw_alone = pair_slots(base, raw, loosely=True)
    assert sorted((one.name, other.name) for one, other in pairs) == [("0", "0"), ("1", "1"), ("3", "2")]
    assert [slot.name for slot in base_alone] == ["2"]
    assert not raw_alone


def test_a_tensor_that_is_returned_again_later_keeps_its_first_place() -> None:
    """A model that returns its last state and then all of them returns the last one first."""
    last, first = Slot("0", 2, Tensor((2, 3))), Slot("1.0", 0, Tensor((2, 3)))
    pairs, _, _ = pair_slots([Slot("", 0, Tensor((2, 3)))], [last, first, Slot("1.1", 2, Tensor((2, 3)))])
    assert [(one.name, other.name) for one, other in pairs] == [("", "0")]
