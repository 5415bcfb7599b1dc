"""A pointer that is lost or damaged, a pod that could not be made, names, locks, and ids of messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from log.logs import create, reopen, say, started

from pod import operations as op
from pod.errors import StoreError, UsageProblem
from pod.log.doctor import examine, repair
from pod.log.folder import PodFolder, check_name
from pod.log.inbox import Command, post_message, waiting
from pod.names import RESERVED, SET_ASIDE
from pod.questions import take_inbox
from pod.session import Session, write_segment
from pod.testing import FailingFiles

# -- the pointer --------------------------------------------------------------------------------------------------


def lived(home: Path, name: str = "a") -> Session:
    session = create(home, name)
    say(session, "one")
    session.close()
    return session


def _missing(path: Path) -> None:
    path.unlink()


def _text(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


DAMAGE = {
    "empty": _text(b""),
    "no pointer": _text(b"{}"),
    "a list": _text(b"[]"),
    "no text": _text(b"\xff\xfe"),
    "nested": _text(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "missing": _missing,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_pointer_is_made_anew_from_the_logs(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    session = lived(tmp_path)
    was = session.folder.pointer()
    damage(session.folder.pointer_path)
    bytes_before = session.folder.pointer_path.read_bytes() if session.folder.pointer_path.exists() else None
    with pytest.raises(UsageProblem, match="pod doctor a --repair"):
        reopen(tmp_path)
    (finding,) = examine(tmp_path).pods[0].findings
    assert (finding.code, finding.severity, finding.repairable) == ("pointer", "error", True)
    done = repair(tmp_path, "a")
    assert done.after.ok and done.pointed_to == was.segment
    assert [p.read_bytes() for p in done.kept_aside] == ([] if bytes_before is None else [bytes_before])
    again = reopen(tmp_path)
    assert again.pointer.session == was.session and again.state.generation == 2
    assert [item.text for item in again.state.history.view if item.type == "user"] == ["one"]
    again.close()
    assert repair(tmp_path, "a").pointed_to == ""


def test_the_newest_segment_is_found_and_one_that_never_was_active_is_not_taken(tmp_path: Path) -> None:
    async def grow() -> tuple[str, str]:
        session = reopen(tmp_path)
        await session.switch(started(session))
        active = session.pointer.segment
        orphan = started(session)
        write_segment(session.folder, orphan, session.writer.next_seq)
        say(session, "two")
        session.close()
        return active, orphan.segment

    lived(tmp_path)
    active, orphan = anyio.run(grow)
    assert orphan > active
    PodFolder(tmp_path, "a").pointer_path.write_bytes(b"{}")
    assert repair(tmp_path, "a").pointed_to == active


def test_what_a_clear_left_behind_does_not_come_back_with_a_pointer_made_anew(tmp_path: Path) -> None:
    lived(tmp_path)
    anyio.run(op.clear, tmp_path, "a")
    folder = PodFolder(tmp_path, "a")
    newest = folder.segment_path(folder.pointer().segment)
    lines = newest.read_bytes().splitlines(keepends=True)
    newest.write_bytes(b"".join([b"spoilt\n", *lines[1:]]))
    folder.pointer_path.unlink()
    (report,) = examine(tmp_path).pods
    assert "beginning of the newest segment is lost" in report.findings[0].text
    with pytest.raises(UsageProblem, match="begin a new pod"):
        repair(tmp_path, "a")
    assert not folder.pointer_path.exists()


def test_no_pod_begins_beside_the_logs_of_another(tmp_path: Path) -> None:
    session = lived(tmp_path)
    lived(tmp_path, "b")
    session.folder.pointer_path.unlink()
    before = sorted(session.folder.path.iterdir())
    for make in (lambda: create(tmp_path).close(), lambda: op.fork(tmp_path, "b", "a")):
        with pytest.raises(UsageProblem, match="pod doctor a --repair"):
            make()
    assert sorted(session.folder.path.iterdir()) == before


# -- making a pod -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 4))
def test_a_pod_that_could_not_be_made_leaves_nothing(tmp_path: Path, at: int) -> None:
    with pytest.raises(StoreError, match=r"No pod was made; remove the cause .* and try again"):
        create(tmp_path, "group/a", files=FailingFiles(at))
    assert list((tmp_path / "pods").iterdir()) == []
    create(tmp_path, "group/a").close()


def test_a_fork_that_could_not_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(tmp_path)

    def full(self: PodFolder, pointer: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PodFolder, "set_pointer", full)
    with pytest.raises(StoreError, match="No pod was made"):
        op.fork(tmp_path, "a", "b")
    assert [path.name for path in (tmp_path / "pods").iterdir()] == ["a"]


def test_a_lock_that_is_no_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    lock = lived(tmp_path).folder.path / "lock"
    lock.unlink()
    os.mkfifo(lock, 0o600)
    with pytest.raises(UsageProblem, match="lock: not a regular file; remove it"):
        reopen(tmp_path)
    (finding,) = examine(tmp_path).pods[0].findings
    assert (finding.path, finding.severity) == (lock, "error")


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [*sorted(RESERVED), "x.jsonl", f"{SET_ASIDE}1", ".hidden"])
def test_no_part_of_a_name_is_one_that_a_pods_own_folder_uses(part: str) -> None:
    for name in (part, f"a/{part}", f"{part}/a"):
        with pytest.raises(UsageProblem, match="can't be a pod's name"):
            check_name(name)


def test_the_doctor_goes_on_where_one_folder_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(tmp_path, "a")
    lived(tmp_path, "b")
    pointer = PodFolder.pointer

    def refused(self: PodFolder) -> object:
        if self.name == "a":
            raise PermissionError(13, "Permission denied", str(self.pointer_path))
        return pointer(self)

    monkeypatch.setattr(PodFolder, "pointer", refused)
    a, b = examine(tmp_path).pods
    assert [f.code for f in a.findings] == ["unreadable"] and "Permission denied" in a.findings[0].text and b.ok


# -- ids of messages ----------------------------------------------------------------------------------------------


def _send(folder: PodFolder, text: str) -> bool:
    return post_message(folder, Command(id="K", kind="send", args={"text": text}))


def test_an_id_stores_one_message_for_as_long_as_the_pod_lives(tmp_path: Path) -> None:
    """In the inbox, in the log, behind a clear: the same words are known, others are refused."""
    folder = lived(tmp_path).folder

    def known() -> None:
        assert not _send(folder, "hello")
        with pytest.raises(UsageProblem, match="nothing was stored"):
            _send(folder, "other")

    assert _send(folder, "hello")
    known()
    session = reopen(tmp_path)
    take_inbox(session)
    session.close()
    known()
    anyio.run(op.clear, tmp_path, "a")
    known()
    assert list(waiting(folder)) == []


# -- texts --------------------------------------------------------------------------------------------------------


def test_an_altered_text_goes_aside_and_a_fork_is_made_all_the_same(tmp_path: Path) -> None:
    session = lived(tmp_path)
    (blob,) = (session.folder.path / "blobs").iterdir()
    blob.write_text("altered")
    (finding,) = examine(tmp_path).pods[0].findings
    assert finding.code == "blob_altered" and finding.repairable and "pod resume a" in finding.text
    (aside,) = repair(tmp_path, "a").kept_aside
    assert aside.read_text() == "altered" and not blob.exists()
    op.fork(tmp_path, "a", "b")
    assert [f.code for f in examine(tmp_path, "b").pods[0].findings] == ["blob_missing"]


def test_a_text_is_put_again_over_an_altered_one(tmp_path: Path) -> None:
    folder = lived(tmp_path).folder
    label = folder.put_blob("the text")
    (folder.path / "blobs" / label).write_text("altered")
    assert folder.put_blob("the text") == label and folder.blob(label) == "the text"


def test_a_text_is_put_in_the_place_of_a_folder_which_goes_to_the_quarantine(tmp_path: Path) -> None:
    folder = lived(tmp_path).folder
    label = folder.put_blob("the text")
    path = folder.path / "blobs" / label
    path.unlink()
    path.mkdir()
    (path / "kept").write_text("x")
    assert folder.put_blob("the text") == label and folder.blob(label) == "the text"
    (aside,) = (folder.path / "quarantine").iterdir()
    assert (aside / "kept").read_text() == "x"


@pytest.mark.parametrize(("use", "made_anew"), [("system", True), ("schemas", True), ("files", False)])
def test_only_a_text_that_the_next_run_makes_anew_leaves_a_pod_whole(tmp_path: Path, use: str, made_anew: bool) -> None:
    """The list of the manifest's files is none: without it nothing would keep an agent's tools from them."""
    session = Session.create(tmp_path, "a", blobs={"manifest": "m", "cwd": "/", use: "of this use"}, manifest="m")
    path = session.folder.path / "blobs" / session.state.blobs[use]
    session.close()
    path.unlink()
    path.mkdir(mode=0o700)
    (report,) = examine(tmp_path).pods
    (finding,) = report.findings
    assert finding.code == "blob_altered" and "a folder stands in its place" in finding.text
    assert report.ok == report.whole == made_anew == finding.passing
    assert made_anew or ("--manifest FILE" in finding.text and finding.severity == "error")
