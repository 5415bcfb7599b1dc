"""What a manifest names, made for a look: models, tools, interceptors. What can't be made is told with file, line and key.

Opens no connection and reads no key; tools and interceptors of the user's own are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pod import setup
from pod.cli.placing import placed
from pod.cli.programs import absent
from pod.errors import UsageProblem
from pod.guarding import sandbox_trouble
from pod.loading import NotLoaded, beside, load_object, top_of, users_code
from pod.manifest import BUILT_IN_TOOLS, Loaded, Problem
from pod.manifest.check import about_no_tool
from pod.manifest.errors import KeyPath
from pod.manifest.sections import ModelSection
from worker.errors import ConfigError
from worker.models.base import Model
from worker.models.registry import create_model
from worker.tools import Tool, tool


def check_parts(loaded: Loaded) -> list[Problem]:
    """Makes each part once; what is wrong with it, and warnings that only this shows."""
    problems = [*_models(loaded), *_tools(loaded), *_interceptors(loaded), *_hooks(loaded), *_sandbox(loaded)]
    missing = list(absent(loaded))
    if problems or not set(loaded.manifest.tools.enable) <= set(BUILT_IN_TOOLS):
        return problems + missing
    try:
        names = list(setup.tools_of(loaded.manifest))
    except (UsageProblem, ConfigError) as error:
        key = ("tools", "python" if loaded.manifest.tools.python else "enable")
        return [placed(loaded, key, str(error)), *missing]
    return _about_no_tool(loaded, names) + missing


def made(loaded: Loaded) -> Iterator[tuple[tuple[str, ...], Model | ConfigError]]:
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
    for (*table, key), found in made(loaded):
        if isinstance(found, ConfigError):
            # What is wrong with a setting begins with the setting's name.
            named = str(found).split(" ", 1)[0]
            where = named if key == "name" and named in ModelSection.model_fields else key
            yield placed(loaded, (*table, where), str(found).removeprefix(f"{where} "))


def _tools(loaded: Loaded) -> Iterator[Problem]:
    for reference in loaded.manifest.tools.python:
        if isinstance(found := _imported(loaded, reference, ("tools", "python"), _as_tool), Problem):
            yield found


def _sandbox(loaded: Loaded) -> Iterator[Problem]:
    if (why := sandbox_trouble(loaded.manifest, loaded.cwd)) is not None:
        yield placed(loaded, ("sandbox", "mode"), why.partition(": ")[2])


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
            yield placed(loaded, ("hooks", number, "use"), str(error).removeprefix("[[hooks]] use: "))


def _imported(loaded: Loaded, reference: str, key: KeyPath, make: Callable[[Any], Any]) -> Any:
    """What a reference names, or the problem with it: code of the user's own may fail in any way."""
    try:
        found = load_object(reference, "")
        with users_code(ConfigError):
            return make(found)
    except NotLoaded as error:
        return placed(
            loaded, key, f"{reference!r} can't be loaded: {error.reason}", _beside(loaded, reference, error.__cause__)
        )
    except (UsageProblem, ConfigError) as error:
        return placed(loaded, key, f"{reference!r} can't be used: {error}")


def _beside(loaded: Loaded, reference: str, cause: BaseException | None) -> str:
    """A hint where the module lies in a folder that Python does not look into."""
    if not isinstance(cause, ModuleNotFoundError) or cause.name != top_of(reference):
        return ""
    if (folder := beside(reference, cause, loaded.path.parent, loaded.cwd, Path.cwd())) is not None:
        return f"it lies in {folder}, where Python does not look: PYTHONPATH={folder} pod ..."
    return "is its package installed in this environment?"


def _about_no_tool(loaded: Loaded, names: list[str]) -> list[Problem]:
    """Rules and hooks about tools that the agent does not have, now that the names of its own tools are known."""
    if not loaded.manifest.tools.python:
        return []  # said when the manifest was loaded
    found = about_no_tool(loaded.manifest, names)
    return [placed(loaded, each.keys[0], each.message, each.hint, warning=True) for each in found]
