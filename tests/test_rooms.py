"""Who may know whom: reads the imports of every file of padiff and holds them against one table."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "padiff"
FRAMEWORKS = frozenset({"torch", "triton", "paddle", "jax", "flax"})
NEUTRAL = frozenset({"records", "errors"})
ARRAYS = frozenset({"numpy", "ml_dtypes"})
DEPENDENCIES = ARRAYS | {"optree", "rich"}
EVERYBODY = frozenset({"*"})


@dataclass(frozen=True)
class Room:
    """What the files of one folder, or one file beside the folders, may import besides themselves and the
    standard library."""

    rooms: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()


COMPOSER = Room(EVERYBODY, DEPENDENCIES)

ROOMS = {
    # typing_extensions for type checkers only, which bring it along.
    "records": Room(packages=frozenset({"numpy", "typing_extensions"})),
    "errors": Room(),
    "frameworks": Room(NEUTRAL, DEPENDENCIES | FRAMEWORKS),
    "align": Room(NEUTRAL, ARRAYS),
    "compare": Room(NEUTRAL, ARRAYS),
    "diagnose": Room(NEUTRAL | {"compare"}, ARRAYS),
    "report": Room(NEUTRAL, ARRAYS | {"rich", "pandas"}),
    "store": Room(NEUTRAL, ARRAYS),
    "capture": Room(NEUTRAL | {"frameworks"}, ARRAYS | {"optree"}),
    "weights": Room(NEUTRAL | {"frameworks"}, ARRAYS | {"optree"}),
    "__init__": COMPOSER,
    "__main__": COMPOSER,
    "api": COMPOSER,
    "dumps": COMPOSER,
    "engine": COMPOSER,
    "autodiff": COMPOSER,
    "cli": COMPOSER,
    "pytest_plugin": Room(EVERYBODY, DEPENDENCIES | {"pytest"}),
    # The demo is an example of a user's code: it defines the models it compares.
    "demo": Room(EVERYBODY, DEPENDENCIES | {"torch", "paddle"}),
}


def room_of(module: str) -> str:
    """``padiff.compare.numbers`` is in ``compare``; ``padiff`` itself is ``__init__``."""
    return [*module.split("."), "__init__"][1]


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The full name of what a ``from`` imports from; dots count upwards from the importing module's package."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
    kept = package[: len(package) - (node.level - 1)]
    return ".".join([*kept, node.module] if node.module else kept)


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, wherever it stands: also in functions, also by a call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node, module, is_package)
            if origin == "padiff":
                # `from padiff import x`: a room where there is one of that name, else a public name.
                names = (f"padiff.{alias.name}" if alias.name in ROOMS else "padiff" for alias in node.names)
                yield from ((node.lineno, name) for name in names)
            else:
                yield node.lineno, origin
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import that the table does not allow."""
    own = room_of(module)
    if own not in ROOMS:
        return [f"{module}: the room {own!r} is not in the table"]
    room = ROOMS[own]
    found = []
    for line, name in imported(ast.parse(source), module, is_package):
        root = name.partition(".")[0]
        if root == "padiff":
            other = room_of(name)
            allowed = other == own or other in room.rooms or room.rooms == EVERYBODY
            what = f"the room {other!r}"
        else:
            allowed = root in room.packages or root in sys.stdlib_module_names
            what = f"the package {root!r}"
        if not allowed:
            found.append(f"{module}:{line}: {own!r} may not know {what}")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(SOURCE)) for file in FILES])
def test_file_keeps_to_its_room(file: Path) -> None:
    assert not offences(file.read_text(encoding="utf-8"), module_of(file), file.name == "__init__.py")


def test_only_frameworks_and_the_demo_import_a_framework() -> None:
    assert {name for name, room in ROOMS.items() if room.packages & FRAMEWORKS} == {"frameworks", "demo"}


BROKEN = [
    ("padiff.records", "from padiff.errors import PadiffError", "'errors'"),
    ("padiff.records", "import ml_dtypes", "'ml_dtypes'"),
    ("padiff.errors", "import numpy", "'numpy'"),
    ("padiff.frameworks.torch", "from padiff.capture.run import run", "'capture'"),
    ("padiff.frameworks.torch", "from ..align import pairs", "'align'"),
    ("padiff.align.modules", "import torch", "'torch'"),
    ("padiff.align.modules", "def f():\n    import paddle.nn as nn", "'paddle'"),
    ("padiff.align.modules", "if TYPE_CHECKING:\n    from jax import Array", "'jax'"),
    ("padiff.align.modules", "import importlib\nimportlib.import_module('flax.linen')", "'flax'"),
    ("padiff.align.modules", "__import__('torch')", "'torch'"),
    ("padiff.align.modules", "from padiff import compare", "'compare'"),
    ("padiff.align.modules", "from padiff import Tolerance", "'__init__'"),
    ("padiff.align.modules", "import padiff", "'__init__'"),
    ("padiff.compare.numbers", "from padiff.diagnose import causes", "'diagnose'"),
    ("padiff.diagnose.causes", "from padiff.frameworks import adapter_of", "'frameworks'"),
    ("padiff.report.html", "from padiff.api import compare", "'api'"),
    ("padiff.store.write", "import pandas", "'pandas'"),
    ("padiff.capture.run", "from padiff.weights.plan import plan", "'weights'"),
    ("padiff.weights.plan", "from padiff.align.modules import pair", "'align'"),
    ("padiff.weights.plan", "import torch", "'torch'"),
    ("padiff.cli.compare", "import paddle", "'paddle'"),
    ("padiff.demo.models", "import jax", "'jax'"),
    ("padiff.utils", "", "not in the table"),
]


@pytest.mark.parametrize(("module", "source", "named"), BROKEN)
def test_a_broken_wall_is_named(module: str, source: str, named: str) -> None:
    (offence,) = offences(source, module)
    assert named in offence


WHOLE = [
    ("padiff.records", "import numpy.typing as npt\nfrom typing import Any", False),
    ("padiff.frameworks", "from .torch import TorchAdapter", True),
    ("padiff.frameworks.torch", "import torch.nn\nfrom ..records import Array\nfrom . import layers", False),
    ("padiff.diagnose.causes", "from padiff.compare import tensors\nfrom padiff import records, errors", False),
    ("padiff.weights.plan", "from padiff.frameworks.layers import Stored", False),
    ("padiff.demo.models", "import torch, paddle\nimport padiff", False),
    ("padiff", "from padiff.api import compare", True),
    ("padiff.cli.compare", "from padiff import api, Tolerance\nfrom rich import print", False),
]


@pytest.mark.parametrize(("module", "source", "is_package"), WHOLE)
def test_an_open_door_is_not(module: str, source: str, is_package: bool) -> None:
    assert not offences(source, module, is_package)
