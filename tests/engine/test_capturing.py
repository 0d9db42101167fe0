"""Recording a model that somebody else runs: which steps there are, and that the run is what it would have been."""

from __future__ import annotations

import copy
import gc
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import padiff
from padiff.errors import ArgumentError, DumpError
from padiff.frameworks import adapter_named
from padiff.store import Dump

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


def net() -> Any:
    torch.manual_seed(0)
    return Net()


def batch() -> Any:
    return torch.randn(5, 6)


def train(model: Any, optimizer: Any, steps: int, after: Callable[[Any], None] = lambda loss: None) -> list[float]:
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        loss = model(batch()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        after(loss)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("given", [False, True], ids=["found", "optimizer given"])
@pytest.mark.parametrize("calibrate", [False, True], ids=["plain", "calibrated"])
def test_a_training_loop_runs_as_it_would_have(given: bool, calibrate: bool, tmp_path: Path) -> None:
    model, twin = net(), net()
    optimizer, other = (torch.optim.AdamW(one.parameters(), 1e-2) for one in (model, twin))
    losses = train(twin, other, 4)
    drawn = torch.get_rng_state()
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer if given else None, calibrate=calibrate) as run:
        assert train(model, optimizer, 4, run.loss) == losses
    assert torch.equal(torch.get_rng_state(), drawn)
    assert run.steps == [0, 1, 2, 3]
    for name, tensor in twin.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert all(not one._backward_hooks for one in model.parameters())
    assert "step" not in vars(optimizer)
    dump = padiff.load(tmp_path / "run")
    dump.check()
    for step, loss in zip(dump.steps, losses, strict=True):
        assert step.loss is not None and float(step.loss.numpy()) == loss
        assert [call.path for call in step.calls] == ["first", "norm", "drop", "last", ""]
        assert step.trace().ran_backward
        assert all(value is not None for value in step.parameter_gradients.values())
        assert len(step.gradients) == 5
        assert bool(step.noise) == calibrate
    weights = {path: value.numpy() for path, value in dump.steps[3].weights.items()}
    for path, parameter in model.named_parameters():
        assert np.array_equal(weights[path], parameter.detach().numpy())


def test_gradients_are_those_of_the_step(tmp_path: Path) -> None:
    model = net().eval()
    x = batch()
    model(x).sum().backward()
    expected = {path: parameter.grad.clone().numpy() for path, parameter in model.named_parameters()}
    model.zero_grad()
    with padiff.capture(model, tmp_path / "run"):
        model(x).sum().backward()
        model.zero_grad()
    found = padiff.load(tmp_path / "run").step(0).parameter_gradients
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        value = found[path]
        assert value is not None and np.array_equal(value.numpy(), array)


def accumulate(model: Any, optimizer: Any) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            model(batch()).sum().backward()
        optimizer.step()


def several_forwards(model: Any, optimizer: Any) -> None:
    for _ in range(2):
        (model(batch()) - model(batch())).square().mean().backward()
        optimizer.step()


def evaluate(model: Any, optimizer: Any) -> None:
    model.eval()
    for _ in range(3):
        model(batch())


def no_grad(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        for _ in range(3):
            model(batch())


def inference_mode(model: Any, optimizer: Any) -> None:
    with torch.inference_mode():
        for _ in range(3):
            model(batch())


def validate_between(model: Any, optimizer: Any) -> None:
    for _ in range(2):
        model(batch()).sum().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch())
        model.train()


LOOPS: dict[str, tuple[Callable[[Any, Any], None], list[int], list[int]]] = {
    # without an optimizer, with one: calls of the model in each step
    "accumulated gradients": (accumulate, [1, 1, 1, 1, 1, 1], [3, 3]),
    "several forwards": (several_forwards, [2, 2], [2, 2]),
    "evaluation mode": (evaluate, [1, 1, 1], [1, 1, 1]),
    "no_grad": (no_grad, [1, 1, 1], [1, 1, 1]),
    "inference_mode": (inference_mode, [1, 1, 1], [1, 1, 1]),
    "validation in between": (validate_between, [1, 1, 1, 1], [1, 1, 1, 1]),
}


@pytest.mark.parametrize("given", [False, True], ids=["found", "optimizer given"])
@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_found(name: str, given: bool, tmp_path: Path) -> None:
    loop, alone, with_optimizer = LOOPS[name]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer if given else None):
        loop(model, optimizer)
    found = [sum(call.parent < 0 for call in step.calls) for step in padiff.load(tmp_path / "run").steps]
    assert found == (with_optimizer if given else alone)


