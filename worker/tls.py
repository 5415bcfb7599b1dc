"""The TLS settings of all connections of this process. To make them, every certificate that the machine trusts is read: once for
a process, not once for a pod.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ssl

NAMED = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""What names other certificates than those of the machine."""

_State: TypeAlias = tuple[tuple[str, int, int], ...]

_lock = threading.Lock()
_made: tuple[_State, ssl.SSLContext] | None = None


def tls() -> ssl.SSLContext:
    """As `httpx2` makes them. Made at the first use, and anew where other certificates are named or those have changed. Blocks."""
    global _made
    import httpx2

    with _lock:
        state = _certificates()
        if _made is None or _made[0] != state:
            _made = state, httpx2.create_ssl_context()
        return _made[1]


def _certificates() -> _State:
    """Where they are, each place with its size and time of change."""
    import ssl

    machine = ssl.get_default_verify_paths()
    places = [*(os.environ.get(name, "") for name in NAMED), machine.openssl_cafile, machine.openssl_capath]
    return tuple((place, *_looked_at(Path(place))) if place else ("", 0, 0) for place in places)


def _looked_at(place: Path) -> tuple[int, int]:
    try:
        info = place.stat()
    except OSError:
        return 0, 0
    return info.st_size, info.st_mtime_ns
