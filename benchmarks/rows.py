"""What a benchmark hands out: one line of the table."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """What this version has to reach, and what a later one should."""

    now: str
    later: str


class Row(NamedTuple):
    """One number, next to what it should be."""

    what: str
    case: str
    ours: str
    target: Target
    facts: str
    value: float
