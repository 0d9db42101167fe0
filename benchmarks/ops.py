"""What seeing ops costs: microseconds for each op that is recorded, and a whole comparison beside one without ops."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import torch

import padiff
from benchmarks.cost import CASES, TOY
from benchmarks.models import Pair, build
from benchmarks.rows import Row, Target
from benchmarks.runs import plain, seconds
from padiff.capture.gradient_log import GradientLog
from padiff.capture.held import Held
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.session import Session
from padiff.frameworks import Adapter, adapter_named, module_tree

PER_OP = Target("<= 6", "<= 6")
"""Microseconds beyond the run itself."""
WHOLE = Target("<= 2", "<= 2")
"""Times the same comparison without ops."""
OPS = 2000


class TorchChain(torch.nn.Module):
    """Many small ops in one module's own code."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.scale = torch.nn.Parameter(torch.ones(16))

    def forward(self, x: Any) -> Any:
        for _ in range(self.count // 2):
            x = x * self.scale
            x = torch.tanh(x)
        return x


class PaddleChain(paddle.nn.Layer):
    """The same."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.scale = self.create_parameter([16], default_initializer=paddle.nn.initializer.Constant(1.0))

    def forward(self, x: Any) -> Any:
        for _ in range(self.count // 2):
            x = x * self.scale
            x = paddle.tanh(x)
        return x


CHAINS: dict[str, Callable[[int], Any]] = {"torch": TorchChain, "paddle": PaddleChain}


def run(repeat: int, toy: bool) -> list[Row]:
    count = 20 if toy else OPS
    rows = [_per_op(name, count, repeat, backward) for name in CHAINS for backward in (False, True)]
    rows += [_hook(name, count, repeat) for name in CHAINS]
    for case in (TOY if toy else CASES)[:2]:
        pair = build(case)
        rows.append(_whole(case.name, pair, repeat))
    return rows


def _per_op(framework: str, count: int, repeat: int, backward: bool) -> Row:
    """A short and a long chain, with ops watched and without: what every op adds, apart from beginning and ending."""
    few, many = (_added(framework, number, repeat, backward) for number in (count // 5, count))
    each = 1e6 * (many - few) / (count - count // 5)
    what = "an op recorded" + (", its gradient too" if backward else "")
    facts = (
        f"{1e3 * many:.1f} ms for {count} ops, of which to begin and end {1e3 * few - 1e-3 * each * count / 5:.1f} ms"
    )
    return Row(what, framework, f"{each:.1f} us", PER_OP, facts, each)


def _added(framework: str, count: int, repeat: int, backward: bool) -> float:
    """Seconds that watching its ops adds to a run of a chain."""
    live = module_tree(adapter_named(framework), CHAINS[framework](count))
    array = np.linspace(-1, 1, 16, dtype="float32")

    def once(ops: WantedOps | None) -> float:
        session = Session(live, "base", frozenset({0}))
        session.ops = ops
        with session.prepared(training=False):
            x = live.adapter.to_native(array)
            start = time.thread_time()  # of this thread: others may keep the machine busy
            trace = session.run(0, Arguments((x,), {}), loss_fn=None, backward=backward)
            took = time.thread_time() - start
        assert ops is None or len(trace.calls[-1].ops) == count
        return took

    for ops in (None, WantedOps()):
        once(ops)
    rounds = [(once(None), once(WantedOps())) for _ in range(4 * repeat)]  # quick, and the best of them count
    without, seen = (min(column) for column in zip(*rounds, strict=True))
    return seen - without


def _hook(framework: str, count: int, repeat: int) -> Row:
    """What the framework takes for a gradient hook that keeps what it is told: no recording can cost less."""
    adapter = adapter_named(framework)
    chain, array = CHAINS[framework](2), np.linspace(-1, 1, 16, dtype="float32")
    tanh = torch.tanh if framework == "torch" else paddle.tanh

    def once(hooked: bool) -> float:
        x, made = adapter.to_native(array), []
        log = GradientLog(adapter)
        log.taking = True
        start = time.thread_time()
        for _ in range(count // 2):
            x = x * chain.scale
            made.append(x)
            x = tanh(x)
            made.append(x)
        follow = adapter.keeping_gradients(log)
        handles: dict[int, Any] = {}
        seen = [_seen(adapter, tensor, number) for number, tensor in enumerate(made)]
        if hooked:
            follow(zip(made, seen, strict=True), handles)
        adapter.backward(adapter.mean_loss([x]))
        for handle in handles.values():
            if handle is not None:
                handle.remove()
        took = time.thread_time() - start
        adapter.set_gradient(chain.scale, None)
        return took

    rounds = [(once(False), once(True)) for _ in range(repeat + 1)][1:]
    without, with_hooks = (min(column) for column in zip(*rounds, strict=True))
    each = 1e6 * (with_hooks - without) / count
    facts = f"without {1e3 * without:.1f} ms, with hooks {1e3 * with_hooks:.1f} ms"
    return Row("a gradient hook alone", framework, f"{each:.1f} us", Target("-", "-"), facts, each)


def _seen(adapter: Adapter, tensor: Any, number: int) -> Held:
    found = Held(adapter, tensor)
    found.number = number
    return found


def _whole(name: str, pair: Pair, repeat: int) -> Row:
    def compared(level: Any) -> Callable[[Pair], None]:
        def once(pair: Pair) -> None:
            result = padiff.compare(
                pair.torch_model, pair.paddle_model, (pair.torch_inputs, pair.paddle_inputs), level=level
            )
            assert result.aligned, str(result)

        return once

    modules, ops = compared("module"), compared("op")
    for one in (modules, ops, plain):
        one(pair)
    rounds = [(seconds(modules, pair), seconds(ops, pair), seconds(plain, pair)) for _ in range(repeat)]
    ratio = statistics.median(two / one for one, two, _ in rounds)
    middle = [1e3 * statistics.median(column) for column in zip(*rounds, strict=True)]
    facts = f"modules {middle[0]:.0f} ms, ops {middle[1]:.0f} ms, plain {middle[2]:.0f} ms"
    return Row('level="op" over modules only', name, f"{ratio:.2f}", WHOLE, facts, ratio)
