"""`pod tools MANIFEST`: the tools that an agent of a manifest has. Its servers are started for it, and gone when it returns."""

from __future__ import annotations

import argparse

import anyio

from pod import setup
from pod.cli.failing import note
from pod.cli.manifests import folder_of
from pod.cli.output import show, show_json
from pod.cli.text import count, one_line, table
from pod.guarding import check_sandbox
from pod.log.folder import default_home
from pod.manifest import load_manifest
from pod.servers import as_told, place_of, servers_of, warning_of, with_servers
from worker.estimate import estimate_spec
from worker.ids import uuid7
from worker.mcp.servers import News, Servers
from worker.mcp.words import Screen
from worker.text import visible
from worker.tools import Tool


def tools_of_manifest(args: argparse.Namespace) -> int:
    """Lists them. The exit code is 1 where a server is not running or has tools that can't be offered."""
    cwd = folder_of(args.cwd)
    loaded = load_manifest(args.manifest, cwd=cwd, model_required=False)
    manifest = loaded.manifest
    base = setup.tools_of(manifest)
    news: list[News] = []
    by_server: dict[str, list[Tool]] = {}
    if manifest.mcp:
        check_sandbox(manifest, cwd)
        place = place_of(manifest, default_home(), cwd, uuid7(), loaded.files)
        news, by_server = anyio.run(_listed, Servers(servers_of(manifest), place, Screen(setup.gate(manifest))))
    found = with_servers(base, [tool for own in by_server.values() for tool in own])
    mask = setup.gate(manifest).masked
    told = [as_told(each, mask) for each in news]
    tokens = {name: sum(estimate_spec(tool.spec) for tool in own) for name, own in by_server.items()}
    if args.json:
        origin = {tool.name: server for server, own in by_server.items() for tool in own}
        show_json({
            "tools": [
                {"name": t.name, "effect": t.effect, "server": origin.get(t.name), "timeout": t.timeout, "max_output": t.max_output,
                 "description": t.description, "parameters": t.parameters}
                for t in found.values()
            ],
            "servers": [{**each.model_dump(), "tokens": tokens[each.server]} for each in told],
        })  # fmt: skip
    else:
        rows = [(t.name, t.effect, one_line(t.description.split("\n\n")[0], 100)) for t in found.values()]
        show(table(rows, ("NAME", "EFFECT", "WHAT IT DOES")))
        for each in told:
            show(
                f"the server {each.server}: {each.state}, {count(each.tools, 'tool')}, about {tokens[each.server]:,} tokens in each request"
            )
    wrong = [message for each in told if (message := warning_of(each))]
    for message in wrong:
        note(f"pod: {visible(message)}")
    return 1 if wrong else 0


async def _listed(servers: Servers) -> tuple[list[News], dict[str, list[Tool]]]:
    async with servers:
        return servers.news(), servers.by_server()
