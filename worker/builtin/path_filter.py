"""Which paths a tool that walks must keep back: what a permission rule says of one file holds for a search as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from worker.builtin.scope import Scope
from worker.tools import ToolContext, ToolFault

PathCheck: TypeAlias = Callable[[str, Path], bool]
"""Takes a tool's name and a path (absolute, below a resolved folder)."""

KEPT_BACK = "denied paths"
"""How kept back paths are counted in a result; neither their names nor their content are in it."""


def _nothing(_tool: str, _path: Path) -> bool:
    return False


@dataclass(frozen=True)
class PathFilter:
    """A service for tools that show paths which the call does not name.

    `hides` says what such a tool leaves out; `denies` what it may not open even where the call names it.
    """

    hides: PathCheck = _nothing
    denies: PathCheck = _nothing


@dataclass(frozen=True)
class Visible:
    """A `PathFilter` for one call. Blocks where links are looked through."""

    tool: str
    filter: PathFilter

    @classmethod
    def of(cls, context: ToolContext) -> Visible:
        """The filter that the pod lends; where it lends none, everything may be seen."""
        found = context.services.get(PathFilter)
        return cls(context.name, found if isinstance(found, PathFilter) else PathFilter())

    def hides(self, path: Path) -> bool:
        """Whether the path is left out of a result."""
        return self.filter.hides(self.tool, path)

    def check(self, scope: Scope, path: str) -> None:
        """Raises `ToolFault` where a rule denies the very path that the call names."""
        resolved = scope.resolve(path, "read")
        if self.filter.denies(self.tool, resolved):
            raise ToolFault(f"{scope.show(resolved)} was not looked at: a permission rule denies it.")
