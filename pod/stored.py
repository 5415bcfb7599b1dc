"""The manifest that a session goes on with: what it holds, what another one changes, overrides for one run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pod import codes
from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.texts import NEEDED, USES, lost_texts, texts_of, way_out
from pod.manifest import Manifest, ManifestError
from pod.manifest.layers import Override
from pod.session import Session, start_of
from worker.records import ToolsChanged, Warned
from worker.text import sha256


@dataclass(frozen=True, slots=True)
class Kept:
    """What a session goes on with, as far as it can be read. `problems` says by use what is wrong with the rest."""

    name: str
    manifest: Manifest | None
    cwd: str | None
    problems: Mapping[str, str]
    lost: tuple[str, ...] = ()

    @property
    def lost_words(self) -> str:
        """What is lost of all that the session can't go on without, in words."""
        return ", ".join(USES[use] for use in self.lost if use in NEEDED)

    def require(self, *uses: str) -> None:
        """Raises one `UsageProblem` that says what of this is lost, and the way out."""
        wanting = [use for use in uses if use in self.problems]
        if wanting:
            said = "; ".join(self.problems[use] for use in wanting)
            raise UsageProblem(
                f"pod {self.name!r} can't go on by itself: {said}; {way_out(self.name, wanting)} goes on"
            )


def kept(folder: PodFolder) -> Kept:
    """The manifest in force in the active segment, and the working folder. Blocks.

    Raises `PodNotFound`, `LogDamaged`, `UsageProblem` where the log does not begin as one.
    """
    start_of(folder)
    blobs = texts_of(folder, folder.pointer().segment)
    problems: dict[str, str] = {}
    texts: dict[str, str] = {}
    for use in ("manifest", "cwd"):
        label = blobs.get(use, "")
        if folder.holds(label):
            texts[use] = folder.blob(label)
        else:
            problems[use] = _lost(folder, use, label)
    if "files" in blobs and not folder.holds(blobs["files"]):
        problems["files"] = _lost(folder, "files", blobs["files"])
    manifest = None
    try:
        manifest = Manifest.read_kept(texts["manifest"]) if "manifest" in texts else None
    except ManifestError as error:
        problems["manifest"] = f"its manifest does not read any more ({'; '.join(map(str, error.problems))})"
    return Kept(folder.name, manifest, texts.get("cwd"), problems, lost_texts(folder, blobs))


def _lost(folder: PodFolder, use: str, label: str) -> str:
    return f"its {USES[use]} is lost ({folder.path / 'blobs' / label} is missing or altered)"


def stored_manifest(folder: PodFolder) -> tuple[Manifest, str]:
    """The manifest in force in the active segment, and the working folder. Blocks.

    Raises `PodNotFound`, `LogDamaged`, `UsageProblem` where they can't be read.
    """
    found = kept(folder)
    found.require("manifest", "cwd")
    assert found.manifest is not None and found.cwd is not None  # else it was raised
    return found.manifest, found.cwd


def restore(session: Session, texts: Callable[[], Mapping[str, str]]) -> tuple[str, ...]:
    """Puts texts in the place of those in force that are lost, on record and durable; the uses of those. Blocks.

    `texts` makes them as for a new segment. Other schemas than those that were lost are a change of the tools, and
    not put in their place.
    """
    lost = lost_texts(session.folder, session.state.blobs)
    if not lost:
        return ()
    made = texts()
    before = {use: session.state.blobs[use] for use in lost}
    now = {use: session.folder.put_blob(made[use]) for use in lost if use in made and _fits(use, made[use], before)}
    now = {use: label for use, label in now.items() if label != before[use]}
    if now:
        session.put(e.TextsRestored(blobs=now, lost={use: before[use] for use in now}))
        if "system" in now:
            session.put(ToolsChanged(system=now["system"], tools=session.state.schemas))
        said = ", ".join(USES[use] for use in now)
        message = f"lost, and made anew as for a new segment: {said}"
        session.put(Warned(code=codes.TEXTS_RESTORED, message=message, figures={"lost": dict(before)}))
        session.writer.sync_now()
    return tuple(now)


