"""What is known of a server before it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from worker.tools import MAX_OUTPUT, Effect

LABEL = "mcp"
"""What stands in `POD_CALL_ID` of servers' processes, by which a later runtime finds those of one that was killed."""

START_TIMEOUT = 30.0
CALL_TIMEOUT = 120.0


class ServerFault(Exception):
    """A server can't be started, or is lost; the text says why, without the server's name."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server: a program (`command`) or an address (`url`). Timeouts are in seconds.

    `env` names variables of the runtime's environment that its process gets besides those that commands get; `headers` maps
    headers of each HTTP request to variables that hold them. `tools` are wildcards on the server's own names. `effect` is that of
    its calls, but for tools that `effects` names; what a server says of its own tools never decides.
    """

    name: str
    command: tuple[str, ...] | None = None
    url: str | None = None
    env: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[str, ...] = ("*",)
    effect: Effect | None = None
    effects: Mapping[str, Effect] = field(default_factory=dict[str, Effect])
    start_timeout: float = START_TIMEOUT
    call_timeout: float = CALL_TIMEOUT
    max_output: int = MAX_OUTPUT
    required: bool = False

    def offers(self, tool: str) -> bool:
        """Whether the agent gets this tool of the server."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def effect_of(self, tool: str) -> Effect:
        """The effect of a call, by the user's word alone: that of the longest pattern that covers the tool, else the server's."""
        patterns = [pattern for pattern in self.effects if fnmatchcase(tool, pattern)]
        if patterns:
            return self.effects[max(patterns, key=len)]
        return self.effect or ("process" if self.url is None else "network")
