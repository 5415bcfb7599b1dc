"""What a run leaves is for its owner alone, and holds no key (B081, B082)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import forked
import pytest
from cli.cli_rig import Rig as Shell

from tests.pod.pod_rig import summary
from worker.testing.provider_server import Answer, Call, Http, ProviderServer, RecordedRequest, Step

pytestmark = pytest.mark.slow

COMPACTS = """
[compaction]
request_threshold = 14000
source = "overview"
retained_tokens = 1000
retained_floor_tokens = 300
[context]
buffer_tokens = 1000
[prune]
enabled = false
[scope]
read = ["."]
"""
KEY = "sk-test-XYZ"

LOOKS = """
from pod.cli.main import main
for name in ("a", "f"):
    for command in ("show", "log", "inspect", "context"):
        print(command, name, flush=True)
        assert main([command, name]) == 0, command
"""
"""Each look at both pods, in one interpreter: those whose libraries log are slow to start."""


def working(request: RecordedRequest) -> Step:
    """An agent that reads until its context is compacted, and the compact worker."""
    body = request.body
    if b"You write the memory of another agent" in body:
        return (
            Answer("written") if b'"tool_calls"' in body else Answer(calls=[Call("write_summary", {"text": summary()})])
        )
    if b"write_summary" not in body and b"compact worker" in body:
        return Answer("done")
    return Answer(
        calls=[Call("read_file", {"path": "big.txt", "offset": body.count(b'"tool_calls"') * 120 + 1, "limit": 120})]
    )


def prepared(shell: Shell) -> None:
    (shell.work / "big.txt").write_text(
        "".join(f"line {n} says that nothing of note happened here at all\n" for n in range(4000))
    )


@pytest.mark.parametrize("umask", ["000", "022"])
def test_b081_a_run_with_a_compaction_leaves_nothing_that_others_can_read_at_any_moment(
    umask: str, shell: Shell
) -> None:
    """B081: folders 0700, files, temporaries and locks 0600, from creation on: looked at during each request too, and traced at
    each opening of a file. A log that was widened by hand stays so."""
    prepared(shell)
    shell.fresh = False
    wrong: list[str] = []
    seen: set[str] = set()

    def look() -> None:
        for parent, folders, files in os.walk(shell.home):
            for name, mode in [*((f, 0o700) for f in folders), *((f, 0o600) for f in files)]:
                path = Path(parent) / name
                try:
                    found = stat.S_IMODE(path.lstat().st_mode)
                except FileNotFoundError:
                    continue
                seen.add(name)
                if found != mode:
                    wrong.append(f"{path}: {found:o}")

    def answer(request: RecordedRequest) -> Step:
        look()
        return working(request)

    with ProviderServer(answer) as server:
        manifest = shell.manifest(server, tools=["read_file"], more=COMPACTS)
        traced = (
            "import os, sys\n"
            f"os.umask(0o{umask})\n"
            "home = os.environ['POD_HOME']\n"
            "def hook(event, args):\n"
            "    if event == 'open' and str(args[0]).startswith(home) and isinstance(args[2], int) and args[2] & os.O_CREAT:\n"
            "        made.append(str(args[0]))\n"
            "    if event == 'os.mkdir' and str(args[0]).startswith(home) and args[1] & 0o077:\n"
            "        print('OPEN FOLDER', args, file=sys.stderr)\n"
            "made = []\n"
            "real = os.open\n"
            "def opening(path, flags, mode=0o777, **more):\n"
            "    if flags & os.O_CREAT and str(path).startswith(home) and mode & 0o077:\n"
            "        print('OPEN FILE', path, oct(mode), file=sys.stderr)\n"
            "    return real(path, flags, mode, **more)\n"
            "os.open = opening\n"
            "sys.addaudithook(hook)\n"
            "from pod.cli.main import main\n"
            "raise SystemExit(main(sys.argv[1:]))\n"
        )
        done = forked.run(
            ["-c", traced, "run", manifest, "read it", "--name", "a"], cwd=shell.work, env=shell.env(), timeout=60
        )
        told = done.stderr.decode()
        assert done.returncode == 0, told
        assert "compacted by compact" in told and "OPEN F" not in told
        look()
        assert not wrong
        assert {"lock", "pod.json", "a"} <= seen and sum(name.endswith(".jsonl") for name in seen) >= 3
        [log] = [
            p
            for p in (shell.home / "pods" / "a").glob("*.jsonl")
            if ".compact-" not in p.name and p.stem in shown(shell)
        ]
        log.chmod(0o640)
        assert shell.pod("resume", "a", "and now").code == 0
        assert stat.S_IMODE(log.stat().st_mode) == 0o640


def shown(shell: Shell) -> str:
    """The name of the active segment."""
    return str(shell.pod("show", "a", "--json").json["segment"])


def test_b082_a_providers_key_stands_in_nothing_that_a_run_leaves_or_says(shell: Shell) -> None:
    """B082: with the debug logging of the libraries on, through errors that quote the key, and through a compaction."""
    prepared(shell)
    quoted = {
        "error": {"message": f"Incorrect API key provided: {KEY}. Header: Bearer {KEY}", "code": "invalid_api_key"}
    }
    asked = 0

    def answer(request: RecordedRequest) -> Step:
        nonlocal asked
        asked += 1
        assert request.headers["authorization"] == f"Bearer {KEY}"
        return Http(500, {"error": {"message": quoted["error"]["message"]}}) if asked == 2 else working(request)

    debug = {
        "TEST_KEY": KEY, "OPENAI_LOG": "debug", "ANTHROPIC_LOG": "debug", "HTTPX_LOG_LEVEL": "trace", "PYTHONDEVMODE": "1",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    with ProviderServer(answer) as server:
        manifest = shell.manifest(server, tools=["read_file"], more=COMPACTS)
        manifest.write_text(manifest.read_text().replace("max_attempts = 1", "max_attempts = 3"))
        ran = shell.pod("run", manifest, "read it", "--name", "a", "-v", "--output-format", "stream-json", **debug)
        assert ran.code == 0 and "compacted by compact" in ran.err, ran.err
    with ProviderServer([Http(401, quoted)]) as server:
        failed = shell.pod(
            "run", shell.manifest(server), "x", "--name", "f", "-v", "--output-format", "stream-json", **debug
        )
        assert failed.code == 77 and "auth" in failed.err
    looked = forked.run(["-c", LOOKS], cwd=shell.work, env=shell.env(**debug), fresh=True)
    assert looked.returncode == 0, looked.stderr.decode()
    for said in (ran.out + ran.err.encode(), failed.out + failed.err.encode(), looked.stdout + looked.stderr):
        assert len(said) > 200 and KEY.encode() not in said
    files = [path for path in shell.home.rglob("*") if path.is_file()]
    assert len(files) > 5 and not [path for path in files if KEY.encode() in path.read_bytes()]
