"""Both generations' call forms of ``auto_diff``, read into one record."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NoReturn

import numpy as np

from padiff.api import check_steps
from padiff.autodiff.roles import PLACES, take_models
from padiff.capture.functions import ENVIRONMENT, named_in_environment
from padiff.errors import ArgumentError
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
KNOWN = (
    *DEFAULTS,
    *("inputs", "loss_fns", "optimizers", "options"),
    *OLD_NAMES,
    *("base_model", "raw_model", "layer", "module"),
)
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
    diff_phase: Literal["forward", "backward", "both"]
    single_step: bool
    steps: int
    ops: Literal["own", "all"] | None
    """Whether ops are compared, too, and those of the framework's own layers."""
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
    for name in given:
        if name not in KNOWN and name not in PLACES:
            refuse_option("auto_diff", name, KNOWN)
    first, second, base_first = take_models(given, "auto_diff")
    values = {name: given.pop(name, default) for name, default in DEFAULTS.items()}
    inputs = given.pop("inputs", None)
    if inputs is None:
        raise ArgumentError("inputs is missing", 'pass a pair: ({"x": input_of_the_first}, {"x": input_of_the_second})')
    return _checked(first, second, base_first, values, inputs, given.get("loss_fns"), given.get("optimizers"))


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
        if not isinstance(values[name], (bool, np.bool_)):
            raise ArgumentError(f"{name} is {values[name]!r}, expected True or False")
        values[name] = bool(values[name])
    if not isinstance(values["diff_phase"], str) or values["diff_phase"] not in PHASES:
        raise ArgumentError(f"diff_phase is {values['diff_phase']!r}, expected {', '.join(map(repr, PHASES))}")
    if values["diff_phase"] == "backward" and not values["single_step"]:
        raise ArgumentError(
            "diff_phase is 'backward', which goes only with single_step=True; expected 'both' or 'forward'",
            'use diff_phase="both"',
        )
    loss_fns, optimizers = _losses(loss_fns), _pair("optimizers", optimizers)
    steps, notes = check_steps(values["steps"]), []
    if steps > 1 and (optimizers is None or values["diff_phase"] != "both"):
        lacking = "optimizers" if optimizers is None else 'diff_phase="both"'
        notes.append(f"steps={steps} needs {lacking}: steps is set to 1")
        steps = 1
    if optimizers is not None and values["diff_phase"] == "forward":
        notes.append('diff_phase="forward" runs no backward: the optimizers are not used')
        optimizers = None
    ops = _ops()
    if ops is not None:
        more = "" if ops == "own" else ", and those in the framework's own layers"
        notes.append(
            f"PADIFF_API_CHECK={'ON' if ops == 'own' else 'ALL'}: the ops in modules' own code{more} are compared, too"
        )
        _, lost = named_in_environment()
        if lost:
            notes.append(f"{ENVIRONMENT}: there is no {', no '.join(lost)} here to be seen")
    return Options(
        first=first,
        second=second,
        base_first=base_first,
        inputs=inputs,
        loss_fns=loss_fns,
        optimizers=optimizers,
        layer_map=values["layer_map"],
        auto_init=values["auto_init"],
        tolerance=read_tolerance(values["atol"], values["rtol"], values["compare_mode"]),
        diff_phase=values["diff_phase"],  # type: ignore[arg-type]
        single_step=values["single_step"],
        steps=steps,
        ops=ops,
        notes=tuple(notes),
    )


def _ops() -> Literal["own", "all"] | None:
    asked = os.environ.get("PADIFF_API_CHECK", "OFF").strip().upper()
    return "all" if asked == "ALL" else "own" if asked in ("ON", "TRUE", "1") else None


def read_tolerance(atol: Any, rtol: Any, compare_mode: Any) -> Tolerance:
    """The documented bounds as a Tolerance."""
    if not isinstance(compare_mode, str) or compare_mode not in MODES:
        raise ArgumentError(f"compare_mode is {compare_mode!r}, expected {', '.join(map(repr, MODES))}")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise ArgumentError(f"{name} is {value!r}, expected a finite number of at least 0")
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
    if "options" in kwargs and first_generation and len(args) > 5:
        raise ArgumentError("options is given twice")
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


def _pair(name: str, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        many = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        raise ArgumentError(
            f"{name} is a {type(value).__name__}{many}, expected a pair, one per model",
            "give both in the order of the models",
        )
    return value[0], value[1]


def _losses(value: Any) -> Any:
    pair = _pair("loss_fns", value)
    for place, one in zip(("first", "second"), pair or (), strict=False):
        if one is not None and not callable(one):
            raise ArgumentError(
                f"loss_fns: the one of the {place} model is a {type(one).__name__}, "
                "expected a function of the model's output"
            )
    return pair


def refuse_option(call: str, name: Any, known: Sequence[str]) -> NoReturn:
    """Raise for an option that does not exist, naming the nearest that does."""
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    raise ArgumentError(f"{call} has no option {name!r}", hint)
