"""Draws of a model in another process, another framework: base's dump holds them, and raw is given them."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from tests.engine.test_apart import environment
from tests.randomness.apart import along, trained
from tests.randomness.layers import LAYERS, PaddleSkips, TorchSkips
from tests.randomness.models import FEATURES, KINDS, UNLIKE, adam, data, net
from tests.randomness.test_checkpoint import again, plainly
from tests.randomness.test_gaps import drops
from tests.twins import FRAMEWORKS, PAIRS, randomise, write

ACROSS = [("torch", "paddle"), ("paddle", "torch")]


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), ACROSS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_draw_is_replayed(kind: str, base: str, raw: str, sync: bool, tmp_path: Path) -> None:
    result = along(net(base, KINDS[kind]), net(raw, KINDS[kind]), data(), tmp_path, sync=sync)
    assert result.aligned, str(result)
    assert result.replayed > 0
    assert result.notes == ()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_drop_inside(kind: str, base: str, raw: str, tmp_path: Path) -> None:
    models = [LAYERS[kind][framework]() for framework in (base, raw)]
    for model in models:
        randomise(model)
        model.train()
    result = along(*models, data(3, 4, FEATURES), tmp_path, sync=True)
    assert result.aligned, str(result)
    assert result.replayed > 0
    assert result.notes == ()


@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", ["dropout", "noise"])
def test_every_step_is_replayed(kind: str, base: str, raw: str, tmp_path: Path) -> None:
    result = along(net(base, KINDS[kind]), net(raw, KINDS[kind]), data(), tmp_path, steps=4, optimize=adam)
    assert result.aligned, str(result)
    assert len(result.steps) == result.replayed == 4


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("kind", UNLIKE)
def test_a_kernel_with_another_gradient_is_no_rounding(
    kind: str, base: str, raw: str, sync: bool, tmp_path: Path
) -> None:
    result = along(net(base, UNLIKE[kind]), net(raw, UNLIKE[kind]), data(), tmp_path, sync=sync)
    assert result.replayed > 0
    assert result.aligned is (base == raw), str(result)
    assert all(one.agrees for one in result.comparisons if one.phase == "forward")
    if base != raw:
        assert result.divergence is not None
        assert (result.divergence.phase, result.divergence.raw_path) == ("backward", "")


@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_generators_of_the_models_own(raw: str, tmp_path: Path) -> None:
    own = torch.Generator().manual_seed(1)
    base = net("torch", {"torch": lambda x: x + torch.randn(x.shape, generator=own)})
    base.p = 0.5  # it looks as if it drew
    other = net(raw, {"torch": lambda x: x + torch.randn_like(x), "paddle": lambda x: x + paddle.randn(x.shape)})
    result = along(base, other, data(), tmp_path, steps=2, optimize=adam)
    assert result.aligned, str(result)
    assert result.replayed == 2
    assert result.notes == ()


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_a_model_that_does_not_look_as_if_it_drew(raw: str, calibrate: bool, tmp_path: Path) -> None:
    """Its own code draws, and no module says so: what moved the generator is found out by running once more."""
    model = net("torch", KINDS["noise"])
    trained(model, data(), tmp_path / "a", 2, calibrate=calibrate)
    first, second = padiff.load(tmp_path / "a").steps
    assert (first.heard, len(first.draws)) == (calibrate, int(calibrate))
    assert (second.heard, len(second.draws)) == (True, 1)
    trained(net(raw, KINDS["noise"]), data(), tmp_path / "b", 2, base=tmp_path / "a")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned is calibrate
    assert result.replayed == 2 * calibrate


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_layers_left_out_by_chance(base: str, raw: str, tmp_path: Path) -> None:
    ways = {"torch": TorchSkips, "paddle": PaddleSkips}
    models = ways[base](), ways[raw]()
    for model in models:
        randomise(model)
        model.train()
    result = along(*models, data(), tmp_path)
    assert result.aligned, str(result)
    assert result.notes == ()
    assert result.replayed > 6


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_a_checkpoint_is_given_the_same_again(base: str, raw: str, reentrant: bool, sync: bool, tmp_path: Path) -> None:
    for ours, theirs in ((plainly, again), (again, again)):
        kind = "two dropouts"
        models = net(base, ours(kind, base, reentrant)), net(raw, theirs(kind, raw, reentrant))
        result = along(*models, data(), tmp_path, sync=sync)
        assert result.aligned, str(result)
        assert result.replayed > 0


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_another_share_is_the_cause(base: str, raw: str, sync: bool, tmp_path: Path) -> None:
    result = along(drops(base, 0.2, 0.3), drops(raw, 0.2, 0.5), data(12, 8), tmp_path, sync=sync)
    found = result.divergence
    assert found is not None
    assert (found.base_path, found.raw_path, found.phase) == ("drop2", "drop2", "forward")
    text = "dropout: base drops 0.3 of the values and raw 0.5; scaled as base scales, the outputs agree"
    assert str(found.causes[0]) == text
    assert result.notes == (
        "random draws don't correspond: base drop2 draws a mask of [12, 8] that keeps 0.7, raw drop2 draws a mask of "
        "[12, 8] that keeps 0.5",
    )


@pytest.mark.parametrize(("base", "raw"), ACROSS)
def test_dropout_on_one_side_only(base: str, raw: str, tmp_path: Path) -> None:
    result = along(drops(base, 0.2, 0.3), drops(raw, 0.2, 0.0), data(12, 8), tmp_path)
    assert result.divergence is not None and result.divergence.raw_path == "drop2"
    told = "base drop2 draws a mask of [12, 8] that keeps 0.7, raw draws nothing there"
    assert result.notes == (f"random draws don't correspond: {told}",)
    assert str(result.divergence.causes[0]) == f"dropout: {told}"
    result = along(drops(base, 0.0, 0.3), drops(raw, 0.2, 0.3), data(12, 8), tmp_path)
    assert result.divergence is not None and result.divergence.raw_path == "drop1"
    told = "raw drop1 draws a mask of [12, 8] that keeps 0.8, base draws nothing there"
    assert result.notes == (f"random draws don't correspond: {told}",)


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize(("base", "raw"), ACROSS)
def test_a_fault_is_found_behind_dropout(base: str, raw: str, sync: bool, tmp_path: Path) -> None:
    models = drops(base, 0.2, 0.3), drops(raw, 0.2, 0.3)
    padiff.plan_weights(*models).apply()
    bias = models[1].second.bias
    write(bias, bias.detach().numpy() + 0.01)
    result = along(*models, data(12, 8), tmp_path, weights="keep", sync=sync)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == ("second", "forward")


@pytest.mark.parametrize(("base", "raw"), ACROSS)
def test_generators_of_numpy_and_python(base: str, raw: str, tmp_path: Path) -> None:
    def noisy(x: Any) -> Any:
        return x * random.random() * float(np.random.default_rng().random() * 0 + np.random.rand())

    models = [net(name, {"torch": noisy, "paddle": noisy}) for name in (base, raw)]
    random.seed(1)
    np.random.seed(1)
    trained(models[0], data(), tmp_path / "a", 3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    trained(models[1], data(), tmp_path / "b", 3, base=tmp_path / "a")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    trained(models[1], data(), tmp_path / "b", 3, base=tmp_path / "a", randomness="own")
    assert not padiff.compare_dumps(tmp_path / "a", tmp_path / "b").aligned


def test_each_may_draw_for_itself(tmp_path: Path) -> None:
    result = along(drops("torch", 0.2, 0.3), drops("paddle", 0.2, 0.3), data(12, 8), tmp_path, randomness="own")
    assert not result.aligned
    assert result.replayed == 0
    assert result.divergence.raw_path == "drop1"
    (note,) = result.notes
    told = "base drop1 draws a mask of [12, 8] that keeps 0.8, and raw was not given base's random numbers: capture raw"
    assert note.startswith(told)
    trained(drops("torch", 0.2, 0.3), data(12, 8), tmp_path / "a", randomness="own")
    (step,) = padiff.load(tmp_path / "a").steps
    assert (step.heard, step.draws) == (False, ())
    with pytest.raises(padiff.errors.ArgumentError, match="randomness is 'none', expected 'replay' or 'own'"):
        padiff.capture(drops("torch", 0.1, 0.1), tmp_path / "c", randomness="none")  # type: ignore[arg-type]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_capture_changes_nothing_of_what_is_drawn(framework: str, tmp_path: Path) -> None:
    def outcome(captured: bool) -> Any:
        torch.manual_seed(3)
        paddle.seed(3)
        model = drops(framework, 0.2, 0.3)
        if captured:
            trained(model, data(12, 8), tmp_path / "a", 2)
        x = torch.from_numpy(data(12, 8)) if framework == "torch" else paddle.to_tensor(data(12, 8))
        for _ in range(0 if captured else 2):
            model(x)
        return model(x).detach().numpy()

    assert np.array_equal(outcome(False), outcome(True))


def test_a_mask_takes_one_bit_of_each_element(tmp_path: Path) -> None:
    trained(drops("torch", 0.2, 0.3), data(12, 8), tmp_path / "a")
    with padiff.load(tmp_path / "a") as dump:
        draws = dump.step(0).draws
        assert [(draw.facts.kind, draw.facts.path, draw.numbers.value.shape, draw.numbers.shape) for draw in draws] == [
            ("mask", "drop1", (12,), (12, 8)),
            ("mask", "drop2", (12,), (12, 8)),
        ]
        call = next(call for call in dump.step(0).calls if call.path == "drop1")
        kept = draws[0].load().value
        assert np.array_equal(call.outputs[0].value.numpy() != 0, kept)


def test_a_raw_that_keeps_statistics_is_given_them_too(tmp_path: Path) -> None:
    trained(drops("torch", 0.2, 0.3), data(12, 8), tmp_path / "a")
    trained(drops("paddle", 0.2, 0.3), data(12, 8), tmp_path / "b", base=tmp_path / "a", kind="stats")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert result.replayed == 2
    assert not padiff.load(tmp_path / "b").step(0).draws


def test_a_third_model_is_given_what_the_second_was(tmp_path: Path) -> None:
    trained(drops("torch", 0.2, 0.3), data(12, 8), tmp_path / "a")
    trained(drops("paddle", 0.2, 0.3), data(12, 8), tmp_path / "b", base=tmp_path / "a")
    trained(drops("torch", 0.2, 0.3), data(12, 8), tmp_path / "c", base=tmp_path / "b")
    assert padiff.compare_dumps(tmp_path / "a", tmp_path / "c").aligned


@pytest.mark.parametrize(("base", "raw"), ACROSS)
def test_a_dump_of_a_proxy_may_be_the_base(base: str, raw: str, tmp_path: Path) -> None:
    proxy = padiff.create_model(drops(base, 0.2, 0.3))
    x = torch.from_numpy(data(12, 8)) if base == "torch" else paddle.to_tensor(data(12, 8))
    proxy.backward(proxy(x).square().mean())
    proxy.dump_report(tmp_path / "a")
    proxy.dump_weights(tmp_path / "a")
    step = padiff.load(tmp_path / "a").step(0)
    assert step.heard and [draw.facts.path for draw in step.draws] == ["drop1", "drop2"]
    trained(drops(raw, 0.2, 0.3), data(12, 8), tmp_path / "b", base=tmp_path / "a")
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b", tolerance=(1e-5, 1e-5))
    assert [one for one in result.comparisons if one.phase == "forward" and not one.agrees] == []
    assert result.replayed == 2


SIDES = {
    "torch": """
        import sys
        sys.modules["paddle"] = None
        import torch, padiff
        from torch import nn
        x = torch.ones(4, 16)
        """,
    "paddle": """
        import sys
        sys.modules["torch"] = None
        import paddle, padiff
        from paddle import nn
        x = paddle.ones([4, 16])
        """,
}


@pytest.mark.parametrize(("base", "raw"), ACROSS)
def test_two_processes_that_share_nothing(base: str, raw: str, tmp_path: Path) -> None:
    def python(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(framework: str, to: str, more: str) -> None:
        body = f"""
        model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.Linear(32, 4), nn.Dropout(0.1))
        model.train()
        with padiff.capture(model, "{to}"{more}):
            for _ in range(2):
                model(x).square().mean().backward()
        """
        python("-c", textwrap.dedent(SIDES[framework]) + textwrap.dedent(body))

    run(base, "run_a", "")
    run(raw, "run_b", ', base="run_a", weights="copy", inputs="copy", sync=True')
    python("-m", "padiff", "compare", "run_a", "run_b")
