"""Finds where two deep-learning models that should compute the same thing first part, and why.

Importing padiff imports neither a framework nor numpy: each public name is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Two folders share their names with public functions. Imported here once and taken off again, they are never
# bound over the functions when something inside them is imported later.
import padiff.capture
import padiff.compare

del padiff  # the name, in here: it stands for this very module

if TYPE_CHECKING:
    from padiff.api import compare as compare
    from padiff.api import plan_weights as plan_weights
    from padiff.autodiff.auto_diff import auto_diff as auto_diff
    from padiff.autodiff.dataloader import check_dataloader as check_dataloader
    from padiff.autodiff.later import check_grads as check_grads
    from padiff.autodiff.later import check_params as check_params
    from padiff.autodiff.later import check_report as check_report
    from padiff.autodiff.later import check_weights as check_weights
    from padiff.autodiff.later import create_model as create_model
    from padiff.autodiff.later import get_dump_root_path as get_dump_root_path
    from padiff.autodiff.later import set_dump_root_path as set_dump_root_path
    from padiff.autodiff.layer_map import LayerMap as LayerMap
    from padiff.autodiff.weights import assign_weight as assign_weight
    from padiff.dumps import capture as capture
    from padiff.dumps import compare_dumps as compare_dumps
    from padiff.dumps import load as load
    from padiff.engine.inputs import Inputs as Inputs
    from padiff.engine.result import Result as Result
    from padiff.records import Calibration as Calibration
    from padiff.records import Tolerance as Tolerance
    from padiff.weights.rules import concat as concat
    from padiff.weights.rules import split as split
    from padiff.weights.rules import transpose as transpose
    from padiff.weights.special import add_special_init as add_special_init

__version__ = "1.0.0.dev0"

_HOMES = {
    "padiff.api": ("compare", "plan_weights"),
    "padiff.autodiff.auto_diff": ("auto_diff",),
    "padiff.autodiff.dataloader": ("check_dataloader",),
    "padiff.dumps": ("capture", "compare_dumps", "load"),
    "padiff.autodiff.later": (
        "check_grads",
        "check_params",
        "check_report",
        "check_weights",
        "create_model",
        "get_dump_root_path",
        "set_dump_root_path",
    ),
    "padiff.autodiff.layer_map": ("LayerMap",),
    "padiff.weights.special": ("add_special_init",),
    "padiff.autodiff.weights": ("assign_weight",),
    "padiff.engine.inputs": ("Inputs",),
    "padiff.records": ("Calibration", "Tolerance"),
    "padiff.weights.rules": ("concat", "split", "transpose"),
    "padiff.engine.result": ("Result",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)

for _folder in ("capture", "compare"):
    globals().pop(_folder, None)


def __getattr__(name: str) -> Any:
    if name == "report":  # a folder, of which people use ``padiff.report.load``
        return importlib.import_module("padiff.report")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
