"""What the tests of the command line share: a home and a working folder of their own, real processes, a scripted
provider."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import Forked, started

from worker.testing.provider_server import ProviderServer

MANIFEST = """
version = 1
[worker]
instructions = []
[model]
name = "openai-chat:test-model"
base_url = "{url}"
api_key_env = "TEST_KEY"
context_window = 60000
max_output_tokens = 2000
[tools]
enable = [{tools}]
[permissions]
profile = "{profile}"
[retry]
max_attempts = 1
{more}
"""


@dataclass
class Ran:
    """What a command left."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.decode().splitlines()]

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Rig:
    """Runs `python -m pod` in a working folder, with a home and configuration of its own; `fresh` in an interpreter that has
    loaded nothing yet."""

    root: Path
    fresh: bool = False

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    def env(self, **more: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
        return {
            **kept, "POD_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.root / "config"), "HOME": str(self.root),
            "TEST_KEY": "sk-test-1234567890", "PYTHONPATH": "", **more,
        }  # fmt: skip

    def manifest(
        self, server: ProviderServer | None, *, tools: Sequence[str] = (), profile: str = "unattended", more: str = "",
        name: str = "agent.toml",
    ) -> Path:  # fmt: skip
        path = self.root / name
        url = server.url if server is not None else "http://127.0.0.1:9/v1"
        listed = ", ".join(f'"{tool}"' for tool in tools)
        path.write_text(MANIFEST.format(url=url, tools=listed, profile=profile, more=more))
        return path

    def start(
        self, *args: object, stdin: Any = subprocess.DEVNULL, stdout: Any = subprocess.PIPE, **env: str
    ) -> Forked | subprocess.Popen[bytes]:
        return started(
            ["-m", "pod", *args], cwd=self.work, env=self.env(**env), fresh=self.fresh,
            stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
        )  # fmt: skip

    def pod(self, *args: object, stdin: Any = subprocess.DEVNULL, given: bytes | None = None, **env: str) -> Ran:
        with self.start(*args, stdin=subprocess.PIPE if given is not None else stdin, **env) as process:
            out, err = process.communicate(given, timeout=90)
        return Ran(process.returncode, out, err.decode())
