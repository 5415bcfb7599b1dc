"""The copy of a shared home that a process works on: made at the first use, gone with the process."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from pod.errors import PodError, UsageProblem
from pod.log.files import Files, share
from pod.staging import abandoned, owned
from pod.store.port import TTL
from pod.store.shared import SharedFiles
from worker.errors import way_to_install
from worker.ids import uuid7

_mounts: dict[str, Path] = {}
_mounting = threading.Lock()


def mount(url: str, where: Path) -> Path:
    """The copy of a shared home that this process works on, below `where`. The same for the same URL, gone when the process ends.

    Raises `UsageProblem` where the URL is none or the extra is missing, `PodError` where it can't be reached.
    """
    with _mounting:
        if url in _mounts:
            return _mounts[url]
        try:
            from pod.store.postgres import NewerSchema, PostgresStore
            from pod.store.postgres_documents import PostgresDocuments
        except ImportError:
            raise UsageProblem(
                f"a home in PostgreSQL needs the extra `postgres`: {way_to_install('postgres')}"
            ) from None
        plain, ttl = address(url)
        try:
            store = PostgresStore(plain, ttl=ttl)
        except ValueError:
            raise UsageProblem(
                "the home begins with postgresql:// and is no address of a database: postgresql://USER@HOST:PORT/DATABASE, with @ : / ? # % in "
                "user and password written as %40 and so on; behind a ? may stand what libpq knows, and pod_lease"
            ) from None
        try:
            store.list(limit=1)
        except OSError as error:
            store.close()
            raise PodError(f"{error.strerror}; pods lie there because POD_HOME (or `home`) says so") from None
        except NewerSchema as error:
            raise PodError(f"{store.where}: {error}. Update pod-runtime to use it.") from None
        sweep(where)
        home = where / f"{os.getpid()}-{uuid7()[-12:]}"
        Files().make_folder(home / "pods")
        held = ExitStack()
        held.enter_context(owned(home))
        files = SharedFiles(store, home, ttl=ttl, kept=PostgresDocuments(store))
        share(home, files, store.where)
        _mounts[url] = home
        atexit.register(_unmount, url, files, held)
        return home


def url_of(home: Path) -> str | None:
    """The URL of the shared home that a folder is this process's copy of; None for a folder of its own."""
    return next((url for url, path in _mounts.items() if path == home), None)


def _unmount(url: str, files: SharedFiles, held: ExitStack) -> None:
    home = _mounts.pop(url)
    files.stop()
    shutil.rmtree(home, ignore_errors=True)
    held.close()


LEASES = (1.0, 86400.0)
"""Seconds of a lease, at least and at most."""


def address(url: str) -> tuple[str, float]:
    """The URL without `pod_lease=SECONDS`, and those seconds. Raises `UsageProblem` where they are none."""
    rest, _, query = url.partition("?")
    parameters = query.split("&") if query else []
    given = [each.partition("=")[2] for each in parameters if each.partition("=")[0] == "pod_lease"]
    others = "&".join(each for each in parameters if each.partition("=")[0] != "pod_lease")
    if not given:
        return url, TTL
    seconds = float(given[0]) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", given[0]) else 0.0
    if len(given) > 1 or not LEASES[0] <= seconds <= LEASES[1]:
        raise UsageProblem(
            f"the address of the home should have one pod_lease, of {LEASES[0]:g} to {LEASES[1]:g} seconds, not {' and '.join(given)[:40]!r}"
        )
    return (f"{rest}?{others}" if others else rest), seconds


def sweep(where: Path) -> None:
    """Removes copies whose process is gone."""
    for home in where.glob("*-*") if where.is_dir() else ():
        with suppress(OSError), abandoned(home, time.time()) as over:
            if over:
                shutil.rmtree(home, ignore_errors=True)
