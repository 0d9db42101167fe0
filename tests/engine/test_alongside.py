"""Two environments that share nothing but a dump: raw is filled, called and fed from base's, and judged by itself."""

from __future__ import annotations

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
from padiff.errors import ArgumentError, DumpError, WeightError
from tests.engine.test_apart import dump, environment
from tests.test_planted import PLANTS, Plant
from tests.twins import PAIRS, batch, net, randomise, sgd


def pair(base: str, raw: str) -> tuple[Any, Any]:
    """Two models of different weights."""
    left, right = net(base), net(raw)
    randomise(right, 11)
    return left, right


@pytest.mark.parametrize("frameworks", PAIRS, ids="-".join)
@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_clean_pair_is_aligned(frameworks: tuple[str, str], sync: bool, training: bool, tmp_path: Path) -> None:
    base, raw = pair(*frameworks)
    if training:
        base.train()
        raw.train()
    dump(base, tmp_path / "a", sgd(base), steps=3)
    dump(raw, tmp_path / "b", sgd(raw), steps=3, seed=77, base=tmp_path / "a", sync=sync)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert len(result.steps) == 3
    assert {"forward", "gradient", "weight", "buffer"} <= {one.phase for one in result.comparisons}


KEPT = {"weight", "bias", "statistics"}
"""Mistakes in the weights themselves, which copying would mend."""


@pytest.mark.parametrize("frameworks", [("torch", "paddle"), ("paddle", "torch")], ids="-".join)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_place_is_named(frameworks: tuple[str, str], plant: Plant, tmp_path: Path) -> None:
    base, raw = pair(*frameworks)
    if plant.name in KEPT:
        padiff.plan_weights(base, raw).apply()
    plant.do(raw)
    dump(base, tmp_path / "a")
    weights = "keep" if plant.name in KEPT else "copy"
    dump(raw, tmp_path / "b", seed=77, base=tmp_path / "a", weights=weights, inputs="copy", sync=True)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    found = result.divergence
    assert not result.aligned and found is not None
    assert (found.base_path, found.raw_path, found.phase) == (plant.path, plant.path, plant.phase), str(found)


def test_every_place_is_found_by_itself(tmp_path: Path) -> None:
    base, raw = pair("torch", "paddle")
    raw.blocks[0].norm._epsilon = 1e-3
    raw.blocks[1].residual = False
    raw.blocks[2].act = paddle.nn.ReLU()
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b", base=tmp_path / "a", sync=True)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert [one.raw_path for one in result.divergences] == ["blocks.0.norm", "blocks.1", "blocks.2.act"]
    assert [one.causes[0].name for one in result.divergences] == ["eps", "missing residual", "activation"]


def test_a_small_fault_that_a_free_run_may_hide(tmp_path: Path) -> None:
    base, raw = pair("torch", "paddle")
    raw.blocks[2].norm._epsilon = 1e-6
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b", base=tmp_path / "a", sync=True)
    found = padiff.compare_dumps(tmp_path / "a", tmp_path / "b").divergence
    assert found is not None and found.raw_path == "blocks.2.norm"


