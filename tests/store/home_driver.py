"""Lives a pod's life in a shared home in forks that are killed at each step, and opens it elsewhere.

    python home_driver.py URL FOLDER      prints what failed, a line each, then how many steps there are

Everything is imported before; this process itself has no threads, so that it can fork.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import trio
from log.logs import batch, create, reopen, say, started
from store.home_rig import EndingStore, copy_of, machine

from pod.errors import PodNotFound
from pod.log.doctor import examine
from pod.log.folder import PodFolder
from pod.log.inbox import Command, post, waiting
from pod.reading import SessionReader
from pod.removing import remove
from pod.store.postgres import PostgresStore
from worker.items import ContextItem, UserItem

SUMMARY = (ContextItem(kind="summary", text="what was"),)


async def life(home: Path, safe: Callable[[str], None]) -> None:
    """A pod's life in short; `safe` is told each text that was acknowledged as durable."""
    session = create(home)
    safe("begun")
    say(session, "said one")
    await session.sync()
    safe("said one")
    artifacts = session.folder.artifacts
    artifacts.mkdir(exist_ok=True)
    (artifacts / "c1-output.txt").write_text("all of it")
    batch(session, "c1", "see artifact:c1-output.txt")
    await session.sync()
    safe("artifact:c1-output.txt")
    post(session.folder, Command(id="cmd", kind="send", args={"text": "sent two"}))
    safe("sent two")
    for path, command in list(waiting(session.folder)):
        assert command is not None
        say(session, command.args["text"], admit=False, inbox=command.id)
        await session.sync()
        session.folder.files.unlink(path)
    session.folder.cursor_key(make=True)
    kept = tuple(i for i in session.state.history.view if isinstance(i, UserItem))
    await session.switch(started(session, items=(*SUMMARY, *kept)))
    say(session, "said three")
    await session.sync()
    safe("said three")
    session.folder.expire_cursors()
    session.close()


def lived(url: str, home: Path, at: int, when: str, told: Path) -> None:
    def safe(text: str) -> None:
        with told.open("a") as file:
            file.write(f"{text}\n")

    store = EndingStore(PostgresStore(url), at, when)
    with copy_of(store, home):
        trio.run(life, home, safe)
    safe(f"steps {store.count}")


def looked(url: str, home: Path, told: Path) -> object:
    """The pod opens on another copy at once, holds what was acknowledged, and goes on."""
    safe = told.read_text().splitlines() if told.exists() else []
    with machine(url, home):
        folder = PodFolder(home, "a")
        try:
            session = reopen(home)
        except PodNotFound:
            assert "begun" not in safe, "an acknowledged pod is gone"
            create(home).close()
            return remove(home, "a")
        said = b"\n".join(line.body for line in SessionReader(folder).lines()).decode()
        said += "".join(str(command and command.args) for _, command in waiting(folder))
        for text in safe[1:]:
            assert text in said or text.startswith("steps"), f"{text!r} was acknowledged and is gone"
        if "c1-output.txt" in said:
            assert (folder.artifacts / "c1-output.txt").read_text() == "all of it"
        say(session, "said later")
        session.writer.sync_now()
        session.close()
        report = examine(home)
        assert all(note.severity == "note" for pod in report.pods for note in pod.findings), report
    with machine(url, home.with_name("third")):
        lines = list(SessionReader(PodFolder(home.with_name("third"), "a")).lines())
        assert any(b"said later" in line.body for line in lines), lines[-1]
        assert [line.seq for line in lines] == [*range(1, len(lines) + 1)]
        return remove(home.with_name("third"), "a")


def in_child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    gc.freeze()
    at, steps, when = 0, 1, "before"
    while at <= steps:
        for when in ("before", "after") if at == 1 else ("after",):  # after one is before the next
            here = folder / f"{at}-{when}"
            here.mkdir()
            code = in_child(lambda here=here, at=at, when=when: lived(url, here / "first", at, when, here / "told"))
            if at == 0:
                assert code == 0
                steps = int((here / "told").read_text().split()[-1])
            elif code != -9:
                print(f"step {at} {when}: the first process ended with {code}")
            if in_child(lambda here=here: looked(url, here / "second", here / "told")):
                print(f"step {at} {when}: see above")
        at += 1
    print(f"steps {steps}", flush=True)


if __name__ == "__main__":
    main()
