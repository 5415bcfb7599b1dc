"""The manifest that a session goes on with: what it holds, what another one changes, overrides for one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from pod.errors import UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import Damage, scan
from pod.manifest import Manifest
from pod.session import Session, start_of


def stored_manifest(folder: PodFolder) -> tuple[Manifest, str]:
    """The manifest in force in the active segment, and the working folder. Blocks.

    Raises `PodNotFound`, `UsageProblem` where they can't be read.
    """
    start = start_of(folder)
    label = start.blobs["manifest"]
    for found in scan(folder.segment_path(folder.pointer().segment)):
        if isinstance(found, Damage) or found.kind != "manifest":
            continue
        record = e.record_of(found)
        if isinstance(record, e.ManifestChanged) and (folder.path / "blobs" / record.digest).is_file():
            label = record.digest
    try:
        manifest = Manifest.model_validate_json(folder.blob(label), strict=False)
    except ValidationError as error:
        raise UsageProblem(
            f"the manifest that pod {folder.name!r} was started with does not read any more "
            f"({error.error_count()} problems); go on with `pod resume {folder.name} --manifest FILE`"
        ) from error
    return manifest, folder.blob(start.blobs["cwd"])


def changes(old: Manifest, new: Manifest) -> tuple[str, ...]:
    """What another manifest changes, one key a line: `model.name: "a:x" -> "b:y"`."""
    before, after = dict(_flat(old.model_dump(mode="json"))), dict(_flat(new.model_dump(mode="json")))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key) and key != "extends"]
    return tuple(f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}" for key in keys)


def record_change(session: Session, manifest: Manifest, what: tuple[str, ...]) -> None:
    """Puts on record that the session goes on with another manifest, and keeps it. Not yet durable: sync afterwards."""
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    session.put(e.ManifestChanged(digest=session.folder.put_blob(text), changes=what))


def with_overrides(manifest: Manifest, overrides: Iterable[str], cwd: Path) -> Manifest:
    """A stored manifest with `section.key=value` laid over it. Raises `ManifestError`."""
    from pod.manifest.errors import ManifestError
    from pod.manifest.layers import set_layer
    from pod.manifest.merge import merge
    from pod.manifest.source import Layer
    from pod.manifest.validate import validate

    given = list(overrides)
    if not given:
        return manifest
    layer, problems = set_layer(given, cwd)
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
