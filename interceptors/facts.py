"""The facts of a call that a decision looks at: what it names, and whether that is in scope."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast
from urllib.parse import unquote

from interceptors.commands import readings, split
from worker.addresses import address_of
from worker.builtin.scope import LONGEST_PATH, home_expanded
from worker.interceptor import CallContext
from worker.text import clean
from worker.tools import Effect, Tool, ToolFault, members

PATH_ARGUMENTS = frozenset(
    {
        "path",
        "paths",
        "file",
        "file_path",
        "filepath",
        "filename",
        "folder",
        "dir",
        "directory",
        "source",
        "destination",
    }
)
"""Arguments of file tools that name a path."""

PATH_WORDS = frozenset(
    {
        "path", "paths", "file", "files", "filepath", "filepaths", "filename", "filenames", "folder", "folders", "dir", "dirs",
        "directory", "directories", "src", "dst", "dest",
    }
)  # fmt: skip
"""The last words of such names where somebody else chose them (a server's): `repo_path`, `outputFile`."""

URL_WORDS = frozenset({"url", "urls", "uri", "uris"})
"""The last words of names of arguments that may name a file as `file:///...`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HOME = re.compile(r"^\$(?:HOME\b|\{HOME\})")
_FILE_URL = re.compile(r"file:(?://[^/]*)?(?=/)", re.IGNORECASE)

ARTIFACT = "artifact:"
"""Paths that begin so name the pod's own artifacts, which are readable."""

SUMMARY_CHARS = 400
"""Characters of a call that a human is shown."""


class PathScope(Protocol):
    """What decides on paths; `worker.builtin.scope.Scope` is one."""

    cwd: Path

    def resolve(self, path: str | Path, use: Literal["read", "write"] = "read") -> Path:
        """The real path, after links. Blocks; raises `ToolFault` where it is out of scope."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """A `PathScope` made of two predicates on resolved paths, for who has no `Scope`."""

    in_read: Callable[[str], bool]
    in_write: Callable[[str], bool]
    cwd: Path = field(default_factory=Path.cwd)

    def resolve(self, path: str | Path, use: Literal["read", "write"] = "read") -> Path:
        """The real path, after links. Raises `ToolFault` where the predicate says no."""
        if len(str(path)) > LONGEST_PATH:
            raise ToolFault(f"{str(path)[:80]}...: the path is too long")
        try:
            real = Path(os.path.realpath(self.cwd / home_expanded(str(path))))
        except (OSError, ValueError) as e:
            raise ToolFault(f"not a path: {str(path)[:80]!r} ({e})") from e
        if not (self.in_write if use == "write" else self.in_read)(str(real)):
            raise ToolFault(
                f"{path} is outside the {use} scope; choose a path in it, or add the folder to [scope] {use}"
            )
        return real


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a decision looks at.

    A rule that forbids or asks matches where any of `readings` does. Rules that allow must match a name of each of
    `parts`, and only where `plain` says that the parts are all there is. `outside` is why a path is out of scope.
    """

    tool: str
    effect: Effect
    readings: frozenset[str] = frozenset()
    parts: tuple[frozenset[str], ...] = ()
    plain: bool = True
    outside: str | None = None


def canonical(arguments: dict[str, Any]) -> str:
    """Arguments as JSON text that does not depend on the order of keys."""
    return clean(json.dumps(arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str))


def facts_of(ctx: CallContext, scope: PathScope | None) -> CallFacts:
    """The facts of a call. Blocks: paths are resolved on the disk."""
    tool, arguments = ctx.tool, ctx.arguments
    paths = paths_of(tool, arguments)
    if tool.effect in ("read", "write"):
        if paths:
            return _file_facts(tool.name, tool.effect, paths, scope)
        text = frozenset({canonical(arguments)})
        return CallFacts(tool.name, tool.effect, text, (text,))
    # Whatever else they do: a file that such a call names lies in scope.
    outside = _file_facts(tool.name, tool.effect, paths, scope).outside if paths else None
    if tool.effect == "process" and isinstance(command := arguments.get("command"), str):
        commands = split(command)
        parts = tuple(frozenset({part}) for part in commands.parts)
        return CallFacts(tool.name, tool.effect, readings(command), parts, commands.plain, outside)
    if tool.effect == "network" and (address := address_of(arguments)):
        names = frozenset(name for name in (address.host, address.url) if name)
        raw = {value for key in ("url", "host") if isinstance(value := arguments.get(key), str)}
        return CallFacts(tool.name, tool.effect, names | raw, (names,), address.plain, outside)
    text = frozenset({canonical(arguments)})
    return CallFacts(tool.name, tool.effect, text, (text,), True, outside)


def paths_of(tool: Tool, arguments: dict[str, Any]) -> list[str]:
    """The paths that a call names, at any depth of its arguments: those typed as paths, and for a tool on files those of a name that
    says so (`names_a_path`). To a tool that reads artifacts of the pod their names are no paths.

    A tool whose arguments are described elsewhere may take `file:///etc/hosts`, `~root/x` and `$HOME/x` for the files that they stand
    for: both are paths then.
    """
    typed = tool.path_parameters
    if not typed and tool.effect not in ("read", "write"):
        return []
    found: list[str] = []
    for name, value in members(arguments):
        if names_a_path(tool, name):
            found += _texts(value, name in typed)
        if _is_foreign(tool) and (names_a_path(tool, name) or _last_word(name) in URL_WORDS):
            found += (path for text in _texts(value, False) if (path := _stands_for(text)))
    return [path for path in found if not (tool.reads_artifacts and path.startswith(ARTIFACT))]


def names_a_path(tool: Tool, argument: str) -> bool:
    """Whether an argument of a tool is taken for a path, by its type or its name."""
    if argument in tool.path_parameters:
        return True
    if tool.effect not in ("read", "write"):
        return False
    return (
        argument in PATH_ARGUMENTS
        or argument == tool.resource
        or (_is_foreign(tool) and _last_word(argument) in PATH_WORDS)
    )


def _is_foreign(tool: Tool) -> bool:
    """Whether nothing here knows what a tool takes its arguments for, but for a schema: the tool of a server."""
    return tool.validate is None and tool.effect in ("read", "write")


def _last_word(name: str) -> str:
    words = _WORD.findall(name)
    return words[-1].lower() if words else ""


def _stands_for(text: str) -> str:
    """The path in the URL of a file, or behind a home folder; nothing where a text is no such thing."""
    found = _FILE_URL.match(text.strip())
    if found is not None:
        return unquote(re.split("[?#]", text.strip()[found.end() :])[0])
    expanded = os.path.expanduser(_HOME.sub("~", text))  # noqa: PTH111 (a user that there is not is no error)
    return "" if expanded == text else expanded


def _texts(value: object, tables: bool) -> Iterator[str]:
    """The paths in an argument, in lists at any depth; with `tables` also the values of tables."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str | Path) and str(each):
            yield str(each)
        elif isinstance(each, list | tuple):
            waiting += reversed(cast("Sequence[object]", each))
        elif tables and isinstance(each, dict):
            waiting += reversed(list(cast("dict[str, object]", each).values()))


def _is_paths(value: object) -> bool:
    """Whether an argument holds paths and nothing else that a human would have to see."""
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_paths, cast("list[object]", value))))


def _file_facts(tool: str, effect: Effect, paths: Sequence[str], scope: PathScope | None) -> CallFacts:
    seen: set[str] = set(paths)
    parts: list[frozenset[str]] = []
    outside: str | None = None
    for path in paths:
        if scope is None:
            parts.append(frozenset({path}))
            continue
        seen |= names_of(Path(os.path.normpath(scope.cwd / home_expanded(path))), scope.cwd)
        try:
            real = names_of(scope.resolve(path, "write" if effect == "write" else "read"), scope.cwd)
        except ToolFault as e:
            outside = str(e)
            continue
        seen |= real
        parts.append(real)
    return CallFacts(tool, effect, frozenset(seen), tuple(parts), True, outside)


def names_of(path: Path, cwd: Path) -> frozenset[str]:
    """How rules may name a path: whole, and from the working folder where it lies in it."""
    names = {str(path)}
    if path.is_relative_to(cwd):
        names.add(path.relative_to(cwd).as_posix())
    return frozenset(names)


class Told(NamedTuple):
    """A call in one line of at most 400 characters. `shown` are the arguments that stand in it whole."""

    text: str
    shown: frozenset[str] = frozenset()


def describe(tool: Tool, facts: CallFacts, arguments: dict[str, Any]) -> Told:
    """A call in one line for a human."""
    command, url = arguments.get("command"), arguments.get("url")
    if facts.effect == "process" and isinstance(command, str):
        said, shown = command, frozenset({"command"})
    elif facts.effect in ("read", "write") and facts.parts and canonical(arguments) not in facts.parts[0]:
        said = ", ".join(min(part, key=len) for part in facts.parts)
        shown = frozenset(name for name, value in arguments.items() if names_a_path(tool, name) and _is_paths(value))
    elif url:
        said, shown = str(url), frozenset({"url"})
    else:
        said, shown = canonical(arguments), frozenset(arguments)
    text = f"{tool.name}: {said}"
    return Told(text, shown) if len(text) <= SUMMARY_CHARS else Told(f"{text[: SUMMARY_CHARS - 1]}…")
