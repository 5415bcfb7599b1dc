"""A server at an address: streamable HTTP on the loopback interface, with a header from the environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pod import Manifest
from pod.log import entries as e
from tests.mcp.mcp_rig import sdk
from tests.pod.pod_rig import Agent, Rig, manifest
from worker.records import ToolResult
from worker.testing import call, say

pytestmark = pytest.mark.anyio

TOOLS = """
import base64
from mcp.server.mcpserver import Image

@server.tool()
def whoami() -> str:
    return "you sent " + SEEN[-1]

@server.tool()
def picture() -> Image:
    return Image(data=b"\\x89PNG\\r\\n\\x1a\\n and so on", format="png")

@server.tool()
def fails() -> str:
    raise ValueError("no such document")
"""

RUN = """
import socket, uvicorn

SEEN = []
inner = server.streamable_http_app()

async def app(scope, receive, send):
    if scope["type"] == "http":
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        SEEN.append(given)
        if given != "Bearer good-token-123":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you?"})
            return
    await inner(scope, receive, send)

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "server"
    folder.mkdir()
    with subprocess.Popen(sdk(folder, "remote", TOOLS, RUN), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def at(address: str, **more: object) -> Manifest:
    headers = {"Authorization": "DOCS_AUTH"}
    server = {"name": "docs", "url": address, "headers_env": headers, "effect": "read", "call_timeout": 20, **more}
    return manifest(mcp=[server])


async def test_a_server_at_an_address_is_called_with_its_header_and_what_it_says_of_it_is_masked(
    rig: Rig, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_AUTH", "Bearer good-token-123")
    steps = [call("docs__whoami"), call("docs__picture"), call("docs__fails")]
    agent = Agent(lambda _, n: steps[n - 1] if n <= len(steps) else say("done"))
    async with rig.open(agent, at(address)) as pod:
        result = await pod.run("go")
    who, picture, fails = [record.item for record in rig.of(ToolResult)]
    assert result.status == "finished" and who.summary == "you sent [secret DOCS_AUTH]"
    assert [image.media_type for image in picture.images] == ["image/png"]
    assert fails.status == "error" and "Error executing tool fails" in fails.text()
    assert b"good-token" not in rig.segments()[0].read_bytes()


async def test_a_server_that_refuses_the_header_or_is_not_there_is_a_warning(
    rig: Rig, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCS_AUTH", "Bearer wrong-token-456")
    made = manifest(
        mcp=[
            {"name": "docs", "url": address, "headers_env": {"Authorization": "DOCS_AUTH"}},
            {"name": "gone", "url": "http://127.0.0.1:9/mcp"},
            {"name": "unset", "url": address, "headers_env": {"Authorization": "NOT_SET_AT_ALL"}},
        ]
    )
    async with rig.open(Agent(lambda *_: say("done")), made) as pod:
        result = await pod.run("go")
    why = {each.server: each.why for each in rig.of(e.ServerTold) if each.state == "failed"}
    assert result.status == "finished" and set(why) == {"docs", "gone", "unset"} and all(why.values())
    assert "NOT_SET_AT_ALL is not set" in why["unset"] and "401" in why["docs"]
    assert not any("wrong-token" in text for text in why.values())


async def test_a_server_that_goes_away_is_an_error_of_the_call_and_the_run_goes_on(
    rig: Rig, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B132 at an address: the connection is refused from the second call on."""
    monkeypatch.setenv("DOCS_AUTH", "Bearer good-token-123")

    def play(_: object, number: int) -> object:
        if number == 2:
            # The whole server is gone, as a restart on the other side would make it.
            subprocess.run([sys.executable, "-c", KILL, address], check=True)
        return call("docs__whoami") if number <= 3 else say("done")

    async with rig.open(Agent(play), at(address)) as pod:  # type: ignore[arg-type]
        result = await pod.run("go")
    statuses = [record.item.status for record in rig.of(ToolResult)]
    assert result.status == "finished" and statuses == ["ok", "error", "error"]
    assert [each.state for each in rig.of(e.ServerTold)] == ["up", "down", "failed"]


KILL = """
import os, sys
from pathlib import Path
port = sys.argv[1].split(":")[2].split("/")[0]
inode = next(line.split()[9] for line in open("/proc/net/tcp") if line.split()[1].endswith(f":{int(port):04X}") and line.split()[3] == "0A")
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if any(os.readlink(fd) == f"socket:[{inode}]" for fd in Path("/proc", pid, "fd").iterdir()):
            os.kill(int(pid), 9)
    except OSError:
        continue
"""
