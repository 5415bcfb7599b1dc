"""A secret of the runtime's environment, brought in by every way there is, stands in no place that is written, sent or shown."""

from __future__ import annotations

import base64
import gzip
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from cli.cli_rig import Ran
from cli.cli_rig import Rig as Shell

from tests.security.redteam_rig import KEY
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, RecordedRequest, Step

pytestmark = pytest.mark.slow

FORMS = {
    "plain": KEY,
    "in a URL": quote(KEY, safe=""),
    "in a form": quote_plus(KEY),
    "in JSON": json.dumps(KEY).strip('"').replace("/", "\\/"),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(KEY.encode()).decode(),
    "basic authorization": base64.b64encode(f"user:{KEY}".encode()).decode(),
}
"""The forms in which a secret is looked for."""

TEXT = "\n".join(f"{form}: {value}" for form, value in FORMS.items())

MORE = """
[scope]
write = ["."]
[log]
redact = {redact}
[prune]
enabled = false
[[hooks]]
event = "PostToolUse"
command = ["{hook}"]
"""

HOOK = """#!/bin/sh
cat >> "$HOME/told"
env >> "$HOME/environment"
printf '{"context": "the hook says %s"}' "$(head -c 23 secret.env)"
"""


@dataclass
class Story:
    """A run that meets the secret everywhere, and all that it left."""

    shell: Shell
    redact: bool
    places: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def steps(self) -> list[Step]:
        return [
            Answer("I read it.", calls=[Call("read_file", {"path": "secret.env"})]),
            Http(500, {"error": {"message": f"internal: {TEXT}"}}),
            Answer(f"It says {TEXT}", calls=[Call("shell", {"command": "cat secret.env; seq 30000; cat secret.env"})]),
            Answer(calls=[Call("search_text", {"pattern": KEY[:8]})]),
            Answer(calls=[Call("shell", {"command": f"echo '{TEXT}'"})]),
            Answer(calls=[Call("tasks", {"add": [f"use {KEY}"]})]),
            Answer(calls=[Call("write_file", {"path": "copy.txt", "content": TEXT})]),
            Answer(calls=[Call("read_file", {"path": f"{KEY}"})]),
            Answer(calls=[Call("no_such_tool", {"key": KEY})]),
            Answer(calls=[Call("shell", f'{{"command": "echo {KEY}')]),
            Answer(f"The answer is {TEXT}"),
        ]

    def tell(self) -> None:
        shell = self.shell
        (shell.work / "secret.env").write_text(f"{KEY}\n{TEXT}\n")
        (shell.work / "AGENTS.md").write_text(f"Use the key {TEXT}\n")
        hook = shell.root / "hook.sh"
        hook.write_text(HOOK)
        hook.chmod(0o700)
        waiting = self.steps()
        bodies: list[bytes] = []

        def answer(request: RecordedRequest) -> Step:
            bodies.append(request.body)
            return waiting.pop(0) if waiting else Answer(f"again {KEY}")

        tools = ["read_file", "write_file", "search_text", "shell", "tasks", "session_history"]
        out = shell.root / "out.txt"
        env = {"HOME": str(shell.root), "OPENAI_API_KEY": KEY, "MY_TOKEN": KEY, "TEST_KEY": KEY}
        with ProviderServer(answer) as server:
            more = MORE.format(redact=str(self.redact).lower(), hook=hook)
            manifest = shell.manifest(server, tools=tools, more=more)
            text = manifest.read_text().replace("instructions = []", 'instructions = ["AGENTS.md"]')
            text = text.replace("max_attempts = 1", "max_attempts = 3")
            manifest.write_text(
                text.replace("[permissions]", '[permissions]\nrules = [{tool = "*", action = "allow"}]')
            )
            said = {
                "stream-json": shell.pod(
                    "run", manifest, f"go with {TEXT}", "--name", "a", "--output-format", "stream-json", "-v", **env
                ),
                "-o file": shell.pod("resume", "a", f"again with {TEXT}", "-p", "-o", out, **env),
                "send": shell.pod("send", "a", f"and {TEXT}", **env),
                "progress": shell.pod("resume", "a", "-v", **env),
            }
            assert [ran.code for ran in said.values()] == [0] * 4, {name: ran.err for name, ran in said.items()}
            said |= {name: shell.pod("send", "a", f"later {TEXT}", **env) for name in ("inbox",)}
        html, exported = shell.root / "page.html", shell.root / "a.export"
        said |= {
            "show": shell.pod("show", "a", "--json", **env), "log": shell.pod("log", "a", "--json", **env),
            "context": shell.pod("context", "a", **env),
            "inspect": shell.pod("inspect", "a", "--html", html, **env), "export": shell.pod("export", "a", "-o", exported, **env),
            "doctor": shell.pod("doctor", "a", **env), "ls": shell.pod("ls", "--json", **env),
            "compact": shell.pod("compact", "a", "--dry-run", **env),
        }  # fmt: skip
        self.places = {f"{name}: what it says": both(ran) for name, ran in said.items()}
        self.places |= {f"request {number}": body for number, body in enumerate(bodies)}
        self.places["what hooks are told"] = (shell.root / "told").read_bytes()
        self.places["what hooks are given"] = (shell.root / "environment").read_bytes()
        self.places |= {
            "the -o file": out.read_bytes(),
            "the page": html.read_bytes(),
            "the export": unpacked(exported),
        }
        for path in shell.home.rglob("*"):
            if path.is_file():
                self.places[f"home: {path.relative_to(shell.home)}"] = path.name.encode() + path.read_bytes()

    def found(self) -> dict[str, list[str]]:
        """The places where a form stands."""
        forms = {name: value.encode() for name, value in FORMS.items()}
        forms["in JSON"] = json.dumps(FORMS["in JSON"]).strip('"').encode()
        seen = {place: [form for form, value in forms.items() if value in data] for place, data in self.places.items()}
        return {place: found for place, found in seen.items() if found}