def test_accumulated_gradients_are_summed(tmp_path: Path) -> None:
    model = net().eval()
    model.drop.p = 0.0
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    xs = [batch(), batch()]
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer):
        for x in xs:
            model(x).sum().backward()
        optimizer.step()
    value = padiff.load(tmp_path / "run").step(0).parameter_gradients["first.weight"]
    assert value is not None
    assert np.array_equal(value.numpy(), model.first.weight.grad.numpy())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"steps": 2}, [0, 1]),
        ({"steps": [1, 5]}, [1, 5]),
        ({"steps": range(2, 6), "every": 2}, [2, 4]),
    ],
)
def test_which_steps_are_dumped(options: Any, expected: list[int], tmp_path: Path) -> None:
    model = net()
    seen: list[int] = []
    with padiff.capture(model, tmp_path / "run", **options) as run:
        for _ in range(7):
            out = model(batch())
            seen.append(sum(len(one._forward_hooks) for one in model.modules() if one is not model))
            out.sum().backward()
    assert run.steps == expected
    assert [step.number for step in padiff.load(tmp_path / "run").steps] == expected
    assert seen == [0] * 7  # on no step is anything left on the inner modules


def test_steps_that_are_not_dumped_see_no_hooks(tmp_path: Path) -> None:
    model = net()
    inside: list[int] = []
    model.drop.register_forward_hook(lambda *_: inside.append(len(model.first._forward_hooks)))
    with padiff.capture(model, tmp_path / "run", every=2, calibrate=False):
        for _ in range(4):
            model(batch()).sum().backward()
    assert [count > 0 for count in inside] == [True, False, True, False]


def test_only_some_modules(tmp_path: Path) -> None:
    model = net()
    with padiff.capture(model, tmp_path / "run", only=["norm"]):
        model(batch()).sum().backward()
    step = padiff.load(tmp_path / "run").step(0)
    whole = {call.path: [slot.value.whole for slot in (*call.inputs, *call.outputs)] for call in step.calls}  # type: ignore[attr-defined]
    assert whole == {
        "first": [False, True],
        "norm": [True, True],
        "drop": [False, False],
        "last": [False, False],
        "": [False, False],
    }
    assert list(step.weights_before) == ["norm.weight", "norm.bias"]
    assert list(step.parameter_gradients) == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize("kind", ["stats", "hash"])
def test_small_kinds(kind: Any, tmp_path: Path) -> None:
    model = net()
    with padiff.capture(model, tmp_path / "run", kind=kind):
        model(batch()).sum().backward()
    dump = padiff.load(tmp_path / "run")
    dump.check()
    assert dump.kind == kind and len(dump.step(0).calls) == 5


def test_an_exception_leaves_no_dump_and_reaches_the_user(tmp_path: Path) -> None:
    model = net()

    class Mine(Exception):
        pass

    with pytest.raises(Mine), padiff.capture(model, tmp_path / "run"):
        model(batch()).sum().backward()
        raise Mine
    assert list(tmp_path.iterdir()) == []
    assert not model._forward_hooks and not model.first._forward_hooks


def test_an_exception_inside_the_model(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(RuntimeError), padiff.capture(model, tmp_path / "run"):
        model(torch.randn(5, 7))
    assert list(tmp_path.iterdir()) == []
    assert all(not one._forward_hooks and not one._forward_pre_hooks for one in model.modules())
    with padiff.capture(model, tmp_path / "run") as run:  # caught by the user: the step is tried again
        for width in (6, 7, 6):
            try:
                model(torch.randn(5, width)).sum().backward()
            except RuntimeError:
                continue
    assert run.steps == [0, 1]
    padiff.load(tmp_path / "run").check()


def test_a_dump_that_is_there_stays(tmp_path: Path) -> None:
    model = net()
    with padiff.capture(model, tmp_path / "run"):
        model(batch())
    with pytest.raises(DumpError, match="overwrite=True"), padiff.capture(model, tmp_path / "run"):
        pass
    assert not model._forward_hooks
    with padiff.capture(model, tmp_path / "run", overwrite=True):
        model(batch())
        model(batch())
    Dump.open(tmp_path / "run").check()


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"every": 0}, ArgumentError, "every"),
        ({"steps": "all"}, ArgumentError, "steps"),
        ({"steps": [-1]}, ArgumentError, "steps"),
        ({"steps": []}, ArgumentError, "steps is empty"),
        ({"only": "norm"}, ArgumentError, "only"),
        ({"only": []}, ArgumentError, "only is empty"),
        ({"only": ["nrm"]}, ArgumentError, "did you mean 'norm'"),
        ({"optimizer": 3}, ArgumentError, "optimizer"),
        ({"level": "line"}, ArgumentError, "level"),
        ({"kind": "half"}, ArgumentError, "kind"),
    ],
)
def test_wrong_calls(options: Any, error: type[Exception], named: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=named), padiff.capture(net(), tmp_path / "run", **options):
        pass
    assert list(tmp_path.iterdir()) == []


