"""Models that ran apart: the same verdict and the same place as when they run side by side."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.errors import DumpError
from padiff.store import Dump
from tests.test_planted import OPTIMIZERS, PLANTS, Plant
from tests.twins import PAIRS, adam, batch, net, sgd


def twins(base: str, raw: str) -> tuple[Any, Any]:
    left, right = net(base), net(raw)
    padiff.plan_weights(left, right).apply()
    return left, right


def dump(
    model: Any, to: Path, optimizer: Any = None, steps: int = 1, seed: int = 3, which: Any = None, **options: Any
) -> Path:
    """Steps of training, each on a batch of its own; ``which`` of them are dumped."""
    native = torch.from_numpy if isinstance(model, torch.nn.Module) else paddle.to_tensor
    with padiff.capture(model, to, optimizer=optimizer, overwrite=True, steps=which, **options):
        for step in range(steps):
            model(native(batch(seed + step))).square().mean().backward()
            if optimizer is not None:
                optimizer.step()
                getattr(optimizer, "clear_grad", getattr(optimizer, "zero_grad", None))()
    return to


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(padiff.__file__).parents[1])}


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Another process, with nothing of this one's but padiff."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment())


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("kind", ["full", "stats"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_clean_pairs_are_aligned(frameworks: tuple[str, str], kind: Any, training: bool, tmp_path: Path) -> None:
    models = twins(*frameworks)
    for model, to in zip(models, ("a", "b"), strict=True):
        if training:
            model.train()
        dump(model, tmp_path / to, adam(model), steps=3, kind=kind)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert len(result.steps) == 3
    phases = {comparison.phase for comparison in result.comparisons}
    assert phases == {"forward", "backward", "gradient", "weight", "buffer"}
    assert result.coverage == {"calls": 1.0, "outputs": 1.0, "parameters": 1.0}


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_place_is_named(frameworks: tuple[str, str], plant: Plant, tmp_path: Path) -> None:
    base, raw = twins(*frameworks)
    plant.do(raw)
    result = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b"))
    found = result.divergence
    assert not result.aligned and found is not None
    assert (found.base_path, found.raw_path) == (plant.path, plant.path), str(found)
    assert (found.phase, found.role, found.step) == (plant.phase, plant.role, 0)


@pytest.mark.parametrize("what", OPTIMIZERS)
def test_an_optimizer_is_named_with_its_cause(what: str, tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    ours, theirs = OPTIMIZERS[what]
    result = padiff.compare_dumps(dump(base, tmp_path / "a", ours(base)), dump(raw, tmp_path / "b", theirs(raw)))
    found = result.divergence
    assert found is not None and (found.phase, found.role) == ("weight", "parameter")
    assert "optimizer" in found.note
    names = {"lr": "lr", "weight decay": "weight_decay", "eps": "eps"}
    assert names[what] in [name for name, _, _ in found.settings]


def test_the_report_tells_where_and_how_both_ran(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    raw.blocks[1].norm._epsilon = 1e-3
    report = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b")).report()
    assert (report.base.version, report.raw.version) == (torch.__version__, paddle.__version__)
    for side in (report.base, report.raw):
        assert {name: side.environment[name] for name in ("device", "parameters")} == {
            "device": "cpu",
            "parameters": "float32",
        }
    norms = [
        one.settings["eps"] for side in (report.base, report.raw) for one in side.modules if one.kind == "LayerNorm"
    ]
    assert norms.count(1e-3) == 1 and set(norms) == {1e-5, 1e-3}
    differing = [one for one in report.comparisons if not one.agrees]
    assert differing and all(one.picture is not None for one in differing)


def test_causes_are_told_from_what_was_written(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    raw.blocks[1].norm._epsilon = 1e-3
    found = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b")).divergence
    assert found is not None and [cause.name for cause in found.causes] == ["eps"]
    assert ("eps", 1e-05, 0.001) in found.settings
    assert found.comparison.picture is not None
    for lines in found.source:
        assert any("self.norm(x)" in line.text for line in lines)


@pytest.mark.parametrize("kind", ["stats", "hash"])
def test_summaries_narrow_to_the_suspects(kind: Any, tmp_path: Path) -> None:
    base, raw = twins("torch", "torch")
    with torch.no_grad():
        raw.blocks[1].fc1.bias[2] += 1e-3
    dumps = dump(base, tmp_path / "a", kind=kind), dump(raw, tmp_path / "b", kind=kind)
    result = padiff.compare_dumps(*dumps)
    assert result.divergence is not None and result.divergence.raw_path == "blocks.1.fc1"
    call = [note for note in result.notes if "run raw again" in note]
    assert len(call) == 1
    assert "padiff.capture(model, to=\"b_full\", only=['blocks.1.fc1'], steps=[0])" in call[0]
    only = ["blocks.1.fc1"]
    full = dump(base, tmp_path / "a", only=only, steps=1), dump(raw, tmp_path / "b", only=only, steps=1)
    second = padiff.compare_dumps(*full)
    found = second.divergence
    assert found is not None and (found.raw_path, found.phase) == ("blocks.1.fc1", "forward")
    assert found.comparison.outcome.numbers is not None and found.comparison.outcome.numbers.max_ulp is not None


def test_full_and_stats_can_be_compared(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    result = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b", kind="stats"))
    assert result.aligned, str(result)
    assert "statistics were compared, not elements" in result.notes


@pytest.mark.parametrize("sync", [False, True])
def test_the_call_that_runs_again_goes_along_base(sync: bool, tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    a = dump(base, tmp_path / "a")
    raw.blocks[1].norm._epsilon = 1e-3
    b = dump(raw, tmp_path / "b", kind="stats", base=a, sync=sync)
    calls = [note for note in padiff.compare_dumps(a, b).notes if "for the tensors themselves" in note]
    along = f', base="{a}"' + (", sync=True" if sync else "")
    assert len(calls) == 1 and "run raw again" in calls[0]  # base's are there
    assert f"only=['blocks.1.norm'], steps=[0]{along})" in calls[0]


def test_a_dump_of_some_modules_fills_nobody(tmp_path: Path) -> None:
    base, raw = twins("torch", "torch")
    a = dump(base, tmp_path / "a", only=["blocks.1"])
    with pytest.raises(DumpError, match=r"was captured with only=\.\.\., and holds neither base's inputs nor"):
        padiff.capture(raw, tmp_path / "b", base=a)


@pytest.mark.parametrize("options", [{"only": ["blocks.1"]}, {"kind": "stats"}], ids=["only", "stats"])
def test_nothing_is_taken_from_a_dump_that_does_not_hold_it(options: Any, tmp_path: Path) -> None:
    base, raw = twins("torch", "torch")
    a = dump(base, tmp_path / "a", **options)
    dump(raw, tmp_path / "b", base=a, weights="keep", inputs="keep")
    assert padiff.compare_dumps(a, tmp_path / "b").divergence is None


def test_digests_tell_equality_only(tmp_path: Path) -> None:
    base, raw = twins("torch", "torch")
    assert padiff.compare_dumps(dump(base, tmp_path / "a", kind="hash"), dump(raw, tmp_path / "b", kind="hash")).aligned
    raw = twins("torch", "paddle")[1]
    result = padiff.compare_dumps(tmp_path / "a", dump(raw, tmp_path / "b", kind="hash"))
    assert not result.aligned


def test_steps_of_one_side_are_named(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    result = padiff.compare_dumps(dump(base, tmp_path / "a", steps=3), dump(raw, tmp_path / "b", steps=2))
    assert not result.aligned
    assert result.divergence is not None and result.divergence.step == 2
    assert "step 2 is in base's dump only" in str(result.divergence)
    assert "only base's dump holds step 2" in result.notes
    assert len(result.steps) == 2


def test_raw_is_filled_where_the_dump_begins(tmp_path: Path) -> None:
    """What raw has learnt by then, on inputs of its own, is not what is compared."""
    base, raw = twins("torch", "paddle")
    a = dump(base, tmp_path / "a", sgd(base), steps=3, which=[1, 2])
    b = dump(raw, tmp_path / "b", sgd(raw), steps=3, seed=40, base=a)
    result = padiff.compare_dumps(a, b)
    assert result.aligned, str(result)
    assert [one.step for one in result.steps] == [1, 2]


def test_steps_that_nobody_looked_at_are_told(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    a = dump(base, tmp_path / "a", sgd(base), steps=3, every=2)
    result = padiff.compare_dumps(a, dump(raw, tmp_path / "b", sgd(raw), steps=3, seed=40, base=a))
    assert result.divergence is not None and result.divergence.step == 2
    assert any(note.startswith("step 1 is not in the dumps") for note in result.notes)


def test_ranks_of_one_side_are_named(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    for rank in (0, 1):
        dump(base, tmp_path / "a" / f"rank_{rank}", seed=rank)
    dump(raw, tmp_path / "b" / "rank_0", seed=0)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert not result.aligned and "only base has rank 1" in result.notes
    dump(raw, tmp_path / "b" / "rank_1", seed=1)
    assert padiff.compare_dumps(tmp_path / "a", tmp_path / "b").aligned
    raw.blocks[2].residual = False
    dump(raw, tmp_path / "b" / "rank_1", seed=1)
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.raw_path == "blocks.2" and found.note.startswith("rank 1; ")


def test_of_several_ranks_the_one_that_parts_first_is_named(tmp_path: Path) -> None:
    """As where gradients are averaged: what one rank was given shows in the gradients of all."""
    base, raw = twins("torch", "torch")
    for rank in (0, 1, 2):
        dump(base, tmp_path / "a" / f"rank_{rank}", seed=rank)
    handle = raw.head.weight.register_hook(lambda gradient: gradient * 1.5)
    for rank, seed in ((0, 0), (1, 8), (2, 2)):
        dump(raw, tmp_path / "b" / f"rank_{rank}", seed=seed)
    handle.remove()
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.phase == "forward"
    assert found.note == "rank 1; the two models were given different inputs"


@pytest.mark.parametrize("forgetful", ["base", "raw"])
def test_gradients_that_are_not_cleared_are_told(forgetful: str, tmp_path: Path) -> None:
    models = twins("torch", "torch")
    for side, model in zip(("base", "raw"), models, strict=True):
        optimizer = sgd(model)
        with padiff.capture(model, tmp_path / side, optimizer=optimizer):
            for step in range(2):
                model(torch.from_numpy(batch(step))).square().mean().backward()
                optimizer.step()
                if side != forgetful:
                    optimizer.zero_grad()
    found = padiff.compare_dumps(tmp_path / "base", tmp_path / "raw").divergence
    assert found is not None and (found.phase, found.step) == ("gradient", 1)
    other = "raw" if forgetful == "base" else "base"
    assert found.causes[0].name == "not cleared"
    assert found.causes[0].evidence.startswith(f"{forgetful}'s gradient is {other}'s plus that of the step before")


def test_other_inputs_are_named(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    found = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b", seed=9)).divergence
    assert found is not None and found.note == "the two models were given different inputs"


def test_weights_that_were_never_copied_are_noted(tmp_path: Path) -> None:
    base, raw = net("torch"), torch.nn.Sequential()
    raw = type(base)()
    raw.eval()
    result = padiff.compare_dumps(dump(base, tmp_path / "a"), dump(raw, tmp_path / "b"))
    assert not result.aligned
    assert any("parameters differ before the first step" in note for note in result.notes)


def test_damage_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b")
    shard = tmp_path / "b" / "tensors-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DumpError):
        padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    with pytest.raises(DumpError, match="there is no folder"):
        padiff.compare_dumps(tmp_path / "a", tmp_path / "c")
    with padiff.capture(base, tmp_path / "empty"):
        pass
    with pytest.raises(DumpError, match="holds no step"):
        padiff.compare_dumps(tmp_path / "a", tmp_path / "empty")


def test_no_framework_is_imported(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    raw.blocks[1].residual = False
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b")
    code = (
        "import sys\n"
        "for name in ('torch', 'paddle', 'jax'): sys.modules[name] = None\n"
        "import padiff\n"
        f"result = padiff.compare_dumps({str(tmp_path / 'a')!r}, {str(tmp_path / 'b')!r})\n"
        f"result.save({str(tmp_path / 'r.html')!r}); result.save({str(tmp_path / 'r.json')!r}); result.show()\n"
        "print(result.divergence.raw_path, [cause.name for cause in result.divergence.causes])"
    )
    made = run(code)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == "blocks.1 ['missing residual', 'operands']"
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_lines_come_from_the_dump(tmp_path: Path) -> None:
    """The machine that compares may not have the user's files."""
    source = tmp_path / "mine.py"
    source.write_text(
        "import torch\n\n\nclass Mine(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.one = torch.nn.Linear(4, 4)\n"
        "        self.factor = 1.0\n\n"
        "    def forward(self, x):\n        return self.one(x * self.factor)  # here\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    torch.manual_seed(0)
    model = scope["Mine"]()
    x = torch.ones(2, 4)
    for to, factor in (("a", 1.0), ("b", 2.0)):
        model.factor = factor
        with padiff.capture(model, tmp_path / to):
            model(x)
    source.unlink()
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.raw_path == ""
    assert [line.text for line in found.source[1]] == ["return self.one(x * self.factor)  # here"]


def test_a_dump_can_be_moved(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b")
    shutil.move(tmp_path / "a", tmp_path / "c")
    assert padiff.compare_dumps(tmp_path / "c", tmp_path / "b").aligned


def test_load_is_lazy(tmp_path: Path) -> None:
    base, _ = twins("torch", "paddle")
    dump(base, tmp_path / "a", steps=2)
    loaded = padiff.load(tmp_path / "a")
    assert isinstance(loaded, Dump)
    call = next(call for call in loaded.step(1).calls if call.path == "blocks.1.fc1")
    array = call.outputs[0].value.numpy()
    assert array.shape == (7, 12) and not array.flags.writeable
    assert np.isfinite(array).all()


def test_tolerance_of_the_user(tmp_path: Path) -> None:
    base, raw = twins("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b")
    assert not padiff.compare_dumps(tmp_path / "a", tmp_path / "b", tolerance="exact").aligned
    assert padiff.compare_dumps(tmp_path / "a", tmp_path / "b", tolerance=(1e-3, 1e-4)).aligned


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_narrower_dtype_is_precision(dtype: Any, tmp_path: Path) -> None:
    base = net("torch")
    raw = copy.deepcopy(base).to(dtype)
    x = torch.from_numpy(batch())
    for broken in (False, True):
        raw.blocks[1].residual = not broken
        for model, to in ((base, "a"), (raw, "b")):
            with padiff.capture(model, tmp_path / to, overwrite=True):
                model(x.to(model.head.weight.dtype)).square().mean().backward()
        result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
        assert result.aligned is not broken, str(result)
    assert result.divergence is not None and result.divergence.raw_path == "blocks.1"


def test_compare_leaves_its_dumps(tmp_path: Path) -> None:
    base, raw = net("torch"), net("paddle")
    raw.blocks[1].residual = False
    for _ in range(2):
        result = padiff.compare(base, raw, batch(), dump=tmp_path / "runs")
    assert result.divergence is not None
    found = padiff.compare_dumps(tmp_path / "runs" / "base", tmp_path / "runs" / "raw").divergence
    assert found is not None and found.raw_path == result.divergence.raw_path == "blocks.1"


def test_sgd_without_the_optimizer_given(tmp_path: Path) -> None:
    for model, to in zip(twins("torch", "paddle"), ("a", "b"), strict=True):
        optimizer = sgd(model)
        native = torch.from_numpy if isinstance(model, torch.nn.Module) else paddle.to_tensor
        with padiff.capture(model, tmp_path / to):
            for step in range(2):
                model(native(batch(step))).square().mean().backward()
                optimizer.step()
                getattr(optimizer, "clear_grad", getattr(optimizer, "zero_grad", None))()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert {"gradient", "weight"} <= {one.phase for one in result.comparisons}
