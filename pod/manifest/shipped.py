"""The manifests that come with the runtime."""

from __future__ import annotations

from pathlib import Path


def shipped_folder() -> Path:
    """The folder of the shipped manifests: inside the installed package, or in a checkout `manifests/` beside it."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "shipped"
    return installed if installed.is_dir() else package.parent / "manifests"


def shipped_names() -> list[str]:
    """Their names, sorted: what `pod run NAME` takes."""
    return sorted(path.stem for path in shipped_folder().glob("*.toml"))


def shipped_path(name: str) -> Path | None:
    """The file of a shipped manifest, or None where there is none of that name."""
    return shipped_folder() / f"{name}.toml" if name in shipped_names() else None
