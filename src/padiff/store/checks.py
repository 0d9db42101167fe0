"""Checksums: crc32 finds damage at the speed of memory, blake2b tells contents apart for good."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

DIGEST_BYTES = 16
_AT_ONCE = 5 * 1024
"""Bytes up to which zlib keeps Python's lock; whoever lets go of it for less may wait a thousand times as long."""
_SHORT = 32 * 1024


def crc32(data: Any) -> str:
    """Eight hexadecimal digits over the bytes of a buffer."""
    return f"{zlib.crc32(data):08x}"


def crc32_beside_others(data: memoryview) -> str:
    """The same, where other threads are busy with Python, too: of little data, without letting go of Python's lock."""
    size = len(data)
    if not _AT_ONCE < size <= _SHORT:
        return f"{zlib.crc32(data):08x}"
    found = 0
    for start in range(0, size, _AT_ONCE):
        found = zlib.crc32(data[start : start + _AT_ONCE], found)
    return f"{found:08x}"


def digest(data: Any) -> bytes:
    """BLAKE2b of 128 bits, as ``b2sum -l 128`` computes it."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
