"""What a command leaves behind: found and ended, whatever it did to hide."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import Any

import anyio
import anyio.to_thread
import pytest
from builtin.builtin_rig import Rig

from worker.builtin import child
from worker.builtin.process_table import look_at, survivors

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="subreapers are a thing of Linux")]

DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execve("/bin/sleep", ["sleep", "987"], {})
    os._exit(0)
os.wait()
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
"""

HIDING = {
    "a session and an environment of its own": "env -i setsid sh -c 'echo $$ > pid; exec sleep 987' & "
    "while [ ! -s pid ]; do :; done; echo x",
    "closed streams too": "env -i setsid sh -c 'echo $$ > pid; exec sleep 987 >&- 2>&- <&-' & "
    "while [ ! -s pid ]; do :; done; echo x",
    "a double fork": f"env -i {sys.executable} -I -S double_fork.py pid; echo x",
    "a stopped one": "env -i setsid sh -c 'echo $$ > pid; kill -STOP $$; sleep 987' & "
    "while [ ! -s pid ]; do :; done; echo x",
    "one that ignores TERM": "env -i setsid sh -c \"trap '' TERM; echo \\$\\$ > pid; while :; do sleep 0.1; done\" & "
    "while [ ! -s pid ]; do :; done; echo x",
}


def pid_in(rig: Rig) -> int:
    return int((rig.root / "pid").read_text())


@pytest.mark.parametrize("how", HIDING)
async def test_a_process_that_hides_is_ended_with_its_command_and_told_of(rig: Rig, how: str) -> None:
    rig.file("double_fork.py", DOUBLE_FORK)
    output = await rig.call("shell", command=HIDING[how])
    assert look_at(pid_in(rig)) is None
    assert "exit code 0" in output.summary
    assert "left-over process" in output.summary
    assert output.summary.endswith("\nx")


@pytest.mark.parametrize("how", HIDING)
async def test_a_process_that_hides_is_ended_at_a_timeout(rig: Rig, how: str) -> None:
    rig.file("double_fork.py", DOUBLE_FORK)
    output = await rig.call("shell", command=f"{HIDING[how]}; sleep 987", timeout=1.0)
    assert "timed out" in output.summary
    assert look_at(pid_in(rig)) is None


async def test_a_process_that_hides_is_ended_when_the_call_is_cancelled(rig: Rig) -> None:
    rig.file("double_fork.py", DOUBLE_FORK)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await rig.call("shell", command=f"{HIDING['a double fork']}; sleep 987")

        tasks.start_soon(run)
        with anyio.fail_after(20):
            while not (rig.root / "pid").exists() or not (rig.root / "pid").read_text():
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert look_at(pid_in(rig)) is None


async def test_a_hidden_process_of_a_job_is_ended_with_the_job(rig: Rig) -> None:
    rig.file("double_fork.py", DOUBLE_FORK)
    await rig.call("shell", command=HIDING["a double fork"], background=True)
    with anyio.fail_after(20):
        while not (rig.root / "pid").exists() or not (rig.root / "pid").read_text():
            await anyio.sleep(0.02)
        while "x" not in ((await rig.call("jobs", action="read", id="p1")).content or ""):
            await anyio.sleep(0.02)
    stopped = await rig.call("jobs", action="stop", id="p1")
    assert "stopped" in stopped.summary
    assert look_at(pid_in(rig)) is None


async def test_a_command_that_kills_its_supervisor_is_ended_and_told_of(rig: Rig) -> None:
    output = await rig.call("shell", command="kill -KILL $PPID; echo $$ > pid; sleep 987")
    assert "signal 9" in output.summary
    assert look_at(pid_in(rig)) is None


async def test_a_command_that_stops_its_supervisor_ends_all_the_same(rig: Rig) -> None:
    with anyio.fail_after(20):
        output = await rig.call("shell", command="kill -STOP $PPID; echo hi", timeout=1.0)
    assert "timed out" in output.summary


