"""JSON read with suspicion: one meaning for each text, and every value asked for its type."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

LARGEST = 2**53 - 1
"""Largest integer that every reader of JSON keeps exact."""
_HEX = re.compile(r"[0-9a-f]*\Z")


class Malformed(Exception):
    """A document does not say what it has to say; caught where the file's name is known."""


def encode(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Compact JSON in ASCII; raises ValueError for what JSON cannot say, unless ``default`` makes something of it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, check_circular=False, default=default).encode(
        "ascii"
    )


def decode(data: bytes) -> Any:
    """The one value a text stands for: no duplicate keys, no NaN, nothing nested without end."""
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise Malformed("it is nested too deep") from None
    except ValueError as error:  # also what is no UTF-8, and numbers of thousands of digits
        raise Malformed(f"it is not JSON ({error})") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("a key appears twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Malformed(f"{text} is too large")
    return number


def wrong(value: Any, what: str, expected: str) -> Malformed:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return Malformed(f"{what} is {text[:60]}, expected {expected}")


def integer(value: Any, what: str, low: int = 0, high: int = LARGEST) -> int:
    if type(value) is not int or not low <= value <= high:
        raise wrong(value, what, f"an integer from {low} to {high}")
    return value


def boolean(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise wrong(value, what, "true or false")
    return value


def number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or (abs(value) > LARGEST and type(value) is int):
        raise wrong(value, what, "a number")
    return float(value)


def text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise wrong(value, what, "a string")
    return value


def optional_text(value: Any, what: str) -> str | None:
    return None if value is None else text(value, what)


def hexadecimal(value: Any, what: str, digits: int) -> str:
    if type(value) is not str or len(value) != digits or not _HEX.match(value):
        raise wrong(value, what, f"{digits} hexadecimal digits")
    return value


def array(value: Any, what: str, length: int | None = None) -> list[Any]:
    if type(value) is not list or (length is not None and len(value) != length):
        raise wrong(value, what, "an array" if length is None else f"an array of {length}")
    return value


def table(value: Any, what: str, required: frozenset[str] = frozenset(), optional: Any = frozenset()) -> dict[str, Any]:
    """An object; with ``required`` given, one that has these members and no others but the optional ones."""
    if type(value) is not dict:
        raise wrong(value, what, "an object")
    if required:
        missing = required - value.keys()
        if missing:
            raise Malformed(f"{what} has no {min(missing)!r}")
        foreign = value.keys() - required - optional
        if foreign:
            raise Malformed(f"{what} has an unknown member {min(foreign)!r}")
    return value


def key_number(key: str, what: str) -> int:
    """A number that had to be written as a key."""
    if not key.isascii() or not key.isdigit() or len(key) > 15 or str(int(key)) != key:
        raise wrong(key, what, "a number")
    return int(key)
