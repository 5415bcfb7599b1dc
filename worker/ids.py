"""Identifiers that sort by the time they were made (UUID version 7, RFC 9562)."""

from __future__ import annotations

import os
import time


def uuid7() -> str:
    """A new UUIDv7 as text: 48 bits of milliseconds, then 74 random bits."""
    chance = int.from_bytes(os.urandom(10), "big")
    stamp = time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF
    text = f"{stamp << 80 | 0x7 << 76 | (chance >> 68) << 64 | 0b10 << 62 | chance & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
