"""Commands in a sandbox, with real processes: what they see, what they write, and that nothing of them is left."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from builtin.builtin_rig import Rig, working_in
from builtin.test_shell_leftovers import DOUBLE_FORK, HIDING

from worker.builtin import matchers
from worker.builtin.process_table import look_at, survivors, with_environment
from worker.builtin.sandbox import Sandbox
from worker.items import ToolOutput
from worker.tools import ToolFault

_WHY = Sandbox("read-only", Path("/")).trouble()
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(_WHY is not None, reason=f"no sandbox here: {_WHY}")]


def boxed(rig: Rig, **more: Any) -> Rig:
    """The rig with a sandbox of its scope; the folder of pods lies in it, as the worst case."""
    home = rig.root / "pods"
    home.mkdir(exist_ok=True)
    (home / "log").write_text("secret")
    mode = more.pop("mode", "workspace")
    read, write = rig.scope.read_roots, rig.scope.write_roots
    rig.sandbox = Sandbox(mode, rig.root, read, write, hidden=(home,), **more)
    return rig


def text(output: ToolOutput) -> str:
    return f"{output.summary}\n{output.content or ''}"


async def test_it_writes_in_write_roots_and_nowhere_else(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    command = f"echo x > made; echo x > {tmp_path}/beside/made; echo x > /usr/made; echo x > /made; echo x > /etc/made"
    output = await boxed(rig).call("shell", command=command)
    assert (rig.root / "made").read_text() == "x\n"
    assert os.listdir(tmp_path / "beside") == []
    assert not any(Path(p).exists() for p in ("/usr/made", "/made", "/etc/made"))
    assert text(output).count("Read-only file system") == 3


async def test_a_failed_command_says_what_the_sandbox_allows_and_a_good_one_does_not(rig: Rig) -> None:
    boxed(rig)
    refused = await rig.call("shell", command="touch /usr/made")
    assert refused.is_error and "sandbox (workspace): reads .; writes ., but not .git" in text(refused)
    assert "no network" in text(refused)
    assert "sandbox" not in text(await rig.call("shell", command="true"))


async def test_the_machine_outside_of_the_scope_is_not_there(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of another project")
    home = Path.home()
    output = await boxed(rig).call(
        "shell", command=f"cat {tmp_path}/secret; ls -A {home} {home}/.. /var /run /sys; ls -A /tmp"
    )
    assert "of another project" not in text(output)
    assert all(name not in text(output) for name in os.listdir(home) if len(name) > 4)


async def test_the_home_of_the_pods_is_neither_seen_nor_written(rig: Rig) -> None:
    output = await boxed(rig).call(
        "shell", command="ls -A pods; cat pods/log; echo x > pods/log; mv pods away; rm -rf pods"
    )
    assert "secret" not in text(output)
    assert (rig.root / "pods" / "log").read_text() == "secret"


@pytest.mark.parametrize("place", [".git/config", "sub/.git/hooks/pre-commit", ".pod/config.toml", "conf/agent.toml"])
async def test_protected_places_in_write_roots_stay_as_they_are(rig: Rig, place: str) -> None:
    file = rig.file(place, "before")
    boxed(rig, guarded=(rig.root / "conf" / "agent.toml",))
    top = place.split("/")[0]
    await rig.call(
        "shell",
        command=f"echo x > {place}; rm -f {place}; mv {top} away; rm -rf {top}; mkdir -p {top}; echo x > {place}",
    )
    assert file.read_text() == "before"


@pytest.mark.parametrize("how", ["file", "link"])
@pytest.mark.parametrize("folder", ["", "sub/"])
async def test_what_a_protected_name_only_points_to_stays_as_it_is(rig: Rig, how: str, folder: str) -> None:
    file = rig.file("data/hooks/pre-commit", "before")
    name = rig.root / folder / ".git"
    name.parent.mkdir(exist_ok=True)
    if how == "file":
        name.write_text(f"gitdir: {rig.root}/data")
    else:
        name.symlink_to(rig.root / "data")
    output = await boxed(rig).call(
        "shell", command="echo x > data/hooks/pre-commit; echo x > data/new; mv data away; echo x > free"
    )
    assert file.read_text() == "before" and not (rig.root / "data" / "new").exists(), text(output)
    assert (rig.root / "free").exists()


async def test_a_folder_that_is_to_be_guarded_is_made_before_a_command_makes_it(rig: Rig) -> None:
    """The user's configuration where there is none yet, in a home folder that an agent may write in."""
    kept = rig.root / "config" / "pod"
    boxed(rig, guarded=(kept,), kept=(kept, rig.root.parent / "elsewhere"))
    command = "mkdir -p config/pod; echo x > config/pod/config.toml; mv config away; mkdir -p config/pod; echo x > free"
    await rig.call("shell", command=command)
    assert list(kept.iterdir()) == [] and (rig.root / "free").exists()
    assert not (rig.root.parent / "elsewhere").exists(), "what no command can reach is not made"


