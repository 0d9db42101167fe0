"""Documented calls that this version does not have yet: each says so plainly."""

from __future__ import annotations

from typing import Any, NoReturn

from padiff.api import LATER
from padiff.errors import NotAvailableError


def _later(name: str) -> NoReturn:
    raise NotAvailableError(f"{name} is not in this version yet", LATER)


def create_model(model: Any, name: str | None = None, dump_freq: int = 1) -> NoReturn:
    """A proxy that records and dumps a model's runs."""
    _later("create_model")


def set_dump_root_path(path: str) -> NoReturn:
    """Where dumps go by default."""
    _later("set_dump_root_path")


def get_dump_root_path() -> NoReturn:
    """Where dumps go by default."""
    _later("get_dump_root_path")


def check_report(path_0: str, path_1: str, cfg: Any = None) -> NoReturn:
    """Compare two dumps' calls."""
    _later("check_report")


def check_params(path_0: str, path_1: str, cfg: Any = None) -> NoReturn:
    """Compare two dumps' weights and gradients."""
    _later("check_params")


def check_weights(path_0: str, path_1: str, cfg: Any = None) -> NoReturn:
    """Compare two dumps' weights."""
    _later("check_weights")


def check_grads(path_0: str, path_1: str, cfg: Any = None) -> NoReturn:
    """Compare two dumps' gradients."""
    _later("check_grads")
