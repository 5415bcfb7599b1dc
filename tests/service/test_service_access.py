"""Who may use the service, and what a request must be: decided before anything is done."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from service.service_rig import TOKEN, WITH, Rig

from pod.errors import UsageProblem
from pod.service import Holder, Tokens, door
from pod.service.access import Hosts
from pod.service.operations import OPERATIONS
from pod.service.shelf import Shelf

pytestmark = pytest.mark.anyio
BODIES: dict[str, Any] = {
    "makePod": {"manifest": "plain"},
    "sendMessage": {"text": "x"},
    "answerApproval": {"approve": True},
    "fork": {"name": "q"},
    "rewind": {"to": 1},
}


def path_of(operation: Any) -> str:
    return operation.path.replace("{name}", "p").replace("{id}", "x")


async def test_b151_a_foreign_page_or_a_form_starts_nothing(rig: Rig) -> None:
    """B151: by origin, by content type, by missing token: nothing is made, not even a folder."""
    body = b'{"manifest":"plain","task":"go"}'
    json_, text = {"content-type": "application/json"}, {"content-type": "text/plain"}
    async with rig.up() as up:
        host = up.url.removeprefix("http://")
        tried = [
            (403, {**WITH, **json_, "origin": "http://evil.example"}),
            (403, {**WITH, **text, "origin": "http://evil.example"}),
            (403, {**WITH, **json_, "origin": "null"}),
            (403, {**WITH, **json_, "origin": f"http://{host}.evil.example"}),
            (403, {**WITH, **json_, "sec-fetch-site": "cross-site"}),
            (415, {**WITH, **text}),
            (415, {**WITH, **text, "origin": f"http://{host}"}),
            (415, {**WITH, "content-type": "application/x-www-form-urlencoded"}),
            (415, {**WITH, "content-type": "multipart/form-data; boundary=x"}),
            (415, {**WITH, "content-type": ""}),
            (401, json_),
            (401, {**json_, "authorization": "Bearer the-token-of-the-tests "[:-3]}),
            (401, {**json_, "authorization": f"Basic {TOKEN}"}),
        ]
        for status, headers in tried:
            async with up_client(up.url) as client:
                answer = await client.post("/v1/pods", content=body, headers=headers)
            assert answer.status_code == status, (headers, answer.text)
            assert answer.json()["error"] and answer.json()["message"]
        assert not (rig.home / "pods").exists() and not (rig.root / "state" / "keys").exists()
        async with up_client(up.url) as client:
            good = await client.post("/v1/pods", content=body, headers={**WITH, **json_, "origin": f"http://{host}"})
        assert good.status_code == 201


def up_client(url: str) -> Any:
    import httpx2

    return httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False)


@pytest.mark.parametrize(
    "host", ["evil.example", "0.0.0.0", "localhost.evil.example", "", "127.0.0.1@evil.example", "[::2]"]
)
async def test_b152_another_host_name_is_refused_on_every_path(rig: Rig, host: str) -> None:
    """B152: the event stream and the signs of life included."""
    async with rig.up() as up:
        port = up.url.rpartition(":")[2]
        paths = [
            ("GET", "/healthz"),
            ("GET", "/readyz"),
            ("GET", "/openapi.json"),
            ("GET", "/"),
            ("GET", "/v1/nothing"),
        ]
        paths += [(each.method, path_of(each)) for each in OPERATIONS]
        for method, path in paths:
            headers = {"host": f"{host}:{port}", "accept": "text/event-stream", "content-type": "application/json"}
            answer = await up.client.request(method, path, headers=headers, content=b"{}")
            assert answer.status_code in {400, 403}, (method, path)
        for name in ("localhost", "127.0.0.1", "[::1]"):
            assert (await up.get("/healthz", headers={"host": f"{name}:{port}"})).status_code == 200


async def test_names_that_are_allowed_are_answered(rig: Rig) -> None:
    async with rig.up(hosts=["pods.example"]) as up:
        assert (await up.get("/healthz", headers={"host": "PODS.example:80"})).status_code == 200
    for wrong in ("a b", "a:80", "", "http://a"):
        with pytest.raises(UsageProblem, match="--allow-host"):
            Hosts.of([wrong])


async def test_each_role_may_what_it_says_and_no_more(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    secret = {role: f"token-of-{role}-0123456789" for role in ("read", "operate", "admin")}
    hashed = hashlib.sha256(secret["admin"].encode()).hexdigest()
    file.write_text(
        f'[tokens.r]\nrole = "read"\ntoken = "{secret["read"]}"\n[tokens.o]\nrole = "operate"\ntoken = "{secret["operate"]}"\n'
        f'[tokens.a]\nrole = "admin"\nsha256 = "{hashed}"\n'
    )
    file.chmod(0o600)
    ranks = ["read", "operate", "admin"]
    async with rig.up(tokens=Tokens.of_file(file)) as up:
        for operation in OPERATIONS:
            for role in ranks:
                headers = {"authorization": f"Bearer {secret[role]}"}
                body = None if operation.method == "GET" else BODIES.get(operation.name, {})
                answer = await up.client.request(operation.method, path_of(operation), json=body, headers=headers)
                allowed = ranks.index(role) >= ranks.index(operation.role)
                assert (answer.status_code != 403) is allowed, (operation.name, role, answer.text)
        assert (await up.get("/v1/pods")).status_code == 401


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "one table for each token"),
        ("x = 1", "one table for each token"),
        ("[tokens", "no TOML"),
        ('[tokens.a]\nrole = "root"\ntoken = "0123456789abcdef"', "role is one of"),
        ('[tokens.a]\nrole = "read"\ntoken = "short"', "at least 16"),
        ('[tokens.a]\nrole = "read"\ntoken = ""', "empty"),
        ('[tokens.a]\nrole = "read"\nsha256 = "12"', "sha256"),
        ('[tokens.a]\nrole = "read"\ntoken = "0123456789abcdef"\nmore = 1', "nothing else"),
        ('[tokens."a b"]\nrole = "read"\ntoken = "0123456789abcdef"', "a name has"),
        (
            '[tokens.a]\nrole = "read"\ntoken = "0123456789abcdef"\n[tokens.b]\nrole = "admin"\ntoken = "0123456789abcdef"',
            "has the token of",
        ),
    ],
)
def test_a_file_of_tokens_that_is_wrong_names_what_is_wrong_and_no_token(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UsageProblem, match=why) as caught:
        Tokens.of_file(file)
    assert "0123456789abcdef" not in str(caught.value) and str(file) in str(caught.value)


def test_a_file_of_tokens_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text('[tokens.a]\nrole = "read"\ntoken = "0123456789abcdef"')
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(UsageProblem, match="chmod 600"):
            Tokens.of_file(file)
    with pytest.raises(UsageProblem, match="No such file"):
        Tokens.of_file(tmp_path / "none")


def test_every_token_is_compared_whole_whatever_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """B153: the time tells nothing: each comparison is of two hashes, in constant time, and none is left out."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    known = Tokens({hashlib.sha256(bytes([n]) * 20).digest(): Holder(f"t{n}", "read") for n in range(5)})
    monkeypatch.setattr("pod.service.access.hmac.compare_digest", compare)
    for given in (None, "", "x", "\x00" * 20, "\x04" * 20, "ü" * 9_000):
        compared.clear()
        known.holder(given)
        assert compared == [(32, 32)] * 5


