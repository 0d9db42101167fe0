"""Checksums: crc32 finds damage at the speed of memory, blake2b tells contents apart for good."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

DIGEST_BYTES = 16
_AT_ONCE = 5 * 1024
"""Bytes up to which zlib keeps Python's lock; whoever lets go of it for less may wait a thousand times as long."""
_SHORT = 32 * 1024


def crc32(pieces: Iterable[Any]) -> str:
    """Eight hexadecimal digits over buffers of bytes, one behind the other.

    Other threads may be busy with Python, too: little data is looked at without letting go of Python's lock.
    """
    found = 0
    for piece in pieces:
        size = len(piece)
        if not _AT_ONCE < size <= _SHORT:
            found = zlib.crc32(piece, found)
            continue
        for start in range(0, size, _AT_ONCE):
            found = zlib.crc32(piece[start : start + _AT_ONCE], found)
    return f"{found:08x}"


def digest(data: Any) -> bytes:
    """BLAKE2b of 128 bits, as ``b2sum -l 128`` computes it."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
