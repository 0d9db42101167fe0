"""How the cells of recurrent layers are spelled out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from padiff.diagnose.steps import Made, Steps
from padiff.records import Array


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _affine(steps: Steps, part: str, x: Made, weight: Made, bias: Made | None) -> Made:
    turned = steps.do("weight", "transpose", lambda one: one.swapaxes(-1, -2), weight)
    more = () if bias is None else (bias,)
    return steps.do(part, "linear", lambda one, two, *rest: one @ two + sum(rest), x, turned, *more)


def _gates(steps: Steps, x: Made, state: Made, held: list[Made]) -> tuple[Made, Made]:
    """What is made of the input, and of the state."""
    biases: tuple[Made | None, ...] = (*held[2:4], None, None)
    return _affine(steps, "input's product", x, held[0], biases[0]), _affine(
        steps, "state's product", state, held[1], biases[1]
    )


def _parts(steps: Steps, gates: Made, *names: str) -> list[Made]:
    return [
        steps.do(name, "split", lambda one, n=n: np.split(one, len(names), -1)[n], gates)
        for n, name in enumerate(names)
    ]


def _lstm_cell(steps: Steps) -> None:
    x, hidden, cell, *held = steps.given
    gates = steps.do("gates", "add", np.add, *_gates(steps, x, hidden, held))
    into, forget, new, out = _parts(steps, gates, "input gate", "forget gate", "candidate", "output gate")
    into, forget, out = (
        steps.do(part, "sigmoid", _sigmoid, one)
        for part, one in (("input gate", into), ("forget gate", forget), ("output gate", out))
    )
    new = steps.do("candidate", "tanh", np.tanh, new)
    kept = steps.do("kept cell", "mul", np.multiply, forget, cell)
    added = steps.do("added candidate", "mul", np.multiply, into, new)
    cell = steps.do("cell", "add", np.add, kept, added)
    bent = steps.do("cell's tanh", "tanh", np.tanh, cell)
    steps.do("hidden state", "mul", np.multiply, out, bent)


def _gru_cell(steps: Steps) -> None:
    x, hidden, *held = steps.given
    given, state = (
        _parts(steps, one, "reset gate", "update gate", "candidate") for one in _gates(steps, x, hidden, held)
    )
    sums = [steps.do("gates", "add", np.add, one, other) for one, other in zip(given[:2], state[:2], strict=True)]
    reset, update = (
        steps.do(part, "sigmoid", _sigmoid, one) for part, one in zip(("reset gate", "update gate"), sums, strict=True)
    )
    let = steps.do("reset state", "mul", np.multiply, reset, state[2])
    new = steps.do("candidate", "tanh", np.tanh, steps.do("candidate", "add", np.add, given[2], let))
    apart = steps.do("change", "sub", np.subtract, hidden, new)
    kept = steps.do("kept change", "mul", np.multiply, update, apart)
    steps.do("hidden state", "add", np.add, new, kept)


def _plain_cell(steps: Steps) -> None:
    x, hidden, *held = steps.given
    gates = steps.do("sum", "add", np.add, *_gates(steps, x, hidden, held))
    if "relu" in steps.kind:
        steps.do("relu", "relu", lambda one: np.maximum(one, 0), gates)
    else:
        steps.do("tanh", "tanh", np.tanh, gates)


CELLS: dict[str, Callable[[Steps], None]] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": _plain_cell,
    "rnn_relu_cell": _plain_cell,
}
