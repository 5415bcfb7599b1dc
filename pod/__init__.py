"""pod-runtime: runs autonomous agents for hours or days and never loses its place.

from pod import Pod

async with Pod.open("coder.toml", name="fix-flaky") as pod:
    result = await pod.run("Find and fix the flaky test")
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from interceptors.purse import Purse
    from pod.errors import LogDamaged, PodBusy, PodError, PodNotFound, StoreError, UsageProblem
    from pod.events import Event
    from pod.handle import RunHandle
    from pod.hooks import Block, GoOn, Hook
    from pod.host import PodHost, RestartPolicy
    from pod.log.folder import default_home, pod_names
    from pod.manifest import Manifest, ManifestError, load_manifest
    from pod.pod import Pod
    from pod.result import FinishedResult, RunFailed, RunResult
    from pod.transfer import export_pod, import_pod

_PUBLIC = {
    "Block": "pod.hooks",
    "Event": "pod.events",
    "FinishedResult": "pod.result",
    "GoOn": "pod.hooks",
    "Hook": "pod.hooks",
    "LogDamaged": "pod.errors",
    "Manifest": "pod.manifest",
    "ManifestError": "pod.manifest",
    "Pod": "pod.pod",
    "PodBusy": "pod.errors",
    "PodError": "pod.errors",
    "PodHost": "pod.host",
    "PodNotFound": "pod.errors",
    "Purse": "interceptors.purse",
    "RestartPolicy": "pod.host",
    "RunFailed": "pod.result",
    "RunHandle": "pod.handle",
    "RunResult": "pod.result",
    "StoreError": "pod.errors",
    "UsageProblem": "pod.errors",
    "default_home": "pod.log.folder",
    "export_pod": "pod.transfer",
    "import_pod": "pod.transfer",
    "load_manifest": "pod.manifest",
    "pod_names": "pod.log.folder",
}

__all__ = [
    "Block",
    "Event",
    "FinishedResult",
    "GoOn",
    "Hook",
    "LogDamaged",
    "Manifest",
    "ManifestError",
    "Pod",
    "PodBusy",
    "PodError",
    "PodHost",
    "PodNotFound",
    "Purse",
    "RestartPolicy",
    "RunFailed",
    "RunHandle",
    "RunResult",
    "StoreError",
    "UsageProblem",
    "default_home",
    "export_pod",
    "import_pod",
    "load_manifest",
    "pod_names",
]


def _check_floors() -> None:
    """The floors have plain names that a user's own module may hide: better one clear error than a strange one later."""
    root = Path(__file__).resolve().parent.parent
    for name in ("worker", "interceptors", "compact_worker"):
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin != root / name / "__init__.py":
            hidden = f"{origin} hides it" if origin else "it is not installed"
            raise ImportError(
                f"pod-runtime needs its own package {name!r}, but {hidden}. Rename that module, or take its folder off the import path."
            )


_check_floors()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from worker import __version__ as value
    elif name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    else:
        raise AttributeError(f"module 'pod' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "__version__"})
