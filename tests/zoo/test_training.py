"""Pairs as they are trained: base's draws are replayed in models that other people wrote, and bugs are found behind."""

from __future__ import annotations

import pytest

import padiff
from tests.zoo import libraries
from tests.zoo.prepare import write
from tests.zoo.training import TRAINED, Models, gpt2


def built(name: str) -> Models:
    build, needed = TRAINED[name]
    for library in needed:
        if reason := libraries.missing(library):
            pytest.skip(reason)
    return build()


@pytest.mark.parametrize("name", TRAINED)
def test_aligned_in_training(name: str) -> None:
    base, raw, inputs = built(name)
    for one, other in ((base, raw), (raw, base)):
        result = padiff.compare(one, other, inputs)
        assert result.aligned, str(result)
        assert result.replayed > 5
        assert not [note for note in result.notes if "correspond" in note]


@pytest.mark.parametrize("name", TRAINED)
def test_planted_in_training(name: str) -> None:
    base, raw, inputs = built(name)
    assert padiff.compare(base, raw, inputs, phase="forward").aligned
    matrices = [(path, tensor) for path, tensor in raw.named_parameters() if tensor.ndim == 2]
    path, tensor = matrices[len(matrices) // 2]
    write(tensor, 1.5 * tensor.detach().numpy())
    found = padiff.compare(base, raw, inputs, weights="keep", phase="forward").divergence
    assert found is not None
    assert found.raw_path == path.rpartition(".")[0], str(found)


def test_a_share_that_another_library_takes_from_elsewhere() -> None:
    for library in ("transformers", "paddlenlp"):
        if reason := libraries.missing(library):
            pytest.skip(reason)
    base, raw, inputs = gpt2(attention=0.2)
    found = padiff.compare(base, raw, inputs).divergence
    assert found is not None
    places = ("transformer.h.0.attn.resid_dropout", "gpt.decoder.layers.0.dropout1")
    assert (found.base_path, found.raw_path) == places
    assert str(found.causes[0]) == "dropout: p is 0.2 in raw and 0.1 in base; with base's value the outputs agree"
