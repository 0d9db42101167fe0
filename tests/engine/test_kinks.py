"""A number on the kink of a ReLU falls to one side in base and to the other in raw: no fault, and none is hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import padiff

SHIFT, BACK = np.float32(0.7), np.float32(1.0)


class Rectified(torch.nn.Module):
    """One layer that shifts there and back and rectifies, in one order of adding or in the other."""

    def __init__(self, together: bool) -> None:
        super().__init__()
        self.together = together
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        x = x * self.weight
        x = x + (SHIFT - BACK).item() if self.together else (x + SHIFT.item()) - BACK.item()
        return torch.relu(x)


def model(together: bool, *, hook: bool = False) -> Any:
    torch.manual_seed(0)
    found = torch.nn.Sequential(torch.nn.Linear(4, 4), Rectified(together), torch.nn.Linear(4, 3))
    torch.nn.init.eye_(found[0].weight)
    torch.nn.init.zeros_(found[0].bias)
    if hook:
        found[1].weight.register_hook(lambda gradient: gradient * 1.5)
    return found


def on_the_kink(row: int) -> np.ndarray:
    """Inputs one of which is positive in one order of adding and not in the other."""
    value = np.float32(0.29999)
    while (value + SHIFT - BACK > 0) == (value + (SHIFT - BACK) > 0):
        value = np.nextafter(value, np.float32(1))
    x = np.random.default_rng(0).uniform(0.4, 1.0, size=(600, 4)).astype("float32")
    x[row, 1] = value
    return x


def test_a_kink_is_no_fault_and_is_said() -> None:
    """Where base falls to the other side, too, when it is shaken, the difference is predicted; elsewhere not."""
    results = [padiff.compare(model(False), model(True), on_the_kink(row)) for row in range(8)]
    assert all(result.aligned for result in results)
    assert any("kink" in note for result in results for note in result.notes)


def test_a_fault_beside_a_kink_is_named() -> None:
    for row in range(8):
        result = padiff.compare(model(False), model(True, hook=True), on_the_kink(row))
        assert result.divergence is not None
        assert (result.divergence.raw_path, result.divergence.phase) == ("1", "gradient")


def test_without_a_kink_nothing_is_said() -> None:
    x = np.random.default_rng(1).uniform(0.4, 1.0, size=(6, 4)).astype("float32")
    result = padiff.compare(model(False), model(True), x)
    assert result.aligned
    assert not any("kink" in note for note in result.notes)


def test_base_on_a_kink_hides_no_fault() -> None:
    """One row, and a number of base's own on a kink: shaken, base's gradients move as far as the fault does."""
    for seed in (0, 1, 3, 6):
        torch.manual_seed(seed)
        x = torch.randn(1, 6)
        base, raw = (
            torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.ReLU())
            for _ in range(2)
        )
        with torch.no_grad():
            base[0].bias[2] -= base[0](x)[0, 2]
        assert padiff.compare(base, raw, x).aligned
        raw[0].weight.register_hook(lambda gradient: gradient * 1.5)
        divergence = padiff.compare(base, raw, x).divergence
        assert divergence is not None
        assert (divergence.raw_path, divergence.phase) == ("0", "gradient")
        assert divergence.causes[0].name == "scale"


def trained(rate: float, row: int) -> padiff.Result:
    """Three steps, in which what crosses the kink goes into the weights."""
    base, raw = model(False), model(True)
    optimizers = tuple(
        torch.optim.SGD(one.parameters(), lr=lr, momentum=0.9) for one, lr in ((base, 0.01), (raw, rate))
    )
    return padiff.compare(base, raw, on_the_kink(row)[row : row + 2], optimizers=optimizers, steps=3)


def test_what_a_kink_does_to_gradients_goes_into_the_weights() -> None:
    for row in (0, 3, 5):
        result = trained(0.01, row)
        assert result.aligned, result.divergence
        assert len(result.steps) == 3


def test_a_rate_beside_a_kink_is_named() -> None:
    for row in (0, 3, 5):
        found = trained(0.02, row).divergence
        assert found is not None
        assert (found.phase, found.step, found.causes[0].name) == ("weight", 0, "lr")


def test_a_kink_beside_a_fault_in_forward_is_no_second_place() -> None:
    for row in range(8):
        base, raw = model(False), model(True)
        for found in (base, raw):
            found[1].weight.requires_grad_(False)
        raw[0].register_forward_hook(lambda module, given, made: torch.cat([made[:-1], made[-1:] * 1.05]))
        result = padiff.compare(base, raw, on_the_kink(row))
        assert [(one.raw_path, one.phase) for one in result.divergences] == [("0", "forward")], str(result)


def test_what_all_numbers_share_is_no_kink_however_few_there_are() -> None:
    base, raw = (torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 3)) for _ in range(2))
    for parameter in raw[0].parameters():
        parameter.register_hook(lambda gradient: gradient * 1.5)
    calls: list[Any] = []
    base.register_forward_pre_hook(lambda *_: calls.append(1))
    result = padiff.compare(base, raw, torch.randn(5, 16))
    assert [(one.raw_path, one.phase) for one in result.divergences] == [("0", "gradient")]
    assert len(calls) == 4  # with inputs moved a little nobody ran
