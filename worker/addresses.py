"""Addresses of network calls: how they are written, and how rules and lists of hosts name them.

A host has many spellings (`１２７.1`, `0x7f000001`, `LOCALHOST.`, `bücher.example`). `canonical_host` gives the one by which it is
matched and asked, so that no spelling gets past a rule.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_DOTS = re.compile("[\u3002\uff0e\uff61]")
_UNRESERVED = re.compile(r"%(?:2[dDeE]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aAeE])")
_LONGEST_HOST = 253


class Address(NamedTuple):
    """Where a call goes: `host` in its canonical form, `url` without user and password (empty where only a host was given).

    `plain` says that no step in the path leads upwards, so that what a pattern sees is what a server is asked for.
    """

    host: str
    url: str = ""
    plain: bool = True


def canonical_host(name: str) -> str:
    """The one spelling of a host: lower case, ASCII (as punycode), no dot at the end; IPv4 as four decimal numbers, IPv6 compressed
    and without brackets. Raises `ValueError` for what is no host.
    """
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if ":" in bare:
        if "%" in bare:
            raise ValueError("an address with a zone")
        return str(ipaddress.IPv6Address(bare))
    text = unicodedata.normalize("NFKC", _DOTS.sub(".", bare)).lower().removesuffix(".")
    if not text or len(text) > _LONGEST_HOST:
        raise ValueError("empty or too long")
    if not text.isascii():
        import idna

        try:
            text = idna.encode(text, uts46=True).decode().lower()
        except UnicodeError as error:
            raise ValueError(f"a name that can't be written in ASCII: {error}") from error
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(labels)
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("a name is written with letters, digits, '-' and dots")
    return text


def _ipv4(labels: list[str]) -> str:
    """One to four numbers, decimal, octal (`0...`) or hexadecimal (`0x...`), the last of which fills the rest, as systems read them."""
    if len(labels) > 4 or not all(_NUMBER.fullmatch(label) for label in labels):
        raise ValueError("a name whose last part is a number is an address, and this is none")
    numbers = [_number(label) for label in labels]
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 256 ** (5 - len(numbers)):
        raise ValueError("a number of the address is too large")
    value = last + sum(number << (24 - 8 * place) for place, number in enumerate(first))
    return str(ipaddress.IPv4Address(value))


def _number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8) if len(label) > 1 and label.startswith("0") else int(label)


def address_of(arguments: dict[str, Any]) -> Address | None:
    """The address in a call's arguments `url` or `host`; None where there is none that can be read."""
    url, host = arguments.get("url"), arguments.get("host")
    if not isinstance(url, str):
        return Address(_spelled(host)) if isinstance(host, str) and host else None
    return address_of_url(url)


def address_of_url(url: str) -> Address | None:
    """The address of a URL; None where there is none that can be read. A port that the scheme has anyway is left out."""
    try:
        parts = urlsplit(url.strip())
        name, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None
    if not name:
        return None
    name, scheme = _spelled(name), parts.scheme.lower()
    place = f"[{name}]" if ":" in name else name
    tail = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    tail = _UNRESERVED.sub(lambda found: unquote(found[0]), tail)
    plain = ".." not in unquote(parts.path).replace("\\", "/").split("/")
    where = f":{port}" if port and port != PORTS.get(scheme) else ""
    return Address(name, f"{scheme}://{place}{where}{tail}", plain)


def _spelled(name: str) -> str:
    try:
        return canonical_host(name)
    except ValueError:
        return name.lower()


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


class HostEntry(NamedTuple):
    """An entry of a list of hosts: `docs.python.org`, `*.readthedocs.io`, `http://localhost:8080`.

    Plain http only where the entry says so, another port than the scheme's only where it names one.
    """

    host: str
    http: bool = False
    port: int | None = None

    @classmethod
    def of(cls, text: str) -> HostEntry:
        """Reads an entry. Raises `ValueError`, with the reason."""
        scheme, found, rest = text.strip().partition("://")
        scheme, rest = (scheme.lower(), rest) if found else ("", scheme)
        if scheme not in {"", *PORTS}:
            raise ValueError("only http and https are asked")
        rest = rest.removesuffix("/") if found else rest
        if not rest or re.search(r"[\s/?#@\\]", rest):
            raise ValueError("write the host alone, as in docs.python.org, *.readthedocs.io or http://localhost:8080")
        host, port = rest, None
        if (split := re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d{1,5})", rest)) is not None:
            host, port = split[1], int(split[2])
            if not 0 < port < 65_536:
                raise ValueError(f"there is no port {port}")
        return cls(_pattern(host), scheme == "http", port)

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Whether a request may go there. `host` is canonical."""
        if scheme == "http" and not self.http:
            return False
        return port == (self.port or PORTS[scheme]) and url_or_host_matches(host, self.host)


def _pattern(host: str) -> str:
    if "*" not in host:
        return canonical_host(host)
    pattern = unicodedata.normalize("NFKC", host).lower().removesuffix(".")
    if not re.fullmatch(r"[a-z0-9_.*-]+", pattern) or ".." in pattern or pattern.startswith("."):
        raise ValueError("a pattern is written with letters, digits, '-', dots and '*'")
    return pattern


def unfit_host(text: str) -> str | None:
    """Why a text is no entry of a list of hosts, or None."""
    try:
        HostEntry.of(text)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class AddressFilter:
    """What a tool that is led to another address than its call names must ask: why that one may not be asked, by the rules."""

    refuses: Callable[[str, str], str] = lambda tool, url: ""
