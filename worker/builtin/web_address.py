"""The addresses that a name stands for, and which of them a request may go to. Pure, but for `look_up`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import anyio

from worker.tools import ToolFault

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host. Raises `OSError` where there are none."""

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

TRIED = 4
"""Addresses of a host that are tried, at most."""

_NEVER = {
    "cloud metadata": ("169.254.169.254/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128"),
    "link-local": ("169.254.0.0/16", "fe80::/10", "fec0::/10"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "an IPv4 address inside of IPv6": ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"),
}  # fmt: skip
_PRIVATE = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
    "shared by a carrier": ("100.64.0.0/10",),
}


def _networks(table: dict[str, tuple[str, ...]]) -> list[tuple[str, ipaddress.IPv4Network | ipaddress.IPv6Network]]:
    return [(kind, ipaddress.ip_network(text)) for kind, texts in table.items() for text in texts]


_NEVER_ASKED, _PRIVATE_ONES = _networks(_NEVER), _networks(_PRIVATE)


def kept_from(text: str, *, private: bool = False) -> str | None:
    """Why a request may not go to an address, or None. `private` opens loopback and private networks, nothing else."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "no address"
    for kind, network in _NEVER_ASKED:
        if address.version == network.version and address in network:
            return kind
    for kind, network in _PRIVATE_ONES:
        if address.version == network.version and address in network:
            return None if private else kind
    return None if address.is_global and not address.is_reserved else "reserved"


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host by the system's resolver. Raises `OSError`."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def checked_addresses(host: str, port: int, resolve: Resolve, *, private: bool) -> list[str]:
    """The addresses of a host that a request may go to. Raises `ToolFault` where one of them may not be asked (a name that stands
    for a public and a private one is a trick), or where there is none.
    """
    try:
        found = [host] if is_literal(host) else list(await resolve(host, port))
    except (OSError, UnicodeError) as error:
        raise ToolFault(f"{host} is not known: {getattr(error, 'strerror', None) or error}") from error
    if not found:
        raise ToolFault(f"{host} has no address")
    for address in found:
        if (kind := kept_from(address, private=private)) is not None:
            way = " ([tools.fetch_url] allow_private lets hosts of the list stand for such ones)" if not private else ""
            raise ToolFault(f"{host} is not asked: {address} is {_article(kind)}{way if kind in _PRIVATE else ''}")
    return found[:TRIED]


def is_literal(host: str) -> bool:
    """Whether a host is an address itself."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _article(kind: str) -> str:
    return kind if kind.startswith(("an ", "no ", "shared ")) else f"a {kind} address"
