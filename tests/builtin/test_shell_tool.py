from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from builtin.builtin_rig import Rig

from worker.builtin import artifacts
from worker.builtin.process_table import Target, end, look_at, survivors, with_environment
from worker.tool_output import serialised_size

pytestmark = pytest.mark.anyio


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.01)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


async def test_a_background_child_does_not_hold_the_call(rig: Rig) -> None:
    """B084: the child is ended with the call, and the next call works."""
    started = time.monotonic()
    output = await rig.call("shell", command="sleep 60 & echo $! > pid; echo done")
    assert time.monotonic() - started < 2
    assert output.summary.endswith("\ndone")
    assert "exit code 0, 1 left-over process ended" in output.summary
    assert not output.is_error
    assert look_at(pids_in(rig.root / "pid")[0]) is None
    assert (await rig.call("shell", command="echo again")).summary.endswith("\nagain")


async def test_a_child_that_left_the_group_and_ignores_the_signal_is_ended_too(rig: Rig) -> None:
    """B084, harder: a daemon of its own session."""
    deaf = "(trap '' TERM; echo $BASHPID > pid; exec sleep 60) & until [ -s pid ]; do :; done; "
    daemon = "setsid sleep 61 & echo $! >> pid; sleep 0.05; "
    output = await rig.call("shell", command=f"{deaf}{daemon}echo done")
    assert output.summary.endswith("\ndone")
    pids = pids_in(rig.root / "pid")
    assert len(pids) == 2
    assert [pid for pid in pids if look_at(pid)] == []


async def test_a_cancelled_call_leaves_no_process_and_stays_cancelled(rig: Rig) -> None:
    """B085."""
    with anyio.fail_after(10), anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel_when_running() -> None:
                await until(lambda: pids_in(rig.root / "pid"))
                scope.cancel()

            tasks.start_soon(cancel_when_running)
            await rig.call("shell", command="echo $$ > pid; sleep 60; echo after > canary")
    assert scope.cancelled_caught
    assert look_at(pids_in(rig.root / "pid")[0]) is None
    assert survivors("call1", rig.processes.owner) == []
    assert not (rig.root / "canary").exists()


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_grandchildren_go_with_the_call(rig: Rig, how: str) -> None:
    """B086: the canary is written only if the grandchild outlives the call."""
    rig.file("child.sh", "(trap '' TERM HUP; echo $BASHPID > pid; read < gate; echo alive > canary) &\nwait\n")
    os.mkfifo(rig.root / "gate")
    if how == "timeout":
        output = await rig.call("shell", command="bash child.sh", timeout=0.5)
        assert output.is_error
        assert "timed out after 0.5 s, all its processes were ended" in output.summary
    else:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: rig.call("shell", command="bash child.sh"))
                await until(lambda: pids_in(rig.root / "pid"))
                scope.cancel()
    assert look_at(pids_in(rig.root / "pid")[0]) is None
    # With a reader left, the open would succeed and the canary follow.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(rig.root / "gate", os.O_WRONLY | os.O_NONBLOCK)
    assert not (rig.root / "canary").exists()


async def test_the_timeout_keeps_what_was_written_before(rig: Rig) -> None:
    output = await rig.call("shell", {"timeout": 0.3}, command="echo early; sleep 60")
    assert output.is_error
    assert output.summary.endswith("\nearly")


async def test_a_stopped_process_is_ended_by_the_timeout(rig: Rig) -> None:
    output = await rig.call("shell", command="kill -STOP $$", timeout=0.3)
    assert "timed out" in output.summary
    assert "NOT STOPPED" not in output.summary


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("read x; echo got:$x", "\ngot:"),
        ("cat", ", no output"),
        ("ssh-keygen -f key < /dev/tty 2>/dev/null || echo refused", "\nrefused"),
        ("test -t 0 || echo no terminal", "\nno terminal"),
        ("(exec 3<>/dev/tty) 2>/dev/null || echo no tty", "\nno tty"),
    ],
)
async def test_nothing_waits_for_input(rig: Rig, command: str, ending: str) -> None:
    """B089."""
    started = time.monotonic()
    with anyio.fail_after(5):
        output = await rig.call("shell", command=command)
    assert time.monotonic() - started < 1
    assert output.summary.endswith(ending)


