"""One GET over the web, to listed hosts at public addresses: followed through redirects, each checked as the first was.

A connection is made to the very address that was checked; the name stands in the `Host` header and in TLS alone, so that a name
which changes between look-up and connection gains nothing.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urldefrag, urljoin, urlsplit

import anyio
from anyio import to_thread

from worker.addresses import PORTS, HostEntry, canonical_host
from worker.builtin.web_address import Resolve, checked_addresses, is_literal, look_up
from worker.builtin.web_text import Kind
from worker.text import clipped
from worker.tls import tls as shared_tls
from worker.tools import ToolFault

if TYPE_CHECKING:
    import ssl

    import httpx2

REDIRECTS = 5
CONNECT = 10.0
LONGEST_URL = 8_192
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_GZIP = zlib.MAX_WBITS | 16
_UNFIT = re.compile(r"[\x00-\x20\x7f\\]")


class Target(NamedTuple):
    """Where a request goes: `host` is canonical, `path` the path with the query."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """Host and port as the header `Host` names them."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"


class Fetched(NamedTuple):
    """What came back. `cut` says that there was more than was read."""

    target: Target
    status: int
    kind: Kind
    data: bytes
    cut: bool


def target_of(url: str) -> Target:
    """Reads a URL. Raises `ToolFault` for what can't or may not be asked for."""
    text = url.strip()
    if len(text) > LONGEST_URL:
        raise ToolFault(f"the URL has {len(text):,} characters; {LONGEST_URL:,} are taken")
    if _UNFIT.search(text):
        raise ToolFault(f"the URL holds spaces, backslashes or control characters: {clipped(ascii(text), 200)}")
    try:
        parts = urlsplit(urldefrag(text).url)
        scheme = parts.scheme.lower()
        if scheme not in PORTS:
            raise ToolFault(f"{clipped(text, 200)}: only https and http are asked for")
        host, port = canonical_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise ToolFault(f"{clipped(text, 200)} is no URL that can be asked for: {error}") from error
    if "@" in parts.netloc:
        raise ToolFault(f"a URL with a user name or password is not asked for: write it without ({host})")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=-._~") + (
        f"?{quote(parts.query, safe=_QUERY)}" if parts.query else ""
    )
    return Target(scheme, host, PORTS[scheme] if port is None else port, path)


_QUERY = "/%:@!$&'()*+,;=-._~?[]"


def _cause(error: BaseException | None) -> str:
    """What is at the bottom of a failed connection: layers above it have no words of their own on trio."""
    said, seen = "no connection", set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = str(error) or said
        error = error.__cause__ or error.__context__
    return clipped(said, 300)


def _joined(target: Target, where: str) -> str:
    try:
        return urljoin(str(target), where)
    except ValueError as error:
        raise ToolFault(f"it is no URL: {error}") from error


