"""A trace that was captured, not drawn: everything comes back, and little is added to what it weighs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from padiff.capture.one_step import Arguments
from padiff.capture.session import Session
from padiff.frameworks.registry import adapter_of_model
from padiff.frameworks.tree import module_tree
from padiff.store import Dump, DumpWriter, Facts

torch = pytest.importorskip("torch")


def block(width: int) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def test_a_captured_step_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(block(64) for _ in range(12)), torch.nn.ReLU(inplace=True))
    live = module_tree(adapter_of_model(model, "model"), model)
    session = Session(live, "base", frozenset(range(len(live.modules))))
    inputs = Arguments((torch.randn(4, 16, 64),), {})
    with session.prepared(training=False):
        trace = session.run(0, inputs, loss_fn=None, backward=True)
        facts = Facts("torch", torch.__version__, live.tree.name)
        with DumpWriter(tmp_path / "run", tree=live.tree, facts=facts) as writer:
            writer.write_step(trace, weights=session.weights())
    dump = Dump.open(tmp_path / "run")
    read = dump.step(0).trace()
    for before, after in zip(trace.calls, read.calls, strict=True):
        assert (before.path, before.kind, before.stack) == (after.path, after.kind, after.stack)
        for old, new in zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True):
            assert (old.name, old.tensor, old.tracked) == (new.name, new.tensor, new.tracked)
            assert np.array_equal(old.value.numpy(), new.value.numpy())
    assert list(read.gradients) == list(trace.gradients)
    assert read.parameter_gradients.keys() == trace.parameter_gradients.keys()
    assert [(n.path, n.children, n.line) for n in dump.tree.nodes] == [
        (n.path, n.children, n.line) for n in live.tree.nodes
    ]
    values: dict[int, Any] = {value.number: value for value in dump.step(0).all_values()}  # type: ignore[attr-defined]
    weight = sum(value.numpy().nbytes for value in values.values())
    assert sum(file.stat().st_size for file in (tmp_path / "run").iterdir()) < 1.05 * weight


def test_the_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    from benchmarks.store import run

    rows = run(1, toy=True)
    assert [row.what for row in rows] == [
        "written, share of a plain file",
        "on disk, against the tensors",
        "read and checked",
        "stats: bytes for a tensor",
        "hash: bytes for a tensor",
    ]
    assert all(row.value > 0 for row in rows)
    assert not list(tmp_path.iterdir())
