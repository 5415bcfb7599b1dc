from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from builtin.builtin_rig import Rig

from worker.builtin.process_table import in_group, look_at
from worker.builtin.processes import Processes
from worker.masking import Masker
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio


async def test_a_job_runs_on_is_listed_read_and_remembered(rig: Rig) -> None:
    os.mkfifo(rig.root / "gate")
    command = "echo started; read x < gate; echo went on; exit 3"
    with anyio.fail_after(20):
        output = await rig.call("shell", command=command, background=True)
        assert output.summary.startswith("background job p1 started (pid ")
        assert output.state is not None
        entry = output.state["processes"][0]
        kept = {key: entry[key] for key in ("id", "command", "call_id", "status")}
        assert kept == {"id": "p1", "command": command, "call_id": "call1", "status": "running"}
        assert (await rig.call("jobs")).summary == "1 background job, 1 running"
        await anyio.to_thread.run_sync((rig.root / "gate").write_text, "go\n")
        output = await rig.call("jobs", action="read", id="p1", wait=10)
    assert output.content == "started\nwent on\n"
    assert output.summary == "job p1: exit code 3; output bytes 0-16 of 16"
    assert rig.state.get("processes")[0]["exit_code"] == 3
    listed = await rig.call("jobs")
    assert listed.summary == "1 background job, 0 running"
    assert listed.content is not None
    assert listed.content.startswith("p1  exit code 3, pid ")


async def test_reading_goes_on_where_the_last_answer_ended(rig: Rig) -> None:
    await rig.call("shell", command="seq 1 5", background=True)
    output = await rig.call("jobs", action="read", id="p1", wait=10)
    assert output.content == "1\n2\n3\n4\n5\n"
    output = await rig.call("jobs", {"max_output": 6}, action="read", id="p1", since=4)
    assert output.content == "3\n4\n", "a line end takes two bytes as serialised"
    assert "output bytes 4-8 of 10; go on with since=8" in output.summary
    output = await rig.call("jobs", action="read", id="p1", since=10)
    assert output.content is None
    assert "no new output, 10 bytes in all" in output.summary
    output = await rig.call("jobs", {"max_output": 6}, action="read", id="p1")
    assert output.content == "4\n5\n", "without a position the newest is shown"
    assert "output bytes 6-10 of 10" in output.summary


async def test_a_job_is_known_with_its_id_after_a_compaction_or_a_restart(rig: Rig) -> None:
    """B025: only the folded state crosses."""
    await rig.call("shell", command="echo one; exec sleep 60", background=True)
    os.mkfifo(rig.root / "gate")
    await rig.call("shell", command="read x < gate; echo two", background=True)
    state = json.loads(json.dumps(rig.state.get("processes")))
    await anyio.to_thread.run_sync((rig.root / "gate").write_text, "go\n")
    await rig.processes.wait("p2", 10)
    first = rig.processes.get("p1")
    try:
        rig.processes = Processes(rig.home / "jobs", owner=rig.processes.owner)
        assert [job.id for job in rig.processes.adopt(state)] == ["p2"]
        assert [(j.id, j.pid, j.status) for j in rig.processes.list()] == [
            ("p1", first.pid, "running"),
            ("p2", int(state[1]["pid"]), "exited"),
        ]
        assert (await rig.call("jobs", action="read", id="p2")).content == "two\n"
        with anyio.fail_after(5):
            while (await rig.call("jobs", action="read", id="p1")).content != "one\n":
                await anyio.sleep(0.02)
        await rig.call("shell", command="true", background=True)
        assert [job.id for job in rig.processes.list()] == ["p1", "p2", "p3"], "an id is never used twice"
    finally:
        assert await rig.processes.end_all() == {}
    assert look_at(first.pid) is None
    assert rig.processes.get("p1").status != "running"


async def test_a_process_id_that_now_belongs_to_another_is_not_taken_for_the_job(rig: Rig) -> None:
    other = await anyio.open_process(["sleep", "30"], start_new_session=True)
    try:
        found = look_at(other.pid)
        assert found is not None
        entry = {
            "id": "p1", "pid": other.pid, "pgid": other.pid, "command": "server", "started_at": "2026-01-01T00:00:00Z",
            "call_id": "c1", "start_ticks": found.started - 1, "status": "running",
        }  # fmt: skip
        ended = rig.processes.adopt([entry, {"id": "not a job"}, {**entry, "id": "x1"}])
        assert [(job.id, job.status) for job in ended] == [("p1", "gone")]
        assert await rig.processes.stop("p1") == []
        assert look_at(other.pid) is not None, "a stranger is never ended"
        output = await rig.call("jobs", action="stop", id="p1")
        assert output.summary == "job p1 had already ended: ended, exit code unknown"
    finally:
        other.kill()
        await other.aclose()