def test_inputs_and_weights_are_what_was_asked_for(tmp_path: Path) -> None:
    base, raw = pair("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(raw, tmp_path / "b", seed=77, base=tmp_path / "a", weights="keep", inputs="copy")
    stored = padiff.load(tmp_path / "b").step(0)
    root = next(call for call in stored.calls if call.parent < 0)
    assert np.array_equal(root.inputs[0].value.numpy(), batch(3))
    assert not np.array_equal(stored.weights_before["embed.weight"].numpy().T, base.embed.weight.detach().numpy())
    dump(raw, tmp_path / "b", seed=77, base=tmp_path / "a", weights="copy", inputs="keep")
    stored = padiff.load(tmp_path / "b").step(0)
    root = next(call for call in stored.calls if call.parent < 0)
    assert np.array_equal(root.inputs[0].value.numpy(), batch(77))
    assert np.array_equal(stored.weights_before["embed.weight"].numpy().T, base.embed.weight.detach().numpy())


class Apart(torch.nn.Module):
    """The blocks of ``Together`` under other names, in another order, with one projection for three."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(8, 8)
        self.qkv = torch.nn.Linear(8, 24)
        self.ln = torch.nn.LayerNorm(8)
        self.scale = 8**-0.5

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.ln(x)).chunk(3, -1)
        return x + self.out((q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v)


class Together(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm = paddle.nn.LayerNorm(8)
        self.q_proj = paddle.nn.Linear(8, 8)
        self.k_proj = paddle.nn.Linear(8, 8)
        self.v_proj = paddle.nn.Linear(8, 8)
        self.o_proj = paddle.nn.Linear(8, 8)
        self.scale = 8**-0.5

    def forward(self, hidden: Any) -> Any:
        h = self.input_norm(hidden)
        q, k, v = self.q_proj(h), self.k_proj(h), self.v_proj(h)
        weights = paddle.nn.functional.softmax(q @ k.transpose([0, 2, 1]) * self.scale, -1)
        return hidden + self.o_proj(weights @ v)


def run(model: Any, x: Any) -> None:
    model(x).square().mean().backward()


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_models_built_differently(sync: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    base = Apart()
    with padiff.capture(base, tmp_path / "a"):
        run(base, torch.from_numpy(x))
    for broken in (False, True):
        raw = Together()
        raw.scale = 1.0 if broken else raw.scale
        with padiff.capture(raw, tmp_path / "b", base=tmp_path / "a", sync=sync, overwrite=True):
            run(raw, paddle.to_tensor(x * 2))
        result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
        if not broken:
            assert result.aligned, str(result)
            assert result.coverage["parameters"] == 1.0
        else:
            assert result.divergence is not None and result.divergence.raw_path == ""


class ReturnsMore(torch.nn.Module):
    """Returns what it goes on to use, as encoders with decoders do: more arrives there than the loss sends."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.middle, self.decoder = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any) -> Any:
        hidden = self.encoder(x)
        middle = self.middle(hidden) * hidden
        return self.decoder(middle), middle, hidden


@pytest.mark.parametrize("both", [False, True], ids=["one output in the loss", "two"])
def test_outputs_that_the_model_goes_on_to_use(both: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ReturnsMore()

    def step(model: Any) -> None:
        out, _, hidden = model(torch.linspace(-1, 1, 24).reshape(4, 6))
        (out.square().mean() + (hidden.square().mean() if both else 0.0)).backward()

    with padiff.capture(model, tmp_path / "a"):
        step(model)
    stored = padiff.load(tmp_path / "a").step(0)
    assert stored.borders is not None
    for path, value in stored.parameter_gradients.items():
        assert value is not None
        size = float(np.sqrt(np.mean(np.square(value.numpy()))))
        assert stored.noise["parameters"][path] < 1e-5 * size
    with padiff.capture(model, tmp_path / "b", base=tmp_path / "a", sync=True):
        step(model)
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)


def test_wrong_calls(tmp_path: Path) -> None:
    base, raw = pair("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(base, tmp_path / "stats", kind="stats")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"weights": "copy"}, ArgumentError, "base is None"),
        ({"sync": True}, ArgumentError, "base is None"),
        ({"base": tmp_path / "a", "weights": "steal"}, ArgumentError, "weights is 'steal'"),
        ({"base": tmp_path / "nowhere"}, DumpError, "nowhere"),
        ({"base": tmp_path / "stats"}, DumpError, 'kind="full"'),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message), padiff.capture(raw, tmp_path / "b", **options):
            pass
    with pytest.raises(WeightError), padiff.capture(paddle.nn.Linear(6, 3), tmp_path / "b", base=tmp_path / "a"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "stats"]


def test_a_run_beside_another_base_is_refused(tmp_path: Path) -> None:
    base, raw = pair("torch", "paddle")
    dump(base, tmp_path / "a")
    dump(base, tmp_path / "c", seed=9)
    dump(raw, tmp_path / "b", base=tmp_path / "a", sync=True)
    with pytest.raises(DumpError, match="beside another base"):
        padiff.compare_dumps(tmp_path / "c", tmp_path / "b")


def without(framework: str, code: str) -> str:
    """Run code in a process in which a framework cannot be imported."""
    blocked = f"import sys; sys.modules[{framework!r}] = None\n"
    command = [sys.executable, "-W", "ignore", "-c", blocked + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_two_processes_that_share_no_package_but_padiff(sync: bool, tmp_path: Path) -> None:
    without(
        "paddle",
        f"""
        import numpy as np, torch, padiff
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        with padiff.capture(model, to={str(tmp_path / "a")!r}, optimizer=optimizer):
            for seed in range(3):
                model(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        """,
    )
    for act, expected in (("GELU()", "None"), ("GELU(approximate=True)", "2")):
        without(
            "torch",
            f"""
            import paddle, padiff
            nn = paddle.nn
            model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.{act}, nn.Linear(8, 3))
            optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters(), weight_decay=1e-2)
            with padiff.capture(model, to={str(tmp_path / "b")!r}, base={str(tmp_path / "a")!r}, weights="copy",
                                inputs="copy", sync={sync}, optimizer=optimizer, overwrite=True):
                for seed in range(3):
                    model(paddle.randn([4, 6])).square().mean().backward()
                    optimizer.step()
                    optimizer.clear_grad()
            """,
        )
        found = without(
            "torch",
            f"""
            sys.modules["paddle"] = None
            import padiff
            result = padiff.compare_dumps({str(tmp_path / "a")!r}, {str(tmp_path / "b")!r})
            print(result.divergence.raw_path if result.divergence else result.divergence, len(result.steps))
            """,
        )
        assert found == f"{expected} {3 if expected == 'None' else 1}"


class Cache:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def add(self, x: Any) -> Any:
        self.held.append(x)
        return sum(self.held[1:], self.held[0])


class Remembering(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: Any, cache: Any) -> Any:
        return cache.add(self.fc(x))


@pytest.mark.parametrize("sync", [False, True], ids=["free", "synchronised"])
def test_a_cache_does_not_learn_of_runs_of_our_own(sync: bool, tmp_path: Path) -> None:
    x = torch.ones(2, 4)
    for name, more in (("a", {}), ("b", {"base": tmp_path / "a", "sync": sync})):
        model, cache = Remembering().eval(), Cache()
        with padiff.capture(model, tmp_path / name, **more), torch.no_grad():
            for _ in range(3):
                model(x, cache)
        assert len(cache.held) == 3
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert len(result.steps) == 3
