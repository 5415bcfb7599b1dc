"""Servers for tests: small ones written with the SDK, raw ones that misbehave, and one at a loopback address."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

RAW = """
import json, os, subprocess, sys, time

NAME, TOOLS = {name!r}, {tools!r}

def send(**message):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", **message}}) + "\\n")
    sys.stdout.flush()

def text(words):
    return {{"content": [{{"type": "text", "text": words}}]}}

def note(line):
    with open(NAME + ".seen", "a") as file:
        file.write(line + "\\n")

def call(id, name, arguments):
    {call}

note("started " + str(os.getpid()) + " " + os.environ.get("POD_CALL_ID", "") + " " + str(sorted(k for k in os.environ if "TOKEN" in k)))
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "initialize":
        capabilities = {{"tools": {{"listChanged": True}}}}
        info = {{"name": NAME, "version": "1"}}
        send(id=message["id"], result={{"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}})
    elif method == "tools/list":
        send(id=message["id"], result={{"tools": TOOLS}})
    elif method == "tools/call":
        note("call " + message["params"]["name"])
        call(message["id"], message["params"]["name"], message["params"].get("arguments") or {{}})
    elif method == "notifications/cancelled":
        note("cancelled")
    elif "id" in message and "method" not in message:
        note("answered " + json.dumps(message.get("error") or message.get("result")))
"""


def listed(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Tools as a server lists them."""
    return [{"name": name, "description": f"does {name}", "inputSchema": {"type": "object"}, **more} for name in names]


def raw(folder: Path, name: str, call: str = "send(id=id, result=text(name))", tools: Any = None) -> list[str]:
    """A server without the SDK: `call` is what it does with a call. What it notes stands in `NAME.seen`."""
    body = "\n    ".join(call.strip().splitlines())
    program = folder / f"{name}.py"
    program.write_text(RAW.format(name=name, tools=listed("work") if tools is None else tools, call=body))
    return [sys.executable, str(program)]


def seen(folder: Path, name: str) -> list[str]:
    """What a raw server noted."""
    file = folder / f"{name}.seen"
    return file.read_text().splitlines() if file.exists() else []


SDK = """
from mcp.server import MCPServer

server = MCPServer("sdk")

{tools}

{run}
"""


def sdk(folder: Path, name: str, tools: str, run: str = "server.run()") -> list[str]:
    """A server that is written with the SDK."""
    program = folder / f"{name}.py"
    program.write_text(SDK.format(tools=tools, run=run))
    return [sys.executable, str(program)]