async def test_prompts_pagers_and_keys_are_kept_from_commands(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """B089, the defaults; and a key in the runtime's environment does not reach a command unless it is named."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-XYZ")
    monkeypatch.setenv("MY_SETTING", "here")
    command = "env > env.txt"
    await rig.call("shell", {"env": ["MY_SETTING"]}, command=command)
    lines = [line.partition("=") for line in (rig.root / "env.txt").read_text().splitlines()]
    found = {name: value for name, _, value in lines}
    assert found["GIT_TERMINAL_PROMPT"] == "0"
    assert found["DEBIAN_FRONTEND"] == "noninteractive"
    assert found["PAGER"] == found["GIT_PAGER"] == "cat"
    assert found["TERM"] == "dumb"
    assert found["MY_SETTING"] == "here"
    assert found["POD_CALL_ID"] == "call1"
    assert found["POD_OWNER"] == rig.processes.owner
    assert "ANTHROPIC_API_KEY" not in found
    await rig.call("shell", command=command)
    assert "MY_SETTING" not in (rig.root / "env.txt").read_text()


_MEASURED = """
import json, sys, anyio
from pathlib import Path
sys.path[:0] = {path!r}
from builtin.builtin_rig import Rig

def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024

async def main():
    rig = Rig(Path(sys.argv[2]))
    await rig.call("shell", command="seq 100000")
    before = peak()
    output = await rig.call("shell", command="yes {line} | head -c {count}; echo last words")
    print(json.dumps({{"growth": peak() - before, "output": output.model_dump()}}))

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of the memory is read from /proc")
async def test_large_output_is_drained_within_bounded_memory(rig: Rig, tmp_path: Path, anyio_backend: str) -> None:
    """B090, with 200 MB."""
    root = Path(__file__).parents[2]
    script = _MEASURED.format(path=[str(root), str(root / "tests")], line="x" * 99, count=200_000_000)
    done = await anyio.run_process([sys.executable, "-c", script, anyio_backend, str(tmp_path)])
    result = json.loads(done.stdout)
    output = result["output"]
    assert result["growth"] < 50_000_000
    assert "exit code 0" in output["summary"]
    assert not output["is_error"]
    assert output["content"].startswith("x" * 99 + "\n")
    assert output["content"].endswith("last words\n")
    assert "bytes left out; the first 67.1 MB: read_file" in output["content"]
    assert serialised_size(output["content"]) <= 65_536
    assert rig.artifacts.path(output["artifact"]).stat().st_size == artifacts.SPOOL_LIMIT


async def test_the_whole_of_a_long_output_is_an_artifact_that_can_be_read(rig: Rig) -> None:
    output = await rig.call("shell", {"max_output": 2_000}, command="seq 10000; echo 'é\"' >&2; exit 3")
    assert output.is_error
    assert output.artifact is not None
    assert output.content is not None
    assert serialised_size(output.content) <= 2_000
    whole = "".join(f"{i}\n" for i in range(1, 10_001)) + 'é"\n'
    assert rig.artifacts.path(output.artifact).read_text() == whole
    head, _, rest = output.content.partition("\n[... ")
    omitted, _, tail = rest.partition(" bytes left out; ")
    tail = tail.partition(" ...]\n")[2]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert int(omitted) == len(whole.encode()) - len(head.encode()) - len(tail.encode())
    last = await rig.call("read_file", path=f"artifact:{output.artifact}", offset=10_000)
    assert last.content == '10000\né"\n'


async def test_an_output_that_only_grows_above_the_cap_by_escaping_is_kept_too(rig: Rig) -> None:
    output = await rig.call("shell", {"max_output": 1_000}, command="yes '\"' | head -n 400")
    assert output.artifact is not None
    assert output.content is not None
    assert serialised_size(output.content) <= 1_000
    assert rig.artifacts.path(output.artifact).read_text() == '"\n' * 400


async def test_a_spool_that_cannot_be_written_costs_the_spool_only(rig: Rig) -> None:
    rig.home.mkdir()
    (rig.home / "artifacts").write_text("a file where the folder should be")
    output = await rig.call("shell", {"max_output": 1_000}, command="seq 10000")
    assert "exit code 0" in output.summary
    assert output.artifact is None
    assert output.content is not None
    assert "the whole output could not be kept: " in output.content
    assert output.content.endswith("10000\n")


async def test_bytes_that_are_not_text_are_shown_and_counted(rig: Rig) -> None:
    """B092."""
    output = await rig.call("shell", command=r"printf '\360\377\000\376\n'")
    assert "4 bytes of binary data" in output.summary
    assert output.summary.endswith("\n" + "\ufffd" * 4)
    json.loads(output.model_dump_json())


async def test_escape_sequences_leave_no_trace_however_they_are_cut(rig: Rig) -> None:
    """B093, in the foreground."""
    command = (
        r"printf '\033'; sleep 0.05; printf '[31mred\033[0m '; printf '\033]8;;http://exa'; sleep 0.05; "
        r"printf 'mple.org\033'; sleep 0.05; printf '\\link\033]8;;\a\n'"
    )
    output = await rig.call("shell", command=command)
    assert output.summary.endswith("\nred link")


async def test_a_command_without_output_says_so(rig: Rig) -> None:
    """B094."""
    output = await rig.call("shell", command="exit 1")
    assert re.fullmatch(r"shell exit 1: exit code 1, [\d.]+ s, no output", output.summary)
    assert output.content is None
    assert output.is_error
    assert "ended by signal 9" in (await rig.call("shell", command="kill -9 $$")).summary


async def test_both_streams_come_in_order(rig: Rig) -> None:
    output = await rig.call("shell", command="for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert output.summary.split("\n")[1:] == ["o1", "e1", "o2", "e2", "o3", "e3"]


async def test_commands_run_beside_each_other_do_not_end_each_other(rig: Rig) -> None:
    outputs: list[str] = []

    async def one(seconds: str) -> None:
        outputs.append((await rig.call("shell", command=f"sleep {seconds}; echo slept {seconds}")).summary)

    async with anyio.create_task_group() as tasks:
        for seconds in ("0.1", "0.2", "0.4"):
            tasks.start_soon(one, seconds)
    assert [text.rpartition("\n")[2] for text in outputs] == ["slept 0.1", "slept 0.2", "slept 0.4"]


async def test_a_runtime_that_comes_back_finds_what_a_killed_one_left(rig: Rig) -> None:
    environment = {**os.environ, "POD_CALL_ID": "c9", "POD_OWNER": rig.processes.owner}
    process = await anyio.open_process(["sleep", "30"], start_new_session=True, env=environment)
    try:
        await until(lambda: survivors("c9", rig.processes.owner))
        assert survivors("c9", rig.processes.owner) == [process.pid]
        assert survivors("c9", "another session") == []
        assert with_environment({"POD_CALL_ID": "c", "POD_OWNER": rig.processes.owner}) == []
        assert await end(Target(process.pid, {"POD_OWNER": rig.processes.owner}), grace=1) == []
        assert survivors("c9", rig.processes.owner) == []
    finally:
        if process.returncode is None and look_at(process.pid):
            process.kill()
        await process.aclose()


async def test_no_descriptor_is_left_open(rig: Rig) -> None:
    await rig.call("shell", command="true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await rig.call("shell", {"max_output": 100}, command="seq 1000")
        with anyio.move_on_after(0.05):
            await rig.call("shell", command="sleep 5")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
