"""A gate that one author computes in one op and the other in steps, with channels elsewhere: what is bent otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
F = paddle.nn.functional


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pw1, self.dw = torch.nn.Conv1d(6, 12, 1), torch.nn.Conv1d(6, 6, 3, padding=1, groups=6)
        self.turn, self.out = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        mixed = self.dw(torch.nn.functional.glu(self.pw1(x.transpose(1, 2)), dim=1)).transpose(1, 2)
        return self.out(torch.sigmoid(self.turn(x)) * mixed.cumsum(1))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = torch.nn.ModuleList([Gate() for _ in range(6)])

    def forward(self, x: Any) -> Any:
        for gate in self.gates:
            x = x + gate(x)
        return x


class Steps(paddle.nn.Layer):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.widen, self.narrow, self.role = (paddle.nn.Linear(6, size) for size in (12, 6, 6))
        self.along, self.bug = paddle.nn.Conv1D(6, 6, 3, padding=1, groups=6), bug

    def forward(self, x: Any) -> Any:
        kept, gate = self.widen(x).chunk(2, axis=-1)
        if self.bug == "swapped":
            kept, gate = gate, kept
        kept = kept * (F.tanh(gate) if self.bug == "tanh" else F.sigmoid(gate))
        mixed = self.along(kept.transpose([0, 2, 1])).transpose([0, 2, 1])
        role = self.role(x)
        role = F.silu(role) if self.bug == "silu" else F.sigmoid(role)
        return self.narrow(role * paddle.cumsum(mixed, axis=1))


class Port(paddle.nn.Layer):
    def __init__(self, bug: str = "", at: int = 4) -> None:
        super().__init__()
        self.layers = paddle.nn.LayerList([Steps(bug if place == at else "") for place in range(6)])
        self.narrows = bug == "narrows"

    def forward(self, x: Any) -> Any:
        for place, layer in enumerate(self.layers):
            more = layer(x)
            x = x + (more.astype("bfloat16").astype("float32") if self.narrows and place == 4 else more)
        return x


@pytest.mark.parametrize(
    ("bug", "path", "cause"),
    [
        ("tanh", "layers.4", "activation"),
        ("swapped", "layers.4", "operands"),
        ("silu", "layers.4", "activation"),
        ("narrows", "", "precision"),
    ],
)
def test_what_is_bent_otherwise(bug: str, path: str, cause: str) -> None:
    torch.manual_seed(0)
    assert padiff.compare(Net(), Port(), X).aligned
    for base, raw, at in ((Net(), Port(bug), path), (Port(bug), Net(), path.replace("layers", "gates"))):
        found = padiff.compare(base, raw, X).divergence
        assert found is not None
        assert (found.raw_path, found.phase) == (at, "forward")
        assert cause in [one.name for one in found.causes[:2]], [str(one) for one in found.causes]
        if bug == "tanh":
            assert found.op is not None
            assert "sigmoid" in str(found.op)
