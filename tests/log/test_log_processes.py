"""Several processes at one pod: one writer, whole files, commands that arrive once and in order."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
from pathlib import Path

import pytest
from log.logs import create, kinds, python, reopen, say

from pod.errors import PodBusy, PodExists, PodNotFound, UsageProblem
from pod.log.files import Files
from pod.log.folder import PodFolder, Pointer, check_name, pod_names
from pod.log.inbox import Command, post, waiting
from pod.session import Session
from pod.testing import CRASHED, FailingFiles

HOLD = """
import sys; from pathlib import Path
from log.logs import reopen
session = reopen(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
session.close()
"""


def test_a_second_process_is_told_who_has_the_pod(tmp_path: Path) -> None:
    """B069: busy at once, with the owner and an exit code of its own; the log unchanged; another pod not affected."""
    create(tmp_path, "a").close()
    create(tmp_path, "b").close()
    holder = python(HOLD, tmp_path)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        folder = PodFolder(tmp_path, "a")
        log = folder.segment_path(folder.pointer().segment)
        before = log.read_bytes()
        with pytest.raises(PodBusy, match=rf"process {holder.pid} on .+ since \d{{4}}-") as caught:
            reopen(tmp_path)
        assert caught.value.exit_code == 75 and caught.value.owner["pid"] == holder.pid
        assert folder.is_busy() and log.read_bytes() == before
        other = reopen(tmp_path, "b")
        say(other, "not affected")
        other.close()
    finally:
        holder.communicate("\n", timeout=30)
    assert holder.returncode == 0 and not folder.is_busy()
    reopen(tmp_path).close()


def test_a_killed_writer_frees_the_pod_and_the_generation_grows(tmp_path: Path) -> None:
    create(tmp_path).close()
    holder = python(HOLD, tmp_path)
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)
    session = reopen(tmp_path)
    assert session.state.generation == 3
    assert kinds(session.writer.path) == ["segment_started", "lease", "lease", "lease"]
    session.close()


def test_to_look_whether_a_pod_is_busy_never_makes_it_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A glance holds the lock for a moment; an opener that meets it waits that moment out, and other glances pass."""
    session = create(tmp_path)
    session.close()
    glance = os.open(session.folder.path / "lock", os.O_RDWR)
    fcntl.flock(glance, fcntl.LOCK_SH)
    assert not session.folder.is_busy()
    monkeypatch.setattr("pod.log.folder.time.sleep", lambda _: fcntl.flock(glance, fcntl.LOCK_UN))
    reopen(tmp_path).close()
    os.close(glance)


def test_of_two_that_make_a_pod_of_one_name_the_second_does_not_replace_it(tmp_path: Path) -> None:
    class Late(Files):
        """Someone else makes the pod between the look and the lock."""

        done = False

        def make_folder(self, path: Path) -> None:
            if not self.done:
                self.done = True
                first = create(tmp_path)
                say(first, "mine")
                first.close()
            super().make_folder(path)

    with pytest.raises(PodExists):
        create(tmp_path, files=Late())
    session = reopen(tmp_path)
    assert len(session.state.history.view) == 1
    session.close()


UPDATE = """
import sys; from pathlib import Path
from pod.log.folder import PodFolder, Pointer
folder = PodFolder(Path(sys.argv[1]), "a")
session, mark = sys.argv[2], sys.argv[3]
print("go", flush=True)
for n in range(int(sys.argv[4])):
    folder.set_pointer(Pointer(name="a", session=session, segment=f"{mark}-{n}", created="x" * 2000))
"""


def test_two_processes_that_replace_the_pointer_never_mix(tmp_path: Path) -> None:
    """B070: 200 times each, one of them killed on its way: the file always parses and is a written version."""
    session = create(tmp_path)
    session.close()
    folder = session.folder
    one = python(UPDATE, tmp_path, session.pointer.session, "one", 200)
    two = python(UPDATE, tmp_path, session.pointer.session, "two", 100_000)
    assert one.stdout is not None and two.stdout is not None
    assert one.stdout.readline() == two.stdout.readline() == "go\n"
    seen: set[str] = set()
    while one.poll() is None:
        pointer = Pointer.model_validate(json.loads(folder.pointer_path.read_bytes()))
        assert pointer.session == session.pointer.session
        seen.add(pointer.segment.split("-")[0])
    two.send_signal(signal.SIGKILL)
    one.communicate(timeout=60), two.communicate(timeout=60)
    assert one.returncode == 0 and {"one", "two"} <= seen
    mark, number = folder.pointer().segment.split("-")
    assert mark in {"one", "two"} and number.isdigit()
    assert list(pod_names(tmp_path)) == ["a"], "a temporary that a kill left is never taken for anything"


def test_a_failed_replacement_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    session = create(tmp_path)
    session.close()
    before = session.folder.pointer_path.read_bytes()
    for what in ("write", "sync"):
        folder = PodFolder(tmp_path, "a", FailingFiles(1, what))
        with pytest.raises(OSError, match="No space"):
            folder.set_pointer(session.pointer)
    assert session.folder.pointer_path.read_bytes() == before
    assert not list(session.folder.path.glob(".*"))


# -- modes ----------------------------------------------------------------------------------------------------------

MODES = """
import os, sys; from pathlib import Path
os.umask(int(sys.argv[2], 8))
import anyio
from log.logs import create, say, started, batch
from pod.log.inbox import Command, post
session = create(Path(sys.argv[1]) / "deep" / "er", "group/a")
say(session, "hello"); batch(session, "c1")
anyio.run(session.switch, started(session))
post(session.folder, Command(kind="stop"))
session.folder.put_blob("more")
session.close()
raise SystemExit(0 if os.umask(0) == int(sys.argv[2], 8) else 3)
"""


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_nothing_of_a_pod_is_open_to_others_whatever_the_umask(tmp_path: Path, umask: str) -> None:
    """B081: folders 0700, files 0600, locks and commands too; and the umask of the process is left alone."""
    child = python(MODES, tmp_path, umask)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    found = 0
    for parent, folders, files in os.walk(tmp_path / "deep"):
        for name in folders:
            assert stat.S_IMODE((Path(parent) / name).stat().st_mode) == 0o700, name
        for name in files:
            assert stat.S_IMODE((Path(parent) / name).stat().st_mode) == 0o600, name
            found += 1
    assert found >= 7 and stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_a_mode_that_the_operator_widened_stays(tmp_path: Path) -> None:
    """B081: an existing log at 0640."""
    session = create(tmp_path)
    session.close()
    session.writer.path.chmod(0o640)
    again = reopen(tmp_path)
    say(again, "more")
    again.close()
    assert stat.S_IMODE(session.writer.path.stat().st_mode) == 0o640


# -- names ----------------------------------------------------------------------------------------------------------


def test_a_pod_below_a_pod_is_listed_and_no_inner_folder_is(tmp_path: Path) -> None:
    for name in ("a", "a/b", "c.d"):
        create(tmp_path, name).close()
    (tmp_path / "pods" / "a" / "artifacts").mkdir()
    (tmp_path / "pods" / "a" / "artifacts" / "pod.json").write_text("{}")
    assert list(pod_names(tmp_path)) == ["a", "a/b", "c.d"]
    for bad in ("", "../x", "a/inbox", "a/quarantine", ".x", "a//b", "a/b/c/d/e", "ä"):
        with pytest.raises(UsageProblem):
            check_name(bad)


def test_a_name_that_is_not_there_is_met_with_the_nearest(tmp_path: Path) -> None:
    create(tmp_path, "reviewer").close()
    with pytest.raises(PodNotFound, match="Did you mean 'reviewer'"):
        reopen(tmp_path, "reviwer")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":null}', b'{"format":1}', b"\xff"])
def test_a_pointer_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    session = create(tmp_path)
    session.close()
    session.folder.pointer_path.write_bytes(content)
    with pytest.raises(UsageProblem, match=r"pod\.json: not a pod's pointer.*doctor"):
        reopen(tmp_path)


# -- inbox ----------------------------------------------------------------------------------------------------------

POST = """
import sys; from pathlib import Path
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
for n in range(20):
    print(post(PodFolder(Path(sys.argv[1]), "a"), Command(kind="send", args={"text": f"{sys.argv[2]} {n}"})))
"""


def test_commands_of_several_processes_are_drained_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    session = create(tmp_path)
    senders = [python(POST, tmp_path, name) for name in ("x", "y")]
    told = [line for sender in senders for line in sender.communicate(timeout=60)[0].split()]
    drained = list(waiting(session.folder))
    commands = [command for _, command in drained if command is not None]
    assert sorted(c.id for c in commands) == sorted(told) and len(told) == 40
    for name in ("x", "y"):
        assert [c.args["text"] for c in commands if c.args["text"][0] == name] == [f"{name} {n}" for n in range(20)]
    assert [c.at for c in commands] == sorted(c.at for c in commands)
    for path, command in drained:
        assert command is not None
        say(session, command.args["text"], inbox=command.id)
        session.folder.files.unlink(path)
    session.close()
    again = reopen(tmp_path)
    assert not list(waiting(again.folder)) and set(told) <= set(again.state.inbox)
    again.close()


def test_a_command_is_durable_when_its_sender_is_told_so_and_half_ones_are_not_seen(tmp_path: Path) -> None:
    session = create(tmp_path)
    folder = session.folder
    crashed = python(
        """
import sys; from pathlib import Path
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.testing import CrashingFiles
post(PodFolder(Path(sys.argv[1]), "a", CrashingFiles(4)), Command(kind="stop"))
""",
        tmp_path,
    )
    crashed.communicate(timeout=60)
    assert crashed.returncode == CRASHED
    assert [p.suffix for p in folder.inbox.iterdir()] == [".tmp"] and not list(waiting(folder))
    (folder.inbox / "odd.json").write_text("{}")
    assert [(p.name, c) for p, c in waiting(folder)] == [("odd.json", None)]
    post(folder, Command(id="key-1", kind="stop"))
    post(folder, Command(id="key-1", kind="stop"))
    assert [c.id for _, c in waiting(folder) if c] == ["key-1"]
    with pytest.raises(UsageProblem, match="idempotency key"):
        post(folder, Command(id="../x", kind="stop"))
    with pytest.raises(PodNotFound):
        post(PodFolder(tmp_path, "nobody"), Command(kind="stop"))
    session.close()


def test_a_pod_that_never_got_its_pointer_can_be_made_again(tmp_path: Path) -> None:
    crashed = python(
        """
import sys; from pathlib import Path
from log.logs import create
from pod.testing import CrashingFiles
create(Path(sys.argv[1]), files=CrashingFiles(14))
""",
        tmp_path,
    )
    crashed.communicate(timeout=60)
    assert crashed.returncode == CRASHED and list(pod_names(tmp_path)) == []
    session = create(tmp_path)
    assert isinstance(session, Session) and list(pod_names(tmp_path)) == ["a"]
    session.close()
