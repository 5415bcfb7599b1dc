"""The servers of tools of a pod: from its manifest to what is started, and what of them is put on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pod import codes
from pod.errors import ServerUnavailable, UsageProblem
from pod.guarding import protected_places, sandbox_of
from pod.log.entries import ServerTold
from pod.manifest import Manifest
from pod.server_words import MOST_NAMED, warning_of
from pod.session import Session
from pod.setup import specs_in
from worker.builtin.scope import Scope
from worker.mcp.define import Server
from worker.mcp.naming import prefix
from worker.models.base import ToolSpec
from worker.records import Warned
from worker.tools import Tool

if TYPE_CHECKING:
    from worker.mcp.connection import Place
    from worker.mcp.servers import News, Servers

MOST_UNFIT = 100
"""Tools that can't be offered that go on record by name."""


def servers_of(manifest: Manifest) -> list[Server]:
    """What `[[mcp]]` says."""
    return [
        Server(
            name=each.name, command=each.command, url=each.url, env=each.env, headers=each.headers_env, tools=each.tools,
            effect=each.effect, effects=each.effects, start_timeout=each.start_timeout, call_timeout=each.call_timeout,
            max_output=each.max_output, required=each.required,
        )
        for each in manifest.mcp
    ]  # fmt: skip


def check_required(servers: Servers, mask: Callable[[str], str]) -> None:
    """Raises `ServerUnavailable` where one that is required is not running."""
    if failed := servers.failed():
        said = "; ".join(f"the server {each.server!r} is not running: {mask(each.why)}" for each in failed)
        raise ServerUnavailable(f"[[mcp]] required: {said}. Nothing was sent; required = false goes on without it")


def with_servers(base: Mapping[str, Tool], offered: Iterable[Tool], *, strict: bool = True) -> dict[str, Tool]:
    """The tools of a pod and behind them those of its servers, so that what stands before them stays cached.

    Raises `UsageProblem` for a name that another tool has already; not `strict`: that one is left out.
    """
    found = dict(base)
    for tool in offered:
        if tool.name not in base:
            found[tool.name] = tool
        elif strict:
            raise UsageProblem(
                f"two tools are named {tool.name!r}, one of them of a server: rename the server or the tool"
            )
    return found


def as_told(news: News, mask: Callable[[str], str]) -> ServerTold:
    """How a server stands, as it goes on record: without secrets, within bounds."""
    unfit = {mask(name): mask(why) for name, why in news.unfit[:MOST_UNFIT]}
    if (more := len(news.unfit) - MOST_UNFIT) > 0:
        unfit["..."] = f"and {more:,} more"
    return ServerTold(
        server=news.server, state=news.state, why=mask(news.why), tools=news.tools, unfit=unfit, waiting=news.waiting
    )  # fmt: skip


def tell(session: Session, news: Iterable[News]) -> None:
    """Puts on record how servers stand whose standing has changed, and warns of what the agent lacks. Not yet durable."""
    for each in news:
        told = as_told(each, session.gate.masked)
        before = session.state.servers.get(each.server)
        session.put(told)
        if (message := warning_of(told)) and (before is None or warning_of(before) != message):
            figures = {"server": each.server, "state": each.state, "unfit": len(told.unfit)}
            session.put(Warned(code=codes.MCP_SERVER, message=message, figures=figures))


def tell_altered(session: Session, manifest: Manifest, before: Iterable[ToolSpec], now: Iterable[ToolSpec]) -> None:
    """Warns of tools of servers that the model is told otherwise of than before: what was looked at once may lead it by now. Not yet durable."""
    known = {spec.name: spec for spec in before}
    altered = [spec.name for spec in now if known.get(spec.name, spec) != spec]
    for server in manifest.mcp:
        if names := [name for name in altered if name.startswith(prefix(server.name))]:
            more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} more"
            message = (
                f"the server {server.name!r} describes tools otherwise than before: {', '.join(names[:MOST_NAMED])}{more}; "
                "`pod tools MANIFEST --json` shows how"
            )
            session.put(
                Warned(code=codes.MCP_ALTERED, message=message, figures={"server": server.name, "tools": len(names)})
            )


def stored_specs(manifest: Manifest, schemas: str) -> list[ToolSpec]:
    """The tools of servers in the text of a segment's schemas: what a look shows that starts no server."""
    starts = tuple(prefix(each.name) for each in manifest.mcp)
    return [spec for spec in specs_in(schemas) if spec.name.startswith(starts)]


def place_of(manifest: Manifest, home: Path, cwd: Path, owner: str, files: Iterable[Path]) -> Place:
    """Where the servers of a pod run. Blocks, also to load what reaches them, which a pod without any does not need."""
    from worker.mcp.connection import Place

    protected = protected_places(manifest, home, cwd, tuple(files))
    scope = Scope(cwd, read=manifest.scope.read, write=manifest.scope.write, protected=protected)
    return Place(cwd, owner, sandbox_of(manifest, home, cwd, scope), version("pod-runtime"))
