"""``create_model``: the proxy runs and is the model, records what it is asked to, and writes it where it should."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import padiff
from padiff import auto_diff, create_model, get_dump_root_path, set_dump_root_path
from padiff.errors import ArgumentError, DumpError, UnknownFrameworkError
from padiff.store import Dump, dumps_below
from tests.autodiff.blocks import EVERY, FRAMEWORKS, blocks, data, sgd, tensor, train, twins
from tests.autodiff.conftest import Log

pytestmark = pytest.mark.usefixtures("root")


def numbers(thing: Any) -> np.ndarray:
    return np.array(thing.detach().numpy())


def trained(model: Any) -> list[tuple[str, Any]]:
    """Parameters that are: paddle counts running statistics among them, too."""
    return [(name, parameter) for name, parameter in model.named_parameters() if "norm._" not in name]


# ------------------------------------------------------------------ the proxy is the model


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_the_proxy_has(framework: str, root: Path) -> None:
    model = blocks(framework)
    proxy = create_model(model, name="mine", dump_freq=3)
    assert proxy.model is model
    assert (proxy.name, proxy.framework, proxy.dump_freq) == ("mine", framework, 3)
    assert proxy.dump_path == str(root / "mine")
    assert proxy.report.calls == ()
    assert create_model(model).name == type(model).__name__
    assert create_model(create_model(model)).model is model


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_everything_else_is_the_models(framework: str) -> None:
    model = blocks(framework)
    proxy = create_model(model)
    assert proxy.block1 is model.block1
    assert [id(p) for p in proxy.parameters()] == [id(p) for p in model.parameters()]
    assert list(proxy.state_dict()) == list(model.state_dict())
    assert proxy.eval() in (None, proxy)  # paddle's returns nothing
    assert not model.training
    assert proxy.train() in (None, proxy)
    assert proxy.training
    proxy.training = False
    assert not model.training
    assert "block1" in dir(proxy)
    assert repr(proxy).startswith("ProxyModel(")
    assert bool(proxy)
    with pytest.raises(AttributeError):
        proxy.nothing_of_the_kind  # noqa: B018
    assert copy.copy(proxy).model is model


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_recording_changes_nothing(framework: str) -> None:
    plain, watched = twins(framework, framework)
    proxy = create_model(watched)
    update, update_proxied = sgd(plain), sgd(proxy)
    for step in range(3):
        x = data(step)
        ours, theirs = plain(tensor(framework, x)), proxy(tensor(framework, x))
        assert np.array_equal(numbers(ours), numbers(theirs))
        ours.mean().backward()
        proxy.backward(theirs.mean())
        for (_, one), (_, other) in zip(trained(plain), trained(watched), strict=True):
            assert np.array_equal(numbers(one.grad), numbers(other.grad))
        update()
        update_proxied()
        proxy.try_dump()


def hooks(model: Any) -> int:
    """How many hooks sit on all modules, before and after their forward."""
    modules = model.modules() if hasattr(model, "modules") else model.sublayers(include_self=True)
    names = ("_forward_pre_hooks", "_forward_hooks", "_forward_post_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, name, ())) for module in modules for name in names)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_that_are_not_dumped_run_plain(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = blocks(framework)
    proxy = create_model(model, dump_freq=3)
    seen: list[tuple[int, bool]] = []
    inner = type(model.block2).forward

    def forward(self: Any, x: Any) -> Any:
        # Whether something is on the modules, and whether the framework's own call is all that called the model.
        seen.append((hooks(model), "forward" in vars(model.block2)))
        return inner(self, x)

    monkeypatch.setattr(type(model.block2), "forward", forward)
    untouched = (hooks(model), False)
    per_step = []
    for step in range(7):
        seen.clear()
        proxy.backward(proxy(tensor(framework, data(step))).mean())
        per_step.append(all(one == untouched for one in seen))
        assert (proxy.report.calls == ()) == (step % 3 != 0)
        proxy.try_dump()
        assert hooks(model) == 0
    assert per_step == [False, True, True, False, True, True, False]
    assert [step for step, _ in dumps_below(proxy.dump_path)] == [0, 3, 6]


# ------------------------------------------------------------------ what is recorded


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_report(framework: str) -> None:
    proxy = create_model(blocks(framework))
    x = tensor(framework, data())
    out = proxy(x)
    assert [call.path for call in proxy.report.calls] == EVERY
    assert not proxy.report.gradients
    proxy.backward(out.mean())
    report = proxy.report
    assert report.ran_backward
    assert report.loss is not None
    assert np.array_equal(report.loss.numpy(), numbers(out.mean()))
    outputs = {slot.tensor for call in report.calls for slot in call.outputs}
    assert outputs <= set(report.gradients)
    assert set(report.parameter_gradients) == {name for name, _ in trained(proxy)}
    proxy.clear_report()
    assert proxy.report.calls == ()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_the_user_writes_into_was_copied(framework: str) -> None:
    proxy = create_model(blocks(framework))
    x = tensor(framework, data())
    out = proxy(x)
    returned, given = numbers(out), numbers(x)
    out.detach().zero_()
    x.zero_()
    proxy.try_dump()
    root = Dump.open(Path(proxy.dump_path) / "step_0" / "rank_0").steps[0].calls[-1]
    assert np.array_equal(root.inputs[0].value.numpy(), given)
    assert np.array_equal(root.outputs[0].value.numpy(), returned)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_several_runs_are_one_step(framework: str) -> None:
    """Gradients accumulated over two batches: both are in the report, their sum is in the gradients."""
    proxy = create_model(blocks(framework))
    for part in range(2):
        proxy.backward(proxy(tensor(framework, data(part))).mean())
    proxy.try_dump()
    step = Dump.open(Path(proxy.dump_path) / "step_0" / "rank_0").steps[0]
    assert [call.path for call in step.calls] == EVERY * 2
    assert [call.occurrence for call in step.calls if call.path == "head"] == [0, 1]
    for name, parameter in trained(proxy):
        stored = step.parameter_gradients[name]
        assert stored is not None
        assert np.array_equal(stored.numpy(), numbers(parameter.grad))


# ------------------------------------------------------------------ where it is written


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_is_dumped_with_all_there_is(framework: str, root: Path) -> None:
    proxy = create_model(blocks(framework), name="net")
    train(proxy, 2)
    assert sorted(str(path.relative_to(root)) for path in dumps_below(root / "net").values()) == [
        *("net/step_0/rank_0", "net/step_1/rank_0")
    ]
    with Dump.open(root / "net" / "step_1" / "rank_0") as dump:
        assert (dump.facts.framework, dump.facts.model, dump.facts.rank) == (framework, "net", 0)
        step = dump.step(1)
        assert [call.path for call in step.calls] == EVERY
        for name, parameter in trained(proxy):
            assert np.array_equal(step.weights[name].numpy(), numbers(parameter))
            stored = step.parameter_gradients[name]
            assert stored is not None  # though the optimizer cleared it
            assert stored.numpy().any() or name in ("block2.fc2.bias", "block1.fc2.bias")
        running = {"torch": {"norm.running_mean", "norm.running_var"}, "paddle": {"norm._mean", "norm._variance"}}
        assert running[framework] <= set(step.buffers)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_path_of_ones_own(framework: str, tmp_path: Path) -> None:
    proxy = create_model(blocks(framework))
    proxy(tensor(framework, data()))
    proxy.try_dump(tmp_path / "here")
    assert list(dumps_below(tmp_path / "here")) == [(None, None)]
    assert not Path(proxy.dump_path).exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_single_dumps_come_together_in_one_folder(framework: str, tmp_path: Path) -> None:
    proxy = create_model(blocks(framework))
    proxy.backward(proxy(tensor(framework, data())).mean())
    there = tmp_path / "one"
    held = []
    for dump in (proxy.dump_weights, proxy.dump_report, proxy.dump_grads, proxy.dump_params):
        dump(there)
        with Dump.open(there) as found:
            step = found.steps[0]
            held.append((bool(step.calls), bool(step.weights), bool(step.parameter_gradients)))
            assert bool(step.gradients) == bool(step.calls)
    assert held == [(False, True, False), (True, True, False), (True, True, True), (True, True, True)]
    proxy.try_dump()
    proxy(tensor(framework, data(1)))
    proxy.dump_report(there)  # another step: nothing of the old one stays
    with Dump.open(there) as found:
        assert [(s.number, bool(s.calls), bool(s.weights)) for s in found.steps] == [(1, True, False)]


def test_a_second_run_replaces_the_first() -> None:
    for _ in range(2):
        proxy = create_model(blocks("torch"), name="again")
        train(proxy, 1)
        weight = numbers(proxy.head.weight)
        del proxy
        gc.collect()
    step = Dump.open(Path(get_dump_root_path()) / "again" / "step_0" / "rank_0").steps[0]
    assert np.array_equal(step.weights["head.weight"].numpy(), weight)


def test_two_models_of_one_name_dont_replace_each_other() -> None:
    one, other = create_model(blocks("torch")), create_model(blocks("torch"))
    one(tensor("torch", data()))
    other(tensor("torch", data()))
    one.try_dump()
    with pytest.raises(DumpError, match="another model of this process, TorchBlocks, has written there"):
        other.try_dump()


def test_what_is_no_dump_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    proxy = create_model(blocks("torch"))
    proxy(tensor("torch", data()))
    with pytest.raises(DumpError, match=r"notes\.txt"):
        proxy.dump_report(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


# ------------------------------------------------------------------ the root, ranks


def test_the_root(tmp_path: Path, root: Path) -> None:
    assert get_dump_root_path() == str(root)
    early = create_model(blocks("torch"))
    set_dump_root_path("other")
    assert get_dump_root_path() == str(tmp_path / "other")
    assert early.dump_path == str(root / "TorchBlocks")  # where it was when the model was made
    assert create_model(blocks("torch")).dump_path == str(tmp_path / "other" / "TorchBlocks")
    set_dump_root_path(None)
    assert get_dump_root_path() == str(tmp_path / "padiff_dump")
    assert not list(tmp_path.iterdir())


RANKS = [
    ({"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "4"}, (2, 4)),
    ({"RANK": "1", "WORLD_SIZE": "8"}, (1, 8)),
    ({"RANK": "3"}, (3, 4)),
    ({"RANK": "many"}, (0, 1)),
    ({}, (0, 1)),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("environment", "expected"), RANKS)
def test_ranks(
    framework: str, environment: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = create_model(blocks(framework))
    proxy(tensor(framework, data()))
    proxy.try_dump()
    facts = Dump.open(Path(proxy.dump_path) / "step_0" / f"rank_{expected[0]}").facts
    assert (facts.rank, facts.ranks) == expected


def test_a_framework_that_runs_distributed_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 7)
    proxy = create_model(blocks("torch"))
    proxy.dump_weights()
    assert os.listdir(Path(proxy.dump_path) / "step_0") == ["rank_3"]  # noqa: PTH208


# ------------------------------------------------------------------ wrong calls


WRONG = {
    "a class": (lambda: create_model(dict), UnknownFrameworkError, "model is of type"),
    "a name with a slash": (lambda: create_model(blocks("torch"), "a/b"), ArgumentError, "name is 'a/b'"),
    "no name": (lambda: create_model(blocks("torch"), ""), ArgumentError, "name is ''"),
    "never": (lambda: create_model(blocks("torch"), dump_freq=0), ArgumentError, "dump_freq is 0"),
    "half": (lambda: create_model(blocks("torch"), dump_freq=0.5), ArgumentError, "dump_freq is 0.5"),  # type: ignore[arg-type]
    "no root": (lambda: set_dump_root_path(3), ArgumentError, "path is 3"),  # type: ignore[arg-type]
    "a dump to nowhere": (lambda: create_model(blocks("torch")).dump_weights(3), ArgumentError, "path is 3"),  # type: ignore[arg-type]
    "a loss that is none": (lambda: create_model(blocks("torch")).backward(0.5), ArgumentError, "loss is a float"),
    "nothing recorded": (lambda: create_model(blocks("torch")).dump_report("x"), ArgumentError, "nothing of Torch"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_wrong_calls(call: tuple[Any, type[Exception], str]) -> None:
    wrong, kind, text = call
    with pytest.raises(kind, match=text):
        wrong()


def test_an_exception_in_the_model_is_the_models_own() -> None:
    proxy = create_model(blocks("torch"))
    with pytest.raises(RuntimeError) as caught:
        proxy(tensor("torch", data()[:, :4]))
    assert any("raised by TorchBlocks (torch) in block1.fc1, forward of step 0" in n for n in caught.value.__notes__)
    assert hooks(proxy.model) == 0
    proxy.clear_report()
    proxy(tensor("torch", data()))
    assert [call.path for call in proxy.report.calls] == EVERY


# ------------------------------------------------------------------ the other calls take proxies


@pytest.mark.parametrize("first", FRAMEWORKS)
@pytest.mark.parametrize("second", FRAMEWORKS)
def test_auto_diff_takes_proxies(first: str, second: str) -> None:
    one, other = create_model(blocks(first), "one"), create_model(blocks(second), "other")
    x = data()
    for base, raw in ((one, other), (one.model, other), (one, other.model)):
        assert auto_diff(base, raw, ({"x": tensor(first, x)}, {"x": tensor(second, x)}), atol=1e-5)
    assert padiff.assign_weight(one, other)


@pytest.mark.parametrize("first", FRAMEWORKS)
@pytest.mark.parametrize("second", FRAMEWORKS)
@pytest.mark.parametrize("options", [{}, {"diff_phase": "forward"}, {"single_step": True}], ids=str)
def test_auto_diff_leaves_dumps_of_proxies(first: str, second: str, options: dict[str, Any], root: Path) -> None:
    one, other = create_model(blocks(first), "one"), create_model(blocks(second), "other")
    x = data()
    inputs = {"x": tensor(first, x)}, {"x": tensor(second, x)}
    assert auto_diff(base_model=one, raw_model=other, inputs=inputs, atol=1e-5, **options)
    assert sorted(path.name for path in root.iterdir()) == ["one", "other"]
    backward = options.get("diff_phase") != "forward"
    for proxy in (one, other):
        step = Dump.open(Path(proxy.dump_path) / "auto_diff").step(0)
        assert [call.path for call in step.calls] == EVERY
        assert np.array_equal(step.calls[0].inputs[0].value.numpy(), x)
        assert bool(step.gradients) == bool(step.parameter_gradients) == backward
        for name, parameter in trained(proxy):
            assert np.array_equal(step.weights[name].numpy(), numbers(parameter))


@pytest.mark.parametrize("pair", [("torch", "paddle"), ("paddle", "paddle"), ("torch", "torch")])
def test_auto_diff_leaves_every_step(pair: tuple[str, str]) -> None:
    one, other = create_model(blocks(pair[0]), "one"), create_model(blocks(pair[1]), "other")
    inputs = tuple({"x": tensor(framework, data())} for framework in pair)
    found = auto_diff(one, other, inputs, optimizers=(sgd(one), sgd(other)), steps=3, atol=1e-5)
    assert found
    for proxy in (one, other):
        with Dump.open(Path(proxy.dump_path) / "auto_diff") as dump:
            assert [step.number for step in dump.steps] == [0, 1, 2]
            for step in dump.steps:
                gradient = step.parameter_gradients["head.weight"]
                assert gradient is not None
                assert gradient.numpy().any()
            assert np.array_equal(dump.step(2).weights["head.weight"].numpy(), numbers(proxy.head.weight))
            assert not np.array_equal(
                dump.step(0).weights["head.weight"].numpy(), dump.step(1).weights["head.weight"].numpy()
            )


def test_auto_diff_leaves_nothing_of_plain_models(tmp_path: Path, root: Path) -> None:
    x = data()
    plain, proxy = blocks("torch"), create_model(blocks("paddle"), "other")
    inputs = {"x": tensor("torch", x)}, {"x": tensor("paddle", x)}
    assert auto_diff(plain, blocks("paddle"), inputs, atol=1e-5)
    assert not list(tmp_path.iterdir())
    assert auto_diff(plain, proxy, inputs, atol=1e-5)
    assert [path.name for path in root.iterdir()] == ["other"]


def test_auto_diff_that_raises_leaves_no_dump(root: Path) -> None:
    one, other = create_model(blocks("torch"), "one"), create_model(blocks("torch"), "other")
    inputs = {"x": tensor("torch", data()[:, :4])}, {"x": tensor("torch", data())}
    with pytest.raises(RuntimeError):
        auto_diff(one, other, inputs)
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_auto_diff_of_two_proxies_of_one_name(log: Log, root: Path) -> None:
    one, other = create_model(blocks("torch")), create_model(blocks("torch"))
    inputs = {"x": tensor("torch", data())}, {"x": tensor("torch", data())}
    assert auto_diff(one, other, inputs)
    assert "both models are named TorchBlocks, so that no dumps are left: create_model takes a name" in log()
    assert not root.exists()


def test_the_bug_is_in_the_dump(root: Path) -> None:
    """What is dumped is what the model did by itself, not what it did when it was fed base's tensors."""
    ours, theirs = twins("torch", "paddle")
    theirs.block1.fc1.bias.set_value(theirs.block1.fc1.bias + 0.5)
    one, other = create_model(ours, "one"), create_model(theirs, "other")
    inputs = {"x": tensor("torch", data())}, {"x": tensor("paddle", data())}
    assert not auto_diff(one, other, inputs, auto_init=False)
    out = Dump.open(root / "other" / "auto_diff").step(0).calls[-1].outputs[0].value.numpy()
    first = Dump.open(root / "one" / "auto_diff").step(0).calls[-1].outputs[0].value.numpy()
    assert np.abs(out - first).max() > 1e-3
