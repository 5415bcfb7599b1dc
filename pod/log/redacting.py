"""Which secrets a pod's gate masks: those of this process's environment, unless the manifest says otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

from pod.errors import UsageProblem
from pod.log.files import json_of
from pod.log.folder import PodFolder
from worker.gate import Gate
from worker.masking import SHORTEST, Masker, secrets_in

T = TypeVar("T")


def gate_of(redact: bool, sent: Iterable[str] = ()) -> Gate:
    """The gate that `[log] redact` asks for. `sent` names variables that hold a secret whatever they are called."""
    if not redact:
        return Gate(Masker({}))
    named = {name: value for name in sent if len(value := os.environ.get(name, "")) >= SHORTEST}
    return Gate(Masker({**secrets_in(os.environ), **named}, shapes=True))


def redacts(folder: PodFolder, manifest: str) -> bool:
    """What the manifest with this hash says; True where it can't be read."""
    try:
        log = json_of(folder.blob(manifest).encode()).get("log", {})
        return log.get("redact") is not False
    except (UsageProblem, OSError, ValueError, AttributeError):
        return True


def posted(folder: PodFolder, values: T) -> T:
    """What another process leaves for a pod, masked as the pod itself would: it lies in a file until it is taken."""
    masked = gate_of(True).own(values)
    if masked is values:
        return values
    from pod.log.texts import texts_of

    blobs = texts_of(folder, folder.pointer().segment)
    return masked if redacts(folder, blobs.get("manifest", "")) else values