async def test_stop_answers_when_the_whole_group_is_gone(rig: Rig) -> None:
    """B087: a child ignores the first signal."""
    command = "(trap '' TERM; echo $BASHPID > pid; read < gate) & setsid sleep 60 & until [ -s pid ]; do :; done; wait"
    await rig.call("shell", command="mkfifo gate; " + command, background=True)
    job = rig.processes.get("p1")
    with anyio.fail_after(10):
        while not (rig.root / "pid").exists() or not (rig.root / "pid").read_text():
            await anyio.sleep(0.01)
    output = await rig.call("jobs", action="stop", id="p1")
    assert output.summary == "job p1 stopped, all its processes are gone"
    assert look_at(int((rig.root / "pid").read_text())) is None
    assert in_group(job.pgid) == []
    assert output.state is not None
    assert output.state["processes"][0]["status"] != "running"


async def test_an_unpolled_job_is_bounded_and_the_loss_is_told(rig: Rig) -> None:
    """B091, with 60 MB at full speed."""
    rig.processes = Processes(rig.home / "jobs", owner=rig.processes.owner, limit=1_000_000)
    await rig.call(
        "shell",
        command="head -c 60000000 /dev/zero | tr '\\0' x | fold -w 99; echo end; exec sleep 60",
        background=True,
    )
    job = rig.processes.get("p1")
    total = 60_000_000 + 606_060 + 4
    with anyio.fail_after(30):
        while rig.processes.read("p1", None, 100).total < total:
            await anyio.sleep(0.05)
    status = Path(f"/proc/{job.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 50_000, f"{peak} kB in the supervisor"
    assert sum(f.stat().st_size for f in (rig.home / "jobs" / "p1").iterdir()) <= 1_000_000
    output = await rig.call("jobs", {"max_output": 1000}, action="read", id="p1")
    assert output.content is not None
    assert output.content.endswith("x\nend\n") or output.content.endswith("xend\n")
    first = rig.processes.read("p1", 0, 10).first
    assert first >= total - 1_000_000
    assert f"of {total}; the first {first} bytes were dropped" in output.summary
    await rig.processes.end_all()


async def test_background_output_is_the_same_plain_text(rig: Rig) -> None:
    """B093, in the background."""
    command = (
        r"printf '\033'; sleep 0.05; printf '[31mred\033[0m '; printf '\033]8;;http://exa'; sleep 0.05; "
        r"printf 'mple.org\033'; sleep 0.05; printf '\\link\033]8;;\a\n'"
    )
    await rig.call("shell", command=command, background=True)
    output = await rig.call("jobs", action="read", id="p1", wait=10)
    assert output.content == "red link\n"


async def test_unknown_jobs_and_missing_ids_are_errors_that_help(rig: Rig) -> None:
    assert (await rig.call("jobs")).summary == "no background jobs"
    with pytest.raises(ToolFault, match=r"no such job: p7\. Known jobs: none"):
        await rig.call("jobs", action="read", id="p7")
    with pytest.raises(ToolFault, match="needs the id"):
        await rig.call("jobs", action="stop")


async def test_a_job_cannot_be_started_where_there_is_no_folder(rig: Rig, tmp_path: Path) -> None:
    rig.root = tmp_path / "gone"
    with pytest.raises(ToolFault, match="could not be started"):
        await rig.call("shell", command="true", background=True)
    with pytest.raises(ToolFault, match="could not be started"):
        await rig.call("shell", command="true")
    assert rig.processes.list() == []


async def test_b083_what_a_job_writes_stands_on_the_disk_without_secrets(rig: Rig) -> None:
    """B083: known values and keys by their shape, in pieces, too; neither the command line nor the environment tells any."""
    key = "ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zaB3dE6gH"
    rig.processes = Processes(rig.home / "masked", masker=Masker({"A_TOKEN": "secret-value-0123"}, shapes=True))
    rig.file("says", f"one secret-value-0123\ntwo {key}\n".encode())
    with anyio.fail_after(20):
        started = await rig.call(
            "shell", command="cat says; printf 'and secret-val'; echo ue-0123; exec sleep 60", background=True
        )
        pid = (started.state or {})["processes"][0]["pid"]
        assert (
            b"secret-value" not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        )
        text = ""
        while "and" not in text:
            text = (await rig.call("jobs", action="read", id="p1", wait=0.05)).content or ""
        await rig.call("jobs", action="stop", id="p1")
    text = (await rig.call("jobs", action="read", id="p1")).content or ""
    assert text == "one [secret A_TOKEN]\ntwo [secret]\nand [secret A_TOKEN]\n"
    kept = b"".join(path.read_bytes() for path in (rig.home / "masked").rglob("*") if path.is_file())
    assert b"secret-val" not in kept and key.encode() not in kept