def _fits(use: str, text: str, lost: Mapping[str, str]) -> bool:
    return use != "schemas" or sha256(text) == lost[use]


def changes(old: Manifest, new: Manifest) -> tuple[str, ...]:
    """What another manifest changes, one key a line: `model.name: "a:x" -> "b:y"`."""
    before, after = dict(_flat(old.model_dump(mode="json"))), dict(_flat(new.model_dump(mode="json")))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key != "extends"]
    return tuple(f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}" for key in keys)


def record_change(session: Session, manifest: Manifest, what: tuple[str, ...], *, cwd: str | None = None) -> None:
    """Puts on record that the session goes on with another manifest, and keeps it. Not yet durable: sync afterwards."""
    session.put(e.ManifestChanged(digest=session.folder.put_blob(manifest.kept_text()), changes=what, cwd=cwd))


def moved(manifest: Manifest, before: str | None, now: Path) -> Manifest:
    """A stored manifest in another working folder: a root of its scope that is the folder before, or lies in it, is that of
    the new one. Roots elsewhere stay.
    """
    if before is None or before == str(now):
        return manifest
    old = Path(before)

    def place(root: str) -> str:
        path = Path(root)
        return str(now / path.relative_to(old)) if path.is_relative_to(old) else root

    scope = manifest.scope
    roots = {use: tuple(place(root) for root in getattr(scope, use)) for use in ("read", "write")}
    return manifest.model_copy(update={"scope": scope.model_copy(update=roots)})


def move(session: Session, now: Path) -> None:
    """Puts on record, durably, that the session goes on in another working folder, its scope with it. Blocks.

    Nothing where it is the same one, or where the one before is lost.
    """
    found = kept(session.folder)
    if found.cwd is None or found.cwd == str(now):
        return
    what = (f"working folder: {_short(found.cwd)} -> {_short(str(now))}",)
    folder = session.folder.put_blob(str(now))
    if found.manifest is None:
        session.put(e.ManifestChanged(digest=session.state.blobs["manifest"], changes=what, cwd=folder))
    else:
        manifest = moved(found.manifest, found.cwd, now)
        record_change(session, manifest, (*what, *changes(found.manifest, manifest)), cwd=folder)
    session.writer.sync_now()


def keep_schema(session: Session, schema: str) -> None:
    """Puts on record, durably, that answers are to meet another schema from now on; nothing where it is the same. Blocks."""
    found = kept(session.folder).manifest
    if found is None or found.worker.output_schema == schema:
        return
    manifest = asking_for(found, schema)
    record_change(session, manifest, changes(found, manifest))
    session.writer.sync_now()


def asking_for(manifest: Manifest, schema: str) -> Manifest:
    """The manifest with another schema for its answers."""
    return manifest.model_copy(update={"worker": manifest.worker.model_copy(update={"output_schema": schema})})


def with_overrides(manifest: Manifest, overrides: Iterable[Override], cwd: Path) -> Manifest:
    """A manifest that was made or stored with `section.key=value` laid over it; paths start from `cwd`. Raises `ManifestError`."""
    from pod.manifest.expand import resolve_layer
    from pod.manifest.layers import set_layer
    from pod.manifest.merge import merge
    from pod.manifest.source import Layer
    from pod.manifest.validate import validate

    given = list(overrides)
    if not given:
        return manifest
    layer, problems = set_layer(given, cwd)
    problems += resolve_layer(layer, cwd=cwd, manifest_dir=cwd, env=os.environ)
    if problems:
        raise ManifestError(problems)
    base = Layer("manifest", None, cwd, manifest.model_dump(mode="json", exclude_none=True))
    values, origins = merge([base, layer])
    return validate(values, origins)


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return [pair for key, inner in table.items() for pair in _flat(inner, f"{path}.{key}" if path else key)]
    return [(path, value)]


def _short(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
