"""A pod as one file: what travels, what stays, and that nothing wrong is ever placed."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.transfer_story import FIRST, SIDE, entries_of, make, state_of, tree

from pod import operations as op
from pod.contents import CONTENTS
from pod.errors import (
    ImportRefused,
    LogDamaged,
    NewerFormat,
    NotSettled,
    PodError,
    PodExists,
    PodNotFound,
    UsageProblem,
)
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from pod.log.lines import now, render
from pod.pod import Pod
from pod.services import processes_of
from pod.session import Session
from pod.transfer import export_pod, import_pod
from worker.items import UserItem
from worker.records import Input
from worker.testing import ScriptedModel, say

pytestmark = pytest.mark.anyio
Parts = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture
async def source(tmp_path: Path) -> PodFolder:
    (tmp_path / "work").mkdir()
    return await make(tmp_path / "home", tmp_path / "work")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


def packed(folder: PodFolder) -> bytes:
    stream = io.BytesIO()
    export_pod(folder.home, folder.name, stream)
    return stream.getvalue()


def unpacked(data: bytes) -> Parts:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [(member, tar.extractfile(member)) for member in tar.getmembers()]
        return [(member, file.read() if file is not None else b"") for member, file in members]


def repacked(parts: Parts) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for member, data in parts:
            if member.isreg():
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def edited(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """An export whose list of contents says something else."""
    parts = unpacked(data)
    contents = json.loads(parts[0][1])
    change(contents)
    return repacked([(parts[0][0], json.dumps(contents).encode()), *parts[1:]])


def forged(data: bytes, name: str, content: bytes) -> bytes:
    """An export with another part in it, and its hash set right: what only the checks behind the hashes can find."""
    parts = [(member, content if member.name == name else old) for member, old in unpacked(data)]

    def change(contents: dict[str, Any]) -> None:
        for part in contents["parts"]:
            if part["name"] == name:
                part.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())

    return edited(repacked(parts), change)


def named(data: bytes, ending: str) -> tuple[str, bytes]:
    return next((member.name, content) for member, content in unpacked(data) if member.name.endswith(ending))


def refused(data: bytes, there: Path, said: str, kind: type[PodError] = ImportRefused) -> None:
    """The import raises one error that says so, with exit code 2, and nothing is left of it."""
    with pytest.raises(kind, match=said) as caught:
        import_pod(io.BytesIO(data), there)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value) and ".import-" not in str(caught.value)
    assert not there.exists()


# -- a round trip ---------------------------------------------------------------------------------------------


async def test_a_round_trip_gives_the_same_state_view_and_entries(
    source: PodFolder, there: Path, tmp_path: Path
) -> None:
    before = tree(source.path)
    file = tmp_path / "a.pod.tar"
    sent = export_pod(source.home, "a", file)
    got = import_pod(file, there)
    assert tree(source.path) == before, "the source is untouched"
    assert file.stat().st_mode & 0o777 == 0o600 and [p.name for p in tmp_path.glob(".*")] == []
    folder = PodFolder(there, "a")
    old, new = state_of(source), state_of(folder)
    assert new.carry() == old.carry() and new.totals.requests == 4 and new.pins == {"x": None}
    assert list(new.history.view) == list(old.history.view)
    assert entries_of(folder) == entries_of(source)
    assert (got.name, got.session, got.segments, got.size) == ("a", sent.session, 2, sent.size)
    here = tree(folder.path)
    kept = {name for name in before if name != "lock" and not name.startswith(("jobs", "pod.json", "artifacts/nobody"))}
    assert set(here) == kept | {"pod.json"}
    assert {name: here[name] for name in kept} == {name: before[name] for name in kept}, "byte for byte"
    assert sum(name.endswith(".compact-1.jsonl") for name in here) == 1
    assert sent.left_behind == ("background jobs",)


async def test_what_is_placed_can_be_read_by_its_owner_alone(source: PodFolder, there: Path) -> None:
    import_pod(io.BytesIO(packed(source)), there)
    modes = {p.stat().st_mode & 0o777 for p in there.rglob("*") if p.is_file()}
    folders = {p.stat().st_mode & 0o777 for p in (there, *there.rglob("*")) if p.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})
    assert sorted(p.name for p in there.iterdir()) == ["pods"]


async def test_an_imported_pod_can_be_resumed_and_exported_again(source: PodFolder, there: Path) -> None:
    import_pod(io.BytesIO(packed(source)), there, "b")
    model = ScriptedModel([say("gone on")])
    async with Pod.reopen("b", home=there, model=model) as pod:
        assert (await pod.run("go on")).text == "gone on"
    assert [i.text for i in model.requests[0].items if isinstance(i, UserItem)] == ["and now?", "go on"]
    import_pod(io.BytesIO(packed(PodFolder(there, "b"))), there, "c/d")
    assert state_of(PodFolder(there, "c/d")).totals.requests == 5


async def test_the_same_pod_gives_the_same_bytes(source: PodFolder) -> None:
    assert packed(source) == packed(source)


async def test_neither_jobs_nor_survivors_of_the_source_belong_to_the_imported_pod(
    source: PodFolder, there: Path
) -> None:
    import_pod(io.BytesIO(packed(source)), there)
    folder = PodFolder(there, "a")
    assert folder.pointer().session == source.pointer().session
    assert folder.pointer().owner != source.pointer().owner
    session = Session.open(there, "a", durability="os")
    original = Session.open(source.home, "a", durability="os")
    try:
        (job,) = processes_of(session).list()
        assert (job.id, job.status) == ("p1", "gone")
        assert processes_of(session).owner == folder.pointer().owner
        assert processes_of(original).owner == source.pointer().session
    finally:
        session.close()
        original.close()


async def test_an_open_call_is_of_unknown_outcome_where_the_pod_goes_on(tmp_path: Path, there: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    folder = await make(tmp_path / "home", work, open_call=True)
    import_pod(io.BytesIO(packed(folder)), there)
    model = ScriptedModel([say("looked")])
    async with Pod.reopen("a", home=there, model=model) as pod:
        assert (await pod.resume()).text == "looked"
    (result,) = [i for i in model.requests[0].items if i.type == "tool_result"]
    assert result.status == "interrupted" and "outcome unknown" in result.summary


async def test_commands_in_the_inbox_stay_and_are_told_of(source: PodFolder, there: Path) -> None:
    post(source, Command(kind="send", args={"text": "later"}))
    done = export_pod(source.home, "a", io.BytesIO())
    assert "1 command in the inbox" in done.left_behind
    import_pod(io.BytesIO(packed(source)), there)
    assert not (there / "pods" / "a" / "inbox").exists()


# -- the floor ------------------------------------------------------------------------------------------------


async def test_nothing_from_before_a_clear_leaves_the_machine(source: PodFolder, there: Path) -> None:
    blobs = {p.name for p in (source.path / "blobs").iterdir()}
    await op.clear(source.home, "a")
    data = packed(source)
    for secret in (FIRST, SIDE, "and now?", "what was done", "c1-shell.txt"):
        assert secret.encode() not in data
    parts = [member.name for member, _ in unpacked(data)]
    assert sum(name.endswith(".jsonl") for name in parts) == 1
    assert not any(name.startswith("artifacts/") for name in parts)
    sent = {name.removeprefix("blobs/") for name in parts if name.startswith("blobs/")}
    assert sent < blobs, "blobs that only the cleared segments refer to stay too"
    import_pod(io.BytesIO(data), there)
    assert state_of(PodFolder(there, "a")).carry() == state_of(source).carry()
    with pytest.raises(UsageProblem, match="cleared"):
        op.fork(there, "a", "b", 2)


async def test_what_a_rewind_took_back_stays(source: PodFolder, there: Path) -> None:
    first = next(line for line in entries_of(source) if FIRST.encode() in line[2])[0]
    await op.rewind(source.home, "a", first - 1)
    data = packed(source)
    assert FIRST.encode() not in data and SIDE.encode() not in data and b"c1-shell.txt" not in data
    import_pod(io.BytesIO(data), there)
    assert entries_of(PodFolder(there, "a")) == entries_of(source)


async def test_a_fork_travels_without_its_source(source: PodFolder, there: Path) -> None:
    op.fork(source.home, "a", "b")
    assert (PodFolder(source.home, "b").artifacts / "c1-shell.txt").is_file()
    data = packed(PodFolder(source.home, "b"))
    assert FIRST.encode() in data, "its past travels with it"
    import_pod(io.BytesIO(data), there)
    assert [p.name for p in (there / "pods").iterdir()] == ["b"]


async def test_an_export_of_a_fork_counts_the_past_that_it_took_along(source: PodFolder, there: Path) -> None:
    op.fork(source.home, "a", "b")
    kept = len(list(PodFolder(source.home, "b").origin.glob("*.jsonl")))
    sent = export_pod(source.home, "b", there.parent / "b.tar")
    got = import_pod(there.parent / "b.tar", there)
    assert kept == 2 and (sent.segments, sent.origins) == (got.segments, got.origins) == (1, kept)


async def test_a_fork_keeps_artifacts_that_only_the_text_of_a_result_names(source: PodFolder) -> None:
    line = next(line for line in entries_of(source) if b"artifact:c1-replaced.txt" in line[2])
    op.fork(source.home, "a", "b", line[0] + 2)
    assert sorted(p.name for p in PodFolder(source.home, "b").artifacts.iterdir()) == [
        "c1-replaced.txt",
        "c1-shell.txt",
    ]


# -- beside a writer ------------------------------------------------------------------------------------------


async def test_an_export_beside_a_writer_holds_whole_entries_only(source: PodFolder, there: Path) -> None:
    session = Session.open(source.home, "a", durability="os")
    try:
        session.put(Input(item=UserItem(text="whole")))
        whole = session.writer.path.stat().st_size
        line = render(session.writer.next_seq, "extension", b'{"name":"n","data":{}}', now())[1]
        with session.writer.path.open("ab") as file:
            file.write(line[:-9])
        data = packed(source)
    finally:
        session.writer.close()
        session.folder.unlock()
    import_pod(io.BytesIO(data), there)
    folder = PodFolder(there, "a")
    assert folder.segment_path(folder.pointer().segment).stat().st_size == whole
    assert [item.text for item in state_of(folder).queued] == ["whole"]


async def test_a_segment_that_begins_while_the_parts_are_gathered_is_followed(
    source: PodFolder, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pod.transfer as module

    pointers = [source.pointer()]
    await op.clear(source.home, "a")
    real = PodFolder.pointer
    monkeypatch.setattr(PodFolder, "pointer", lambda self: pointers.pop() if pointers else real(self))
    data = packed(source)
    monkeypatch.undo()
    assert FIRST.encode() not in data
    assert import_pod(io.BytesIO(data), there).segments == 1
    monkeypatch.setattr(module, "TRIES", 0)
    with pytest.raises(NotSettled, match="faster than it can be read"):
        packed(source)


async def test_a_part_that_changes_while_it_is_written_is_named_and_no_file_is_left(
    source: PodFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pod.transfer as module

    real = module._write  # pyright: ignore[reportPrivateUsage]

    def late(folder: PodFolder, *args: Any) -> None:
        (folder.artifacts / "c1-shell.txt").write_bytes(b"short")
        real(folder, *args)

    monkeypatch.setattr(module, "_write", late)
    target = tmp_path / "out.tar"
    target.write_text("kept")
    with pytest.raises(NotSettled, match=r"artifacts/c1-shell\.txt of pod 'a' was changed"):
        export_pod(source.home, "a", target)
    assert target.read_text() == "kept" and [p.name for p in tmp_path.glob(".*")] == []


# -- an export that can't be made -----------------------------------------------------------------------------


async def test_a_damaged_log_is_not_exported_and_an_altered_text_neither(source: PodFolder) -> None:
    path = source.segment_path(source.pointer().segment)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"and now?", b"and then", 1))
    with pytest.raises(LogDamaged):
        packed(source)
    path.write_bytes(whole)
    blob = source.path / "blobs" / state_of(source).start.blobs["system"]
    blob.write_text("be bad")
    with pytest.raises(UsageProblem, match=r"lost its system prompt.*pod resume a"):
        packed(source)
    blob.unlink()
    with pytest.raises(UsageProblem, match=r"lost its system prompt.*pod resume a"):
        packed(source)
    with pytest.raises(PodNotFound):
        export_pod(source.home, "nobody", io.BytesIO())


async def test_older_segments_that_are_gone_do_not_keep_the_rest_from_travelling(
    source: PodFolder, there: Path
) -> None:
    older = state_of(source).start.lineage.segment
    assert older is not None
    source.segment_path(older).unlink()
    done = export_pod(source.home, "a", io.BytesIO())
    assert "older segments that can't be read" in done.left_behind and done.segments == 1
    import_pod(io.BytesIO(packed(source)), there)
    assert state_of(PodFolder(there, "a")).carry() == state_of(source).carry()


# -- an import that is refused --------------------------------------------------------------------------------


async def test_a_name_that_is_taken_is_refused_and_another_one_is_not(source: PodFolder) -> None:
    data = packed(source)
    before = tree(source.home)
    with pytest.raises(PodExists, match="--name"):
        import_pod(io.BytesIO(data), source.home)
    for name in ("../x", "a/blobs", "jobs", ""):
        with pytest.raises(UsageProblem, match="can't be a pod's name"):
            import_pod(io.BytesIO(data), source.home, name)
    op.fork(source.home, "a", "group/b")
    with pytest.raises(PodExists, match="is there already"):
        import_pod(io.BytesIO(data), source.home, "group")
    op.remove(source.home, "group/b")
    assert tree(source.home) == before and [p.name for p in source.home.iterdir()] == ["pods"]
    assert import_pod(io.BytesIO(data), source.home, "c").name == "c"
    assert PodFolder(source.home, "c").pointer().name == "c"


async def test_a_name_that_is_taken_in_the_last_moment_is_refused(
    source: PodFolder, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pod.importing as module

    data = packed(source)
    real = module._place  # pyright: ignore[reportPrivateUsage]

    def late(staged: PodFolder, target: PodFolder) -> None:
        target.files.make_folder(target.path)
        (target.path / "lock").touch()
        real(staged, target)

    monkeypatch.setattr(module, "_place", late)
    with pytest.raises(PodExists):
        import_pod(io.BytesIO(data), there)
    assert [p.name for p in (there / "pods" / "a").iterdir()] == ["lock"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.8, 0.97])
async def test_a_file_that_was_cut_short_is_refused(share: float, source: PodFolder, there: Path) -> None:
    data = packed(source).rstrip(b"\0")
    refused(data[: int(len(data) * share)], there, "not a whole export|incomplete|not an export")


async def test_every_altered_byte_is_found_or_does_not_matter(source: PodFolder, tmp_path: Path) -> None:
    data = packed(source)
    want = entries_of(source)
    taken = 0
    step = max(len(data) // 150, 1) | 1
    for n, at in enumerate(range(0, len(data), step)):
        there = tmp_path / f"t{n}"
        flipped = data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :]
        try:
            import_pod(io.BytesIO(flipped), there)
        except (ImportRefused, NewerFormat):
            assert not there.exists()
            continue
        taken += 1
        assert data[at] == 0 or flipped != data
        assert entries_of(PodFolder(there, "a")) == want, at
    assert taken < n, "only bytes between the parts do not matter"


async def test_nothing_but_padding_may_follow_the_archive(source: PodFolder, there: Path) -> None:
    data = packed(source)
    for more in (b"junk", bytes(2_000_000), data):
        refused(data + more, there, "something follows the end of the archive")
    assert import_pod(io.BytesIO(data + bytes(10_240)), there).name == "a"


async def test_a_file_that_is_something_else_is_refused(there: Path, tmp_path: Path) -> None:
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("README"), io.BytesIO())
    for data in (b"", b"hello", b"\0" * 20_000, other.getvalue()):
        refused(data, there, "not a")
    for content in (
        b"[]",
        b"{}",
        b"{",
        b"[" * 100_000,
        b'{"kind": "pod-export", "format": 1}',
        b'{"kind": "pod-export"}',
    ):
        member = tarfile.TarInfo(CONTENTS)
        refused(repacked([(member, content)]), there, "not an export|does not read")
    for path in (tmp_path / "nothing.tar", tmp_path):
        with pytest.raises(ImportRefused, match="can't be read"):
            import_pod(path, there)


EVIL = ("../evil", "/tmp/evil", "blobs/../../evil", "artifacts/..", "a\\..\\evil", "~/evil", "artifacts/x/../../../e")


@pytest.mark.parametrize("name", EVIL)
async def test_a_path_that_escapes_is_refused_in_the_list_and_in_the_archive(
    name: str, source: PodFolder, there: Path, tmp_path: Path
) -> None:
    data = packed(source)
    before = tree(tmp_path)

    def rename(contents: dict[str, Any]) -> None:
        contents["parts"][-1]["name"] = name

    refused(edited(data, rename), there, "leads out of a pod's folder")
    parts = unpacked(data)
    parts[-1][0].name = name
    refused(repacked(parts), there, "leads out of a pod's folder|not an absolute")
    more = tarfile.TarInfo(name)
    refused(repacked([*unpacked(data), (more, b"x")]), there, "is not named by")
    assert tree(tmp_path) == before and not Path("/tmp/evil").exists()


@pytest.mark.parametrize(
    "name", ["lock", "inbox/x.json", "jobs/p1/out", "x.jsonl.tmp", "blobs/abc", ".jsonl", "artifacts/.x", "pod.json/x"]
)
async def test_a_file_that_no_export_has_is_refused(name: str, source: PodFolder, there: Path) -> None:
    def rename(contents: dict[str, Any]) -> None:
        contents["parts"][-1]["name"] = name

    refused(edited(packed(source), rename), there, "is no file of a pod")


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE],
)
async def test_links_folders_and_devices_are_refused(kind: bytes, source: PodFolder, there: Path) -> None:
    parts = unpacked(packed(source))
    member = parts[-1][0]
    member.type, member.linkname = kind, "/etc/passwd"
    refused(repacked(parts), there, "is a link or no plain file|not a whole export")


async def test_parts_that_are_missing_doubled_or_in_another_order_are_refused(source: PodFolder, there: Path) -> None:
    data = packed(source)
    parts = unpacked(data)
    refused(repacked(parts[:-1]), there, "incomplete: artifacts/")
    refused(repacked([*parts, parts[-1]]), there, "is not named by")
    refused(repacked([*parts[:-2], parts[-1], parts[-2]]), there, "is not where")

    def double(contents: dict[str, Any]) -> None:
        contents["parts"].append(contents["parts"][-1])

    refused(edited(data, double), there, "stands in it twice")

    def without(ending: str) -> bytes:
        name, _ = named(data, ending)

        def drop(contents: dict[str, Any]) -> None:
            contents["parts"] = [part for part in contents["parts"] if part["name"] != name]

        return edited(repacked([part for part in parts if part[0].name != name]), drop)

    older = state_of(source).start.lineage.segment
    refused(without("pod.json"), there, r"pod\.json is missing")
    refused(without(f"{older}.jsonl"), there, "incomplete: the oldest segment")
    refused(without(f"{source.pointer().segment}.jsonl"), there, "incomplete|can't be replayed")
    refused(without(state_of(source).start.blobs["system"]), there, "incomplete: blobs/")


async def test_what_the_hashes_do_not_find_the_logs_own_checksums_do(source: PodFolder, there: Path) -> None:
    data = packed(source)
    name, log = named(data, f"{source.pointer().segment}.jsonl")
    refused(forged(data, name, log.replace(b"and now?", b"and then")), there, r"jsonl:\d+ is damaged: the checksum")
    refused(forged(data, name, log[:-40]), there, "is damaged")
    refused(forged(data, name, b""), there, "incomplete|can't be replayed|unreadable|not those")
    lines = log.splitlines(keepends=True)
    refused(forged(data, name, b"".join([*lines[:2], *lines[3:]])), there, "is missing")
    refused(forged(data, name, b"".join(lines[1:])), there, "can't be replayed|not those|incomplete")
    broken = render(len(lines), "reply", b'{"items":3}', now())[1]
    refused(forged(data, name, log + broken), there, "is damaged")
    blob, _ = named(data, state_of(source).start.blobs["system"])
    refused(forged(data, blob, b"be bad"), there, "its hash is not its name")


async def test_a_newer_format_is_refused_wherever_it_stands(source: PodFolder, there: Path) -> None:
    data = packed(source)
    refused(edited(data, lambda contents: contents.update(format=2)), there, "format 2 is newer", NewerFormat)
    pointer = json.loads(named(data, "pod.json")[1])
    newer = json.dumps({**pointer, "format": 9}).encode()
    refused(forged(data, "pod.json", newer), there, r"pod\.json: format 9 is newer", NewerFormat)
    name, log = named(data, f"{source.pointer().segment}.jsonl")
    line = render(1, "extension", b"{}", now())[1].rstrip(b"\n").replace(b'{"v":1', b'{"v":7', 1)
    head = line[: line.rindex(b',"crc"')]
    import zlib

    last = head + b',"crc":"%08x"}\n' % zlib.crc32(head)
    refused(forged(data, name, log + last), there, "jsonl: format 7 is newer", NewerFormat)


async def test_a_pointer_to_another_session_or_segment_is_refused(source: PodFolder, there: Path) -> None:
    data = packed(source)
    pointer = json.loads(named(data, "pod.json")[1])
    for change in ({"segment": "other"}, {"session": "other"}):
        refused(forged(data, "pod.json", json.dumps({**pointer, **change}).encode()), there, "names another")
    refused(forged(data, "pod.json", b"{}"), there, "is not a pod's pointer")

    def other(contents: dict[str, Any]) -> None:
        contents["session"] = "other"

    both = forged(edited(data, other), "pod.json", json.dumps({**pointer, "session": "other"}).encode())
    refused(both, there, "not those of the session|can't be replayed")


async def test_a_disk_that_fails_leaves_nothing(
    source: PodFolder, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pod.log.files import Files

    data = packed(source)
    written = 0
    real = Files.write

    def full(self: Files, fd: int, block: bytes) -> None:
        nonlocal written
        written += 1
        if written == 5:
            raise OSError(28, "No space left on device")
        real(self, fd, block)

    monkeypatch.setattr(Files, "write", full)
    with pytest.raises(OSError, match="No space"):
        import_pod(io.BytesIO(data), there)
    assert not there.exists()


async def test_a_record_of_a_later_version_travels_along(source: PodFolder, there: Path) -> None:
    session = Session.open(source.home, "a", durability="os")
    session.writer.write("of_tomorrow", b'{"x":1}')
    session.put(e.Pin(item="y"))
    session.close()
    import_pod(io.BytesIO(packed(source)), there)
    assert entries_of(PodFolder(there, "a")) == entries_of(source)