async def test_what_is_too_large_or_too_slow_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY_SECONDS", 0.2)
    async with rig.up() as up:
        port = int(up.url.rpartition(":")[2])
        json_ = {**WITH, "content-type": "application/json"}
        large = await up.client.post("/v1/pods", content=b" " * (door.MAX_BODY + 1), headers=json_)
        assert large.status_code == 413

        async def pieces() -> Any:
            for _ in range(door.MAX_BODY // 50_000 + 2):
                yield b" " * 50_000

        chunked = await up.client.post("/v1/pods", content=pieces(), headers=json_)
        assert chunked.status_code == 413
        head = f"POST /v1/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
        assert await spoken(port, f"{head}Content-Length: 20\r\n\r\n{{".encode()) == 408
        assert await spoken(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 100_000 + b"\r\n\r\n") in {
            400,
            431,
        }
        assert await spoken(port, b"\x16\x03\x01\x02\x00nonsense\r\n\r\n") == 400
        assert await spoken(port, f"{head}Host: evil.example\r\nContent-Length: 2\r\n\r\n{{}}".encode()) in {400, 403}
        assert (await up.get("/healthz")).status_code == 200


async def spoken(port: int, data: bytes) -> int:
    """The status that a connection gets for these bytes."""
    with anyio.fail_after(20):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(data)
            return int((await stream.receive())[9:12])


async def test_paths_and_names_lead_nowhere_outside(rig: Rig) -> None:
    outside = rig.root / "outside.toml"
    outside.write_text('version = 1\n[model]\nname = "offline:surveyor"\n')
    (rig.manifests / "link.toml").symlink_to(outside)
    os.mkfifo(rig.manifests / "fifo.toml")
    async with rig.up() as up:
        assert (await up.get("/v1/manifests")).json()["manifests"] == ["plain"]
        for name in (
            "../outside",
            "link",
            "fifo",
            str(outside),
            "plain.toml",
            "..",
            ".",
            "a/b",
            "%2e%2e/outside",
            "plain\x00",
            "x" * 128,
        ):
            answer = await up.post("/v1/pods", {"manifest": name, "name": "q"})
            assert answer.status_code in {404, 422}, name
        for name in ("..", "../../etc", "%2e%2e%2f%2e%2e", "a/../b", "inbox", ".hidden", "a//b", "x" * 600, "a%00b"):
            assert (await up.get(f"/v1/pods/{name}")).status_code in {404, 422}, name
            answer = await up.post("/v1/pods", {"manifest": "plain", "name": name})
            assert answer.status_code == 422, name
    assert not (rig.home / "pods").exists()


def test_a_shelf_that_can_not_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="no such folder"):
        Shelf(tmp_path / "none")
    with pytest.raises(UsageProblem, match="no manifest 'nonsense' is shipped"):
        Shelf(None, ("nonsense",))
    assert Shelf(None, ("coder",)).names() == ["coder"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b'{"manifest": 1}', b'{"manifest":"plain","more":1}', b'{"manifest":"plain","task":" "}',
     b'{"manifest":"plain","name":"a b"}', b'{"manifest":"plain","task":null,"name":7}', b"\xff\xfe", b'{"manifest":"\\ud800"}',
     b"[" * 100_000],
)  # fmt: skip
async def test_a_body_that_is_none_is_refused_and_nothing_is_made(rig: Rig, body: bytes) -> None:
    async with rig.up() as up:
        answer = await up.client.post("/v1/pods", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
    assert not (rig.home / "pods").exists()


async def test_answers_say_that_nothing_is_kept_framed_or_guessed(rig: Rig) -> None:
    async with rig.up() as up:
        for path in ("/v1/pods", "/healthz", "/v1/nothing", "/v1/pods/none"):
            headers = (await up.get(path)).headers
            assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
            assert (
                "access-control-allow-origin" not in headers
                and "default-src 'none'" in headers["content-security-policy"]
            )
        assert (await up.client.options("/v1/pods", headers={"origin": up.url})).status_code == 405
