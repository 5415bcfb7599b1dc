"""Identifiers that sort by the time they were made (UUID version 7, RFC 9562)."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> str:
    """A new UUIDv7 as text: 48 bits of milliseconds, then 74 random bits."""
    value = int.from_bytes(os.urandom(10), "big")
    stamp = time.time_ns() // 1_000_000
    number = (
        (stamp & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | (value >> 68 & 0xFFF) << 64 | 0b10 << 62 | (value & (1 << 62) - 1)
    )
    return str(uuid.UUID(int=number))
