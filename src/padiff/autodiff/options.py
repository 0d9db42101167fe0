"""Both generations' call forms of ``auto_diff``, read into one record."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from padiff.api import LATER, check_steps
from padiff.autodiff.roles import first_is_base, live_model
from padiff.errors import ArgumentError, NotAvailableError
from padiff.frameworks.tree import LiveTree
from padiff.records import Tolerance

FIRST_GENERATION = (
    "layer",
    "module",
    "example_inp",
    "auto_weights",
    "steps",
    "options",
    "layer_map",
    "loss_fn",
    "optimizer",
)
SECOND_GENERATION = ("base_model", "raw_model", "inputs", "loss_fns", "optimizers")
OLD_NAMES = {
    "example_inp": "inputs",
    "auto_weights": "auto_init",
    "loss_fn": "loss_fns",
    "optimizer": "optimizers",
}
DEFAULTS: dict[str, Any] = {
    "auto_init": True,
    "atol": 0.0,
    "rtol": 1e-7,
    "compare_mode": "mean",
    "diff_phase": "both",
    "single_step": False,
    "steps": 1,
    "layer_map": None,
}
MODES = {"mean": "mean", "abs_mean": "mean", "strict": "strict"}
PHASES = ("both", "forward", "backward")


@dataclass(frozen=True)
class Options:
    """A call of ``auto_diff`` in force: base and raw known, pairs still in the order the models were given."""

    first: LiveTree
    second: LiveTree
    base_first: bool
    inputs: Any
    loss_fns: Any
    optimizers: Any
    layer_map: Any
    auto_init: bool
    tolerance: Tolerance
    diff_phase: str
    steps: int
    notes: tuple[str, ...]

    @property
    def base(self) -> LiveTree:
        return self.first if self.base_first else self.second

    @property
    def raw(self) -> LiveTree:
        return self.second if self.base_first else self.first

    def in_order(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """A pair given in the models' order as (base's, raw's)."""
        return pair if self.base_first else (pair[1], pair[0])


def read_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Options:
    """Check a call and say what it means; raises ArgumentError naming what is wrong."""
    given = _by_name(args, kwargs)
    first, second, base_first = _models(given)
    values = {name: given.pop(name, default) for name, default in DEFAULTS.items()}
    inputs = given.pop("inputs", None)
    if inputs is None:
        raise ArgumentError("inputs is missing", 'pass a pair: ({"x": input_of_the_first}, {"x": input_of_the_second})')
    loss_fns, optimizers = given.pop("loss_fns", None), given.pop("optimizers", None)
    if given:
        _unknown(next(iter(given)))
    return _checked(first, second, base_first, values, inputs, loss_fns, optimizers)


def _checked(
    first: LiveTree,
    second: LiveTree,
    base_first: bool,
    values: dict[str, Any],
    inputs: Any,
    loss_fns: Any,
    optimizers: Any,
) -> Options:
    for name in ("auto_init", "single_step"):
        if not isinstance(values[name], bool):
            raise ArgumentError(f"{name} is {values[name]!r}, expected True or False")
    if values["diff_phase"] not in PHASES:
        raise ArgumentError(f"diff_phase is {values['diff_phase']!r}, expected {', '.join(map(repr, PHASES))}")
    if values["single_step"]:
        raise NotAvailableError("single_step=True is not in this version yet", LATER)
    if values["diff_phase"] == "backward":
        raise ArgumentError('diff_phase="backward" goes only with single_step=True', 'use diff_phase="both"')
    steps, notes = check_steps(values["steps"]), []
    if steps > 1 and (optimizers is None or values["diff_phase"] != "both"):
        lacking = "optimizers" if optimizers is None else 'diff_phase="both"'
        notes.append(f"steps={steps} needs {lacking}: steps is set to 1")
        steps = 1
    if optimizers is not None and values["diff_phase"] == "forward":
        notes.append('diff_phase="forward" runs no backward: the optimizers are not used')
        optimizers = None
    if os.environ.get("PADIFF_API_CHECK", "OFF").upper() == "ON":
        notes.append("PADIFF_API_CHECK=ON: op-level capture is not in this version yet, modules are compared")
    return Options(
        first=first,
        second=second,
        base_first=base_first,
        inputs=inputs,
        loss_fns=_pair("loss_fns", loss_fns),
        optimizers=_pair("optimizers", optimizers),
        layer_map=values["layer_map"] or None,
        auto_init=values["auto_init"],
        tolerance=read_tolerance(values["atol"], values["rtol"], values["compare_mode"]),
        diff_phase=values["diff_phase"],
        steps=steps,
        notes=tuple(notes),
    )


