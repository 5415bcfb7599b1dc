"""The manifests that pods can be made from: those of one folder, and shipped ones that were named."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pod.errors import UsageProblem
from pod.manifest import ManifestError, load_manifest, shipped_names, shipped_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class NotOnTheShelf(UsageProblem):
    """No manifest of this name is offered."""


class Unfit(UsageProblem):
    """A manifest that is offered can't be used."""

    def __init__(self, name: str, why: Exception) -> None:
        super().__init__(f"the manifest {name!r} can't be used: {_told(why)}")


@dataclass(frozen=True)
class Shelf:
    """`folder` holds manifests as NAME.toml, `shipped` are names of those that come with the runtime. What a request names is looked
    up here by its name and never used as a path; a link that leads out of the folder is not followed.
    """

    folder: Path | None = None
    shipped: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise UsageProblem(f"--manifests {self.folder}: there is no such folder")
        for name in self.shipped:
            if shipped_path(name) is None:
                raise UsageProblem(f"no manifest {name!r} is shipped: {', '.join(shipped_names())}")

    def names(self) -> list[str]:
        """What is offered. Blocks."""
        return sorted({*self.shipped, *(name for name, _ in self._own())})

    def descriptions(self) -> dict[str, str]:
        """What those that are offered say of themselves (`[pod] description`), where they do. Blocks."""
        shipped = {name: path for name in self.shipped if (path := shipped_path(name)) is not None}
        found = ((name, _description(path)) for name, path in {**shipped, **dict(self._own())}.items())
        return {name: said for name, said in found if said}

    def path(self, name: str) -> Path:
        """The file of a manifest. Blocks. Raises `NotOnTheShelf`."""
        found = dict(self._own()).get(name) if _NAME.fullmatch(name) else None
        if found is None and name in self.shipped:
            found = shipped_path(name)
        if found is None:
            raise NotOnTheShelf(f"no manifest {name[:100]!r} is offered here; GET /v1/manifests lists those that are")
        return found

    def unfit(self, cwd: str | Path) -> list[tuple[str, str]]:
        """Those that are offered and can't be used in a folder, with why. Blocks."""
        found: list[tuple[str, str]] = []
        for name in self.names():
            try:
                load_manifest(self.path(name), cwd=cwd)
            except ManifestError as error:
                found.append((name, _told(error)))
        return found

    def _own(self) -> Iterator[tuple[str, Path]]:
        if self.folder is None:
            return
        root = Path(os.path.realpath(self.folder))
        for path in sorted(self.folder.glob("*.toml")):
            real = Path(os.path.realpath(path))
            if _NAME.fullmatch(path.stem) and real.is_relative_to(root) and _is_file(real):
                yield path.stem, real


def _told(why: Exception) -> str:
    """What is wrong with a manifest, in a line and without the folders that its files lie in."""
    if not isinstance(why, ManifestError):
        return str(why)
    parts = [replace(each, file=each.file and Path(each.file).name, excerpt="") for each in why.problems]
    return "; ".join(str(each) for each in parts)


def _description(path: Path) -> str:
    """What a manifest says of itself in its own file; empty where it says nothing or can't be read."""
    try:
        pod = tomllib.loads(path.read_text(encoding="utf-8")).get("pod")
    except (OSError, ValueError):
        return ""
    said = cast("dict[str, object]", pod).get("description") if isinstance(pod, dict) else None
    return " ".join(said.split())[:400] if isinstance(said, str) else ""


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
