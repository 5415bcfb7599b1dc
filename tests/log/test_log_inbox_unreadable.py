"""What was acknowledged is never lost: a command that can't be read just now waits, one that is none is kept aside."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pod import Manifest, Pod
from pod.log import inbox
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post
from worker.testing import ScriptedModel, say

pytestmark = pytest.mark.anyio


def pod(home: Path, model: ScriptedModel) -> Pod:
    manifest = Manifest.model_validate({"tools": {"enable": []}})
    return Pod.open(manifest, name="p", home=home, cwd=home, model=model)


async def test_a_message_that_cannot_be_read_once_is_taken_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = inbox.read_file
    failures = [OSError(errno.EMFILE, "too many open files")]

    def once(path: Path) -> bytes:
        if path.parent.name == "inbox" and failures:
            raise failures.pop()
        return read(path)

    model = ScriptedModel([say("one"), say("two")])
    async with pod(tmp_path, model) as p:
        post(PodFolder(tmp_path, "p"), Command(kind="send", args={"text": "please keep me"}))
        monkeypatch.setattr(inbox, "read_file", once)
        await p.run("first")
        assert not failures, "the file was looked at"
        await p.run("second")
    texts = [item.text for item in model.requests[-1].items if item.type == "user"]
    assert texts.count("please keep me") == 1


@pytest.mark.parametrize(
    "data",
    [
        b"{", b'{"id":"x","kind":"of-a-newer-version"}', b"[" * 100_000, b"\xff", b'{"id":"x","kind":"approve","args":{"id":"1","scope":"ever"}}',
        b'{"id":"x","kind":"deny","args":{"id":"1","scope":["run"]}}', b'{"id":"x","kind":"approve","args":{"id":["1"]}}',
        b'{"id":"x","kind":"compact","args":{"focus":{"a":1}}}', b'{"id":"x","kind":"send","args":{"text":["a"]}}',
    ],
)  # fmt: skip
async def test_a_file_that_is_no_command_is_kept_aside_and_told(data: bytes, tmp_path: Path) -> None:
    model = ScriptedModel([say("one")])
    async with pod(tmp_path, model) as p:
        folder = PodFolder(tmp_path, "p")
        folder.files.make_folder(folder.inbox)
        (folder.inbox / "odd.json").write_bytes(data)
        warned: list[str] = []
        async with p.start("go") as run:
            async for event in run:
                if event.type == "warning":
                    warned.append(event.code)
        assert run.result.status == "finished"
        assert warned.count("inbox_refused") == 1
        assert (folder.inbox / "odd.json.refused").read_bytes() == data
