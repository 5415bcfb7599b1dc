"""What works in a manifest and is likely not meant. All are warnings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from interceptors.deciding import nothing_allowed
from pod import setup
from pod.cli.parts import made
from pod.cli.placing import placed
from pod.manifest import Loaded, Problem
from pod.manifest.errors import KeyPath
from pod.manifest.source import shown
from worker.builtin.registry import BUILTIN, builtin_tool
from worker.errors import ConfigError
from worker.models.registry import guessed_window
from worker.tools import Effect


def doubts(loaded: Loaded) -> Iterator[Problem]:
    """Windows that are a guess, tools that can do nothing, roots that are missing or hold too much, commands that nothing
    holds, variables that are not set. Blocks; opens no connection.
    """
    yield from _windows(loaded)
    yield from _writes(loaded)
    yield from _denied(loaded)
    yield from _roots(loaded)
    yield from _commands(loaded)
    yield from _variables(loaded)


def _windows(loaded: Loaded) -> Iterator[Problem]:
    for key, found in made(loaded):
        if not isinstance(found, ConfigError) and found.capabilities.window_source == "fallback":
            table = f"[{'.'.join(key[:-1])}]"
            message = guessed_window(found.name, found.capabilities.window, f"{table} context_window")
            yield placed(loaded, key, message, warning=True)


def _writes(loaded: Loaded) -> Iterator[Problem]:
    writing = [name for name, effect in _effects(loaded) if effect == "write"]
    if writing and not loaded.manifest.scope.write:
        message = f"{', '.join(writing)} can write nothing: [scope] write names no folder"
        yield _at(loaded, ("tools", "enable"), message, 'set [scope] write = ["."], or leave out what writes')


def _denied(loaded: Loaded) -> Iterator[Problem]:
    """Tools of which the profile denies each call, where no rule lets one through: the agent is offered them in vain."""
    profile, rules = loaded.manifest.permissions.profile, setup.rules_of(loaded.manifest)
    vain = [name for name, effect in _effects(loaded) if nothing_allowed(name, effect, profile, rules)]
    if vain:
        message = f"the profile {profile!r} denies each call of {', '.join(vain)}, and no rule allows one"
        hint = f'a rule does, as {{ tool = "{vain[0]}", match = "...", action = "allow" }}; or leave out what is denied'
        yield _at(loaded, ("tools", "enable"), message, hint)
    for number, server in enumerate(loaded.manifest.mcp):
        effect = server.effect or ("process" if server.command else "network")
        if not server.effects and nothing_allowed(f"{server.name}__*", effect, profile, rules, pattern=True):
            message = f"the profile {profile!r} denies each call of its tools, and no rule allows one"
            hint = f'a rule does, as {{ tool = "{server.name}__*", action = "allow" }}'
            yield _at(loaded, ("mcp", number, "name"), message, hint)


def _roots(loaded: Loaded) -> Iterator[Problem]:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # raises nothing where there is no home folder
    for use in ("read", "write"):
        for number, root in enumerate(getattr(loaded.manifest.scope, use)):
            key: KeyPath = ("scope", use, number)
            if not os.path.lexists(root):
                yield placed(loaded, key, f"{root} is not there", warning=True)
            elif home.is_relative_to(root):
                what = f"{root} is" if Path(root) == home else f"{root} holds"
                message = f"{what} your home folder, with the keys and settings in it"
                yield placed(loaded, key, message, "name the folders that the work needs", warning=True)


def _commands(loaded: Loaded) -> Iterator[Problem]:
    """A rule that allows every command, where nothing holds them."""
    manifest = loaded.manifest
    if manifest.sandbox.mode != "off" or "shell" not in manifest.tools.enable:
        return
    for number, rule in enumerate(manifest.permissions.rules):
        if rule.action == "allow" and rule.match == "*" and fnmatchcase("shell", rule.tool):
            message = "every command is allowed, and without [sandbox] it runs with all that you may do"
            hint = 'set [sandbox] mode = "workspace", or name the commands in match'
            yield placed(loaded, ("permissions", "rules", number), message, hint, warning=True)


def _variables(loaded: Loaded) -> Iterator[Problem]:
    """Variables of the environment that are to be handed on, and are not there."""
    named: list[tuple[KeyPath, str]] = [
        (("tools", "shell", "env", n), name) for n, name in enumerate(loaded.manifest.tools.shell.env)
    ]
    for number, server in enumerate(loaded.manifest.mcp):
        named += [(("mcp", number, "env", n), name) for n, name in enumerate(server.env)]
        named += [(("mcp", number, "headers_env", header), name) for header, name in server.headers_env.items()]
    for key, name in named:
        if name not in os.environ:
            yield placed(loaded, key, f"the environment variable {name} is not set", f"export {name}=...", warning=True)


def _effects(loaded: Loaded) -> list[tuple[str, Effect]]:
    """The built-in tools that are enabled, each with its effect."""
    return [(name, builtin_tool(name).effect) for name in loaded.manifest.tools.enable if name in BUILTIN]


def _at(loaded: Loaded, key: KeyPath, message: str, hint: str) -> Problem:
    """At the key, or at the manifest as such where no layer holds it."""
    found = placed(loaded, key, message, hint, warning=True)
    return found if found.file else replace(found, file=shown(loaded.path))