def test_ranks_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with padiff.capture(net(), tmp_path / "run"):
            pass
        assert padiff.load(tmp_path / "run" / f"rank_{rank}").facts.rank == int(rank)


def test_what_remembers_is_not_run_twice(tmp_path: Path) -> None:
    class Cache:
        length = 0

    class Counting(Net):
        def forward(self, x: Any, cache: Any = None) -> Any:
            cache.length += 1
            return super().forward(x)

    cache, model = Cache(), Counting()
    with padiff.capture(model, tmp_path / "run"):
        model(batch(), cache)
    assert cache.length == 1
    assert not padiff.load(tmp_path / "run").step(0).noise


def test_a_model_that_remembers_is_not_calibrated(tmp_path: Path) -> None:
    class Remembers(Net):
        calls = 0

        def forward(self, x: Any) -> Any:
            type(self).calls += 1
            return super().forward(x) * self.calls

    model = Remembers().eval()
    with padiff.capture(model, tmp_path / "run"):
        model(batch())
    step = padiff.load(tmp_path / "run").step(0)
    assert not step.noise and step.extra["repeats"] is False


def test_another_precision_is_not_mistaken_for_noise(tmp_path: Path) -> None:
    model = net()
    with padiff.capture(model, tmp_path / "run"):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batch())
        out.float().square().mean().backward()
    assert not padiff.load(tmp_path / "run").step(0).noise


def test_inference_mode_is_calibrated(tmp_path: Path) -> None:
    model = net().eval()
    with torch.inference_mode(), padiff.capture(model, tmp_path / "run"):
        model(batch())
    assert padiff.load(tmp_path / "run").step(0).noise["tensors"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the trainer's own
def test_a_trainer_runs_it(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    paddle.seed(0)
    layer = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 3))
    places = np.arange(8)
    rows = np.repeat(places[:, None], 6, 1).astype("float32")
    data = paddle.io.TensorDataset([paddle.to_tensor(rows), paddle.to_tensor(places[:, None] % 3)])
    optimizer = paddle.optimizer.Adam(1e-3, parameters=layer.parameters())
    model = paddle.Model(layer)
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
    with padiff.capture(layer, tmp_path / "run", optimizer=optimizer) as run:
        model.fit(data, batch_size=2, epochs=1, shuffle=False, verbose=0)
    assert run.steps == [0, 1, 2, 3]
    for step in padiff.load(tmp_path / "run").steps:
        assert step.trace().ran_backward and set(step.weights) == set(step.parameter_gradients)


def test_memory_stays_flat(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    sizes = []
    with padiff.capture(model, tmp_path / "run", optimizer=optimizer, every=100):
        tracemalloc.start()
        for _ in range(4):
            train(model, optimizer, 300)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[3] - sizes[1] < 200_000
    assert threading.active_count() < 10


def test_paddle_too(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    adapter = adapter_named("paddle")
    paddle.seed(0)
    model = paddle.nn.Sequential(
        paddle.nn.Linear(6, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Dropout(0.4), paddle.nn.Linear(8, 3)
    )
    twin = copy.deepcopy(model)

    def loop(model: Any, optimizer: Any) -> list[float]:
        paddle.seed(1)
        found = []
        for _ in range(3):
            loss = model(paddle.randn([5, 6])).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            found.append(float(loss))
        return found

    losses = loop(twin, paddle.optimizer.AdamW(1e-2, parameters=twin.parameters()))
    for given in (False, True):
        one = copy.deepcopy(model)
        optimizer = paddle.optimizer.AdamW(1e-2, parameters=one.parameters())
        with padiff.capture(one, tmp_path / "run", optimizer=optimizer if given else None, overwrite=True) as run:
            assert loop(one, optimizer) == losses
        assert run.steps == [0, 1, 2]
        dump = padiff.load(tmp_path / "run")
        dump.check()
        assert dump.step(2).trace().ran_backward and dump.step(2).noise
        for (path, mine), (_, other) in zip(one.named_parameters(), twin.named_parameters(), strict=True):
            assert np.array_equal(adapter.to_numpy(mine), adapter.to_numpy(other))
            if mine.trainable:
                assert np.array_equal(dump.step(2).weights[path].numpy(), adapter.to_numpy(mine))


def test_a_model_without_data_is_refused(tmp_path: Path) -> None:
    model = net()
    model.last = nn.Linear(8, 3, device="meta")
    with pytest.raises(ArgumentError, match="the weight of a Linear of the model is on the device meta"):
        padiff.capture(model, tmp_path / "run")
