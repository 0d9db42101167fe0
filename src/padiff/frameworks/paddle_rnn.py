"""paddle's recurrent kernel drops between its layers by itself: how to see what, and to have it drop otherwise.

In evaluation mode it keeps nothing for backward, which then raises: how to have it keep that."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

from padiff.frameworks.patches import replaced

Op = Callable[..., Any]
_SHARE, _IS_TEST = 5, 12
"""Places of the share that is dropped, and of the mode, among the kernel's arguments."""


@contextmanager
def kept_for_backward() -> Iterator[None]:
    """Inside, in this thread, the kernel in evaluation mode computes what it does, and can be followed back."""
    thread = threading.get_ident()

    def wrap(op: Op) -> Op:
        @functools.wraps(op)
        def keeping(*args: Any, **kwargs: Any) -> Any:
            idle = len(args) > _IS_TEST and args[_IS_TEST] and paddle.is_grad_enabled()
            if not idle or threading.get_ident() != thread:
                return op(*args, **kwargs)
            return op(*args[:_SHARE], 0.0, *args[_SHARE + 1 : _IS_TEST], False, *args[_IS_TEST + 1 :], **kwargs)

        return keeping

    with replaced([(paddle._C_ops, "rnn", wrap)] if hasattr(paddle._C_ops, "rnn") else []):
        yield


def layers_of(args: Sequence[Any]) -> float | None:
    """The share that is dropped between layers; None where nothing is."""
    share, layers, is_test = float(args[_SHARE]), int(args[9]), bool(args[_IS_TEST])
    return share if layers > 1 and not is_test and 0.0 < share < 1.0 else None


def masks_of(op: Op, args: Sequence[Any]) -> list[Any]:
    """What is dropped after each layer but the last.

    Layers that return ones, whatever they are given, and then one that returns what it is given, show what was dropped
    between. The kernel draws by shape alone, so starting from the same state it drops the same.
    """
    inputs, share, bidirectional = args[0], float(args[_SHARE]), bool(args[6])
    hidden, layers = int(args[8]), int(args[9])
    steps, batch = inputs.shape[0], inputs.shape[1]
    directions = 2 if bidirectional else 1
    before, found = paddle.get_rng_state(), []
    with paddle.no_grad():
        for depth in range(2, layers + 1):
            paddle.set_rng_state(before)
            weights = _passing_on(depth, hidden, directions)
            start = [paddle.zeros([depth * directions, batch, hidden])]
            sizes = (bidirectional, 1, hidden, depth)
            ones = paddle.ones([steps, batch, 1])
            out, _, _ = op(ones, start, weights, None, paddle.Tensor(), share, *sizes, "RNN_RELU", 0, False)
            found.append(out)
    return found


def _passing_on(depth: int, hidden: int, directions: int) -> list[Any]:
    """Weights, then biases: all layers return ones, the last one what it is given."""
    identity = np.eye(hidden * directions, dtype=np.float32)
    weights: list[Any] = []
    biases: list[Any] = []
    for layer in range(depth):
        for direction in range(directions):
            own = identity[direction * hidden : (direction + 1) * hidden]
            width = 1 if layer == 0 else hidden * directions
            last = layer == depth - 1
            weights += [own if last else np.zeros((hidden, width), np.float32), np.zeros((hidden, hidden), np.float32)]
            biases += [np.full(hidden, 0.0 if last else 1.0, np.float32), np.zeros(hidden, np.float32)]
    return [paddle.to_tensor(array) for array in (*weights, *biases)]


def layer_by_layer(op: Op, args: Sequence[Any], factors: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
    """The kernel run once for each layer, with the given factors in between."""
    inputs, states, weights, lengths, reserve = args[:5]
    bidirectional, hidden, layers, mode = bool(args[6]), int(args[8]), int(args[9]), args[10]
    directions = 2 if bidirectional else 1
    half, each = len(weights) // 2, len(weights) // 2 // layers
    ended: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        own = [*weights[each * layer : each * (layer + 1)], *weights[half + each * layer : half + each * (layer + 1)]]
        begun = [state[directions * layer : directions * (layer + 1)] for state in states]
        sizes = (bidirectional, inputs.shape[-1], hidden, 1)
        out, _, state = op(inputs, begun, own, lengths, paddle.Tensor(), 0.0, *sizes, mode, 0, False)
        for one, collected in zip(state, ended, strict=True):
            collected.append(one)
        inputs = out * factors[layer] if layer < layers - 1 else out
    return inputs, reserve, [paddle.concat(parts, axis=0) for parts in ended]