async def test_git_commits_where_it_may_and_not_where_it_may_not(rig: Rig) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | wc -l"
    assert "exit code 0" in (await rig.call("shell", command=f"git init -q . && {commit}")).summary
    assert (await boxed(rig).call("shell", command=commit)).is_error
    assert "exit code 0" in (await boxed(rig, git="writable").call("shell", command=commit)).summary


async def test_read_only_writes_nothing_but_a_private_tmp(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/usr")  # a home folder below /tmp would be a part of the private one
    command = "echo x > made; echo x > ~/made; echo x > /tmp/made && cat /tmp/made"
    output = await boxed(rig, mode="read-only").call("shell", command=command)
    assert "exit code 0" in output.summary and text(output).count("Read-only file system") == 2
    assert not (rig.root / "made").exists() and not Path("/tmp/made").exists()


async def test_there_is_no_network_unless_it_is_given(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        reach = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        assert (await boxed(rig).call("shell", command=reach)).is_error
        assert not (await boxed(rig, network=True).call("shell", command=reach)).is_error


async def test_the_environment_is_the_allowed_one_and_the_processes_of_the_machine_are_not_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "value-of-the-key")
    monkeypatch.setenv("TMPDIR", "/somewhere/else")
    output = await boxed(rig).call("shell", command="env; cat /proc/*/environ | tr '\\0' '\\n'; ls -d /proc/[0-9]*")
    assert "value-of-the-key" not in text(output) and "/somewhere/else" not in text(output)
    assert "TMPDIR=/tmp" in text(output) and f"/proc/{os.getpid()}\n" not in text(output)


async def test_no_privilege_can_be_gained_and_no_terminal_be_reached(rig: Rig) -> None:
    output = await boxed(rig).call(
        "shell", command="grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status; echo > /dev/tty"
    )
    assert "NoNewPrivs:\t1" in text(output) and "CapEff:\t0000000000000000" in text(output)
    assert output.is_error


@pytest.mark.parametrize("how", ["link", "folder"])
@pytest.mark.parametrize("swapped", ["place", "folder above"])
async def test_a_protected_place_that_is_swapped_for_a_link_shows_nothing_of_the_machine(
    rig: Rig, tmp_path: Path, swapped: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mounted over a place is looked at first; what takes its place in between is not shown."""
    secret = tmp_path / "secrets"
    (secret / ".git").mkdir(parents=True)
    (secret / ".git" / "key").write_text("of the user")
    (secret / "key").write_text("of the user")
    rig.file("sub/.git/config", "x")
    boxed(rig)
    made: Callable[..., list[str]] = Sandbox.command

    def then_swapped(self: Sandbox, *args: Any) -> list[str]:
        found = made(self, *args)
        place = rig.root / ("sub/.git" if swapped == "place" else "sub")
        place.rename(rig.root / "moved")
        if how == "link":
            place.symlink_to(secret)
        else:
            secret.rename(place)
        return found

    monkeypatch.setattr(Sandbox, "command", then_swapped)
    output = await rig.call("shell", command="cat sub/key sub/.git/key; echo x > ran")
    assert "of the user" not in text(output)
    assert output.is_error and not (rig.root / "ran").exists()
    if how == "folder":
        assert "exit code 125" in output.summary and "try again" in text(output)


async def test_a_link_to_the_outside_as_a_protected_name_shows_nothing_of_the_machine(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("of the user")
    (rig.root / ".git").symlink_to(tmp_path / "secrets")
    (rig.root / ".pod").symlink_to(tmp_path / "secrets")
    output = await boxed(rig).call("shell", command="cat .git/key .pod/key")
    assert output.is_error and "of the user" not in text(output)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("exit 7", "exit code 7"),
        ("cat; echo read", "exit code 0"),
        ("kill -KILL $$", "exit code 137"),
        ("kill -KILL $PPID; exit 3", "exit code 3"),
        ("no-such-program", "exit code 127"),
        ("yes | head -c 3000000 | wc -c", "exit code 0"),
    ],
)
async def test_the_end_of_a_command_is_told(rig: Rig, command: str, told: str) -> None:
    """A command that a signal ended is told as shells tell it, 128 and the number of the signal."""
    assert told in (await boxed(rig).call("shell", command=command, timeout=20)).summary


async def test_a_background_child_does_not_hold_up_the_call(rig: Rig) -> None:
    """B084."""
    with anyio.fail_after(10):
        output = await boxed(rig).call("shell", command="sleep 987 & echo done; echo $! > pid")
    assert "exit code 0" in output.summary and output.summary.endswith("\ndone")
    assert await marked(rig) == []


@pytest.mark.parametrize("how", HIDING)
async def test_a_process_that_hides_is_gone_at_a_timeout(rig: Rig, how: str) -> None:
    """B086."""
    rig.file("double_fork.py", DOUBLE_FORK)
    command = HIDING[how].replace(sys.executable, "python3")
    output = await boxed(rig).call("shell", command=f"{command}; sleep 987", timeout=1.5)
    assert "timed out" in output.summary and "NOT STOPPED" not in output.summary
    assert await inside(rig) == []


async def test_a_command_gets_the_grace_to_end_by_itself_at_a_timeout(rig: Rig) -> None:
    command = "trap 'echo tidied > tidied; exit 0' TERM; while :; do sleep 0.05; done"
    output = await boxed(rig).call("shell", command=command, timeout=0.7)
    assert "timed out" in output.summary
    assert (rig.root / "tidied").read_text() == "tidied\n"


async def test_a_cancelled_call_leaves_nothing_running(rig: Rig) -> None:
    """B085."""
    boxed(rig)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await rig.call("shell", command="setsid sleep 987 & echo x > started; sleep 987")

        tasks.start_soon(run)
        await there(rig.root / "started")
        assert await inside(rig) != []
        tasks.cancel_scope.cancel()
    assert await inside(rig) == []


async def test_survivors_of_a_killed_runtime_are_found_by_their_call(rig: Rig) -> None:
    boxed(rig)
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await rig.call("shell", command="env -i setsid sleep 987 & echo x > started; sleep 986")

        tasks.start_soon(run)
        await there(rig.root / "started")
        found = await anyio.to_thread.run_sync(survivors, f"call{rig.calls}", rig.processes.owner)
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in found if look_at(pid)}
        assert {"bwrap", "sleep"} <= names
        tasks.cancel_scope.cancel()


async def test_a_background_job_runs_in_the_sandbox_is_read_and_is_stopped_with_all_of_it(rig: Rig) -> None:
    """B087."""
    boxed(rig)
    command = "trap 'echo tidied; exit 4' TERM; echo x > /usr/made; echo begun; env -i setsid sleep 987 & while :; do sleep 0.05; done"
    await rig.call("shell", command=command, background=True)
    with anyio.fail_after(20):
        while "begun" not in ((await rig.call("jobs", action="read", id="p1")).content or ""):
            await anyio.sleep(0.02)
    assert await inside(rig) != []
    assert "stopped" in (await rig.call("jobs", action="stop", id="p1")).summary
    assert await inside(rig) == []
    read = text(await rig.call("jobs", action="read", id="p1"))
    assert "Read-only file system" in read and "tidied" in read and "exit code 4" in read


async def test_a_job_that_ends_by_itself_leaves_nothing_of_its_sandbox(rig: Rig) -> None:
    boxed(rig)
    await rig.call("shell", command="setsid sleep 987 & echo done; exit 5", background=True)
    with anyio.fail_after(20):
        while "exit code 5" not in (await rig.call("jobs", action="read", id="p1", wait=5)).summary:
            await anyio.sleep(0.02)
    assert await inside(rig) == []


async def test_a_child_of_the_runtime_itself_ends_with_the_process_that_it_started(rig: Rig) -> None:
    """Servers and hooks: their pipes are the caller's, and the thread that started them may end before they do."""
    boxed(rig)
    assert rig.sandbox is not None
    argv = rig.sandbox.child(["sh", "-c", "cat; sleep 987"], rig.root)
    found = []
    thread = threading.Thread(target=lambda: found.append(start(argv, rig.root)))
    thread.start()
    thread.join()
    process = found[0]
    out, given = process.stdout, process.stdin
    assert out is not None and given is not None
    given.write(b"through the pipe\n")
    given.close()
    assert out.readline() == b"through the pipe\n", "it outlives the thread that started it"
    assert await inside(rig) != []
    process.kill()
    process.wait()
    with anyio.fail_after(10):
        while await inside(rig):
            await anyio.sleep(0.02)
    out.close()


def start(argv: list[str], cwd: Path) -> Any:
    import subprocess

    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)


@pytest.mark.parametrize("program", ["ripgrep", "our own"])
async def test_a_search_runs_in_the_sandbox_and_finds_the_same(
    rig: Rig, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "our own":
        monkeypatch.setattr(matchers, "ripgrep", lambda: None)
    elif shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    rig.file("a/b.txt", "one\ntwo needle\n")
    started: list[Any] = []
    real = anyio.open_process

    async def noted(argv: Any, **more: Any) -> Any:
        started.append(argv)
        return await real(argv, **more)

    monkeypatch.setattr(anyio, "open_process", noted)
    plain = await rig.call("search_text", pattern="needle")
    confined = await boxed(rig).call("search_text", pattern="needle")
    assert confined.content == plain.content == "a/b.txt:2: two needle"
    assert any("bwrap" in word for word in started[-1]) and not any("bwrap" in word for word in started[0])
    with pytest.raises(ToolFault):
        await rig.call("search_text", pattern="(", regex=True)


def test_a_program_that_the_agent_could_have_written_is_never_taken_for_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Sandbox("workspace", tmp_path).program != str(fake)


def test_a_sandbox_that_can_not_be_had_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Sandbox("workspace", tmp_path)
    missing = replace(made, program=None).trouble() or ""
    assert "not installed" in missing and 'mode = "off"' in missing
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    forbidden = replace(made, program=str(broken)).trouble() or ""
    assert "No permissions to create new namespace" in forbidden and "user namespaces" in forbidden
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux only" in (made.trouble() or "")


async def there(path: Path) -> None:
    with anyio.fail_after(20):
        while not path.exists():
            await anyio.sleep(0.02)


async def marked(rig: Rig) -> list[int]:
    """What still carries the call."""
    wanted = {"POD_CALL_ID": f"call{rig.calls}", "POD_OWNER": rig.processes.owner}
    return [pid for pid in await anyio.to_thread.run_sync(with_environment, wanted) if look_at(pid)]


async def inside(rig: Rig) -> list[int]:
    """Processes whose working folder is the rig's, whatever environment they have: they are in its sandbox."""
    return await anyio.to_thread.run_sync(working_in, rig.root)
