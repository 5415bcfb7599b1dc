"""Addresses that `fetch_url` may not ask, through a whole pod: in all spellings, by redirects, by what stands beside the host."""

from __future__ import annotations

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.security.redteam_rig import World
from worker.testing.provider_server import Call

pytestmark = pytest.mark.anyio

SELF = (
    "http://127.0.0.1:{port}/", "http://127.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/", "http://0x7f.1:{port}/",
    "http://017700000001:{port}/", "http://0177.0.0.1:{port}/", "http://127.0.0.1.:{port}/", "http://\uff11\uff12\uff17\u3002\uff10\u3002\uff10\u3002\uff11:{port}/",
    "http://127.0.1:{port}/", "http://localhost:{port}/", "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "HTTP://127.0.0.1:{port}/",
    "http://\u24d0\u24d1/../@127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@docs.test/", "http://docs.test@127.0.0.1:{port}/",
)  # fmt: skip
"""This machine. Those without a trick in them are asked where `allow_private` is set."""

TRICKS = {text for text in SELF if "@" in text}

NEVER = (
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://0xa9fea9fe/", "http://169.254.43518/", "http://0251.0376.0251.0376/",
    "http://[fd00:ec2::254]/", "http://100.100.100.200/", "http://168.63.129.16/", "http://192.0.0.192/", "http://[fe80::1]/", "http://0.0.0.0/",
    "http://0/", "http://[::]/", "http://[::ffff:169.254.169.254]/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/", "http://224.0.0.1/", "http://255.255.255.255/",
)  # fmt: skip
"""Never asked, though listed and though `allow_private` is set."""

UNLISTED = (
    "http://evil.test/", "http://docs.test.evil.test/", "http://evil-docs.test/", "http://docs.test@evil.test/", "http://evil.test#@docs.test/",
    "http://evil.test?docs.test", "http://evil.test\\@docs.test/", "https://docs.test:8443/", "http://docs.test:22/", "http://docs.test/", "ftp://docs.test/",
    "file:///etc/passwd", "file://docs.test/etc/passwd", "gopher://docs.test/", "//docs.test/", "docs.test", "javascript:alert(1)",
    "data:text/plain,x", "http://", "http://[::1", "http://docs.test:99999/", "https://docs.test\r\nHost: evil.test/", "https://d\u043ecs.test/",
)  # fmt: skip
"""Not of the list (`https://docs.test` alone), or no address at all."""

REDIRECTS = (
    "http://169.254.169.254/latest/", "http://127.0.0.1:{other}/", "http://localhost:{other}/", "http://evil.test/", "file:///etc/passwd",
    "//evil.test/", "http://127.0.0.1:{port}@evil.test/", "gopher://127.0.0.1:{port}/", "http://0x7f000001:{other}/", "http://[::1]:{port}/",
)  # fmt: skip


class Site:
    """A server on this machine that counts who asks; `/to?URL` sends on."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                to = self.path.partition("/to?")[2]
                self.send_response(302 if to else 200)
                if to:
                    self.send_header("Location", to)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", "9")
                self.end_headers()
                self.wfile.write(b"a secret\n")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def __enter__(self) -> Site:
        Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def fetching(hosts: Sequence[str], *, private: bool = False) -> dict[str, dict[str, Any]]:
    return {
        "tools": {"enable": ("fetch_url",), "fetch_url": {"hosts": hosts, "allow_private": private, "timeout": 5}},
        "permissions": {"profile": "unattended", "rules": [{"tool": "fetch_url", "action": "allow"}]},
    }  # fmt: skip


async def fetched(world: World, urls: Sequence[str], tables: dict[str, Any], name: str) -> dict[str, str]:
    """What each URL answered where it was asked; the others were refused in words that say why."""
    struck = await world.strike(*[Call("fetch_url", {"url": url}) for url in urls], tables=tables, name=name)
    assert struck.result.status == "finished" and struck.result.exit_code == 0 and len(struck.results) == len(urls)
    assert not struck.changed
    refusals = [item.text() for item in struck.results if item.status != "ok"]
    assert all(len(text) > 20 and "Traceback" not in text for text in refusals), refusals
    return {url: item.text() for url, item in zip(urls, struck.results, strict=True) if item.status == "ok"}


async def test_this_machine_is_not_asked_in_any_spelling(world: World) -> None:
    """Listed in each spelling, and asked only where `allow_private` says so."""
    with Site() as site:
        urls = [url.format(port=site.port) for url in SELF]
        hosts = [f"http://{host}:{site.port}" for host in ("127.0.0.1", "localhost")]
        assert await fetched(world, urls, fetching(hosts), "refused") == {} and not site.asked
        answered = await fetched(world, urls, fetching(hosts, private=True), "control")
    assert {*answered} == {url.format(port=site.port) for url in SELF if url not in TRICKS}
    assert len(site.asked) == len(answered)


async def test_metadata_and_link_local_addresses_are_never_asked_though_they_are_listed(world: World) -> None:
    hosts = [url.removesuffix("/").removesuffix("/latest/meta-data") for url in NEVER]
    assert await fetched(world, NEVER, fetching(hosts, private=True), "p") == {}
    told = [item.text() for item in world.results("p")]
    assert all("is not asked" in text for text in told), told


async def test_what_is_not_on_the_list_is_not_asked(world: World) -> None:
    assert await fetched(world, UNLISTED, fetching(["docs.test"], private=True), "p") == {}
    for item in world.results("p"):
        assert "is not known" not in item.text() and "connect" not in item.text(), item.text()


async def test_no_redirect_leads_where_no_call_may_go(world: World) -> None:
    with Site() as site, Site() as other:
        words = {"port": site.port, "other": other.port}
        listed = fetching([f"http://127.0.0.1:{site.port}"], private=True)
        urls = [f"http://127.0.0.1:{site.port}/to?{to.format(**words)}" for to in REDIRECTS]
        assert await fetched(world, urls, listed, "p") == {} and len(site.asked) == len(urls) and not other.asked
        twin = f"http://127.0.0.1:{site.port}/to?http://127.0.0.1:{site.port}/plain"
        assert "a secret" in (await fetched(world, [twin], listed, "control"))[twin]
        both = fetching([f"http://127.0.0.1:{port}" for port in words.values()], private=True)
        assert {*(await fetched(world, urls[1:2], both, "both"))} == {urls[1]} and other.asked == ["/"]
