"""What an agent may do, and what was denied to it, as `pod show` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from interceptors.approvals import PermissionDenied
from pod.cli.text import count, one_line
from pod.manifest import Manifest
from pod.state import PodState

Row = tuple[str, str]


def permits(manifest: Manifest, cwd: str) -> list[Row]:
    """The profile, the roots and the sandbox that a pod goes on with."""
    permissions, sandbox = manifest.permissions, manifest.sandbox
    many = [count(len(found), word) for found, word in ((permissions.rules, "rule"), (manifest.hooks, "hook")) if found]
    rows = [
        ("permissions", ", ".join([permissions.profile, *many])),
        ("scope", f"reads {_roots(manifest.scope.read, cwd)}; writes {_roots(manifest.scope.write, cwd)}"),
    ]
    if sandbox.mode == "off":
        return [*rows, ("sandbox", "off: a command that is allowed runs with all that you may do")]
    network = "a network" if sandbox.network else "no network"
    return [*rows, ("sandbox", f"{sandbox.mode}, {network}, .git {sandbox.git}")]


def denials(state: PodState, name: str) -> list[Row]:
    """How many calls were denied in the session, and the newest of them with why."""
    many = state.totals.denied
    if not many:
        return []
    newest = [_denial(each) for each in reversed(state.denials)]
    rows = [("denied", f"{count(many, 'call')}" + ("; the newest:" if newest else f"; pod log {name} shows why"))]
    rows += [("", f"  {one_line(text, 300)}") for text in newest]
    if 0 < len(newest) < many:
        rows.append(("", f"  pod inspect {name} shows all"))
    return rows


def _denial(record: PermissionDenied) -> str:
    return f"{record.summary or record.tool}; {record.reason}"


def _roots(roots: Sequence[str], cwd: str) -> str:
    return ", ".join(_root(root, cwd) for root in roots) or "nothing"


def _root(root: str, cwd: str) -> str:
    path = Path(root)
    return path.relative_to(cwd).as_posix() if path.is_relative_to(cwd) else root
