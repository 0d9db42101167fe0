"""Inputs go to where the model is. The device ``meta`` stands for an accelerator: it is on every machine."""

from __future__ import annotations

import torch

from padiff.frameworks import adapter_named

TORCH = adapter_named("torch")


class Spread(torch.nn.Module):
    """One half here, one half there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2, device="meta")
        self.second = torch.nn.Linear(2, 2)


def test_an_input_that_lies_elsewhere_is_moved_to_the_model() -> None:
    moved = TORCH.to_native(torch.ones(2), like=torch.nn.Linear(2, 2, device="meta"))
    assert moved.device.type == "meta"


def test_an_input_stays_with_the_half_of_the_model_where_the_user_put_it() -> None:
    assert TORCH.to_native(torch.ones(2), like=Spread()).device.type == "cpu"
    assert TORCH.to_native(torch.ones(2, device="meta"), like=Spread()).device.type == "meta"


def test_a_model_without_tensors_takes_its_inputs_where_they_are() -> None:
    assert TORCH.to_native(torch.ones(2, device="meta"), like=torch.nn.ReLU()).device.type == "meta"
