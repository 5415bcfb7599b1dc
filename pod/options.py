"""What `Pod.open` is given, and what it means: options, overrides, folders, models, the type of answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from interceptors.purse import Purse
from pod import setup
from pod.errors import UsageProblem, in_a_folder
from pod.events import Event
from pod.hooks.define import Hook
from pod.log.files import Files
from pod.log.folder import home_of, is_address
from pod.manifest import Loaded, Manifest, ManifestError, check, unsupported
from pod.output import OutputSchema
from pod.stored import asking_for, with_overrides
from worker.interceptor import Interceptor
from worker.models.base import Model
from worker.results import Yielded
from worker.tools import Tool
from worker.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Options:
    """What `Pod.open` was given besides the manifest."""

    name: str | None = None
    cwd: Path | None = None
    home: Path | None = None
    tools: Sequence[Tool | Callable[..., Any]] = ()
    interceptors: Sequence[Interceptor] = ()
    hooks: Sequence[Hook] = ()
    model: Model | str | None = None
    compact_model: Model | str | None = None
    deps: Any = None
    headless: bool = True
    must_exist: bool = False
    on_yield: Callable[[Yielded], Any] | None = None
    observers: Sequence[Callable[[Event], object]] = ()
    purse: Purse | None = None
    files: Files | None = None
    telemetry: Tracing | None = None
    output: OutputSchema | None = None


class OpenOptions(TypedDict, total=False):
    """The options of `Pod.open` that whatever opens a pod passes on, as `Pod.open` describes them."""

    cwd: str | os.PathLike[str] | None
    overrides: Sequence[str]
    trusted: bool | None
    tools: Sequence[Tool | Callable[..., Any]]
    interceptors: Sequence[Interceptor]
    hooks: Sequence[Hook]
    model: Model | str | None
    compact_model: Model | str | None
    deps: Any
    headless: bool
    on_yield: Callable[[Yielded], Any] | None
    observers: Sequence[Callable[[Event], object]]
    purse: Purse | None
    files: Files | None
    telemetry: Tracing | None


class HomeOptions(OpenOptions, total=False):
    """The same, with where pods lie."""

    home: str | os.PathLike[str] | None


class NamedOptions(HomeOptions, total=False):
    """The same, with the pod's name."""

    name: str | None


def overridden(manifest: Manifest | Loaded, overrides: Sequence[str], cwd: Path | None) -> Manifest | Loaded:
    """A manifest that was read or made before, with the overrides laid over it. Raises `ManifestError`."""
    made = _inner(manifest)
    if overrides:
        with in_a_folder():
            made = with_overrides(made, overrides, Path(os.path.realpath(cwd or Path.cwd())))
    problems = [p for p in (*check(made), *unsupported(made)) if p.severity == "error"]
    if problems:
        raise ManifestError(problems)
    return _with(manifest, made)


def _inner(manifest: Manifest | Loaded) -> Manifest:
    return manifest if isinstance(manifest, Manifest) else manifest.manifest


def _with(given: Manifest | Loaded, made: Manifest) -> Manifest | Loaded:
    """Another manifest in the form in which one was given."""
    return made if isinstance(given, Manifest) else replace(given, manifest=made, digest=made.digest)


WANTED = "the manifest is a path, the name of a shipped one, a Manifest or a Loaded"


def path_of(given: Any, wanted: str) -> str:
    if isinstance(given, str):
        return given
    named: Any = getattr(given, "__fspath__", lambda: None)()
    if isinstance(named, str):
        return named
    raise UsageProblem(f"{wanted}, not {type(given).__name__} ({ascii(given)[:60]})")


def whole(given: object, what: str) -> Path | None:
    """A folder that a program named, without the current folder's part; None where it named none."""
    if given is None:
        return None
    if what == "home" and isinstance(given, str) and is_address(given):
        return home_of(given)
    with in_a_folder():
        return Path(path_of(given, f"{what} is a path")).absolute()


def models_given(given: Model | str | None, manifest: Manifest, tools: Mapping[str, Tool]) -> tuple[Model, ...]:
    if given is None:
        return setup.pod_models(manifest, tools)
    if isinstance(given, str):
        named = setup.renamed(manifest.model, given)
        return setup.pod_models(manifest.model_copy(update={"model": named}), tools)
    return (given,)


def compact_models_given(given: Model | str | None, manifest: Manifest, models: tuple[Model, ...]) -> tuple[Model, ...]:
    if isinstance(given, str):
        return setup.models_of(setup.renamed(manifest.model, given))
    if given is not None:
        return (given,)
    section = manifest.compaction.model if manifest.compaction else None
    return models if section is None or section.name is None else setup.models_of(section)


def output_of(output_type: Any) -> OutputSchema | None:
    """What a type asks of answers; nothing where none was given. Raises `UsageProblem`."""
    return None if output_type is None or output_type is Any else OutputSchema.of(output_type)


def with_output(manifest: Manifest | Loaded, output: OutputSchema | None) -> Manifest | Loaded:
    """The manifest with the schema of a type, so that the session keeps it and goes on with it when it is opened without one."""
    if output is None:
        return manifest
    return _with(manifest, asking_for(_inner(manifest), output.text))
