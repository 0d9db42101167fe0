"""Raw runs on parts of what base is given at once: halves of a batch, a prompt and then token after token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.twins import PAIRS


class TorchAttention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(6, 6) for _ in range(3))
        self.stale = False

    def forward(self, x: Any, past: Any = None) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if past is not None:
            k, v = (torch.cat([old, new], 1) for old, new in zip(past, (k, v), strict=True))
            k = k.roll(1, 1) if self.stale else k
        mask = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1])
        scores = (q @ k.transpose(1, 2)).masked_fill(mask == 0, -1e9)
        return torch.softmax(scores, -1) @ v, (k, v)


class PaddleAttention(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (paddle.nn.Linear(6, 6) for _ in range(3))
        self.stale = False

    def forward(self, x: Any, past: Any = None) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if past is not None:
            k, v = (paddle.concat([old, new], 1) for old, new in zip(past, (k, v), strict=True))
            k = k.roll(1, 1) if self.stale else k
        mask = paddle.ones([q.shape[1], k.shape[1]]).tril(k.shape[1] - q.shape[1])
        scores = (q @ k.transpose([0, 2, 1])) + (mask - 1) * 1e9
        return paddle.nn.functional.softmax(scores, -1) @ v, (k, v)


class TorchDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11)
        self.layers = torch.nn.ModuleList(TorchAttention() for _ in range(3))

    def forward(self, ids: Any, pasts: Any = (None, None, None)) -> Any:
        x, kept = self.embed(ids), []
        for layer, past in zip(self.layers, pasts, strict=True):
            more, past = layer(x, past)
            x = x + more
            kept.append(past)
        return self.head(x), kept


class PaddleDecoder(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = paddle.nn.Embedding(11, 6), paddle.nn.Linear(6, 11)
        self.layers = paddle.nn.LayerList([PaddleAttention() for _ in range(3)])

    def forward(self, ids: Any, pasts: Any = (None, None, None)) -> Any:
        x, kept = self.embed(ids), []
        for layer, past in zip(self.layers, pasts, strict=True):
            more, past = layer(x, past)
            x = x + more
            kept.append(past)
        return self.head(x), kept


class Around(torch.nn.Module):
    """Calls a model at once, in halves of its batch, or token after token."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.model, self.way = TorchDecoder(), way

    def forward(self, ids: Any) -> Any:
        return _called(self.model, self.way, ids, torch.cat)


class PaddleAround(paddle.nn.Layer):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.model, self.way = PaddleDecoder(), way

    def forward(self, ids: Any) -> Any:
        return _called(self.model, self.way, ids, paddle.concat)


def _called(model: Any, way: str, ids: Any, joined: Any) -> Any:
    if way == "at once":
        return model(ids)[0]
    if way == "halves":
        return joined([model(ids[:2])[0], model(ids[2:])[0]], 0)
    found, pasts = model(ids[:, :4])
    logits = [found]
    for place in range(4, ids.shape[1]):
        found, pasts = model(ids[:, place : place + 1], pasts)
        logits.append(found)
    return joined(logits, 1)


def model(framework: str, way: str) -> Any:
    torch.manual_seed(0)
    return Around(way) if framework == "torch" else PaddleAround(way)


def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 11, size=(3, 7))


