"""What a user might have beside a model."""

from __future__ import annotations

from typing import Any


def shifted(x: Any, by: float = 2.0) -> Any:
    return (x + by) * 1.5


def broken(x: Any) -> Any:
    raise ValueError(f"{type(x).__name__} is of no use")


class Maker:
    def doubled(self, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def halved(x: Any) -> Any:
        return x / 2.0

    @classmethod
    def tripled(cls, x: Any) -> Any:
        return x * len(cls.__name__)


class Heir(Maker):
    pass