def read_tolerance(atol: Any, rtol: Any, compare_mode: Any) -> Tolerance:
    """The documented bounds as a Tolerance."""
    if compare_mode not in MODES:
        raise ArgumentError(f"compare_mode is {compare_mode!r}, expected {', '.join(map(repr, MODES))}")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ArgumentError(f"{name} is {value!r}, expected a number of at least 0")
    return Tolerance(float(rtol), float(atol), MODES[compare_mode])  # type: ignore[arg-type]


def _by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their newest names. The fourth by position tells the generations apart: a switch, or losses."""
    first_generation = len(args) > 3 and isinstance(args[3], bool)
    names = FIRST_GENERATION if first_generation else SECOND_GENERATION
    if len(args) > len(names):
        raise ArgumentError(f"auto_diff takes at most {len(names)} arguments by position, {len(args)} came")
    given: dict[str, Any] = {}
    places = ("#1", "#2", *names[2:])
    for name, value in [*zip(places, args, strict=False), *kwargs.items()]:
        if name == "options":
            continue
        newest = OLD_NAMES.get(name, name)
        if newest in given:
            raise ArgumentError(f"{newest} is given twice" + (f", once as {name}" if name != newest else ""))
        given[newest] = value
    options = kwargs.get("options", args[5] if first_generation and len(args) > 5 else None)
    for name, value in _options_dict(options).items():
        given.setdefault(OLD_NAMES.get(name, name), value)
    return given


def _options_dict(options: Any) -> Mapping[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ArgumentError(f"options is a {type(options).__name__}, expected a dict such as {{'atol': 1e-4}}")
    return options


def _models(given: dict[str, Any]) -> tuple[LiveTree, LiveTree, bool]:
    """Both models in the order given, and whether the first of them is base."""
    if "base_model" in given or "raw_model" in given:
        by_place = [given.pop(place) for place in ("#1", "#2") if place in given]
        base = given.pop("base_model", None) if "base_model" in given else (by_place.pop(0) if by_place else None)
        raw = given.pop("raw_model", None) if "raw_model" in given else (by_place.pop(0) if by_place else None)
        _both("base_model", base, "raw_model", raw)
        return live_model(base, "base_model"), live_model(raw, "raw_model"), True
    if "layer" in given or "module" in given:
        by_place = [given.pop(place) for place in ("#1", "#2") if place in given]
        layer = given.pop("layer") if "layer" in given else (by_place.pop(0) if by_place else None)
        module = given.pop("module") if "module" in given else (by_place.pop(0) if by_place else None)
        _both("layer", layer, "module", module)
        first, second = live_model(layer, "layer"), live_model(module, "module")
        return first, second, first_is_base(first, second)
    one, two = given.pop("#1", None), given.pop("#2", None)
    _both("the first model", one, "the second model", two)
    first, second = live_model(one, "the first model"), live_model(two, "the second model")
    return first, second, first_is_base(first, second)


def _both(first_name: str, first: Any, second_name: str, second: Any) -> None:
    for name, value in ((first_name, first), (second_name, second)):
        if value is None:
            raise ArgumentError(f"{name} is missing", "auto_diff(base_model, raw_model, inputs, ...) takes two models")


def _pair(name: str, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ArgumentError(
            f"{name} is a {type(value).__name__}, expected a pair, one per model",
            "give both in the order of the models",
        )
    return value[0], value[1]


def _unknown(name: str) -> None:
    known = [*DEFAULTS, "inputs", "loss_fns", "optimizers", "options", *OLD_NAMES]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known options are {', '.join(DEFAULTS)}"
    raise ArgumentError(f"auto_diff has no option {name!r}", hint)
