"""Tensors marked inside models are compared by name, gradients too; outside of a comparison a mark does nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.own_code import MODELS, batch, model
from tests.twins import PAIRS

import padiff
from padiff.errors import ArgumentError


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in MODELS:
        monkeypatch.setattr(type(model(framework).first), "tagged", True)


def tags(result: Any) -> list[tuple[str, str]]:
    return [(one.raw_path, one.phase) for one in result.comparisons if one.raw_kind == "tag"]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_compared_by_name(base: str, raw: str) -> None:
    result = padiff.compare(model(base), model(raw), batch())
    assert result.aligned, str(result)
    assert tags(result) == [
        ("first@scores", "forward"),
        ("second@scores", "forward"),
        ("second@scores", "backward"),
        ("first@scores", "backward"),
    ]
    assert result.coverage["calls"] == 1.0


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize(("base", "raw"), PAIRS)
@pytest.mark.parametrize("level", ["module", "op"])
def test_a_divergence_names_it(base: str, raw: str, level: Any) -> None:
    result = padiff.compare(model(base), model(raw, "scale"), batch(), level=level)
    found = result.divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("second", "forward")
    assert found.comparison.raw_path == "second@scores"
    assert "'scores'" in found.note
    assert "'scores'" in str(result)
    assert found.op is not None
    assert (found.op.base.rpartition(".")[2].strip("_"), found.op.raw) == ("mul", "")


def test_tags_in_other_places_pair_by_name() -> None:
    class Other(MODELS["torch"]):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return padiff.tag("all", super().forward(padiff.tag("given", x)))

    class Inner(MODELS["torch"]):  # type: ignore[misc, valid-type]
        def forward(self, x: Any) -> Any:
            return padiff.tag("all", self.second(self.first(x))) + 0.0

    torch.manual_seed(0)
    result = padiff.compare(Other(), Inner(), batch())
    assert result.aligned, str(result)
    assert ("@all", "forward") in tags(result)
    alone = [str(one) for one in result.unmatched]
    assert alone == ["base @given (tag): raw tags nothing of this name"]


def test_does_nothing_outside_of_a_comparison() -> None:
    x = torch.ones(2)
    assert padiff.tag("x", x) is x
    assert padiff.tag("anything", None) is None
    with pytest.raises(ArgumentError, match="name is 3, expected a name such as 'scores'"):
        padiff.tag(3, x)  # type: ignore[arg-type]


@pytest.mark.usefixtures("tagged")
@pytest.mark.parametrize("framework", list(MODELS))
def test_changes_nothing(framework: str) -> None:
    """A model with tags returns and learns what it does without."""
    from tests.capture.test_ops import run

    found: list[dict[str, Any]] = []
    outputs = []
    for on in (True, False):
        given = model(framework)
        for block in (given.first, given.second):
            type(block).tagged = on
        outputs.append(run(framework, given, batch(), gradients=found).calls[-1].outputs[0].value.numpy().copy())
    np.testing.assert_array_equal(*outputs)
    for path, gradient in found[0].items():
        np.testing.assert_array_equal(gradient, found[1][path])
