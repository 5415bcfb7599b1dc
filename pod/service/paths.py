"""The path of a request, in which a `%2F` belongs to a pod's name and a `/` may be what stands between a name and what is asked of it.

So the result of the pod `a` is asked for with `a/result`, and the pod `a/result` with `a%2Fresult`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pod.service.door import App, Receive, Scope, Send

SLASH = "\ue000"
"""What stands for a `%2F` while it is looked for what a path means."""

_ENCODED = re.compile(rb"%2f", re.IGNORECASE)


def told_apart(app: App) -> App:
    """An app that sees `SLASH` for each `%2F` of a path."""

    async def with_slashes(scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = (scope.get("raw_path") or b"") if scope["type"] == "http" else b""
        # One that a server, or who mounts the app, has changed is taken as it is.
        if _ENCODED.search(raw) and unquote(raw.decode("latin-1")) == scope["path"]:
            scope = {**scope, "path": unquote(_ENCODED.sub(b"%EE%80%80", raw).decode("latin-1"))}
        await app(scope, receive, send)

    return with_slashes


def named(args: dict[str, str]) -> dict[str, str]:
    """The arguments of a path as they were meant."""
    return {name: value.replace(SLASH, "/") for name, value in args.items()}
