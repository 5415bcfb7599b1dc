"""Loads a manifest: finds the files, lays the layers over each other, validates, and names every mistake with its
place.

The layers, each over the one before: the defaults; the user's `$XDG_CONFIG_HOME/pod/config.toml`; the project's
`.pod/config.toml` (tightening only, unless the user trusts the folder); the manifest with what it extends; the environment
(`POD__SECTION__KEY`); `--set section.key=value`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from pod.manifest.aliases import rename
from pod.manifest.check import findings
from pod.manifest.errors import Finding, KeyPath, ManifestError, Problem, in_order, key_label
from pod.manifest.expand import FILES, BadText, absolute, expand, in_place, resolve_layer
from pod.manifest.fitting import Lowered, fit
from pod.manifest.layers import Override, environment_layer, set_layer
from pod.manifest.merge import merge
from pod.manifest.model import Manifest
from pod.manifest.numbers import take_large
from pod.manifest.project import Project, bound, said_of, tightened, with_way_out
from pod.manifest.schema import label
from pod.manifest.secrets import take_secrets
from pod.manifest.shipped import shipped_names, shipped_path
from pod.manifest.source import (
    A_FOLDER,
    NO_FILE,
    Layer,
    LayerName,
    Origin,
    is_there,
    nearest_origin,
    no_file,
    read_layer,
    shown,
)
from pod.manifest.support import not_served
from pod.manifest.validate import place, place_finding, read
from pod.manifest.values import is_table

if TYPE_CHECKING:
    from pod.trust import Decision

USER_FILE = Path("pod") / "config.toml"
PROJECT_FILE = Path(".pod") / "config.toml"
DEFAULT = Origin("default")


@dataclass(frozen=True)
class Loaded:
    """A manifest with where each value came from.

    `sources` maps each key (`compaction.retained_tokens`, `mcp[0]`) to its origin; `digest` is that of the
    manifest; `path` is the manifest's file; `files` are all files that were read, the lowest layer first; `cwd` is
    the working folder that the scope was resolved against; `warnings` are contradictions that do not stop a run;
    `lowered` are defaults that gave way to a small window; `project` is the working folder's own configuration and how it
    stands, None where there is none.
    """

    manifest: Manifest
    sources: Mapping[str, Origin]
    digest: str
    path: Path
    files: tuple[Path, ...]
    cwd: Path
    warnings: tuple[Problem, ...] = ()
    lowered: tuple[Lowered, ...] = ()
    project: Project | None = None


def load_manifest(
    path_or_name: str | os.PathLike[str],
    overrides: Iterable[Override] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    trusted: bool | None = None,
    model_required: bool = True,
    more: Callable[[Loaded], Iterable[Problem]] = lambda loaded: (),
) -> Loaded:
    """Loads a manifest from a file, or a shipped one by its name.

    `overrides` are texts `section.key=value`, or flags that stand for keys. `env` is the environment (default: that of
    the process), `cwd` the working folder (default: the current one). `trusted` says whether the project's configuration may
    do more than tighten; None: what the user decided with `pod trust`. `model_required=False` allows a manifest without
    `[model] name`, for code that brings the model. `more` looks at what could be read, for problems that only making its
    parts shows. Paths are resolved once, here; later changes of the process's folder do not matter. Raises `ManifestError`
    with all problems at once, in the order of files and lines.
    """
    environment = os.environ if env is None else env
    folder = Path(cwd if cwd is not None else Path.cwd()).resolve()
    path = find_manifest(path_or_name)
    stack = _stack(environment, folder, trusted)
    stack.rest(path, overrides, environment, folder)
    return _loaded(stack, path, environment, folder, more, model_required=model_required)


def load_project(cwd: str | os.PathLike[str], *, trusted: bool, env: Mapping[str, str] | None = None) -> Loaded:
    """The configuration of a working folder over the user's own, without any manifest: what it asks for, for a look.

    `Loaded.project` is None where the folder has none. Raises `ManifestError`.
    """
    environment = os.environ if env is None else env
    folder = Path(cwd).resolve()
    stack = _stack(environment, folder, trusted)
    return _loaded(stack, folder / PROJECT_FILE, environment, folder, lambda loaded: (), model_required=False)


def _loaded(
    stack: _Stack,
    path: Path,
    environment: Mapping[str, str],
    folder: Path,
    more: Callable[[Loaded], Iterable[Problem]],
    *,
    model_required: bool,
) -> Loaded:
    problems = stack.problems
    for number, layer in enumerate(stack.layers):
        problems += take_large(layer)
        problems += rename(layer)
        if layer.name == "project":
            stack.bound_project(layer, stack.layers[:number])
        problems += take_secrets(layer, environment)
        problems += _no_extends(layer)
        problems += resolve_layer(layer, cwd=folder, manifest_dir=path.parent, env=environment)
    values, origins = merge(stack.layers)
    scope = values.setdefault("scope", {})
    if is_table(scope):
        scope.setdefault("read", [str(folder)])  # the default, resolved like a root that someone wrote
    manifest, wrong = read(values, origins)
    standing = _Standing(origins, stack.whole, {problem.path for problem in problems})
    problems += [problem for problem in wrong if standing.is_new(problem.path)]
    standing.add(problem.path for problem in wrong)

    manifest, lowered = fit(manifest, lambda path: path in origins)
    problems += _verify(manifest, origins, path, lowered, standing, model_required=model_required)
    loaded = Loaded(
        manifest=manifest,
        sources=_sources(manifest, origins),
        digest=manifest.digest,
        path=path,
        files=tuple(stack.files),
        cwd=folder,
        lowered=lowered,
        project=stack.project,
    )
    problems += [problem for problem in more(loaded) if standing.is_new(problem.path)]
    if stack.project is not None:
        problems = [*with_way_out(problems, stack.project), *said_of(stack.project)]
    problems = in_order(problems, [shown(file) for file in stack.files])
    if any(problem.severity == "error" for problem in problems):
        raise ManifestError(problem for problem in problems if problem.severity == "error")
    return replace(loaded, warnings=tuple(problems))


class _Standing:
    """Whether what is said of a key can be meant: not where its value was found wrong already, and, where a file of the
    manifest could not be read, only where the key was written.
    """

    def __init__(self, origins: Mapping[KeyPath, Origin], whole: bool, wrong: set[KeyPath]) -> None:
        self._origins, self._whole, self._wrong = origins, whole, wrong - {()}

    def add(self, wrong: Iterable[KeyPath]) -> None:
        """More places that were found wrong."""
        self._wrong |= {*wrong} - {()}

    def is_new(self, key: KeyPath) -> bool:
        """Whether nothing wrong was found at a key, around it, or in an entry of it."""
        around = any(key[:length] in self._wrong for length in range(1, len(key) + 1))
        return not around and not any(wrong[:-1] == key and isinstance(wrong[-1], int) for wrong in self._wrong)

    def __call__(self, *keys: KeyPath) -> bool:
        return all((self._whole or key in self._origins) and self.is_new(key) for key in keys)


def find_manifest(path_or_name: str | os.PathLike[str]) -> Path:
    """The absolute path of a manifest: a file, else a shipped one of that name. Raises `ManifestError` where there is
    neither.
    """
    path = Path(path_or_name)
    why = no_file(path)
    if why is None:
        return path.absolute()
    text = os.fspath(path_or_name)
    if why in {NO_FILE, A_FOLDER}:
        shipped = shipped_path(text)
        if shipped is not None:
            return shipped
    if why == A_FOLDER:
        raise ManifestError([Problem("is a folder, not a manifest", file=text)])
    import difflib

    near = difflib.get_close_matches(text.removesuffix(".toml"), shipped_names(), 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ManifestError([Problem(why, file=text, hint=f"{meant}shipped manifests: {', '.join(shipped_names())}")])


@dataclass
class _Stack:
    """All layers, lowest first, the files they came from, and what was wrong with reading them. `whole` says that all
    could be read. `project` is the working folder's own configuration.
    """

    layers: list[Layer] = field(default_factory=list[Layer])
    files: list[Path] = field(default_factory=list[Path])
    problems: list[Problem] = field(default_factory=list[Problem])
    whole: bool = True
    project: Project | None = None

    def add(self, file: Path, name: LayerName) -> Layer | None:
        """Reads a file as the next layer."""
        self.files.append(file)
        try:
            layer = read_layer(file, name)
        except ManifestError as e:
            self.fail(*e.problems)
            return None
        self.layers.append(layer)
        return layer

    def fail(self, *problems: Problem) -> None:
        """Something could not be read."""
        self.problems += problems
        self.whole = False

    def bound_project(self, layer: Layer, below: Sequence[Layer]) -> None:
        """Keeps the project's layer to what it may say."""
        if self.project is not None and self.project.standing != "trusted":
            values, origins = merge(below)
            left_out = tuple(bound(layer, values))
            self.project = replace(self.project, left_out=left_out, tightened=tightened(layer, values, origins))

    def rest(self, path: Path, overrides: Iterable[Override], env: Mapping[str, str], cwd: Path) -> None:
        """The layers above the project's."""
        chain = _chain(path, env)
        self.layers += reversed(chain.layers)
        self.files += reversed(chain.files)
        self.problems += chain.problems
        self.whole &= chain.whole
        self.layers.append(environment_layer(env, cwd))
        given, wrong = set_layer(overrides, cwd)
        self.layers.append(given)
        self.problems += wrong


