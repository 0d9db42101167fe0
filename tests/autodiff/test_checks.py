"""``check_report``, ``check_params``, ``check_weights``, ``check_grads``: dumps of two runs, side by side."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from padiff import (
    auto_diff,
    check_grads,
    check_params,
    check_report,
    check_weights,
    create_model,
)
from padiff.errors import ArgumentError, DumpError, PadiffError
from tests.autodiff.blocks import FRAMEWORKS, blocks, data, sgd, tensor, train, twins
from tests.autodiff.conftest import Log

pytestmark = pytest.mark.usefixtures("root")

CFG = {"atol": 1e-5, "rtol": 1e-5}
CHECKS = (check_report, check_params, check_weights, check_grads)
PAIRS = [(one, other) for one in FRAMEWORKS for other in FRAMEWORKS]
pairs = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


def proxies(pair: tuple[str, str], dump_freq: int = 1) -> tuple[Any, Any]:
    one, other = twins(*pair)
    return create_model(one, "a", dump_freq), create_model(other, "b", dump_freq)


def scaled(layer: Any, name: str = "weight", factor: float = 1.5) -> None:
    parameter = getattr(layer, name)
    if isinstance(parameter, torch.Tensor):
        parameter.data.mul_(factor)
    else:
        parameter.set_value(parameter * factor)


def moved(layer: Any) -> None:
    """Another bias."""
    if isinstance(layer.bias, torch.Tensor):
        layer.bias.data.add_(0.5)
    else:
        layer.bias.set_value(layer.bias + 0.5)


def place(printed: list[str]) -> tuple[str, str, str]:
    """Stage and both routes of the divergence that was explained."""
    at = next(i for i, line in enumerate(printed) if "Diff found in" in line)
    stage = re.search(r"`(.*)`", printed[at])
    assert stage is not None
    base, raw = printed[at + 2].split("Route: ")[1], printed[at + 3].strip()
    assert base.startswith("a(base_model)")
    assert raw.startswith("b(raw_model)")
    return stage[1], base.removeprefix("a(base_model)").lstrip("."), raw.removeprefix("b(raw_model)").lstrip(".")


# ------------------------------------------------------------------ what agrees


@pairs
def test_runs_that_agree(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair, dump_freq=2)
    train(one, 5)
    train(other, 5)
    log()
    for check in CHECKS:
        assert check(one.dump_path, other.dump_path, CFG) is True
        printed = log()
        assert printed[-1] == "SUCCESS !!!"
        for step in (0, 2, 4):
            assert any(line.startswith(f"step_{step}/rank_0: ") for line in printed)
        assert not any("step_1" in line or "step_3" in line for line in printed)
        assert check(one.dump_path, one.dump_path)
        log()
    assert not Path("padiff_log").exists()


@pairs
def test_a_step_a_rank_or_a_dump_may_be_named(pair: tuple[str, str]) -> None:
    one, other = proxies(pair)
    train(one, 2)
    train(other, 2)
    for inside in ("", "/step_1", "/step_1/rank_0"):
        for check in CHECKS:
            assert check(one.dump_path + inside, Path(other.dump_path + inside), CFG)
    assert not check_report(one.dump_path + "/step_0", other.dump_path + "/step_1", CFG)


def test_how_much_was_compared(log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 1)
    train(other, 1)
    log()
    assert check_report(one.dump_path, other.dump_path, CFG)
    assert log()[3:] == [
        "step_0/rank_0: forward stage (22 tensors), loss (1 tensor), backward stage (10 tensors) compared.",
        "SUCCESS !!!",
    ]
    assert check_params(one.dump_path, other.dump_path, CFG)
    lines = [line for line in log() if "compared." in line]
    assert lines == [
        "step_0/rank_0: weights compared. (14 tensors)",
        "step_0/rank_0: grads compared. (12 tensors)",
    ]


def test_rounding_is_called_so(log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 1)
    train(other, 1)
    log()
    assert not check_report(one.dump_path, other.dump_path)
    assert any("of the size of rounding noise" in line for line in log())
    assert not check_grads(one.dump_path, other.dump_path)
    printed = log()
    assert any("of the size of rounding noise: but for the bounds, the grads agree" in line for line in printed)
    bounds = re.search(r"atol=(\S+), rtol=(\S+) ", " ".join(printed))
    assert bounds is not None
    assert check_grads(one.dump_path, other.dump_path, {"atol": float(bounds[1]), "rtol": float(bounds[2])})


class NormedAndActivated(torch.nn.BatchNorm1d):
    """A norm that returns what its activation made of it."""

    def __init__(self) -> None:
        super().__init__(6)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.act(super().forward(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_norm_with_its_activation_beside_two_layers(inplace: bool, log: Log) -> None:
    ours = torch.nn.Sequential(torch.nn.Linear(6, 6), NormedAndActivated(), torch.nn.Linear(6, 3))
    layers = [torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(inplace), torch.nn.Linear(6, 3)]
    theirs = torch.nn.Sequential(*layers)
    for one, other in zip((*ours[0:2], ours[2]), (*theirs[0:2], theirs[3]), strict=True):
        other.load_state_dict(one.state_dict())
    for proxy in (create_model(ours, "a"), create_model(theirs, "b")):
        train(proxy, 1, rate=0.0)
    assert check_report("dumps/a", "dumps/b", CFG)
    assert not [line for line in log() if "differ" in line]


class Dense(torch.nn.Module):
    """Layers that are given all that came before: joined anew for each, or what was joined before joined again."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew = anew
        self.first, self.second, self.third = (torch.nn.Linear(size, 6) for size in (6, 12, 18))

    def forward(self, x: Any) -> Any:
        one = self.first(x)
        joined = torch.cat([x, one], 1)
        two = self.second(joined)
        return self.third(torch.cat([x, one, two] if self.anew else [joined, two], 1))


