"""Reports drawn by hand, so that renderers are tested without a model."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from padiff.records import (
    Cause,
    Comparison,
    Divergence,
    Numbers,
    Outcome,
    Phase,
    Role,
    SourceLine,
    Tolerance,
    Unmatched,
)
from padiff.report import Report, picture_of
from padiff.report.record import CallPair, Environment, Module, Side, Weight

NOISE = 1e-7
NORM = {"normalized_shape": (8,), "eps": 1e-5, "elementwise_affine": True}
DRAWN = 2000
"""Comparisons among which those that differ have a picture."""
FILE = "port/model.py"
CODE = {
    "10": "    def forward(self, x):",
    "11": "        h = self.norm(x)",
    "12": "        return x + self.fc(h)",
    "13": "",
}


def outcome(error: float, message: str = "") -> Outcome:
    """A relative error of a tensor whose elements are about 1."""
    if math.isnan(error):
        return Outcome("different", "nonfinite", "NaN in raw, not in base: 3 of 64", _numbers(0.5), None, NOISE)
    verdict = "equal" if error == 0 else "rounding" if error < 1e-5 else "different"
    told = message or f"rms error {error:.1e}, allowed 1.0e-05 (auto)"
    reason = "values" if verdict == "different" else None
    return Outcome(verdict, reason, told, _numbers(error), 1e-5 if error else None, NOISE)  # type: ignore[arg-type]


def _numbers(error: float) -> Numbers:
    return Numbers(64, 3 * error, 0.8 * error, 0.8, error, 1.0, 1.0, 64 if error >= 1e-5 else 0, 4 * error, 12, (0, 7))


def comparison(path: str, call: int, error: float, phase: Phase = "forward", role: Role = "output") -> Comparison:
    kind = "Model" if not path else "LayerNorm" if path.endswith("norm") else "Linear" if path[-1] in "cd" else "Block"
    name = "weight" if role == "parameter" else "0" if role == "input" else ""
    number = call if role != "parameter" else -1
    forms = ("float32[8, 8]", "float32[8, 8]")
    return Comparison(phase, 0, role, path, path, kind, kind, name, outcome(error), number, number, number, forms)


def paths(blocks: int) -> list[str]:
    inside = [f"blocks.{i}{rest}" for i in range(blocks) for rest in ("", ".norm", ".fc")]
    return ["", "embed", *inside, "head"]


def side(name: str, framework: str, version: str, blocks: int) -> Side:
    modules = [
        Module("", name, f"{name}()"),
        Module("embed", "Linear", "Linear(4, 8)", 0),
        Module("blocks", "List", "", 0),
    ]
    for i in range(blocks):
        at = len(modules)
        modules.append(Module(f"blocks.{i}", "Block", "Block()", 2))
        modules.append(Module(f"blocks.{i}.norm", "LayerNorm", "LayerNorm(8)", at, NORM, {"weight": "float32[8]"}))
        modules.append(Module(f"blocks.{i}.fc", "Linear", "Linear(8, 8)", at))
    modules.append(Module("head", "Linear", "Linear(8, 2)", 0))
    environment = {"device": "cpu", "parameters": "float32", "mode": "evaluation", "threads": "2"}
    return Side(name, framework, version, tuple(modules), environment)


def aligned(blocks: int = 3) -> Report:
    """A small model without fault; ``blocks`` makes it as large as one likes."""
    found = paths(blocks)
    numbers = {path: i for i, path in enumerate(found)}
    ended = [path for path in found if path and not path.startswith("blocks")]
    ended[1:1] = [f"blocks.{i}{rest}" for i in range(blocks) for rest in (".norm", ".fc", "")]
    ended.append("")
    calls = tuple(
        CallPair(0, numbers[p], numbers[p], _around(p, numbers), p, p, *(2 * (_kind(p),)), 0, (0, 1), (0, 1))
        for p in ended
    )
    rows = [comparison(p, numbers[p], 2e-7, role=r) for p in ended for r in ("input", "output")]  # type: ignore[arg-type]
    rows += [comparison(p, numbers[p], 3e-7, "backward") for p in reversed(ended)]
    rows += [comparison(p, -1, 4e-7, "gradient", "parameter") for p in ended if p and p[-1] in "cdm"]
    weights = tuple(Weight(f"{p}.weight", "parameter", (8, 8), f"{p}.weight", "same layer") for p in ended if p)
    return Report(
        verdict="aligned",
        base=side("TorchModel", "torch", "2.13.0", blocks),
        raw=side("PaddleModel", "paddle", "3.3.1", blocks),
        tolerance=Tolerance(mode="auto"),
        coverage={"calls": 1.0, "outputs": 1.0, "parameters": 1.0},
        comparisons=tuple(rows),
        calls=calls,
        weights=weights,
        frames=(
            SourceLine(FILE, 11, "forward", "h = self.norm(x)"),
            SourceLine(FILE, 12, "forward", CODE["12"].strip()),
        ),
        code={FILE: CODE},
        environment=Environment("1.0.0", "3.11.7", "2.4.6", "Linux"),
        created="2026-01-02T03:04:05+00:00",
    )


def _kind(path: str) -> str:
    return comparison(path, 0, 0.0).raw_kind


def _around(path: str, numbers: dict[str, int]) -> int:
    if not path:
        return -1
    return numbers.get(path.rpartition(".")[0], 0)


def diverged(blocks: int = 3, at: int = 1, error: float = 3e-3) -> Report:
    """The norm of one block is wrong, and everything after it."""
    whole = aligned(blocks)
    place = f"blocks.{at}.norm"
    started = False
    rows: list[Comparison] = []
    rng = np.random.default_rng(0)
    base = rng.normal(size=(8, 8)).astype("float32")
    raw = base + np.where(np.arange(8) > 4, np.float32(error), np.float32(0))
    if math.isnan(error):
        raw = base.copy()
        raw[1, 2:5] = np.nan
    picture = picture_of(base, raw)
    for one in whole.comparisons:
        started = started or (one.raw_path == place and one.role == "output") or one.phase != "forward"
        drawn = picture if len(rows) < DRAWN and one.role != "parameter" else None
        rows.append(replace(one, outcome=outcome(error), picture=drawn) if started else one)
    call = next(one for one in whole.calls if one.raw_path == place)
    wrong = replace(comparison(place, call.raw_call, error), picture=picture)
    lines = (SourceLine(FILE, 11, "forward", "h = self.norm(x)"),)
    first = Divergence(
        place,
        place,
        "LayerNorm",
        "LayerNorm",
        "forward",
        0,
        "output",
        wrong,
        (lines, lines),
        (
            Cause("eps", "eps is 0.001 in raw and 1e-05 in base; with base's value the outputs agree", 0.97),
            Cause("bias", "the difference is the same along one axis", 0.4, tested=False),
        ),
        (("eps", 1e-5, 1e-3),),
        base_call=call.base_call,
        raw_call=call.raw_call,
    )
    local = tuple(
        replace(one, outcome=outcome(error)) if one.raw_path == place and one.role == "output" else one
        for one in whole.comparisons
        if one.phase == "forward"
    )
    modules = tuple(
        replace(one, settings={**NORM, "eps": 1e-3}) if one.path == place else one for one in whole.raw.modules
    )
    return replace(
        whole,
        verdict="diverged",
        raw=replace(whole.raw, modules=modules, environment={**whole.raw.environment, "threads": "1", "oneDNN": "on"}),
        divergences=(first,),
        comparisons=tuple(rows),
        local=local,
    )


def built_differently() -> Report:
    """Paths of their own on both sides, calls without partner, an unsure weight."""
    whole = diverged()

    def other(path: str) -> str:
        return path.replace("blocks.", "encoder.layer.").replace(".norm", ".layer_norm").replace("head", "classifier")

    modules = tuple(replace(one, path=other(one.path)) for one in whole.base.modules)
    return replace(
        whole,
        base=replace(whole.base, modules=modules),
        divergences=tuple(replace(one, base_path=other(one.base_path)) for one in whole.divergences),
        comparisons=tuple(replace(one, base_path=other(one.base_path)) for one in whole.comparisons),
        calls=tuple(replace(one, base_path=other(one.base_path)) for one in whole.calls),
        unmatched=(
            Unmatched("base", "encoder.pooler", "Pooler", "raw calls nothing like it"),
            Unmatched("raw", "blocks.0.attention.q", "Linear", "inside a layer compared as one", "blocks.0.attention"),
        ),
        weights=(*whole.weights, Weight("pos", "parameter", (9, 8), "position", "shape", 0.6, alternatives=("table",))),
        notes=("only forward was compared",),
    )


def hostile() -> Report:
    """Everything that comes from the models tries to be markup."""
    evil = "</script><script>alert(1)</script>"
    whole = diverged()
    first = whole.divergences[0]
    lines = (SourceLine("<b>.py", 11, "<i>", f"x = '{evil}'"),)
    first = replace(
        first,
        raw_path=evil,
        raw_kind="<img src=x onerror=alert(2)>",
        note="a | b `c` & <d>\x00\u2028]]>",
        source=(lines, lines),
        causes=(Cause("<u>", "**bold** [link](javascript:alert(3)) @someone"),),
        settings=(("a|b", evil, "`x`"),),
    )
    calls = tuple(
        replace(one, raw_path=evil, raw_kind="<img src=x onerror=alert(2)>") if one.raw_path == "blocks.1.norm" else one
        for one in whole.calls
    )
    return replace(
        whole,
        raw=replace(whole.raw, name="Net<script>alert(4)</script>"),
        divergences=(first,),
        calls=calls,
        notes=("<svg onload=alert(5)>",),
        unmatched=(Unmatched("raw", evil, "<b>", "because <script>"),),
        code={"<b>.py": {"11": f"x = '{evil}'", "12": "y = '<!--'"}},
    )


SKETCHES = {
    "aligned": aligned,
    "diverged": diverged,
    "not a number": lambda: diverged(error=math.nan),
    "built differently": built_differently,
    "hostile": hostile,
    "unsure": lambda: replace(aligned(), verdict="unsure", comparisons=(), calls=(), notes=("nothing was compared",)),
    "many": lambda: diverged(60, 31),
}