def _stack(env: Mapping[str, str], cwd: Path, trusted: bool | None) -> _Stack:
    """The layers up to the project's."""
    stack = _Stack()
    if (user := _user_file(env)) is not None and is_there(user):
        stack.add(user, "user")
    if is_there(file := cwd / PROJECT_FILE):
        decided, refused = (None, "") if trusted is not None else _decided(cwd)
        if decided is not None and decided.word == "ignored":
            stack.project = Project(file, "ignored", decided=decided.at)
            return stack
        stack.project = Project(file, "trusted" if trusted else "untrusted", refused=refused)
        if (layer := stack.add(file, "project")) is not None:
            known = replace(stack.project, digest=layer.digest, text=layer.text)
            if decided is not None:
                same = decided.sha256 == layer.digest
                known = replace(known, standing="trusted" if same else "changed", decided=decided.at)
            stack.project = known
    return stack


def _decided(cwd: Path) -> tuple[Decision | None, str]:
    """What the user decided about a folder, or why that is not taken."""
    from pod.trust import Decisions, Refused

    try:
        return Decisions().of(cwd), ""
    except (Refused, OSError) as error:
        return None, str(error)


def _user_file(env: Mapping[str, str]) -> Path | None:
    configured = env.get("XDG_CONFIG_HOME", "")
    if configured and Path(configured).is_absolute():
        return Path(configured) / USER_FILE
    home = env.get("HOME", "")
    return Path(home) / ".config" / USER_FILE if home else None


