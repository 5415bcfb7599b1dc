"""What a manifest names, made for a look: models, tools, interceptors. What can't be made is told with file, line and key.

Opens no connection and reads no key; tools and interceptors of the user's own are imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pod import setup
from pod.errors import UsageProblem
from pod.guarding import sandbox_trouble
from pod.loading import NotLoaded, load_object, users_code
from pod.manifest import BUILT_IN_TOOLS, Loaded, Origin, Problem
from pod.manifest.check import rules_about
from pod.manifest.errors import KeyPath, key_label
from pod.manifest.load import dotted
from pod.manifest.sections import ModelSection
from pod.manifest.source import shown
from worker.builtin.registry import BUILTIN, builtin_tool
from worker.builtin.shell_environment import shell_environment
from worker.errors import ConfigError
from worker.models.base import Model
from worker.models.registry import create_model, guessed_window
from worker.tools import Tool, tool


def check_parts(loaded: Loaded) -> list[Problem]:
    """Makes each part once; what is wrong with it, and warnings that only this shows."""
    problems = [*_models(loaded), *_tools(loaded), *_interceptors(loaded), *_hooks(loaded), *_sandbox(loaded)]
    absent = list(_programs(loaded))
    if problems or not set(loaded.manifest.tools.enable) <= set(BUILT_IN_TOOLS):
        return problems + absent
    try:
        names = list(setup.tools_of(loaded.manifest))
    except (UsageProblem, ConfigError) as error:
        key = ("tools", "python" if loaded.manifest.tools.python else "enable")
        return [_placed(loaded, key, str(error)), *absent]
    return _about_rules(loaded, names) + absent


def doubts(loaded: Loaded) -> Iterator[Problem]:
    """What works and is likely not meant: windows that are a guess, tools that can write nothing, roots that are not
    there. All are warnings.
    """
    for key, made in _made(loaded):
        if not isinstance(made, ConfigError) and made.capabilities.window_source == "fallback":
            table = f"[{'.'.join(key[:-1])}]"
            where = f"{table} context_window"
            message = guessed_window(made.name, made.capabilities.window, where)
            yield _placed(loaded, key, message, warning=True)
    scope = loaded.manifest.scope
    writing = [
        name for name in loaded.manifest.tools.enable if name in BUILTIN and builtin_tool(name).effect == "write"
    ]
    if writing and not scope.write:
        message = f"{', '.join(writing)} can write nothing: [scope] write names no folder"
        found = _placed(
            loaded, ("tools", "enable"), message, 'set [scope] write = ["."], or leave out what writes', warning=True
        )
        yield found if found.file else replace(found, file=shown(loaded.path))
    for use in ("read", "write"):
        for number, root in enumerate(getattr(scope, use)):
            if not os.path.lexists(root):
                yield _placed(loaded, ("scope", use, number), f"{root} is not there", warning=True)


def _programs(loaded: Loaded) -> Iterator[Problem]:
    """Programs of hooks that are not there. They may still come, so this is a warning."""
    path = shell_environment()["PATH"]
    for number, section in enumerate(loaded.manifest.hooks):
        if not section.command:
            continue
        program = section.command[0]
        named = "/" in program
        if shutil.which(loaded.cwd / program if named else program, path=path) is not None:
            continue
        where = "is no program that can be run in the working folder" if named else "is not in PATH"
        (hook,) = setup.user_hooks(loaded.manifest.model_copy(update={"hooks": (section,)}), ())
        then = "what it is asked about is blocked" if hook.blocks_on_error else "it is passed over"
        yield _placed(loaded, ("hooks", number, "command"), f"{program} {where}: {then}", warning=True)


def _made(loaded: Loaded) -> Iterator[tuple[tuple[str, ...], Model | ConfigError]]:
    """Each model that may be asked, or why it can't be made, with the key that names it."""
    compaction = loaded.manifest.compaction
    sections: list[tuple[tuple[str, ...], ModelSection]] = [(("model",), loaded.manifest.model)]
    if compaction is not None and compaction.model is not None:
        sections.append((("compaction", "model"), compaction.model))
    for table, section in sections:
        settings = setup.model_settings(section)
        for key, names in (("name", (section.name,)), ("fallback", section.fallback)):
            for name in names:
                try:
                    if name is not None:
                        yield (*table, key), create_model(name, settings if key == "name" else None)
                except ConfigError as error:
                    yield (*table, key), error


