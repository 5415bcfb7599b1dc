"""The tool `fetch_url` over real sockets: a server on this machine, names by a stub in the place of the resolver."""

from __future__ import annotations

import gzip
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from interceptors.deciding import Rule, address_filter
from worker.addresses import AddressFilter, HostEntry
from worker.builtin.fetch_url import make_fetch_url
from worker.builtin.web_request import Fetcher
from worker.errors import ConfigError
from worker.items import ToolOutput
from worker.tools import ToolContext, ToolFault

pytestmark = pytest.mark.anyio

Answer = Callable[[str], bytes | None]


def http(body: bytes = b"", kind: str = "text/plain", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Site:
    """A server: `answer` gives the whole response to a path, None for a connection that stays silent."""

    answer: Answer
    port: int = 0
    asked: list[str] = field(default_factory=list[str])
    looked_up: list[str] = field(default_factory=list[str])
    addresses: dict[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    async def handle(self, stream: ByteStream) -> None:
        async with stream:
            data = b""
            try:
                while b"\r\n\r\n" not in data:
                    data += await stream.receive()
                self.asked.append(data.decode())
                response = self.answer(data.decode().split()[1])
                if response is None:
                    await stream.receive()
                else:
                    await stream.send(response)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.looked_up.append(host)
        return self.addresses.get(host, ["127.0.0.1"])

    async def fetch(
        self, path: str, hosts: Sequence[str] | None = None, rules: Sequence[Rule] = (), **more: Any
    ) -> ToolOutput:
        """Fetches a path of `docs.test` here, or a whole URL."""
        url = path if "://" in path else f"http://docs.test:{self.port}{path}"
        given = hosts or [f"http://docs.test:{self.port}"]
        settings: dict[str, Any] = {"hosts": given, "allow_private": True, "resolve": self.resolve, **more}
        services = {AddressFilter: address_filter(rules)}
        return await make_fetch_url(**settings).run(
            {"url": url}, ToolContext("c", "fetch_url", Path(), services=services)
        )


@asynccontextmanager
async def site(answer: Answer | bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    made = Site(answer if callable(answer) else lambda _: answer)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        made.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(
            (TLSListener(listener, tls, standard_compatible=False) if tls else listener).serve, made.handle
        )
        yield made
        tasks.cancel_scope.cancel()


async def refused(call: Awaitable[ToolOutput]) -> str:
    with pytest.raises(ToolFault) as caught:
        await call
    return str(caught.value)


# -- what comes back -----------------------------------------------------------------------------------------------


async def test_a_page_comes_back_as_text_with_its_final_url_status_and_type() -> None:
    async with site(
        http(b"<title>Hi</title><h1>Head</h1><p>One <a href=/b>two</a>", "text/html; charset=utf-8")
    ) as here:
        output = await here.fetch("/a?q=1#part")
        where = f"http://docs.test:{here.port}"
        assert output.summary == f"fetch_url {where}/a?q=1: 200 text/html, 55 B, 'Hi'" and not output.is_error
        assert output.content == f"URL: {where}/a?q=1\nStatus: 200\nType: text/html\n\n# Head\n\nOne [two]({where}/b)"
        assert f"host: docs.test:{here.port}\r\n" in here.asked[0].lower() and "cookie" not in here.asked[0].lower()


async def test_an_error_of_the_server_is_an_error_with_what_it_said() -> None:
    async with site(http(b"no such page", status="404 Not Found")) as here:
        output = await here.fetch("/x")
        assert output.is_error and "404" in output.summary and "no such page" in str(output.content)


async def test_content_that_is_no_text_is_refused_by_its_type() -> None:
    async with site(http(b"\x89PNG", "image/png")) as here:
        assert "is image/png, which is no text" in await refused(here.fetch("/x.png"))


async def test_a_page_holds_no_control_characters() -> None:
    async with site(http(b"a\x1b[31mb\x00c")) as here:
        assert "\x1b" not in str((await here.fetch("/")).content)


# -- bounds --------------------------------------------------------------------------------------------------------


async def test_b097_a_page_that_is_too_large_is_cut_and_says_so() -> None:
    async with site(http(b"~" * 300_000)) as here:
        output = await here.fetch("/", max_bytes=100_000)
        assert "CUT after 100.0 kB" in output.summary and "Only the first 100.0 kB were read" in str(output.content)
        assert str(output.content).count("~") == 100_000


async def test_a_small_body_that_unpacks_to_a_huge_one_is_cut_at_the_bound() -> None:
    async with site(http(gzip.compress(b"~" * 50_000_000), Content_Encoding="gzip")) as here:
        output = await here.fetch("/", max_bytes=100_000)
        assert "CUT" in output.summary and str(output.content).count("~") == 100_000


async def test_a_packed_page_is_unpacked_whole() -> None:
    async with site(http(gzip.compress(b"one ") + gzip.compress(b"two"), Content_Encoding="gzip")) as here:
        output = await here.fetch("/")
        assert str(output.content).endswith("one two") and "CUT" not in output.summary


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
async def test_a_packing_that_was_not_asked_for_is_refused(encoding: str) -> None:
    async with site(http(b"xx", Content_Encoding=encoding)) as here:
        assert "which was not asked for" in await refused(here.fetch("/"))


async def test_a_server_that_stays_silent_is_left_after_the_timeout() -> None:
    async with site(lambda _: None) as here:
        assert "did not answer within 0.3 s" in await refused(here.fetch("/", timeout=0.3))


async def test_a_server_that_breaks_off_is_a_fault_that_names_it() -> None:
    async with site(http(b"x" * 10)[:-5]) as here:
        assert "docs.test broke off" in await refused(here.fetch("/"))


# -- where it may go -----------------------------------------------------------------------------------------------


async def test_a_host_that_is_not_listed_is_not_even_looked_up() -> None:
    async with site(http(b"x")) as here:
        for url in (
            f"http://evil.test:{here.port}/",
            f"http://docs.test.evil.test:{here.port}/",
            f"http://127.0.0.1:{here.port}/",
        ):
            assert "is not in [tools.fetch_url] hosts" in await refused(here.fetch(url))
        assert "plain http" in await refused(here.fetch("http://a.test/", ["a.test"]))
        assert "port 8443" in await refused(here.fetch("https://a.test:8443/", ["a.test"]))
        assert here.looked_up == [] and here.asked == []


ADDRESSES = [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "100.64.0.1", "::1", "fd00::1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_listed_name_that_stands_for_an_address_inside_is_refused(address: str) -> None:
    async with site(http(b"x")) as here:
        here.addresses["docs.test"] = ["93.184.216.34", address]
        fault = await refused(here.fetch("/", allow_private=False))
        assert f"docs.test is not asked: {address} is" in fault and here.asked == []


@pytest.mark.parametrize("spelling", ["2130706433", "0x7f.1", "127.1", "017700000001", "[::ffff:7f00:1]", "[::1]"])
async def test_a_listed_address_inside_is_refused_in_every_spelling(spelling: str) -> None:
    async with site(http(b"x")) as here:
        hosts = [f"http://{spelling}:{here.port}"]
        assert "is not asked" in await refused(
            here.fetch(f"http://{spelling}:{here.port}/", hosts, allow_private=False)
        )
        assert here.asked == []


async def test_the_connection_is_made_to_the_address_that_was_checked() -> None:
    """A name that stands for something else at the second look-up gains nothing: there is no second one (case B152)."""
    async with site(http(b"here")) as here:
        answers = [["127.0.0.1"], ["169.254.169.254"]]

        async def rebinds(host: str, port: int) -> Sequence[str]:
            here.looked_up.append(host)
            return answers.pop(0)

        output = await here.fetch("/", resolve=rebinds)
        assert str(output.content).endswith("here") and here.looked_up == ["docs.test"]
        assert "cloud metadata" in await refused(here.fetch("/", resolve=lambda host, port: rebinds(host, port)))


async def test_the_next_address_of_a_name_is_tried_where_one_can_not_be_reached() -> None:
    async with site(http(b"here")) as here:
        here.addresses["docs.test"] = ["127.0.0.2", "127.0.0.1"]
        assert str((await here.fetch("/")).content).endswith("here")


async def test_a_name_without_an_address_is_a_fault_that_names_it() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async with site(http(b"x")) as here:
        assert await refused(here.fetch("/", resolve=unknown)) == "docs.test is not known: Name or service not known"


# -- redirects -----------------------------------------------------------------------------------------------------


def leading(to: str) -> Answer:
    return lambda path: http(b"arrived") if path == "/end" else http(status="302 Found", Location=to)


async def test_a_redirect_is_followed_and_the_final_url_told() -> None:
    async with site(leading("/end")) as here:
        output = await here.fetch("/start")
        assert f"docs.test:{here.port}/end: 200" in output.summary and str(output.content).endswith("arrived")


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://evil.test/", "is not in [tools.fetch_url] hosts"), ("//evil.test/x", "is not in"), ("http://user@docs.test/", "user name"),
        ("file:///etc/passwd", "only https and http"), ("http://169.254.169.254/latest/meta-data/", "is not in"), ("http://docs.test:22/", "port 22"),
        ("https://[bad/", "no URL"),
    ],
)  # fmt: skip
async def test_a_redirect_to_where_no_call_may_go_is_not_followed(to: str, why: str) -> None:
    async with site(leading(to)) as here:
        fault = await refused(here.fetch("/start"))
        assert "which is not followed" in fault and why in fault and len(here.asked) == 1


async def test_the_address_of_a_redirect_is_checked_as_the_first_was() -> None:
    async with site(lambda _: None) as here:
        here.answer = leading(f"http://inside.test:{here.port}/end")
        here.addresses["inside.test"] = ["169.254.169.254"]
        hosts = [f"http://docs.test:{here.port}", f"http://inside.test:{here.port}"]
        assert "169.254.169.254 is a cloud metadata address" in await refused(here.fetch("/start", hosts))


async def test_a_rule_that_keeps_a_url_back_holds_for_redirects_to_it() -> None:
    async with site(leading("/end")) as here:
        rules = [Rule("fetch_url", f"http://docs.test:{here.port}/e*", "deny")]
        assert "is kept back by the rule" in await refused(here.fetch("/start", rules=rules))


async def test_redirects_without_end_are_left_after_five() -> None:
    async with site(leading("/again")) as here:
        assert "more than 5 redirects" in await refused(here.fetch("/start"))
        assert len(here.asked) == 6


# -- TLS and proxies -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for docs.test that signs itself, with its key."""
    path = tmp_path_factory.mktemp("tls") / "docs.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=docs.test"]
    command += ["-addext", "subjectAltName=DNS:docs.test", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.mark.parametrize(("name", "fits"), [("docs.test", True), ("other.test", False)])
async def test_a_certificate_is_checked_against_the_name_though_the_connection_goes_to_an_address(
    certificate: Path, name: str, fits: bool
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    async with site(http(b"safe"), server) as here:
        entry = HostEntry.of(f"{name}:{here.port}")
        trusting = ssl.create_default_context(cafile=f"{certificate}.crt")
        fetcher = Fetcher([entry], private=True, resolve=here.resolve, tls=trusting)
        url = f"https://{name}:{here.port}/"
        if fits:
            assert (await fetcher.get(url)).data == b"safe"
            return
        with pytest.raises(ToolFault, match="certificate"):
            await fetcher.get(url)
        assert here.asked == []


async def test_a_redirect_from_https_to_plain_http_is_not_followed(certificate: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    async with site(leading("http://docs.test/end"), server) as here:
        entries = [HostEntry.of(f"docs.test:{here.port}"), HostEntry.of("http://docs.test")]
        trusting = ssl.create_default_context(cafile=f"{certificate}.crt")
        with pytest.raises(ToolFault, match="from https to plain http"):
            await Fetcher(entries, private=True, resolve=here.resolve, tls=trusting).get(
                f"https://docs.test:{here.port}/"
            )


async def test_a_proxy_of_the_environment_is_used_only_where_the_manifest_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site(http(b"direct")) as here, site(http(b"by proxy")) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert str((await here.fetch("/")).content).endswith("direct") and proxy.asked == []
        assert str((await here.fetch("/", proxy=True)).content).endswith("by proxy")
        assert proxy.asked[0].startswith(f"GET http://docs.test:{here.port}/ ") and here.looked_up == ["docs.test"]
        assert "is not in" in await refused(here.fetch("http://evil.test/", proxy=True))
        monkeypatch.setenv("no_proxy", "docs.test")
        assert str((await here.fetch("/", proxy=True)).content).endswith("direct")


# -- settings ------------------------------------------------------------------------------------------------------


async def test_without_hosts_nothing_is_asked() -> None:
    with pytest.raises(ToolFault, match="no host may be asked"):
        await make_fetch_url().run({"url": "https://docs.test/"}, ToolContext("c", "fetch_url", Path()))


def test_a_setting_that_is_no_host_is_named() -> None:
    with pytest.raises(ConfigError, match="write the host alone"):
        make_fetch_url(hosts=["https://docs.test/path"])