@pytest.mark.parametrize("way", ["halves", "token after token"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_parts_are_held_against_the_whole(base: str, raw: str, way: str) -> None:
    result = padiff.compare(model(base, "at once"), model(raw, way), ids())
    assert result.aligned, result.divergence
    assert result.coverage["calls"] == 1.0
    calls = [one for one in result.comparisons if (one.raw_path, one.role) == ("model.layers.1.q", "output")]
    times = 2 if way == "halves" else 4
    assert [one.phase for one in calls] == ["forward"] * times + ["backward"] * times


@pytest.mark.parametrize("way", ["halves", "token after token"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_fault_in_a_part_is_named(base: str, raw: str, way: str) -> None:
    wrong = model(raw, way)
    forward = wrong.model.head.forward
    wrong.model.head.forward = lambda x: forward(x) * (1.1 if x.shape[0] == 1 or x.shape[1] == 1 else 1.0)
    found = padiff.compare(model(base, "at once"), wrong, ids()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("model.head", "forward")
    assert any(cause.name == "scale" for cause in found.causes)


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_a_cache_that_is_out_of_place_is_named(base: str, raw: str) -> None:
    wrong = model(raw, "token after token")
    wrong.model.layers[1].stale = True
    found = padiff.compare(model(base, "at once"), wrong, ids(), phase="forward").divergence
    assert found is not None
    assert (found.raw_path, found.phase, found.op) == ("model.layers.1", "forward", None)


@pytest.mark.parametrize("way", ["halves", "token after token"])
def test_a_fault_in_the_whole_is_named_where_base_calls_in_parts(way: str) -> None:
    wrong = model("paddle", "at once")
    forward = wrong.model.head.forward
    wrong.model.head.forward = lambda x: forward(x) * 1.1
    found = padiff.compare(model("torch", way), wrong, ids()).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("model.head", "forward")


class TorchFrames(torch.nn.Module):
    """A cell that goes along a sequence, and layers before and after it: called on all frames at once."""

    def __init__(self, act: Any = torch.tanh) -> None:
        super().__init__()
        self.before, self.cell, self.after = torch.nn.Linear(4, 6), torch.nn.GRUCell(6, 6), torch.nn.Linear(6, 3)
        self.act = act

    def forward(self, x: Any) -> Any:
        given = torch.relu(self.before(x))
        states = [torch.zeros(x.shape[0], 6)]
        for place in range(x.shape[1]):
            states.append(self.cell(given[:, place], states[-1]))
        return self.act(self.after(torch.stack(states[1:], 1)))


class PaddleFrames(paddle.nn.Layer):
    """The same, frame by frame."""

    def __init__(self, act: Any = paddle.tanh, cut: bool = False) -> None:
        super().__init__()
        self.tail, self.rnn, self.head = paddle.nn.Linear(6, 3), paddle.nn.GRUCell(6, 6), paddle.nn.Linear(4, 6)
        self.act, self.cut = act, cut

    def forward(self, x: Any) -> Any:
        state, found = paddle.zeros([x.shape[0], 6]), []
        for frame in x.unbind(1):
            given = self.head(frame)
            given = given if self.cut else paddle.nn.functional.relu(given)
            _, state = self.rnn(given, state)
            found.append(self.act(self.tail(state)))
        return paddle.stack(found, 1)


FRAMES = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")


@pytest.mark.parametrize("turned", [False, True])
def test_frames_in_a_loop_are_held_against_all_of_them(turned: bool) -> None:
    """Layers that are called in a loop are no difference, and what is one is named where it is."""
    pairs = [
        (TorchFrames(), PaddleFrames()),
        (TorchFrames(torch.sigmoid), PaddleFrames()),
        (TorchFrames(), PaddleFrames(cut=True)),
    ]
    results = [padiff.compare(*(pair[::-1] if turned else pair), FRAMES) for pair in pairs]
    assert results[0].aligned
    lone, cut = (result.divergence for result in results[1:])
    assert lone is not None and cut is not None
    assert {lone.base_path, lone.raw_path, cut.base_path, cut.raw_path} == {""}
    assert "sigmoid" in str(lone.op) and "tanh" in str(lone.op)
    assert "relu" in str(cut.op)
    assert not any("is called" in one.note for one in (lone, cut))


def test_fewer_positions_are_no_stretch() -> None:
    """One call that is given less than base's is a difference, as before."""
    base, raw = model("torch", "at once"), model("torch", "at once")
    raw.forward = lambda ids: raw.model(ids[:, :-1])[0]
    found = padiff.compare(base, raw, ids()).divergence
    assert found is not None
    assert any(cause.name == "slice" for cause in found.causes)


def looped(framework: str, to: Path, parts: int, divided: bool = True) -> None:
    """Three steps, each on one batch: at once, or gathered over parts of it."""
    one = model(framework, "at once").model
    optimizer: Any = (
        torch.optim.SGD(one.parameters(), 0.1)
        if framework == "torch"
        else paddle.optimizer.SGD(0.1, parameters=one.parameters())
    )
    with padiff.capture(one, to=to, optimizer=optimizer):
        for _ in range(3):
            for batch in np.split(np.concatenate([ids(), ids()[:1]]), parts):
                given = torch.as_tensor(batch) if framework == "torch" else paddle.to_tensor(batch)
                loss = (one(given)[0] ** 2).mean()
                (loss / parts if divided else loss).backward()
            optimizer.step()
            optimizer.zero_grad() if framework == "torch" else optimizer.clear_grad()


def test_gradients_gathered_over_parts_of_a_batch(tmp_path: Path) -> None:
    looped("torch", tmp_path / "whole", 1)
    looped("torch", tmp_path / "parts", 4)
    result = padiff.compare_dumps(tmp_path / "whole", tmp_path / "parts")
    assert result.aligned, result.divergence
    assert len(result.steps) == 3


def test_gradients_that_are_not_divided_by_the_parts(tmp_path: Path) -> None:
    looped("torch", tmp_path / "whole", 1)
    looped("torch", tmp_path / "parts", 4, divided=False)
    found = padiff.compare_dumps(tmp_path / "whole", tmp_path / "parts").divergence
    assert found is not None
    assert (found.raw_path, found.phase, found.step) == ("", "backward", 0)
    assert "look at the loss functions" in found.note


class Tower(torch.nn.Module):
    def __init__(self, *, affine: bool) -> None:
        super().__init__()
        self.stem, self.norm = torch.nn.Conv1d(2, 4, 3), torch.nn.BatchNorm1d(4, affine=affine)
        self.out = torch.nn.Conv1d(4, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.norm(self.stem(x))))


class Flow(torch.nn.Module):
    """Two towers of one make: one sees both pictures at once, the other the first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.context = Tower(affine=False), Tower(affine=True)

    def forward(self, x: Any, y: Any) -> Any:
        one, two = self.features(torch.cat([x, y])).chunk(2)
        return one * two + self.context(x)


class PortedTower(paddle.nn.Layer):
    def __init__(self, *, affine: bool, slope: float = 0.0) -> None:
        super().__init__()
        given = {} if affine else {"weight_attr": False, "bias_attr": False}
        self.last, self.bn = paddle.nn.Conv1D(4, 4, 1), paddle.nn.BatchNorm1D(4, **given)
        self.first, self.slope = paddle.nn.Conv1D(2, 4, 3), slope

    def forward(self, x: Any) -> Any:
        return self.last(paddle.nn.functional.leaky_relu(self.bn(self.first(x)), self.slope))


class PortedFlow(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.cnet = PortedTower(affine=True, slope=0.1 if bug == "cnet" else 0.0)
        self.fnet, self.bug = PortedTower(affine=False), bug

    def forward(self, x: Any, y: Any) -> Any:
        one, two = self.fnet(x), self.fnet(y)
        return (one + two if self.bug == "sum" else one * two) + self.cnet(x)


@pytest.mark.parametrize(("bug", "path"), [("", None), ("cnet", "cnet"), ("sum", "")])
def test_a_tower_that_sees_two_pictures_at_once_or_one_by_one(bug: str, path: str | None) -> None:
    """What all its calls return together tells it from the other tower."""
    x, y = (np.random.default_rng(seed).normal(size=(2, 2, 7)).astype("float32") for seed in range(2))
    base, raw = Flow().eval(), PortedFlow(bug)
    raw.eval()
    found = padiff.compare(base, raw, (x, y)).divergence
    assert (None if found is None else found.raw_path) == path, found
