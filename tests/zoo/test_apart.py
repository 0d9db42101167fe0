"""Every pair of the zoo once more, run apart: raw along base's dump, and two dumps compared."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import padiff
from padiff.frameworks import adapter_of_model
from tests.zoo import libraries
from tests.zoo.pairs import PAIRS, Pair

ROOT = Path(__file__).parents[2]


def run(model: Any, inputs: Any, phase: str) -> None:
    """Forward, and backward from the first output."""
    adapter = adapter_of_model(model, "model")

    def native(value: Any) -> Any:
        return adapter.to_native(value) if isinstance(value, np.ndarray) else value

    if isinstance(inputs, dict):
        output = model(**{name: native(value) for name, value in inputs.items()})
    else:
        output = model(*map(native, inputs if isinstance(inputs, tuple) else (inputs,)))
    if phase == "both":
        followed = [t for _, t in adapter.flatten(output) if adapter.requires_grad(t)]
        followed[0].square().mean().backward()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_pair_that_runs_apart(pair: Pair, tmp_path: Path) -> None:
    """By itself, then synchronised: one model, since some name their parameters, and paddle takes a name once."""
    for library in pair.libraries:
        if reason := libraries.missing(library):
            pytest.skip(reason)
    base, raw, inputs = pair.build(True)
    two = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[0], dict)
    mine, theirs = inputs if two else (inputs, inputs)
    with padiff.capture(base, tmp_path / "a"):
        run(base, mine, pair.phase)
    for sync in (False, True):
        with padiff.capture(raw, tmp_path / "b", base=tmp_path / "a", sync=sync, overwrite=True):
            run(raw, theirs, pair.phase)
        result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
        if pair.really_different_at is None:
            assert result.aligned, f"sync={sync}: {result}"
        else:
            assert result.divergence is not None and result.divergence.raw_path == pair.really_different_at
    gc.collect()


BASE = """
    from tests.zoo import libraries
    import torch, padiff
    library = libraries.load("transformers")
    torch.manual_seed(0)
    model = library.BertModel(library.BertConfig(**SETTINGS, attn_implementation="eager"))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with padiff.capture(model, to="run_a", optimizer=optimizer):
        for _ in range(2):
            model(input_ids=torch.randint(3, 90, (2, 11))).last_hidden_state.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "paddle" not in __import__("sys").modules
"""
RAW = """
    from tests.zoo import libraries
    import paddle, padiff
    library = libraries.load("paddlenlp")
    model = library.BertModel(library.BertConfig(**SETTINGS))
    model.train()
    if BROKEN == "eps":
        model.encoder.layers[1].norm1._epsilon = 1e-4
    if BROKEN == "dropout":
        model.encoder.layers[2].dropout1.p = 0.3
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), weight_decay=0.01)
    with padiff.capture(model, to="run_b", optimizer=optimizer, base="run_a", weights="copy", inputs="copy", sync=SYNC,
                        overwrite=True):
        for _ in range(2):
            model(input_ids=paddle.randint(3, 90, (2, 11)))[0].square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
"""
SETTINGS = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 33,
    "num_hidden_layers": 3,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
}


def elsewhere(code: str, cwd: Path, **values: Any) -> None:
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    paths = os.pathsep.join((str(Path(padiff.__file__).parents[1]), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", given + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_bert_trains_in_two_processes(tmp_path: Path) -> None:
    for library in ("transformers", "paddlenlp"):
        if reason := libraries.missing(library):
            pytest.skip(reason)
    elsewhere(BASE, tmp_path, SETTINGS=SETTINGS)
    places = {"eps": "encoder.layers.1.norm1", "dropout": "encoder.layers.2.dropout1"}
    for sync in (False, True):
        for broken in ("", "eps", "dropout"):
            elsewhere(RAW, tmp_path, SETTINGS=SETTINGS, SYNC=sync, BROKEN=broken)
            result = padiff.compare_dumps(tmp_path / "run_a", tmp_path / "run_b")
            if not broken:
                assert result.aligned, str(result)
                assert len(result.steps) == 2
                assert result.replayed == 2 * (1 + 3 * 3)  # of embeddings, and of attention and both branches of layers
            else:
                assert result.divergence is not None
                assert result.divergence.raw_path == places[broken]
                assert result.divergence.causes[0].name == broken
