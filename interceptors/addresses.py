"""Addresses of network calls, as rules name them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Address(NamedTuple):
    """Where a call goes: `host` in lower case, `url` without user and password (empty where only a host was given).

    `plain` says that no step in the path leads upwards, so that what a pattern sees is what a server is asked for.
    """

    host: str
    url: str = ""
    plain: bool = True


def address_of(arguments: dict[str, Any]) -> Address | None:
    """The address in a call's arguments `url` or `host`; None where there is none that can be read."""
    url, host = arguments.get("url"), arguments.get("host")
    if not isinstance(url, str):
        return Address(host.lower()) if isinstance(host, str) and host else None
    try:
        parts = urlsplit(url.strip())
        name, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None
    if not name:
        return None
    place = f"[{name}]" if ":" in name else name
    tail = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    plain = ".." not in unquote(parts.path).replace("\\", "/").split("/")
    return Address(name, f"{parts.scheme.lower()}://{place}{f':{port}' if port else ''}{tail}", plain)


def url_or_host_matches(name: str, pattern: str) -> bool:
    """Whether a pattern covers a host, or a URL where it names a scheme itself.

    A wildcard never reaches from the host of a URL into its path, or back.
    """
    if ("://" in name) != ("://" in pattern):
        return False
    (origin, path), (wanted, wanted_path) = _halves(name), _halves(pattern)
    return fnmatchcase(origin, wanted) and fnmatchcase(path, wanted_path or "*")


def _halves(url: str) -> tuple[str, str]:
    start = url.find("://") + 3 if "://" in url else 0
    end = url.find("/", start)
    return (url, "") if end < 0 else (url[:end], url[end:])
