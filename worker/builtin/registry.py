"""The built-in tools by name; a tool's module is loaded when the tool is asked for."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from worker.errors import ConfigError
from worker.tools import Tool


class BuiltinTool(NamedTuple):
    """Where a tool is made: a `Tool` in a module, or a function of its settings that gives one."""

    module: str
    attribute: str

    def make(self, settings: Mapping[str, Any]) -> Tool:
        """The tool. Raises `ConfigError` for a setting that it does not have."""
        found = getattr(import_module(self.module), self.attribute)
        own = {} if isinstance(found, Tool) else dict(inspect.signature(found).parameters)
        _check(self.attribute.removeprefix("make_"), settings, [*own, *_COMMON])
        if isinstance(found, Tool):
            return replace(found, **settings)
        made = _made(found, tuple((key, _frozen(value)) for key, value in settings.items() if key in own))
        return replace(made, **{key: value for key, value in settings.items() if key not in own})


@lru_cache(maxsize=64)
def _made(factory: Callable[..., Tool], settings: tuple[tuple[str, Any], ...]) -> Tool:
    """A tool of these settings, made once: its schema takes milliseconds, and every pod has some of them."""
    return factory(**dict(settings))


def _frozen(value: Any) -> Any:
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


_COMMON = ("timeout", "max_output")

BUILTIN: dict[str, BuiltinTool] = {
    "read_file": BuiltinTool("worker.builtin.read_file", "make_read_file"),
    "write_file": BuiltinTool("worker.builtin.write_file", "write_file"),
    "append_file": BuiltinTool("worker.builtin.write_file", "append_file"),
    "edit_file": BuiltinTool("worker.builtin.edit_file", "edit_file"),
    "list_files": BuiltinTool("worker.builtin.list_files", "list_files"),
    "find_files": BuiltinTool("worker.builtin.list_files", "find_files"),
    "search_text": BuiltinTool("worker.builtin.search_text", "search_text"),
    "shell": BuiltinTool("worker.builtin.shell", "make_shell"),
    "fetch_url": BuiltinTool("worker.builtin.fetch_url", "make_fetch_url"),
    "jobs": BuiltinTool("worker.builtin.jobs", "make_jobs"),
    "tasks": BuiltinTool("worker.builtin.tasks", "tasks"),
}
"""All tools of this package. Each is off unless a manifest lists it."""


def builtin_tool(name: str, **settings: Any) -> Tool:
    """A built-in tool, with settings of its own: `timeout` (seconds), `max_output` (bytes), for `shell` also `env`
    (names).

    The timeout of `shell` is the default of one command, and ends its processes itself. Raises `ConfigError` for an
    unknown name or setting, with the nearest one.
    """
    if name not in BUILTIN:
        near = difflib.get_close_matches(name, BUILTIN, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(BUILTIN)}"
        raise ConfigError(f"no built-in tool {name!r}: {hint}")
    return BUILTIN[name].make(settings)


def _check(name: str, settings: Mapping[str, Any], known: list[str]) -> None:
    known = list(dict.fromkeys(known))
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"the tool {name!r} has no setting {key!r}: {hint}")
        if (
            key in _COMMON
            and value is not None
            and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0)
        ):
            raise ConfigError(f"the setting {key!r} of the tool {name!r} must be a number above 0, not {value!r}")
        if key == "env" and not _is_names(value):
            raise ConfigError(f"the setting 'env' of the tool {name!r} must be a list of variable names, not {value!r}")
        if key == "max_output" and not isinstance(value, int):
            raise ConfigError(
                f"the setting 'max_output' of the tool {name!r} must be a whole number of bytes, not {value!r}"
            )


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in cast("Sequence[object]", value))