def _chain(path: Path, env: Mapping[str, str]) -> _Stack:
    """A manifest and what it extends, the manifest first."""
    chain = _Stack()
    while True:
        layer = chain.add(path, "manifest")
        if layer is None or "extends" not in layer.data:
            return chain
        target: Any = layer.data.pop("extends")
        found = _base(target, path, chain.files, env)
        if isinstance(found, str):
            chain.fail(layer.problem(("extends",), found, key="extends"))
            return chain
        path = found


def _base(target: object, path: Path, files: Sequence[Path], env: Mapping[str, str]) -> Path | str:
    """The manifest that `extends` names, or what is wrong with it."""
    if not isinstance(target, str) or not target:
        return "should be the path of a manifest"
    try:
        base = Path(absolute(expand(target, env), path.parent, path.parent, env))
    except BadText as e:
        return str(e)
    if base in (file.resolve() for file in files):
        return f"the chain comes back to itself: {' -> '.join(shown(file) for file in (*files, base))}"
    why = no_file(base)
    if why is None:
        return base
    if (shipped := shipped_path(target)) is not None:
        return shipped
    meant = "" if "/" in target or target.endswith(".toml") else f"; shipped manifests: {', '.join(shipped_names())}"
    return f"{why}: {shown(base)}{meant}"


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
    standing: _Standing,
    *,
    model_required: bool,
) -> Iterator[Problem]:
    """What a manifest of the right form still gets wrong, and what is doubtful in it."""
    keys = {each.key for each in lowered}
    for finding in findings(manifest):
        if standing(*finding.keys, *finding.rests_on) and not _for_any(finding, origins):
            yield place_finding(finding, origins, keys)
    for key, reason in not_served(manifest):
        if standing(key):
            yield place(key, reason, label(key), origins, hint="take it out")
    name: KeyPath = ("model", "name")
    if model_required and manifest.model.name is None and standing(name):
        missing = place(
            name, "is missing: which model?", "[model] name", origins,
            hint='for example "anthropic:claude-opus-5-5", or "offline:surveyor" for a try without a key',
        )  # fmt: skip
        yield missing if name[:1] in origins else replace(missing, file=shown(path), line=None, column=None)
    for key in FILES:
        value = getattr(manifest.worker, key[-1])
        if (
            value is not None
            and not in_place(key, value)
            and standing(key)
            and (why := no_file(Path(value))) is not None
        ):
            yield place(key, f"{why}: {shown(Path(value))}", key_label(key), origins)


ABOUT_TOOLS: tuple[KeyPath, ...] = (("permissions", "rules"), ("hooks",), ("tools", "fetch_url"))
"""Keys that are about tools which a manifest may have or not."""


def _for_any(finding: Finding, origins: Mapping[KeyPath, Origin]) -> bool:
    """Whether what fits no tool of this manifest stands in a configuration for many of them, where that is no slip."""
    if finding.severity != "warning" or not any(finding.keys[0][: len(key)] == key for key in ABOUT_TOOLS):
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
