"""Loads a manifest: finds the files, lays the layers over each other, validates, and names every mistake with its
place.

The layers, each over the one before: the defaults; the user's `$XDG_CONFIG_HOME/pod/config.toml`; the project's
`.pod/config.toml` (tightening only, unless trusted); the manifest with what it extends; the environment
(`POD__SECTION__KEY`); `--set section.key=value`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from pod.manifest.aliases import rename
from pod.manifest.check import findings
from pod.manifest.errors import Finding, KeyPath, ManifestError, Problem, key_label
from pod.manifest.expand import FILES, BadVariable, absolute, expand, resolve_layer
from pod.manifest.fitting import Lowered, fit
from pod.manifest.layers import environment_layer, loosened, set_layer
from pod.manifest.merge import merge
from pod.manifest.model import Manifest
from pod.manifest.schema import label
from pod.manifest.secrets import take_secrets
from pod.manifest.shipped import shipped_names, shipped_path
from pod.manifest.source import Layer, Origin, nearest_origin, read_layer, shown
from pod.manifest.support import not_served
from pod.manifest.validate import place, place_finding, validate
from pod.manifest.values import is_table

USER_FILE = Path("pod") / "config.toml"
PROJECT_FILE = Path(".pod") / "config.toml"
DEFAULT = Origin("default")


@dataclass(frozen=True)
class Loaded:
    """A manifest with where each value came from.

    `sources` maps each key (`compaction.retained_tokens`, `mcp[0]`) to its origin; `digest` is that of the
    manifest; `path` is the manifest's file; `files` are all files that were read, the lowest layer first; `cwd` is
    the working folder that the scope was resolved against; `warnings` are contradictions that do not stop a run;
    `lowered` are defaults that gave way to a small window.
    """

    manifest: Manifest
    sources: Mapping[str, Origin]
    digest: str
    path: Path
    files: tuple[Path, ...]
    cwd: Path
    warnings: tuple[Problem, ...] = ()
    lowered: tuple[Lowered, ...] = ()


def load_manifest(
    path_or_name: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    trusted: bool = False,
    model_required: bool = True,
) -> Loaded:
    """Loads a manifest from a file, or a shipped one by its name.

    `overrides` are texts `section.key=value`. `env` is the environment (default: that of the process), `cwd` the
    working folder (default: the current one), `trusted` lifts the bounds of the project's configuration,
    `model_required=False` allows a manifest without `[model] name`, for code that brings the model. Paths are
    resolved once, here; later changes of the process's folder do not matter. Raises `ManifestError` with all
    problems at once.
    """
    environment = os.environ if env is None else env
    folder = Path(cwd if cwd is not None else Path.cwd()).resolve()
    path = find_manifest(path_or_name)
    layers, files, below = _layers(path, overrides, environment, folder)

    problems: list[Problem] = list(below)
    for layer in layers:
        problems += take_secrets(layer)
        problems += rename(layer)
        problems += _no_extends(layer)
        problems += resolve_layer(layer, cwd=folder, manifest_dir=path.parent, env=environment)
    for number, layer in enumerate(layers):
        if layer.name == "project" and not trusted:
            problems += loosened(layer, merge(layers[:number])[0])
    values, origins = merge(layers)
    scope = values.setdefault("scope", {})
    if is_table(scope):
        scope.setdefault("read", [str(folder)])  # the default, resolved like a root that someone wrote
    try:
        manifest = validate(values, origins)
    except ManifestError as e:
        raise ManifestError([*problems, *e.problems]) from None
    if problems:
        raise ManifestError(problems)

    manifest, lowered = fit(manifest, lambda path: path in origins)
    warnings = _verify(manifest, origins, path, lowered, model_required=model_required)
    return Loaded(
        manifest=manifest,
        sources=_sources(manifest, origins),
        digest=manifest.digest,
        path=path,
        files=tuple(files),
        cwd=folder,
        warnings=tuple(warnings),
        lowered=lowered,
    )


def find_manifest(path_or_name: str | os.PathLike[str]) -> Path:
    """The absolute path of a manifest: a file, else a shipped one of that name. Raises `ManifestError` where there is
    neither.
    """
    path = Path(path_or_name)
    if path.is_file():
        return path.absolute()
    text = os.fspath(path_or_name)
    shipped = shipped_path(text)
    if shipped is not None:
        return shipped
    if path.is_dir():
        raise ManifestError([Problem("is a folder, not a manifest", file=text)])
    raise ManifestError([Problem("no such file", file=text, hint=f"shipped manifests: {', '.join(shipped_names())}")])


def _layers(
    path: Path, overrides: Iterable[str], env: Mapping[str, str], cwd: Path
) -> tuple[list[Layer], list[Path], list[Problem]]:
    """All layers, lowest first, the files they came from, and problems that do not keep the others from being read."""
    layers: list[Layer] = []
    files: list[Path] = []
    problems: list[Problem] = []
    for name, file in (("user", _user_file(env)), ("project", cwd / PROJECT_FILE)):
        if file is not None and file.is_file():
            try:
                layers.append(read_layer(file, "user" if name == "user" else "project"))
                files.append(file)
            except ManifestError as e:
                problems += e.problems
    try:
        chain = _chain(path, env)
    except ManifestError as e:
        raise ManifestError([*problems, *e.problems]) from None
    if problems:
        raise ManifestError(problems)
    for file, layer in reversed(chain):
        files.append(file)
        layers.append(layer)
    layers.append(environment_layer(env, cwd))
    given, wrong = set_layer(overrides, cwd)
    layers.append(given)
    return layers, files, wrong


def _user_file(env: Mapping[str, str]) -> Path | None:
    configured = env.get("XDG_CONFIG_HOME", "")
    if configured and Path(configured).is_absolute():
        return Path(configured) / USER_FILE
    home = env.get("HOME", "")
    return Path(home) / ".config" / USER_FILE if home else None


def _chain(path: Path, env: Mapping[str, str]) -> list[tuple[Path, Layer]]:
    """A manifest and what it extends, the manifest first."""
    chain: list[tuple[Path, Layer]] = []
    seen: list[Path] = []
    while True:
        layer = read_layer(path, "manifest")
        chain.append((path, layer))
        seen.append(path.resolve())
        if "extends" not in layer.data:
            return chain
        target: Any = layer.data.pop("extends")
        if not isinstance(target, str) or not target:
            raise ManifestError([layer.problem(("extends",), "should be the path of a manifest", key="extends")])
        try:
            path = Path(absolute(expand(target, env), path.parent, path.parent, env))
        except BadVariable as e:
            raise ManifestError([layer.problem(("extends",), str(e), key="extends")]) from None
        if path.resolve() in seen:
            names = " -> ".join(shown(x) for x in (*(file for file, _ in chain), path))
            raise ManifestError(
                [layer.problem(("extends",), f"the chain comes back to itself: {names}", key="extends")]
            )
        if not path.is_file():
            raise ManifestError([layer.problem(("extends",), f"no such file: {shown(path)}", key="extends")])


def _no_extends(layer: Layer) -> list[Problem]:
    if "extends" not in layer.data:
        return []
    del layer.data["extends"]
    return [layer.problem(("extends",), "only a manifest may extend another", key="extends")]


def _verify(
    manifest: Manifest,
    origins: Mapping[KeyPath, Origin],
    path: Path,
    lowered: tuple[Lowered, ...],
    *,
    model_required: bool,
) -> list[Problem]:
    """Raises for what a valid manifest still gets wrong; gives the warnings."""
    keys = {each.key for each in lowered}
    found = [place_finding(finding, origins, keys) for finding in findings(manifest) if not _for_any(finding, origins)]
    problems = [problem for problem in found if problem.severity == "error"]
    for key, reason in not_served(manifest):
        problems.append(place(key, reason, label(key), origins, hint="take it out"))
    if model_required and manifest.model.name is None:
        file = None if ("model",) in origins else shown(path)
        missing = place(
            ("model", "name"), "is missing: which model?", "[model] name", origins,
            hint='for example "anthropic:claude-opus-5-5", or "offline:surveyor" for a try without a key',
        )  # fmt: skip
        problems.append(
            missing if file is None else Problem(missing.message, file=file, key=missing.key, hint=missing.hint)
        )
    for key in FILES:
        value = getattr(manifest.worker, key[-1])
        if value is not None and not Path(value).is_file():
            problems.append(place(key, f"no such file: {shown(Path(value))}", key_label(key), origins))
    if problems:
        raise ManifestError(problems)
    return [problem for problem in found if problem.severity == "warning"]


def _for_any(finding: Finding, origins: Mapping[KeyPath, Origin]) -> bool:
    """Whether a rule that fits no tool stands in a configuration for many manifests, where that is no slip."""
    if finding.keys[0][:2] != ("permissions", "rules"):
        return False
    origin = nearest_origin(origins, finding.keys[0])
    return origin is not None and origin.layer in {"user", "project"}


def _sources(manifest: Manifest, origins: Mapping[KeyPath, Origin]) -> dict[str, Origin]:
    """The origin of each value by its dotted key."""
    return {dotted(path): _origin(origins, path) for path, _ in values_of(manifest)}


def values_of(section: BaseModel, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Each value of a manifest with its place, in the order of the models. An absent table is None."""
    found: list[tuple[KeyPath, Any]] = []
    for name in type(section).model_fields:
        value: Any = getattr(section, name)
        here = (*path, name)
        if isinstance(value, BaseModel):
            found += values_of(value, here)
            continue
        found.append((here, value))
        if isinstance(value, tuple):
            entries = cast("tuple[object, ...]", value)  # what is in it is looked at entry by entry
            found += [((*here, n), entry) for n, entry in enumerate(entries) if isinstance(entry, BaseModel)]
    return found


def dotted(path: KeyPath) -> str:
    """A place as one word: `permissions.rules[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _origin(origins: Mapping[KeyPath, Origin], path: KeyPath) -> Origin:
    if path in origins:
        return origins[path]
    return next((origin for key, origin in origins.items() if key[: len(path)] == path), DEFAULT)
