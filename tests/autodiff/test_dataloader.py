"""Two sources of batches, held against each other."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from padiff import check_dataloader
from tests.autodiff.conftest import Log

IMAGES = np.arange(48, dtype="float32").reshape(4, 2, 6)
LABELS = np.array([3, 1, 2, 0])


def batches(framework: Any = np.asarray, images: np.ndarray = IMAGES) -> list[dict[str, Any]]:
    return [{"img": framework(one), "label": int(label)} for one, label in zip(images, LABELS, strict=True)]


@pytest.mark.parametrize("first", [np.asarray, torch.as_tensor, paddle.to_tensor])
@pytest.mark.parametrize("second", [np.asarray, torch.as_tensor, paddle.to_tensor])
def test_equal_batches_of_any_framework(first: Any, second: Any, log: Log) -> None:
    assert check_dataloader(batches(first), batches(second)) is True
    assert log() == ["4 batches compared. (mean, rtol=1e-07, atol=0)", "SUCCESS !!!"]


class TorchSet(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> Any:
        return IMAGES[index], LABELS[index]

    def __len__(self) -> int:
        return 4


class PaddleSet(paddle.io.Dataset):
    def __getitem__(self, index: int) -> Any:
        return IMAGES[index], LABELS[index]

    def __len__(self) -> int:
        return 4


def test_the_frameworks_own_loaders(log: Log) -> None:
    one = torch.utils.data.DataLoader(TorchSet(), batch_size=2)
    two = paddle.io.DataLoader(PaddleSet(), batch_size=2, shuffle=False, return_list=True)
    assert check_dataloader(one, two) is True
    assert log()[0].startswith("2 batches compared.")
    shuffled = paddle.io.DataLoader(PaddleSet(), batch_size=4, shuffle=False, return_list=True)
    assert check_dataloader(one, shuffled) is False
    assert log() == [
        "batch 0 differs in field '0': shapes differ: loader_0 [2, 2, 6], loader_1 [4, 2, 6]",
        "FAILED !!!",
    ]


def changed(batch: int, place: tuple[int, ...], by: float) -> np.ndarray:
    images = IMAGES.copy()
    images[(batch, *place)] += by
    return images


def test_the_first_batch_and_field_that_differ_are_named(log: Log) -> None:
    assert check_dataloader(batches(), batches(torch.as_tensor, changed(2, (1, 4), 0.5))) is False
    lines = log()
    assert lines[0].startswith("batch 2 differs in field 'img': 1 of 12 values differ")
    assert "at [1, 4] (loader_0 34.0, loader_1 34.5)" in " ".join(line.strip() for line in lines)
    assert lines[-1] == "FAILED !!!"


def test_bounds(log: Log) -> None:
    images = changed(1, (0, 0), 1e-3)
    assert check_dataloader(batches(), batches(images=images)) is False
    assert check_dataloader(batches(), batches(images=images), atol=1e-3) is True
    assert check_dataloader(batches(), batches(images=images), atol=1e-3 / 12 * 1.1) is True
    assert check_dataloader(batches(), batches(images=images), atol=1e-3 / 12 * 1.1, compare_mode="strict") is False
    assert check_dataloader(batches(), batches(images=images), rtol=1e-3, compare_mode="strict") is True


def test_one_ends_before_the_other(log: Log) -> None:
    assert check_dataloader(batches()[:3], batches()) is False
    assert log() == ["loader_0 ends after 3 batches, loader_1 goes on", "FAILED !!!"]
    assert check_dataloader(batches(), batches()[:1]) is False
    assert log() == ["loader_1 ends after 1 batch, loader_0 goes on", "FAILED !!!"]


def test_nothing_on_either_side(log: Log) -> None:
    assert check_dataloader([], iter(())) is False
    assert log() == [
        "neither loader yields a batch (an iterator that was read before is at its end): there was nothing to compare",
        "FAILED !!!",
    ]


def test_batches_that_hold_nothing(log: Log) -> None:
    assert check_dataloader([{}, []], [{}, []]) is False
    assert log() == ["2 batches of both loaders hold nothing: there was nothing to compare", "FAILED !!!"]
    assert check_dataloader([{}, [1]], [{}, [1]]) is True
    assert log()[-1] == "SUCCESS !!!"


Pair = namedtuple("Pair", ["image", "label"])


@dataclasses.dataclass
class Sample:
    image: Any
    meta: dict[str, Any]


class Opaque:
    """Something the loaders hand through that has no elements."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Opaque({self.value})"


ONE, TWO = np.zeros(3), np.ones(3)
DIFFERING: list[tuple[Any, Any, str]] = [
    ({"a": ONE}, {"b": ONE}, "field 'a': only loader_0 has it"),
    ({"a": ONE}, {"a": ONE, "b": ONE}, "field 'b': only loader_1 has it"),
    ({"a": ONE}, [ONE], "field 'a': only loader_0 has it"),
    ((ONE, None), (ONE, TWO), "field '1': only loader_1 has it"),
    ({"a": {"b": [ONE, ONE]}}, {"a": {"b": [ONE, TWO]}}, "field 'a.b.1': 3 of 3 values differ"),
    (Pair(ONE, 1), Pair(ONE, 2), "field 'label': 1 of 1 values differ"),
    (Sample(ONE, {"id": 3}), Sample(ONE, {"id": 4}), "field 'meta.id': 1 of 1 values differ"),
    (ONE, TWO, "the batch itself: 3 of 3 values differ"),
    ({"a": ONE}, {"a": ONE.astype("float32")}, "field 'a': dtypes differ: loader_0 float64, loader_1 float32"),
    ({"path": "a.png"}, {"path": "b.png"}, "field 'path': 'a.png' in loader_0, 'b.png' in loader_1"),
    ({"path": ["a", "b"]}, {"path": ["a", "c"]}, "field 'path.1': 'b' in loader_0, 'c' in loader_1"),
    ({"n": np.array(["a", "b"])}, {"n": np.array(["a", "c"])}, "field 'n': array(['a', 'b']"),
    ({"n": np.array(["a", "b"])}, {"n": np.array(["a"])}, "field 'n': shapes differ: loader_0 [2], loader_1 [1]"),
    ({"a": ONE}, {"a": "text"}, "field 'a': array([0., 0., 0.]) in loader_0, 'text' in loader_1"),
    ({"a": float("nan")}, {"a": 1.0}, "field 'a': NaN or Inf on one side only"),
    ({"a": Opaque(1)}, {"a": Opaque(2)}, "field 'a': Opaque(1) in loader_0, Opaque(2) in loader_1"),
]


@pytest.mark.parametrize(("one", "two", "said"), DIFFERING)
def test_what_differs(one: Any, two: Any, said: str, log: Log) -> None:
    assert check_dataloader([one, one], [one, two]) is False
    assert log()[0].startswith(f"batch 1 differs in {said}"[:90])


@pytest.mark.parametrize("batch", [pair[0] for pair in DIFFERING])
def test_a_batch_equals_itself(batch: Any) -> None:
    assert check_dataloader([batch], [batch]) is True


def test_an_error_of_a_loader_reaches_the_user() -> None:
    def broken() -> Iterator[Any]:
        yield {"img": ONE}
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        check_dataloader([{"img": ONE}] * 2, broken())