@dataclass(frozen=True)
class Fetcher:
    """Asks the hosts of a list. `resolve` gives addresses of a name; `refuses` says why rules keep a URL back that a redirect leads
    to. Bounds: `most` bytes of content after unpacking, as many as they came, `timeout` seconds in all.
    """

    hosts: Sequence[HostEntry]
    private: bool = False
    proxy: bool = False
    most: int = 2_097_152
    timeout: float = 30.0
    resolve: Resolve = look_up
    tls: ssl.SSLContext | None = None

    async def get(self, url: str, refuses: Callable[[str], str] = lambda _: "") -> Fetched:
        """Fetches a URL. Cancelled, its connection is closed. Raises `ToolFault`."""
        try:
            with anyio.fail_after(self.timeout):
                return await self._followed(target_of(url), refuses)
        except TimeoutError:
            raise ToolFault(f"{clipped(url, 200)} did not answer within {self.timeout:g} s") from None

    async def _followed(self, target: Target, refuses: Callable[[str], str]) -> Fetched:
        self._check(target)
        for _ in range(REDIRECTS + 1):
            found = await self._one(target)
            if isinstance(found, Fetched):
                return found
            try:
                following = target_of(_joined(target, found))
                if target.scheme == "https" and following.scheme == "http":
                    raise ToolFault("it leads from https to plain http")
                self._check(following)
                if why := refuses(str(following)):
                    raise ToolFault(f"{following} is kept back by {why}")
            except ToolFault as fault:
                raise ToolFault(
                    f"{target} redirects to {clipped(found, 300)}, which is not followed: {fault}"
                ) from fault
            target = following
        raise ToolFault(f"{target}: more than {REDIRECTS} redirects")

    def _check(self, target: Target) -> None:
        """Raises `ToolFault` where the list does not cover a target."""
        if any(entry.covers(target.scheme, target.host, target.port) for entry in self.hosts):
            return
        if not self.hosts:
            raise ToolFault("no host may be asked: [tools.fetch_url] hosts names none")
        same = [entry for entry in self.hosts if entry.covers("https", target.host, entry.port or 443)]
        if same:
            http = target.scheme == "http" and not any(entry.http for entry in same)
            how = "plain http" if http else f"port {target.port}"
            raise ToolFault(f"{target.host} is not asked by {how}: no entry of [tools.fetch_url] hosts says so")
        listed = ", ".join(f"{e.host}{f':{e.port}' if e.port else ''}" for e in self.hosts)
        raise ToolFault(f"{target.host} is not in [tools.fetch_url] hosts ({listed}); only these are asked")

    async def _one(self, target: Target) -> Fetched | str:
        """One request: what came, or where it leads."""
        import httpx2

        tls = self.tls or await to_thread.run_sync(shared_tls)
        proxy = _proxy(target) if self.proxy else None
        if proxy is None or is_literal(target.host):
            addresses = await checked_addresses(target.host, target.port, self.resolve, private=self.private)
        else:
            addresses = []
        if proxy is not None:
            try:
                transport = httpx2.AsyncHTTPTransport(verify=tls, proxy=proxy)
            except (ValueError, ImportError, httpx2.InvalidURL) as error:
                raise ToolFault(
                    f"the proxy that the environment names for {target.scheme} can't be used: {error}"
                ) from error
            return await self._ask(transport, target, str(target), {})
        failed: Exception | None = None
        for address in addresses:
            place = f"[{address}]" if ":" in address else address
            try:
                transport = httpx2.AsyncHTTPTransport(verify=tls)
                url = f"{target.scheme}://{place}:{target.port}{target.path}"
                return await self._ask(transport, target, url, {"sni_hostname": target.host})
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failed = error
        raise ToolFault(f"{target.host} can't be reached: {_cause(failed)}") from failed

    async def _ask(
        self, transport: httpx2.AsyncHTTPTransport, target: Target, url: str, extensions: dict[str, str]
    ) -> Fetched | str:
        import httpx2

        limits = httpx2.Timeout(self.timeout, connect=min(CONNECT, self.timeout)).as_dict()
        headers = {
            "Host": target.authority,
            "User-Agent": "pod-runtime (fetch_url)",
            "Accept": "text/html, text/*;q=0.9, application/json;q=0.9, application/xml;q=0.8, */*;q=0.1",
            "Accept-Encoding": "gzip",
            "Connection": "close",
        }
        request = httpx2.Request("GET", url, headers=headers, extensions={"timeout": limits, **extensions})
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(transport)
            try:
                response = await transport.handle_async_request(request)
                stack.push_async_callback(response.aclose)
                if response.status_code in _REDIRECT and (where := response.headers.get("location")):
                    return where.strip()
                return await self._read(response, target)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                raise
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise ToolFault(
                    f"{target.host} broke off: {type(error).__name__}: {clipped(str(error), 300)}"
                ) from error
        raise AssertionError("the stack swallows nothing")

    async def _read(self, response: httpx2.Response, target: Target) -> Fetched:
        kind = Kind.of(response.headers.get("content-type", ""))
        if not kind.readable and response.status_code >= 400:
            return Fetched(target, response.status_code, kind, b"", False)
        if not kind.readable:
            what = clipped(kind.name, 100) or "content of no named type"
            raise ToolFault(f"{target} is {what}, which is no text; text, HTML, JSON and XML are read")
        unpack = _Unpacked(response.headers.get("content-encoding", ""), self.most)
        came = 0
        async for piece in response.aiter_raw():
            came += len(piece)
            if unpack.feed(piece) or came > self.most:
                return Fetched(target, response.status_code, kind, bytes(unpack.data[: self.most]), True)
        return Fetched(target, response.status_code, kind, bytes(unpack.data), unpack.broken_off)


class _Unpacked:
    """Content as it was before it was packed, never more than one byte above `most`: a small body may stand for a huge one."""

    def __init__(self, encoding: str, most: int) -> None:
        self.data = bytearray()
        self._most = most
        name = encoding.strip().lower()
        if name not in {"", "identity", "gzip", "x-gzip"}:
            raise ToolFault(f"the answer is packed as {clipped(name, 60)!r}, which was not asked for")
        self._unzip = zlib.decompressobj(_GZIP) if name in {"gzip", "x-gzip"} else None

    @property
    def broken_off(self) -> bool:
        """Whether what came so far is no whole packing."""
        return self._unzip is not None and not self._unzip.eof and bool(self.data)

    def feed(self, piece: bytes) -> bool:
        """Takes the next bytes; whether there is more than is wanted."""
        while piece and len(self.data) <= self._most:
            room = self._most + 1 - len(self.data)
            if self._unzip is None:
                self.data += piece[:room]
                break
            if self._unzip.eof:
                self._unzip = zlib.decompressobj(_GZIP)  # the next of several packings, one behind the other
            try:
                self.data += self._unzip.decompress(piece, room)
            except zlib.error as error:
                raise ToolFault(f"the answer's packing is broken: {error}") from error
            piece = self._unzip.unused_data
        return len(self.data) > self._most


def _proxy(target: Target) -> str | None:
    """The proxy that the environment names for a target, or None."""
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(f"{target.host}:{target.port}") or proxy_bypass(target.host):
        return None
    proxies = getproxies()
    return proxies.get(target.scheme) or proxies.get("all")
