"""Where and how a model runs, as its framework says it."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.frameworks import module_tree
from padiff.frameworks.environment import environment_of, facts
from padiff.frameworks.registry import adapter_of_model

MODELS = {"torch": torch.nn.Linear, "paddle": paddle.nn.Linear}
VERSIONS = {"torch": torch.__version__, "paddle": paddle.__version__}


@pytest.mark.parametrize("framework", MODELS)
def test_what_every_side_says(framework: str) -> None:
    model = MODELS[framework](2, 3)
    model.eval()
    found = module_tree(adapter_of_model(model, "model"), model).tree.environment
    asked = {name: found[name] for name in ("version", "device", "parameters", "mode", "autocast")}
    assert asked == {
        "version": VERSIONS[framework],
        "device": "cpu",
        "parameters": "float32",
        "mode": "evaluation",
        "autocast": "off",
    }
    assert found["threads"].isdigit()


def test_flags_are_read_when_the_model_is() -> None:
    model = torch.nn.Linear(2, 3).double()
    adapter = adapter_of_model(model, "model")
    assert environment_of(adapter, model)["deterministic"] == "off"
    torch.use_deterministic_algorithms(True)
    try:
        found = environment_of(adapter, model)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (found["deterministic"], found["parameters"], found["mode"]) == ("on", "float64", "training")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert environment_of(adapter, model)["autocast"] == "bfloat16"


def test_a_question_without_an_answer_is_left_out() -> None:
    def unknown() -> Any:
        raise RuntimeError("not in this version")

    found = facts(one_two=lambda: True, three=unknown, four=lambda: None, five=lambda: 5)
    assert found == {"one two": "on", "five": "5"}


def test_an_adapter_that_says_nothing_is_asked_for_the_device() -> None:
    class Silent:
        name = "numpy"

        def device_of(self, model: Any) -> str:
            return "abacus"

    assert environment_of(Silent(), None) == {"version": np.__version__, "device": "abacus"}  # type: ignore[arg-type]


def test_the_report_has_both_sides() -> None:
    base, raw = torch.nn.Linear(4, 4), paddle.nn.Linear(4, 4)
    raw.eval()
    report = padiff.compare(base, raw, np.ones((2, 4), "float32"), phase="forward").report()
    assert (report.base.version, report.raw.version) == (torch.__version__, paddle.__version__)
    assert "version" not in report.base.environment
    assert (report.base.environment["mode"], report.raw.environment["mode"]) == ("training", "evaluation")
