"""Tensors on an accelerator are measured there. Here the host plays the accelerator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import padiff
from padiff.capture.held import Held
from padiff.capture.jitter import Jitter
from padiff.capture.perturb import perturbed
from padiff.compare.arrays import compare_arrays
from padiff.engine.free.where_they_lie import compared_there, gap
from padiff.frameworks import torch_device
from padiff.frameworks.torch import TorchAdapter
from padiff.frameworks.tree import module_tree
from padiff.records import Tolerance

ADAPTER = TorchAdapter()
TOLERANCES = [
    Tolerance(mode="mean", rtol=1e-3, atol=1e-4),
    Tolerance(mode="strict", rtol=1e-3, atol=1e-5),
    Tolerance(mode="auto"),
    Tolerance(mode="auto", predicted=1e-6),
    Tolerance(mode="auto", narrow=2**-8),
]


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "_HOST", frozenset({"meta"}))
    monkeypatch.setattr(torch_device, "BLOCK", 1000)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 48)
        self.norm = nn.LayerNorm(48)
        self.last = nn.Linear(48, 8)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.norm(self.first(x))))


def twins() -> tuple[Net, Net, Any]:
    torch.manual_seed(0)
    return Net(), Net(), torch.randn(16, 24)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("tolerance", TOLERANCES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (33, 71), ()])
def test_sums_say_what_elements_say(tolerance: Tolerance, dtype: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    base = torch.randn(shape, dtype=torch.float64).to(dtype)
    raw = base * (1 + 8 * torch.finfo(dtype).eps)
    found = compared_there(Held(ADAPTER, base), Held(ADAPTER, raw), tolerance)
    expected = compare_arrays(ADAPTER.to_numpy(base), ADAPTER.to_numpy(raw), tolerance)
    if not expected.agrees:
        assert found is None
        return
    assert found is not None
    assert found.numbers is not None
    assert expected.numbers is not None
    assert found.verdict == expected.verdict
    for name in ("size", "max_abs", "mean_abs", "base_mean_abs", "rmse", "base_rms", "cosine"):
        assert getattr(found.numbers, name) == pytest.approx(getattr(expected.numbers, name), rel=1e-5), name


@pytest.mark.usefixtures("accelerator")
def test_what_sums_cannot_settle_is_left_to_the_elements() -> None:
    base = torch.randn(50)
    auto = Tolerance(mode="auto")
    with_nan = base.clone()
    with_nan[3] = torch.nan
    for raw in (base + 1.0, with_nan, base[:40], base.double(), torch.zeros(50)):
        assert compared_there(Held(ADAPTER, base), Held(ADAPTER, raw), auto) is None
    assert compared_there(Held(ADAPTER, base.long()), Held(ADAPTER, base.long()), auto) is None
    assert compared_there(Held(ADAPTER, base[:0]), Held(ADAPTER, base[:0]), auto) is None
    equal = compared_there(Held(ADAPTER, base), Held(ADAPTER, base.clone()), auto)
    assert equal is not None
    assert equal.verdict == "equal"


def test_tensors_on_the_host_are_not_measured_there() -> None:
    base = torch.randn(50)
    assert compared_there(Held(ADAPTER, base), Held(ADAPTER, base), Tolerance(mode="auto")) is None


@pytest.mark.usefixtures("accelerator")
def test_gaps_are_those_of_the_host() -> None:
    base = torch.randn(3000)
    raw = base + 1e-3 * torch.randn(3000)
    assert gap(Held(ADAPTER, base), Held(ADAPTER, raw)) == pytest.approx(float((raw - base).square().mean().sqrt()))


@pytest.mark.usefixtures("accelerator")
def test_what_is_measured_is_not_shaken_along_with_the_model() -> None:
    """A gap is small beside what it is left of: in a model's own code that would be moved by what it loses."""
    jitter, base = Jitter(seed=3), torch.randn(3000)
    raw = base * (1 + 1e-6)
    expected = gap(Held(ADAPTER, base), Held(ADAPTER, raw))
    with perturbed(module_tree(ADAPTER, nn.Linear(3, 2)), jitter):
        assert gap(Held(ADAPTER, base), Held(ADAPTER, raw)) == expected
        assert not jitter.cancelled
        assert float((raw - base).abs().max()) > 0.0  # the model's own
        assert jitter.cancelled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_are_moved_as_on_the_host(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(700, 200).to(dtype)
    with torch.no_grad():
        model.weight[0, 0] = torch.finfo(dtype).max
    live = module_tree(ADAPTER, model)
    seen = []
    for host in ({"cpu"}, set()):
        monkeypatch.setattr(torch_device, "_HOST", frozenset(host))
        with perturbed(live, Jitter(seed=3)):
            seen.append([np.array(ADAPTER.to_numpy(one)) for one in model.parameters()])
    for one, other in zip(*seen, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [0.0, 1e-6, torch.inf, torch.nan])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_handed_on_is_moved_as_on_the_host(
    dtype: Any, first: float, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what begins with whole numbers, holds nothing else, or ends below the least that float16 has."""
    torch.manual_seed(0)
    value = torch.full((90_000,), first)
    value[80:] = torch.arange(80, 90_000) % 100 if whole else torch.logspace(-9, 3, 89_920)
    value = value.to(dtype)
    for step in (None, 2.0**-10):
        expected = Jitter(step, seed=3)(ADAPTER.to_numpy(value))
        with monkeypatch.context() as patched:
            patched.setattr(torch_device, "_HOST", frozenset())
            patched.setattr(torch_device, "BLOCK", 1000)
            patched.setattr(TorchAdapter, "to_numpy", lambda *_: pytest.fail("fetched"))
            found = Jitter(step, seed=3).there(Held(ADAPTER, value))
        assert isinstance(found, Held)
        assert np.array_equal(found.numpy(), expected, equal_nan=True)


@pytest.mark.usefixtures("accelerator")
def test_weights_are_copied_there(monkeypatch: pytest.MonkeyPatch) -> None:
    base, raw, _ = twins()
    monkeypatch.setattr(TorchAdapter, "assign", lambda *_: pytest.fail("fetched"))
    assert padiff.assign_weight(base, raw)
    for one, other in zip(base.parameters(), raw.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("accelerator")
def test_an_aligned_pair_is_hardly_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    base, raw, x = twins()
    padiff.compare(base, raw, (x,))
    fetched: list[tuple[int, ...]] = []
    original = TorchAdapter.to_numpy
    monkeypatch.setattr(TorchAdapter, "to_numpy", staticmethod(lambda t: fetched.append(tuple(t.shape)) or original(t)))
    result = padiff.compare(base, raw, (x,), weights="keep")
    assert result.aligned, str(result)
    assert (16, 48) not in fetched


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("place", ["first", "norm", "last"])
def test_a_planted_bug_is_named(place: str) -> None:
    base, raw, x = twins()
    padiff.assign_weight(base, raw)
    with torch.no_grad():
        raw.get_submodule(place).weight[1] += 0.01
    result = padiff.compare(base, raw, (x,), weights="keep")
    assert result.divergence is not None
    assert result.divergence.raw_path == place


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_look_fetches_what_differs(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was handed on is base's, and what is made of it equal but for the fault; the shaken run stays there, too."""
    torch.manual_seed(0)
    widths = (24, 40, 56, 72, 8)
    base, raw = (nn.Sequential(*map(nn.Linear, widths, widths[1:])).to(dtype) for _ in range(2))
    raw[1].register_forward_hook(lambda module, args, output: output * 1.05)
    fetched: list[tuple[int, ...]] = []
    original = TorchAdapter.to_numpy
    monkeypatch.setattr(TorchAdapter, "to_numpy", staticmethod(lambda t: fetched.append(tuple(t.shape)) or original(t)))
    result = padiff.compare(base, raw, (torch.randn(512, 24).to(dtype),))
    assert result.divergence is not None, str(result)
    assert result.divergence.raw_path == "1"
    assert result.divergence.causes[0].name == "scale"
    assert fetched.count((512, 72)) <= 5  # two of them as both run by themselves


@pytest.mark.parametrize(("place", "aligned"), [("first", True), ("norm", False)])
def test_products_may_be_made_of_narrower_numbers(place: str, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 explains what a product is off by, and nothing else."""
    monkeypatch.setattr(TorchAdapter, "product_dtype", lambda *_: "tf32")
    base, raw, x = twins()
    padiff.assign_weight(base, raw)
    with torch.no_grad():
        raw.get_submodule(place).weight.mul_(1 + 2.0**-12 * torch.randn(raw.get_submodule(place).weight.shape))
    result = padiff.compare(base, raw, (x,), weights="keep")
    assert result.aligned == aligned, str(result)
    if aligned:
        assert "precision" in result.notes[0]
    else:
        assert result.divergence is not None
        assert result.divergence.raw_path == place


def test_what_is_further_apart_than_products_bring_it_is_not_run_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for dtype in (None, "tf32"):
        monkeypatch.setattr(TorchAdapter, "product_dtype", lambda *_, dtype=dtype: dtype)
        base, raw, x = twins()
        padiff.assign_weight(base, raw)
        with torch.no_grad():
            raw.get_submodule("first").weight.mul_(1.02)
        calls: list[Any] = []
        base.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        result = padiff.compare(base, raw, (x,), weights="keep")
        assert result.divergence is not None
        assert result.divergence.raw_path == "first"
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_models_on_the_host_multiply_as_they_are() -> None:
    assert ADAPTER.product_dtype(Net()) is None
