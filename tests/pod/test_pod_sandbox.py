"""A pod whose manifest asks for a sandbox, the places that its tools never write, and questions that outlive a kill."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import forked
import pytest

from pod import Pod
from pod.errors import UsageProblem
from pod.log.entries import OrphanKilled
from tests.builtin.builtin_rig import working_in
from tests.pod.pod_rig import ROOT, Agent, Rig, manifest, results
from worker.builtin.process_table import look_at
from worker.builtin.sandbox import Sandbox
from worker.testing import call, say

pytestmark = pytest.mark.anyio
_WHY = Sandbox("read-only", Path("/")).trouble()
needs_sandbox = pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")
SANDBOX = {"mode": "workspace"}
ALLOW = {"profile": "unattended", "rules": [{"tool": "shell", "action": "allow"}]}


def shell_then_done(*commands: str) -> Any:
    return lambda r, n: call("shell", command=commands[n - 1]) if n <= len(commands) else say("done")


@needs_sandbox
async def test_commands_of_a_pod_run_in_its_sandbox(rig: Rig) -> None:
    agent = Agent(shell_then_done(f"echo x > made; cat {rig.home}/pods/*/*; echo x > /usr/made; ls {Path.home()}"))
    made = manifest(tools={"enable": ["shell"]}, permissions=ALLOW, sandbox=SANDBOX)
    async with rig.open(agent, made) as pod:
        assert (await pod.run("go")).status == "finished"
    told = results(agent.requests[-1])[0].text()
    assert (rig.cwd / "made").exists() and not Path("/usr/made").exists()
    assert "Read-only file system" in told and "segment_started" not in told


@needs_sandbox
async def test_a_sandbox_grants_nothing(rig: Rig) -> None:
    """Without a rule, `unattended` denies commands as it does without a sandbox."""
    agent = Agent(shell_then_done("echo x > made"))
    made = manifest(tools={"enable": ["shell"]}, permissions={"profile": "unattended"}, sandbox=SANDBOX)
    async with rig.open(agent, made) as pod:
        assert (await pod.run("go")).denials == 1
    assert not (rig.cwd / "made").exists()


@needs_sandbox
async def test_what_decides_on_agents_is_guarded_in_a_sandbox_where_it_is_not_there_yet(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder as the working folder: an agent that made the user's configuration would decide on all later ones."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(rig.cwd / "config"))
    monkeypatch.setenv("POD_HOME", str(rig.cwd / "state"))
    command = (
        "mkdir -p config/pod state/trust; for f in config/pod/config.toml state/trust/x.json free; do echo x > $f; done"
    )
    made = manifest(tools={"enable": ["shell"]}, permissions=ALLOW, sandbox=SANDBOX, scope={"write": ["."]})
    async with rig.open(Agent(shell_then_done(command)), made) as pod:
        await pod.run("go")
    assert [path.name for path in rig.cwd.rglob("*") if path.is_file()] == ["free"]


async def test_where_there_can_be_no_sandbox_nothing_runs_and_nothing_is_made(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sandbox, "trouble", lambda self: "[sandbox] mode can't be kept: no bwrap")
    with pytest.raises(UsageProblem, match="no bwrap") as raised:
        async with rig.open(Agent(shell_then_done()), manifest(sandbox=SANDBOX)):
            pass
    assert raised.value.exit_code == 2
    assert not rig.folder().exists()


@needs_sandbox
async def test_what_a_killed_runtime_left_in_a_sandbox_is_ended_before_its_call_is_closed(rig: Rig) -> None:
    program = """
import sys, anyio
from pathlib import Path
from tests.pod.pod_rig import Agent, Rig, manifest
from worker.testing import call, say
import tests.pod.test_pod_sandbox as here
async def main():
    rig = Rig(Path(sys.argv[1]).parent)
    agent = Agent(here.shell_then_done("env -i setsid sleep 987 & echo x > started; sleep 986"))
    made = manifest(tools={"enable": ["shell"]}, permissions=here.ALLOW, sandbox=here.SANDBOX)
    async with rig.open(agent, made) as pod:
        await pod.run("go")
