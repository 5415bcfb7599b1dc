"""What the format knows and this version of the runtime does not serve: refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable

from pod.manifest.errors import KeyPath, Problem
from pod.manifest.model import Manifest
from pod.manifest.schema import label
from pod.manifest.sections import LATER_TOOLS

_NOT_SERVED: tuple[tuple[KeyPath, Callable[[Manifest], object], str], ...] = (
    (
        ("tools", "enable"),
        lambda m: set(m.tools.enable) & set(LATER_TOOLS),
        f"of these tools, {', '.join(LATER_TOOLS)} are not served yet",
    ),
    (("mcp",), lambda m: m.mcp, "servers of the Model Context Protocol are not served yet"),
)


UNSERVED_TABLES: frozenset[str] = frozenset({"mcp"})
"""Tables of which this version serves nothing: a new manifest leaves them out."""


def not_served(manifest: Manifest) -> list[tuple[KeyPath, str]]:
    """The keys that ask for what is not served, each with the reason."""
    return [(path, reason) for path, asked, reason in _NOT_SERVED if asked(manifest)]


def unsupported(manifest: Manifest) -> list[Problem]:
    """A problem for each setting that this version cannot honour. Empty for a manifest that it serves in full."""
    return [Problem(reason, key=label(path), hint="take it out") for path, reason in not_served(manifest)]