def test_gradients_that_are_shared_differently(log: Log) -> None:
    ours, theirs = Dense(anew=True), Dense(anew=False)
    theirs.load_state_dict(ours.state_dict())
    proxies = create_model(ours, "a"), create_model(theirs, "b")
    for proxy in proxies:
        train(proxy, 1, rate=0.0)
    assert check_report("dumps/a", "dumps/b", CFG)
    assert any(
        line.startswith("not compared: 1 gradient of an activation; those of parameters agree") for line in log()
    )
    proxies[1].first.weight.register_hook(lambda gradient: gradient * 2)
    for proxy in proxies:
        train(proxy, 1, rate=0.0)
    assert not check_report("dumps/a/step_1", "dumps/b/step_1", CFG)  # no longer all the same that backward ends in


# ------------------------------------------------------------------ what differs in a run


def other_eps(model: Any) -> None:
    setattr(model.norm, "eps" if isinstance(model, torch.nn.Module) else "_epsilon", 0.1)


def other_activation(model: Any) -> None:
    model.block2.act = torch.nn.ReLU() if isinstance(model, torch.nn.Module) else paddle.nn.ReLU()


def own_code(model: Any) -> None:
    block = model.block2
    block.forward = lambda x: x + 1.25 * block.fc2(block.act(block.fc1(x)))


def own_gradient(model: Any) -> None:
    """The same numbers forward, twice the gradient backward."""
    block = model.block2

    def forward(x: Any) -> Any:
        y = block.fc2(block.act(block.fc1(x)))
        return x + 2 * y - y.detach()

    block.forward = forward


BUGS: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "weight": (lambda model: scaled(model.block2.fc1), "Forward Stage", "block2.fc1"),
    "bias": (lambda model: moved(model.head), "Forward Stage", "head"),
    "eps": (other_eps, "Forward Stage", "norm"),
    "activation": (other_activation, "Forward Stage", "block2.act"),
    "own code": (own_code, "Forward Stage", "block2"),
    "gradient": (own_gradient, "Backward Stage", "block2"),
}


@pairs
@pytest.mark.parametrize("bug", BUGS)
def test_the_place_is_named(pair: tuple[str, str], bug: str, log: Log) -> None:
    plant, stage, path = BUGS[bug]
    one, other = proxies(pair)
    plant(other.model)
    train(one, 2, rate=0.0)
    train(other, 2, rate=0.0)
    log()
    assert check_report(one.dump_path, other.dump_path, CFG) is False
    printed = log()
    assert place(printed) == (stage, path, path)
    assert printed[-1] == "FAILED !!!"
    second = printed.index(next(line for line in printed if line.startswith("step_1/rank_0")))
    assert any(f"differs, first at a(base_model).{path} and b(raw_model).{path}" in line for line in printed[second:])
    for name in ("a(base_model)", "b(raw_model)"):
        tree = (Path("padiff_log") / f"report_{name}").read_text()
        assert tree.count("<---  *** HERE ***") == 1


