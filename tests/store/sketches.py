"""A small model and its trace, drawn by hand: no framework is needed to write a dump."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from padiff.records import FIRST_OP, Array, Call, Draw, Frame, ModuleNode, ModuleTree, Slot, StepTrace, TensorSpec
from padiff.store import Dump, DumpWriter, Facts, LostValue, StoredDraw, StoredValue
from padiff.store.writer import Kind

FACTS = Facts("torch", "2.13.0", "Net", created="2026-01-01T00:00:00+00:00", padiff="1.0", python="3.11.7")
HERE = Path(__file__).as_posix()


class ArrayValue:
    """A value that is an array."""

    def __init__(self, array: Array, overwritten: bool = False) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype.name
        self.overwritten = overwritten

    def numpy(self) -> Array:
        return self._array

    def release(self) -> None:
        self._array = self._array[:0]


def tree() -> ModuleTree:
    weight = TensorSpec("weight", (3, 4), "float32", 140_000_000_001)
    tied = TensorSpec("weight", (3, 4), "float32", 140_000_000_001)
    count = TensorSpec("count", (), "int64", 140_000_000_003, computed=True)
    return ModuleTree(
        "torch",
        "Net",
        (
            ModuleNode(0, "", "Net", None, -1, (1, 2), (), (count,), 10, "Net()"),
            ModuleNode(1, "first", "Linear", "linear", 0, (), (weight,), (), 11, lambda: "Linear(4, 3)"),
            ModuleNode(2, "last", "Linear", "linear", 0, (), (tied,), (), 11, "Linear(4, 3)", atomic=True),
        ),
    )


def arrays() -> dict[int, Array]:
    generator = np.random.default_rng(3)
    return {
        0: generator.standard_normal((2, 4), dtype=np.float32),
        1: generator.standard_normal((2, 3)).astype(ml_dtypes.bfloat16),
        2: np.array(7),
        3: generator.standard_normal((2, 3)) + 1j,
        4: generator.integers(0, 2, 5).astype(bool),
        5: np.zeros((0, 3), np.float16),
    }


def trace(step: int = 0, scale: float = 1.0) -> StepTrace:
    held = {number: ArrayValue((array * scale).astype(array.dtype)) for number, array in arrays().items()}
    outer = Frame(HERE, 1, "forward")
    inner = (outer, Frame(HERE, 3, "forward"))
    calls = (
        Call(
            1, 0, 1, "first", "Linear", 0, (Slot("0", 0, held[0], True),), (Slot("", 1, held[1], True),), (1, 2), inner
        ),
        Call(2, 0, 2, "last", "Linear", 0, (Slot("0", 1, held[1], True),), (Slot("", 3, held[3]),), (2, 4), inner),
        Call(
            *(3, 0, 2, "last", "Linear", 1, (Slot("x.0", 4, held[4], True, 1),), (Slot("", 5, held[5]),), (4, 6)),
            (outer,),
        ),
        Call(
            *(0, -1, 0, "", "Net", 0, (Slot("0", 0, held[0]), Slot("n", 2, held[2])), (Slot("", 3, held[3]),), (0, 6)),
            ops=(
                Call(
                    *(FIRST_OP, 0, 0, "/matmul", "torch.matmul", 0, (Slot("0", 1, held[1]),), (Slot("", 4, held[4]),)),
                    stack=inner,
                    begun=2,
                    options=(("dims", (0, -1)), ("scale", float("inf")), ("mode", None)),
                ),
                Call(FIRST_OP - 1, 0, 0, "@mark", "tag", 0, (), (Slot("", 4, held[4], True),), begun=2, tag=True),
                Call(FIRST_OP + 1, 0, 0, "/add#1", "torch.add", 1, (), (Slot("", 5, held[5]),), begun=3),
            ),
        ),
    )
    gradients = {3: ArrayValue(arrays()[3] * 2), 0: ArrayValue(arrays()[0] * 3)}
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    return StepTrace(
        step, calls, gradients, ArrayValue(np.float32(0.5) * np.ones(())), {"w": ArrayValue(weight), "b": None}, True
    )


def state(step: int = 0) -> dict[str, Any]:
    return {
        "weights": {"first.weight": ArrayValue(np.arange(12, dtype=np.float32).reshape(3, 4))},
        "buffers": {"count": ArrayValue(np.array(step))},
        "arguments": ((np.ones(3, np.float32), [1, None, {"a": (2.5, "x")}]), {"mask": np.array([True])}),
        "noise": {"tensors": {1: 1e-7, 3: float("inf")}, "weights": {"first.weight": 0.5}},
        "extra": {"lr": 0.1, "tags": ["a"]},
    }


def write(
    path: Path, kind: Kind = "full", steps: int = 2, scale: float = 1.0, more: bool = False, **options: Any
) -> Path:
    """A dump of a few steps, with everything a dump may hold, or one draw more."""
    with DumpWriter(path, tree=tree(), facts=FACTS, kind=kind, extra={"note": "sketch"}, **options) as writer:
        for number in range(steps):
            step = writer.begin_step(number)
            step.trace(trace(number, scale))
            for name, value in state(number).items():
                getattr(step, name)(value)
            step.before({"first.weight": np.zeros((3, 4), np.float32)}, {"count": np.array(step.step - 1)})
            step.moments({"moment1": {"first.weight": np.full((3, 4), 0.25, np.float32)}})
            step.borders({(0, 1): np.ones(3)}, {1: np.full(3, 2.0)})
            mask = np.arange(11).reshape(11, 1) % 3 == 0
            step.draw(Draw("mask", mask, {"keep": 0.25}, op="aten.bernoulli_", call=1, path="first", clock=2))
            step.draw(Draw("uniform", np.linspace(1, 2, 3, dtype=np.float32), {}, 1.0, 2.0, event=mask[:3], chance=0.5))
            step.heard([("aten.mystery", "last")])
            if more:
                step.draw(Draw("gaussian", np.ones(2), call=-1))
            step.end(ran_backward=True)
    return path


def contents(path: Path) -> Mapping[str, Any]:
    """All that a reader can learn from a dump, as plain data: what two equal dumps have in common."""
    with Dump.open(path) as dump:
        dump.check()
        found: dict[str, Any] = {
            "kind": dump.kind,
            "facts": dump.facts.to_dict(),
            "tree": dump.tree.to_dict(),
            "extra": dump.extra,
        }
        for step in dump.steps:
            read = step.trace()
            found[f"step {step.number}"] = {
                "calls": [
                    (
                        *(c.index, c.parent, c.node, c.path, c.kind, c.occurrence, c.tensors, c.stack),
                        *(c.begun, c.tag, len(c.ops), str(c.options)),
                        *((s.name, s.tensor, s.tracked, s.stands_for) for s in (*c.inputs, *c.outputs)),
                    )
                    for call in read.calls
                    for c in (call, *call.ops)
                ],
                "sources": [dump.source_line(f) for c in read.calls for f in c.stack],
                "ran_backward": read.ran_backward,
                "tensors": {n: plain(v) for n, v in step.tensors.items()},
                "gradients": [(n, plain(v)) for n, v in step.gradients.items()],
                "loss": plain(step.loss),
                "parameter_gradients": {p: plain(v) for p, v in step.parameter_gradients.items()},
                "weights": {p: plain(v) for p, v in step.weights.items()},
                "buffers": {p: plain(v) for p, v in step.buffers.items()},
                "weights_before": {p: plain(v) for p, v in step.weights_before.items()},
                "buffers_before": {p: plain(v) for p, v in step.buffers_before.items()},
                "moments": {name: {p: plain(v) for p, v in row.items()} for name, row in step.moments.items()},
                "contributions": [(n, plain(v)) for n, v in step.borders.contributions.items()] if step.borders else [],
                "arrivals": [(n, plain(v)) for n, v in step.borders.arrivals.items()] if step.borders else [],
                "arguments": plain(step.arguments),
                "draws": [
                    (f.kind, f.parameters, f.loc, f.scale, f.op, f.call, f.path, f.clock, f.chance, drawn(d))
                    for d, f in ((d, d.facts) for d in step.draws)
                ],
                "unseen": step.unseen,
                "noise": str(step.noise),
                "extra": step.extra,
            }
    return found


def drawn(draw: StoredDraw) -> Any:
    """The numbers of a draw, or what is kept of them."""
    if draw.numbers.value.kind == "full":  # type: ignore[attr-defined]
        read = draw.load()
        return read.value.tolist(), None if read.event is None else read.event.tolist()
    return [one and one.shape for one in (draw.numbers, draw.event)], [plain(value) for value in draw.values()]


def plain(value: Any) -> Any:
    """A value as something that can be compared with ``==``."""
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if not isinstance(value, (StoredValue, LostValue)):
        return value
    if value.kind == "lost":
        return value.dtype, value.shape, value.overwritten
    elements = value.numpy().tobytes() if value.whole else None
    summary = str(value.statistics()) if value.kind == "stats" else None
    return value.dtype, value.shape, elements, value.digest(), summary
