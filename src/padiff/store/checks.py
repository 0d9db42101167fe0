"""Checksums: crc32 finds damage at the speed of memory, blake2b tells contents apart for good."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

DIGEST_BYTES = 16


def crc32(data: Any) -> str:
    """Eight hexadecimal digits over the bytes of a buffer."""
    return f"{zlib.crc32(data):08x}"


def digest(data: Any) -> bytes:
    """BLAKE2b of 128 bits, as ``b2sum -l 128`` computes it."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