anyio.run(main)
"""
    with in_process(rig, program) as process:
        await there(rig.cwd / "started")
        left = await anyio.to_thread.run_sync(working_in, rig.cwd)
        assert len(left) >= 2
        process.kill()
    made = manifest(tools={"enable": ["shell"]}, permissions=ALLOW, sandbox=SANDBOX)
    async with rig.open(Agent(lambda r, n: say("done")), made) as pod:
        await pod.resume()
    assert [pid for pid in left if look_at(pid)] == []
    assert rig.of(OrphanKilled)


async def test_a_question_outlives_a_kill_and_its_call_runs_once_when_it_is_answered(rig: Rig) -> None:
    """B041, B122: killed while it waits, answered by a second process, carried out by a third."""
    program = """
import sys, anyio
from pathlib import Path
from tests.pod.pod_rig import Agent, Rig, manifest
import tests.pod.test_pod_sandbox as here
async def main():
    rig = Rig(Path(sys.argv[1]).parent)
    async with rig.open(here.writer(), here.asking()) as pod:
        match sys.argv[4]:
            case "ask":
                assert (await pod.run("go")).status == "paused"
                (rig.cwd / "waits").write_text("")
                await anyio.sleep_forever()
            case "answer":
                [asked] = pod.approvals
                assert asked.diff and "+x" in asked.diff
                await pod.approve(asked.id)
            case _:
                assert (await pod.resume()).status == "finished"
anyio.run(main)
"""
    with in_process(rig, program, "ask") as process:
        await there(rig.cwd / "waits")
        process.kill()
    assert not (rig.cwd / "log.txt").exists()
    for step in ("answer", "go on"):
        with in_process(rig, program, step) as process:
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 0, out.decode()
    assert (rig.cwd / "log.txt").read_text() == "x\n"


def writer() -> Agent:
    return Agent(lambda r, n: say("done") if results(r) else call("append_file", path="log.txt", content="x"))


def asking() -> Any:
    return manifest(tools={"enable": ["append_file"]}, permissions={"profile": "safe"})


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("agent.toml", False),
        ("base.toml", False),
        (".pod/config.toml", False),
        ("AGENTS.md", True),
        ("notes.md", True),
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
async def test_tools_write_no_file_that_decides_what_the_agent_may_do_but_instructions(
    rig: Rig, path: str, written: bool, reopened: bool
) -> None:
    """Also where the pod goes on with its stored manifest, which was read from these files once."""
    rig.file("base.toml", "version = 1\n")
    text = 'version = 1\nextends = "base.toml"\n[model]\nname = "offline:surveyor"\n[tools]\nenable = ["write_file"]\n'
    rig.file("agent.toml", text + '[scope]\nwrite = ["."]\n[permissions]\nprofile = "workspace-write"\n')

    def play(request: Any, number: int) -> Any:
        return say("done") if results(request) else call("write_file", path=path, content="mine")

    before = (rig.cwd / path).read_text() if (rig.cwd / path).exists() else None
    options: dict[str, Any] = {"home": rig.home, "model": Agent(play)}
    if reopened:
        quiet = Agent(lambda r, n: say("hello"))
        async with Pod.open(rig.cwd / "agent.toml", name="p", cwd=rig.cwd, home=rig.home, model=quiet) as pod:
            await pod.run("hello")
        made = Pod.reopen("p", **options)
    else:
        made = Pod.open(rig.cwd / "agent.toml", name="p", cwd=rig.cwd, **options)
    async with made as pod:
        result = await pod.run("go")
    now = (rig.cwd / path).read_text() if (rig.cwd / path).exists() else None
    assert (now == "mine") is written and (written or now == before)
    assert result.denials == (0 if written else 1)


class in_process:
    """A process that is gone at the end of the block."""

    def __init__(self, rig: Rig, program: str, *args: str) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        command = ["-c", program, rig.home, rig.cwd, ROOT, *args]
        self.process = forked.started(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> forked.Forked | subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


async def there(path: Path) -> None:
    with anyio.fail_after(30):
        while not path.exists():
            await anyio.sleep(0.02)
