"""What is known of a run besides its trace."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass, field
from datetime import datetime, timezone

from padiff.records import PlainData


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _version() -> str:
    try:
        return importlib.metadata.version("padiff")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Facts(PlainData):
    """Who ran what, where and when."""

    framework: str
    framework_version: str
    model: str
    device: str = "cpu"
    rank: int = 0
    ranks: int = 1
    """How many processes ran together; this dump is of one of them."""
    padiff: str = field(default_factory=_version)
    python: str = field(default_factory=platform.python_version)
    created: str = field(default_factory=_now)
    """UTC, ISO 8601."""