def both(ran: Ran) -> bytes:
    return ran.out + ran.err.encode()


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return b"\n".join(archive.read(name) for name in archive.namelist())
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if tarfile.is_tarfile(io.BytesIO(data)):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [archive.extractfile(member) for member in archive.getmembers() if member.isfile()]
            return b"\n".join(member.read() for member in members if member is not None)
    return data


@pytest.fixture(scope="module", params=[True, False], ids=["redacted", "as it is"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    shell = Shell(tmp_path_factory.mktemp("secrets"))
    shell.work.mkdir()
    made = Story(shell, redact=request.param)
    made.tell()
    return made


EXPECTED = (
    "stream-json: what it says", "the -o file", "log: what it says", "the export", "what hooks are told", "request 1", "request 3",
)  # fmt: skip
"""Where the secret stands with `[log] redact = false`: so the story does bring it there. A page masks it then too."""


def test_b082_b083_a_secret_stands_nowhere_in_any_form(story: Story) -> None:
    """B082, B083: in no byte below the home of pods, of the requests' bodies, of what is printed, written or told to hooks."""
    found = story.found()
    assert b"[secret " in story.places["the page"] and "the page" not in found
    if story.redact:
        assert found == {}
        return
    assert {*EXPECTED} <= {*found} and {form for forms in found.values() for form in forms} == {*FORMS}
    kinds = {Path(place).parent.name for place in found if place.startswith("home: ")}
    assert {"a", "artifacts", "blobs"} <= kinds, kinds


def test_the_call_that_needs_the_secret_gets_it_and_no_process_is_given_it(story: Story) -> None:
    assert KEY in (story.shell.work / "copy.txt").read_text()
    assert KEY.encode() not in story.places["what hooks are given"]


@pytest.mark.parametrize("secret", [True, False])
def test_b082_a_crash_report_and_its_line_hold_no_secret(secret: bool, tmp_path: Path) -> None:
    """The twin: without the variable in the environment the same text is nobody's secret, and the report holds it."""
    shell = Shell(tmp_path)
    shell.work.mkdir()
    program = (
        "import sys\nimport pod.cli.listing as listing\nfrom pod.cli.main import main\n"
        "def ls(*args):\n    raise RuntimeError(sys.argv[1])\n"
        "listing.ls = ls\nraise SystemExit(main(['ls']))\n"
    )
    env = shell.env(MY_TOKEN=KEY) if secret else shell.env()
    done = subprocess.run(
        [sys.executable, "-c", program, TEXT], cwd=shell.work, env=env, capture_output=True, timeout=60
    )
    assert done.returncode == 1
    [report] = (shell.home / "crash").iterdir()
    text = report.read_text()
    assert "RuntimeError" in text
    shown = text + done.stdout.decode() + done.stderr.decode()
    assert [form for form, value in FORMS.items() if value in shown] == ([] if secret else [*FORMS])