@pytest.mark.parametrize("supervised", [True, False])
async def test_a_command_leads_a_session_of_its_own_and_sees_the_signals_that_it_should(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, supervised: bool
) -> None:
    monkeypatch.setattr(child, "SUPERVISED", supervised)
    look = "import os, signal; print(os.getpid() == os.getpgrp() == os.getsid(0), signal.getsignal(signal.SIGPIPE))"
    command = f"ps -o sid= -p $$ >/dev/null 2>&1; exec {sys.executable} -I -S -c '{look}'"
    output = await rig.call("shell", command=command)
    # The interpreter itself ignores SIGPIPE, so what counts is what a plain program is given.
    assert "True" in output.summary
    masks = await rig.call("shell", command="grep -E 'SigIgn|SigBlk' /proc/self/status")
    ignored = int(masks.summary.split("SigIgn:")[1].split()[0], 16)
    blocked = int(masks.summary.split("SigBlk:")[1].split()[0], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1)) and not ignored & (1 << (signal.SIGTERM - 1)) and not blocked


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("exit 7", "exit code 7"),
        ("kill -TERM $$", "ended by signal 15"),
        ("kill -SEGV $$", "ended by signal 11"),
        ("kill -INT $$", "ended by signal 2"),
        ("kill 0; sleep 987", "ended by signal 15"),
        ("cat; echo read", "exit code 0"),
        ("[ -t 0 ] || [ -t 1 ] || exit 3", "exit code 3"),
        ("yes | head -1", "exit code 0"),
    ],
)
async def test_the_end_of_a_command_is_told_alike_with_and_without_a_supervisor(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, supervised: bool, command: str, told: str
) -> None:
    monkeypatch.setattr(child, "SUPERVISED", supervised)
    output = await rig.call("shell", command=command, timeout=20)
    assert told in output.summary


async def test_a_command_gets_the_environment_it_was_given_and_no_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    # An interpreter that starts in the C locale puts this into its own environment.
    monkeypatch.delenv("LC_CTYPE", raising=False)
    monkeypatch.setenv("MY_API_KEY", "value-of-the-key")
    seen: list[set[str]] = []
    for supervised in (True, False):
        monkeypatch.setattr(child, "SUPERVISED", supervised)
        await rig.call("shell", command="env > names")
        seen.append({line.partition("=")[0] for line in (rig.root / "names").read_text().splitlines()})
    ours = {"POD_CALL_ID", "POD_COMMAND_ID", "POD_OWNER", "LC_ALL"}
    assert ours <= seen[0] and "LC_CTYPE" not in seen[0]
    assert seen[0] == seen[1]


async def test_the_parent_of_a_command_shows_no_secret_of_the_runtime(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent is the supervisor, which gets what the command gets."""
    monkeypatch.setenv("MY_API_KEY", "value-of-the-key")
    output = await rig.call("shell", command="tr '\\0' '\\n' < /proc/$PPID/environ")
    text = f"{output.summary}\n{output.content}"
    assert "POD_CALL_ID" in text and "value-of-the-key" not in text


async def test_a_trivial_command_stays_cheap(rig: Rig) -> None:
    await rig.call("shell", command="true")

    def used() -> float:
        both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(u.ru_utime + u.ru_stime for u in both)

    costs: list[float] = []
    for _ in range(5):
        before = used()
        await rig.call("shell", command="true")
        costs.append(used() - before)
    assert min(costs) < 0.06, costs


async def test_a_program_that_is_missing_is_an_error_result(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.builtin.shell.shell_argv", lambda command: ["/no/such/shell", "-c", command])
    with pytest.raises(Exception, match="could not be started"):
        await rig.call("shell", command="true")


async def test_hidden_survivors_of_a_killed_runtime_are_found(rig: Rig) -> None:
    """The supervisor carries the call, and what it supervises is below it."""
    rig.file("double_fork.py", DOUBLE_FORK)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await rig.call("shell", command=f"{HIDING['a double fork']}; sleep 987")

        tasks.start_soon(run)
        with anyio.fail_after(20):
            while not (rig.root / "pid").exists() or not (rig.root / "pid").read_text():
                await anyio.sleep(0.02)
            found = await anyio.to_thread.run_sync(survivors, f"call{rig.calls}", rig.processes.owner)
            assert pid_in(rig) in found
        tasks.cancel_scope.cancel()
    assert look_at(pid_in(rig)) is None


async def test_a_supervisor_that_is_stopped_before_it_says_anything_does_not_outlast_the_timeout(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout counts from the start of the supervisor."""
    real = child.start_child

    async def stopped(*args: Any, **more: Any) -> child.Child:
        made = await real(*args, **more)
        os.kill(made.target.root or 0, signal.SIGSTOP)
        return made

    monkeypatch.setattr("worker.builtin.run_command.start_child", stopped)
    with anyio.fail_after(20):
        output = await rig.call("shell", command="sleep 987", timeout=0.5)
    assert "timed out" in output.summary
