"""Nothing keeps a model, or what was seen of it, once a comparison is over."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

import padiff
from padiff.engine.fed.local import LocalRun
from tests.own_code import batch, model
from tests.twins import PAIRS


def tensor(framework: str) -> Any:
    return torch.from_numpy(batch()) if framework == "torch" else paddle.to_tensor(batch())


@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_models_go_after_a_comparison(base: str, raw: str, level: Any) -> None:
    models = [model(base), model(raw)]
    gone = [weakref.ref(one) for one in models]
    padiff.compare(*models, batch(), level=level)
    models.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize("level", ["module", "op"])
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_models_go_after_a_capture(base: str, raw: str, sync: bool, level: Any, tmp_path: Path) -> None:
    gone = []
    for name, framework, more in (("a", base, {}), ("b", raw, {"base": tmp_path / "a", "sync": sync})):
        one = model(framework)
        with padiff.capture(one, tmp_path / name, level=level, **more):  # type: ignore[arg-type]
            one(tensor(framework)).square().mean().backward()
        gone.append(weakref.ref(one))
        del one
    gc.collect()
    assert [one() for one in gone] == [None, None]


def runs() -> int:
    return sum(type(one) is LocalRun for one in gc.get_objects())


def test_a_run_on_bases_tensors_goes_without_the_collector() -> None:
    torch.manual_seed(0)
    base, raw = (
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()),
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sigmoid()),
    )
    gc.collect()
    before = runs()
    gc.disable()
    try:
        assert not padiff.compare(base, raw, torch.randn(2, 4)).aligned
        assert runs() <= before
    finally:
        gc.enable()
