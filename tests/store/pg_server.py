"""A private PostgreSQL on loopback, for one session of tests: made, started and gone again in about two seconds."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def programs() -> Path | None:
    """The folder of the newest PostgreSQL that is installed, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    return Path(other).resolve().parent if other else None


@dataclass
class Server:
    """A running server."""

    programs: Path
    root: Path
    port: int
    user: dict[str, Any]

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def run(self, program: str, *arguments: str, check: bool = True) -> None:
        """Runs one of the server's programs, as its user: it refuses root."""
        subprocess.run(
            [self.programs / program, *arguments], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=check, timeout=90, **self.user,
        )  # fmt: skip

    def control(self, action: str, *arguments: str, check: bool = True) -> None:
        """`pg_ctl` on this server."""
        try:
            self.run("pg_ctl", "-D", str(self.root / "data"), "-w", "-t", "60", *arguments, action, check=check)
        except subprocess.CalledProcessError as error:
            error.add_note((self.root / "data" / "log").read_text()[-2000:])
            raise

    # `synchronous_commit=off` on purpose: the store must not rely on it.
    def options(self) -> tuple[str, ...]:
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.root / "sock",
            "max_connections": 200, "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
        }  # fmt: skip
        return "-l", str(self.root / "data" / "log"), "-o", " ".join(f"-c {k}={v}" for k, v in settings.items())

    def restart(self) -> None:
        """Kills all of it as a crash does, and starts it again."""
        self.control("restart", "-m", "immediate", *self.options())

    def crash(self) -> None:
        """Kills each of its processes with -9; nothing starts it again."""
        first = int((self.root / "data" / "postmaster.pid").read_text().split()[0])
        children = [int(each) for each in Path(f"/proc/{first}/task/{first}/children").read_text().split()]
        for pid in (first, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in (first, *children):
            end = time.monotonic() + 10
            while Path(f"/proc/{pid}").exists() and _state(pid) != "Z":
                assert time.monotonic() < end, f"process {pid} of the server does not end"
                time.sleep(0.01)
        # Where nobody reaps orphans, the dead one still has its number, and would be taken for alive.
        for left in (self.root / "data" / "postmaster.pid", *(self.root / "sock").glob(".s.PGSQL.*")):
            left.unlink()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _other_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


@contextmanager
def server(where: Path) -> Generator[Server]:
    """A server of its own user in a folder of its own."""
    root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    root.chmod(0o711)
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        entry = _other_user()
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    for name, mode in (("data", 0o700), ("sock", 0o755)):
        (root / name).mkdir()
        (root / name).chmod(mode)
        if user:
            os.chown(root / name, user["user"], user["group"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Server(where, root, port, user)
    try:
        made.run(
            "initdb", "-D", str(root / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8",
            "--no-sync",
        )  # fmt: skip
        made.control("start", *made.options())
        yield made
    finally:
        made.control("stop", "-m", "immediate", check=False)
        shutil.rmtree(root, ignore_errors=True)