def _models(loaded: Loaded) -> Iterator[Problem]:
    for (*table, key), made in _made(loaded):
        if isinstance(made, ConfigError):
            # What is wrong with a setting begins with the setting's name.
            named = str(made).split(" ", 1)[0]
            where = named if key == "name" and named in ModelSection.model_fields else key
            yield _placed(loaded, (*table, where), str(made).removeprefix(f"{where} "))


def _tools(loaded: Loaded) -> Iterator[Problem]:
    for reference in loaded.manifest.tools.python:
        if isinstance(found := _imported(loaded, reference, ("tools", "python"), _as_tool), Problem):
            yield found


def _sandbox(loaded: Loaded) -> Iterator[Problem]:
    if (why := sandbox_trouble(loaded.manifest, loaded.cwd)) is not None:
        yield _placed(loaded, ("sandbox", "mode"), why.partition(": ")[2])


def _as_tool(value: Any) -> Tool:
    return value if isinstance(value, Tool) else tool(value)


def _interceptors(loaded: Loaded) -> Iterator[Problem]:
    for number, use in enumerate(loaded.manifest.interceptors):
        if isinstance(
            found := _imported(loaded, use.use, ("interceptors", number, "use"), setup.interceptor_of), Problem
        ):
            yield found


def _hooks(loaded: Loaded) -> Iterator[Problem]:
    for number, hook in enumerate(loaded.manifest.hooks):
        if hook.use is None:
            continue
        try:
            setup.user_hooks(loaded.manifest.model_copy(update={"hooks": (hook,)}), ())
        except UsageProblem as error:
            yield _placed(loaded, ("hooks", number, "use"), str(error).removeprefix("[[hooks]] use: "))


def _imported(loaded: Loaded, reference: str, key: KeyPath, make: Callable[[Any], Any]) -> Any:
    """What a reference names, or the problem with it: code of the user's own may fail in any way."""
    try:
        found = load_object(reference, "")
        with users_code(ConfigError):
            return make(found)
    except NotLoaded as error:
        return _placed(
            loaded, key, f"{reference!r} can't be loaded: {error.reason}", _beside(loaded, reference, error.__cause__)
        )
    except (UsageProblem, ConfigError) as error:
        return _placed(loaded, key, f"{reference!r} can't be used: {error}")


def _beside(loaded: Loaded, reference: str, cause: BaseException | None) -> str:
    """A hint where the module lies in a folder that Python does not look into."""
    top = reference.partition(":")[0].partition(".")[0]
    if not isinstance(cause, ModuleNotFoundError) or cause.name != top:
        return ""
    for folder in dict.fromkeys((loaded.path.parent, loaded.cwd, Path.cwd())):
        if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
            return f"it lies in {folder}, where Python does not look: PYTHONPATH={folder} pod ..."
    return "is its package installed in this environment?"


def _about_rules(loaded: Loaded, names: list[str]) -> list[Problem]:
    """Rules about tools that the agent does not have, now that the names of its own tools are known."""
    if not loaded.manifest.tools.python:
        return []  # said when the manifest was loaded
    found = rules_about(loaded.manifest, names)
    return [_placed(loaded, each.keys[0], each.message, each.hint, warning=True) for each in found]


def _placed(loaded: Loaded, key: KeyPath, message: str, hint: str = "", *, warning: bool = False) -> Problem:
    """A problem with the place of its key, else of the nearest table around it."""
    severity = "warning" if warning else "error"
    origins = (loaded.sources.get(dotted(key[:length])) for length in range(len(key), 0, -1))
    origin = next((origin for origin in origins if origin is not None and origin.file is not None), Origin("default"))
    return Problem(
        message, file=origin.file, line=origin.line, column=origin.column, key=key_label(key), hint=hint,
        severity=severity, path=key,
    )  # fmt: skip