@pairs
def test_an_optimizer_that_differs_is_no_matter_of_the_report(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    train(one, 1, rate=0.1)
    train(other, 1, rate=0.2)
    assert check_report(one.dump_path, other.dump_path, CFG)
    assert check_grads(one.dump_path, other.dump_path, CFG)
    assert not check_weights(one.dump_path, other.dump_path, CFG)
    assert not check_params(one.dump_path, other.dump_path, CFG)


# ------------------------------------------------------------------ what differs in parameters


def listed(name: str) -> list[tuple[str, str]]:
    """Routes of all that the file lists."""
    text = (Path("padiff_log") / name).read_text()
    return re.findall(r"base_model path:\n    a\(base_model\)\.(\S+)\nraw_model path:\n    b\(raw_model\)\.(\S+)", text)


@pairs
def test_the_weight_is_named(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    scaled(other.block2.fc2)
    one.dump_weights("a")
    other.dump_weights("b")
    assert check_weights("a", "b", CFG) is False
    printed = log()
    many = 15 if pair == ("torch", "torch") else 14  # torch counts batches
    assert f"weights compared. ({many} tensors, 1 differ)" in printed
    assert "    base_model: a(base_model).block2.fc2.weight" in printed
    assert "    raw_model:  b(raw_model).block2.fc2.weight" in printed
    assert listed("weights_diff") == [("block2.fc2.weight", "block2.fc2.weight")]


@pairs
def test_a_buffer_is_named(pair: tuple[str, str], log: Log) -> None:
    """A momentum shows in nothing but the running statistics."""
    one, other = proxies(pair)
    setattr(other.norm, *(("momentum", 0.5) if pair[1] == "torch" else ("_momentum", 0.5)))
    train(one, 1, rate=0.0)
    train(other, 1, rate=0.0)
    assert check_report(one.dump_path, other.dump_path, CFG)
    assert not check_weights(one.dump_path, other.dump_path, CFG)
    names = {"torch": ("norm.running_mean", "norm.running_var"), "paddle": ("norm._mean", "norm._variance")}
    assert listed("weights_diff") == list(zip(names[pair[0]], names[pair[1]], strict=True))


@pairs
def test_the_gradient_is_named(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    other.block1.fc1.weight.register_hook(lambda gradient: gradient * 2)
    train(one, 1, rate=0.0)
    train(other, 1, rate=0.0)
    log()
    assert check_weights(one.dump_path, other.dump_path, CFG)
    assert check_grads(one.dump_path, other.dump_path, CFG) is False
    printed = log()
    assert "step_0/rank_0: grads compared. (12 tensors, 1 differ)" in printed
    assert "    raw_model:  b(raw_model).block1.fc1.weight" in printed
    assert listed("grads_diff") == [("block1.fc1.weight", "block1.fc1.weight")]
    assert check_params(one.dump_path, other.dump_path, CFG) is False


def test_many_that_differ_are_in_the_file(log: Log) -> None:
    one, other = create_model(blocks("torch"), "a"), create_model(blocks("paddle"), "b")
    one.dump_weights("a")
    other.dump_weights("b")
    assert not check_weights("a", "b", CFG)
    printed = log()
    assert sum("base_model: a(base_model)" in line for line in printed) == 3
    assert len(listed("weights_diff")) == 10  # weights and biases of five linear layers


@pairs
def test_grads_on_one_side_only(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    one.backward(one(tensor(pair[0], data())).mean())
    other(tensor(pair[1], data()))
    one.try_dump()
    other.try_dump()
    log()
    assert not check_grads(one.dump_path, other.dump_path, CFG)
    assert "step_0/rank_0: only base_model has grads" in log()


def test_no_grads_at_all(log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    for proxy in (one, other):
        proxy(tensor(proxy.framework, data()))
        proxy.try_dump()
    log()
    assert check_params(one.dump_path, other.dump_path, CFG)  # the weights are the same
    assert "no grads were compared: no backward was run" in log()
    assert not check_grads(one.dump_path, other.dump_path, CFG)


# ------------------------------------------------------------------ steps and ranks


def test_a_step_on_one_side_only_is_a_difference(log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 4)
    train(other, 3)
    log()
    for check in CHECKS:
        assert not check(one.dump_path, other.dump_path, CFG)
        assert f"only {one.dump_path} has step_3" in log()
        assert not check(other.dump_path, one.dump_path, CFG)
        log()


def test_steps_that_an_earlier_run_left(log: Log) -> None:
    one, other = proxies(("torch", "torch"))
    train(one, 3, rate=0.0)
    train(other, 3, rate=0.0)
    again = create_model(other.model, "b")
    train(again, 2, rate=0.0)
    log()
    for check in CHECKS:
        check(one.dump_path, again.dump_path, CFG)
        printed = " ".join(" ".join(log()).split())
        assert f"{again.dump_path} holds steps of 2 runs, which begin at step_0/rank_0, step_2/rank_0" in printed
        assert f"{one.dump_path} holds steps" not in printed


def run_ranks(proxy: Any, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        proxy(tensor(proxy.framework, data(rank)))
        proxy.dump_report()
        proxy.dump_params()
        proxy.clear_report()


def test_ranks(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    for proxy in (one, other):
        proxy.eval()
        run_ranks(proxy, 3, monkeypatch)
    for inside in ("", "/step_0"):
        assert check_report(one.dump_path + inside, other.dump_path + inside, CFG)
        assert check_weights(one.dump_path + inside, other.dump_path + inside, CFG)
    shutil.rmtree(other.dump_path + "/step_0/rank_1")
    log()
    assert not check_report(one.dump_path, other.dump_path, CFG)
    assert f"only {one.dump_path} has step_0/rank_1" in log()
    assert not check_weights(one.dump_path + "/step_0", other.dump_path + "/step_0", CFG)
    assert f"only {one.dump_path}/step_0 has rank_1" in log()


def test_a_rank_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    for proxy in (one, other):
        proxy.eval()
        run_ranks(proxy, 2, monkeypatch)
    monkeypatch.setenv("RANK", "1")
    moved(other.head)
    other(tensor("paddle", data(1)))
    other.dump_report()
    log()
    assert not check_report(one.dump_path, other.dump_path, CFG)
    printed = log()
    assert place(printed)[1:] == ("head", "head")
    first, second = (next(line for line in printed if line.startswith(f"step_0/rank_{rank}")) for rank in range(2))
    assert "differ" not in first
    assert "2 differ" in second


# ------------------------------------------------------------------ lists, maps, auto_diff


@pairs
def test_lists_on_one_side_are_no_difference(pair: tuple[str, str]) -> None:
    one, other = proxies(pair)
    one.update_black_list(one.block1)
    other.update_white_list([other.head, other.block2], mode="all")
    train(one, 1)
    train(other, 1)
    for check in CHECKS:
        assert check(one.dump_path, other.dump_path, CFG)
        assert check(other.dump_path, one.dump_path, CFG)


@pairs
def test_what_the_lists_leave_out_is_not_looked_at(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    scaled(other.block2.fc2)
    for proxy in (one, other):
        proxy.update_black_list(proxy.block2)
    train(one, 1, rate=0.0)
    train(other, 1, rate=0.0)
    log()
    assert not check_report(one.dump_path, other.dump_path, CFG)
    printed = log()
    assert place(printed)[1:] == ("", "")
    assert any("between its children block1 (line " in line for line in printed)
    one.dump_weights("a")
    other.dump_weights("b")
    # Of what is left, only the running statistics saw the difference.
    assert not check_weights("a", "b", CFG)
    assert {base for base, _ in listed("weights_diff")} <= {
        *("norm.running_mean", "norm.running_var", "norm._mean", "norm._variance")
    }


def test_layer_maps_of_dumps(log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    for proxy in (one, other):
        proxy.set_layer_map([proxy.block1, proxy.block2])
    train(one, 1)
    train(other, 1)
    log()
    assert check_report(one.dump_path, other.dump_path, CFG)
    # Compared as one: what is inside the blocks is not.
    assert any("forward stage (10 tensors)" in line for line in log())
    other.set_layer_map([other.block2])
    train(other, 1)
    with pytest.raises(ArgumentError, match="base names 2 layers, raw 1"):
        check_report(one.dump_path, other.dump_path + "/step_1", CFG)


@pairs
def test_dumps_that_auto_diff_left(pair: tuple[str, str], log: Log) -> None:
    one, other = proxies(pair)
    inputs = tuple({"x": tensor(framework, data())} for framework in pair)
    updates = sgd(one), sgd(other)
    assert auto_diff(base_model=one, raw_model=other, inputs=inputs, optimizers=updates, steps=2, atol=1e-5)
    for check in CHECKS:
        assert check(one.dump_path + "/auto_diff", other.dump_path + "/auto_diff", CFG)
    scaled(other.block1.fc1)
    log()
    assert not auto_diff(base_model=one, raw_model=other, inputs=inputs, auto_init=False, **CFG)
    assert place(log())[1:] == ("block1.fc1", "block1.fc1")
    assert not check_report(one.dump_path + "/auto_diff", other.dump_path + "/auto_diff", CFG)
    assert place(log()) == ("Forward Stage", "block1.fc1", "block1.fc1")


# ------------------------------------------------------------------ without a framework


def test_no_framework_is_needed(tmp_path: Path) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 2)
    train(other, 2)
    code = f"""
        import json, sys
        sys.modules["torch"] = sys.modules["paddle"] = None  # importing them raises
        import padiff
        paths = {one.dump_path!r}, {other.dump_path!r}
        checks = padiff.check_report, padiff.check_params, padiff.check_weights, padiff.check_grads
        found = [check(*paths, {CFG!r}) for check in checks]
        print(json.dumps(found))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(padiff.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4


# ------------------------------------------------------------------ dumps that are none


def truncated(folder: Path) -> None:
    index = folder / "index.json"
    index.write_bytes(index.read_bytes()[:-40])


def flipped(folder: Path) -> None:
    shard = next(folder.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(bytes(data))


def without_a_shard(folder: Path) -> None:
    next(folder.glob("*.safetensors")).unlink()


def without_an_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def foreign(folder: Path) -> None:
    (folder / "index.json").write_text('{"format": "something else"}')


DAMAGE = [truncated, flipped, without_a_shard, without_an_index, foreign, shutil.rmtree]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one.__name__)
def test_damage_is_one_clear_error(damage: Callable[[Path], None], log: Log) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 1)
    train(other, 1)
    folder = Path(other.dump_path) / "step_0" / "rank_0"
    damage(folder)
    raised = 0
    for check in CHECKS:
        try:
            assert check(one.dump_path + "/step_0/rank_0", folder, CFG) in (True, False)
        except DumpError as error:
            raised += 1
            assert str(folder) in error.message
            assert error.__cause__ is None
    assert raised == 4


def test_a_part_that_is_not_there() -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 1)
    other.dump_weights("b")
    with pytest.raises(DumpError, match=r"the dump b holds no report, only weights\nhint: try_dump and dump_report"):
        check_report(one.dump_path, "b")
    with pytest.raises(DumpError, match="the dump b holds no grads, only weights"):
        check_grads(one.dump_path, "b")
    assert check_weights("b", "b")


def test_a_model_that_recorded_nothing() -> None:
    one, other = proxies(("torch", "paddle"))
    for proxy in (one, other):
        proxy.update_black_list(proxy.model)
        train(proxy, 1)
    assert not check_report(one.dump_path, other.dump_path, CFG)


WRONG: dict[str, tuple[Callable[[], Any], type[PadiffError], str]] = {
    "no path": (lambda: check_report(3, "b"), ArgumentError, "path_0 is 3"),
    "an empty path": (lambda: check_params("", ""), ArgumentError, "path_0 is ''"),
    "no folder": (lambda: check_report("nowhere", "b"), DumpError, "there is no folder nowhere"),
    "a list": (lambda: check_weights("a", "b", [1]), ArgumentError, "cfg is a list"),  # type: ignore[arg-type]
    "an unknown option": (lambda: check_grads("a", "b", {"atoll": 1}), ArgumentError, "check_grads has no option 'at"),
    "a wrong bound": (lambda: check_report("a", "b", {"atol": -1}), ArgumentError, "atol is -1"),
    "a wrong mode": (lambda: check_params("a", "b", {"compare_mode": "max"}), ArgumentError, "compare_mode is 'max'"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_wrong_calls(call: tuple[Callable[[], Any], type[PadiffError], str]) -> None:
    wrong, kind, text = call
    with pytest.raises(kind, match=re.escape(text)):
        wrong()


@pytest.mark.parametrize("cfg", [{"compare_mode": "strict", "atol": 1e-5}, {"compare_mode": "abs_mean", "atol": 1e-5}])
def test_modes(cfg: dict[str, Any]) -> None:
    one, other = proxies(("torch", "paddle"))
    train(one, 1)
    train(other, 1)
    for check in CHECKS:
        assert check(one.dump_path, other.dump_path, cfg)
    one.dump_weights("a")
    weight = other.head.weight
    changed = weight.numpy().copy()
    changed[0, 0] += 1e-4  # little on the average of 18, much for one
    weight.set_value(changed)
    other.dump_weights("b")
    assert check_weights("a", "b", cfg) is (cfg["compare_mode"] == "abs_mean")
