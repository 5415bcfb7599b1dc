"""What is remembered of pods is what a reading from the first entry on would say, and it costs what is new."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from log.logs import batch, reply, say, started
from service.service_rig import Rig

from interceptors.approvals import ApprovalAnswered, ApprovalAsked
from pod import Pod, views
from pod.errors import PodError
from pod.log import entries as e
from pod.log import inbox
from pod.log.folder import PodFolder
from pod.operations import clear, rewind
from pod.outlook import outlook
from pod.peek import glance
from pod.service import readings as module
from pod.service.readings import Kept, Readings
from pod.session import Session, load
from worker.ids import uuid7
from worker.items import ContextItem, UserItem
from worker.testing import ScriptedModel
from worker.testing import say as says

MANIFEST = 'version = 1\n[model]\nname = "offline:surveyor"\n[tools]\nenable = []\n'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a pod that has had one run."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "m.toml").write_text(MANIFEST)

    async def main() -> None:
        model = ScriptedModel([says("Hello.")], name="offline:agent")
        async with Pod.open(folder / "m.toml", name="a", home=folder / "home", cwd=folder, model=model) as pod:
            await pod.run("hi")

    anyio.run(main)
    return folder / "home"


OPERATIONS = (
    "say", "queue", "batch", "run", "ask", "answer", "end", "segment", "breaker", "compact", "write", "torn", "mend", "clear", "rewind",
    "post", "blob", "cold", "broken", "open", "nothing",
)  # fmt: skip


class World:
    """A pod to which something is done, and a clock."""

    def __init__(self, home: Path) -> None:
        self.home, self.now = home, time.time()
        self.folder = PodFolder(home, "a")
        self.asked: list[str] = []
        self.held: Session | None = None
        self.torn = b""

    def do(self, operation: str, number: int) -> None:
        """One thing. What the runtime refuses is refused."""
        try:
            if operation in {"write", "torn", "mend", "broken"}:
                self._bytes(operation)
            elif operation in {"clear", "rewind"}:
                self._close()
                change = clear(self.home, "a") if operation == "clear" else rewind(self.home, "a", max(number, 1))
                anyio.run(_awaited, change)
            elif operation == "open":
                self._close() if self.held is not None else self._session()
            elif operation == "post":
                inbox.post_message(
                    self.folder, inbox.Command(id=uuid7(), kind="send", args={"text": f"message {number}"})
                )
            elif operation == "blob":
                blobs = sorted((self.folder.path / "blobs").iterdir())
                if number % 4 == 0 and blobs:
                    blobs[number % len(blobs)].unlink()
            elif operation == "cold":
                self.now += 400.0
            elif operation != "nothing":
                self._record(operation, number)
        except PodError:
            self._close()

    def _session(self) -> Session:
        self.held = self.held or Session.open(self.home, "a")
        return self.held

    def _close(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.close()

    def _record(self, operation: str, number: int) -> None:
        session = self._session()
        match operation:
            case "say":
                say(session, f"words {number}")
                reply(session, f"answer {number}")
            case "queue":
                say(session, f"later {number}", admit=False)
            case "batch":
                batch(session, uuid7(), "x" * (number * 97 % 5_000))
            case "run":
                session.put(e.RunStarted(run=uuid7()))
            case "ask":
                self.asked.append(uuid7())
                session.put(
                    ApprovalAsked(
                        id=self.asked[-1], call_id="c", tool="t", arguments_sha256="0" * 64, summary=f"{number}"
                    )
                )
            case "answer" if self.asked:
                session.put(ApprovalAnswered(id=self.asked.pop(), approved=bool(number % 2), by="ann"))
            case "end" if session.state.run is not None:
                session.put(e.RunEndedEntry(run=session.state.run, status="finished", result={"text": f"{number}"}))
            case "segment":
                items = (ContextItem(kind="summary", text=f"so far {number}", source="a test"),)
                anyio.run(_awaited, session.switch(started(session, items=items)))
            case "breaker":
                session.put(e.Breaker(failures=number, open_until=self.now + number * 10))
            case "compact":
                label = uuid7()
                session.put(e.CompactionStarted(compaction=label, trigger="hand", tokens=1, items=1))
                if number % 2:
                    session.put(e.CompactionFailed(compaction=label, reason="a test", mandatory=False))
            case _:
                pass

    def _bytes(self, operation: str) -> None:
        """What a writer leaves that is in the middle of an entry, or died there, and what a broken disk does."""
        path = self.folder.segment_path(self.folder.pointer().segment)
        if self.held is not None:
            return
        if operation == "torn" and not self.torn:
            line = path.read_bytes().splitlines(keepends=True)[-1]
            self.torn = line[len(line) // 2 :]
            with path.open("ab") as file:
                file.write(line[: len(line) // 2])
        elif operation == "write" and self.torn:
            with path.open("ab") as file:
                file.write(self.torn)
            self.torn = b""
        elif operation == "mend":
            self._session()
            self._close()
            self.torn = b""
        elif operation == "broken":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


async def _awaited(what: Any) -> None:
    await what


def said(reading: Callable[[], Any]) -> Any:
    """What a reading says, or how it fails."""
    try:
        return json.loads(json.dumps(reading(), default=str))
    except PodError as error:
        return type(error).__name__, str(error)


def agree(readings: Readings, world: World) -> None:
    folder, now = world.folder, world.now
    fresh = PodFolder(world.home, "a")
    assert said(lambda: views.row_of(readings.glance(folder))) == said(lambda: views.row_of(glance(fresh)))
    assert said(lambda: readings.facts(folder)) == said(lambda: views.whole_of(fresh, glance(fresh)))
    assert said(lambda: readings.context(folder)) == said(lambda: views.context_of(outlook(fresh), now))

    def kept() -> Any:
        with readings.state(folder) as state:
            return repr(state)

    assert said(kept) == said(lambda: repr(load(fresh.segment_path(fresh.pointer().segment))))


@settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=[Phase.generate, Phase.shrink],
)  # fmt: skip
@given(story=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 60)), min_size=3, max_size=14))
def test_a_remembered_reading_says_what_a_fresh_one_says(
    made: Path, tmp_path: Path, story: list[tuple[str, int]]
) -> None:
    home = tmp_path / uuid7()
    shutil.copytree(made, home)
    world = World(home)
    readings = Readings(clock=lambda: world.now)
    try:
        agree(readings, world)
        for operation, number in story:
            world.do(operation, number)
            agree(readings, world)
            agree(readings, world)
    finally:
        world._close()
        shutil.rmtree(home)


def filled(made: Path, tmp_path: Path, size: int) -> PodFolder:
    """A pod with a log of so many bytes."""
    shutil.copytree(made, tmp_path / "home")
    session = Session.open(tmp_path / "home", "a", durability="os")
    while session.writer.end < size:
        batch(session, uuid7(), "some words of a file that was read\n" * 100)
    session.close()
    return PodFolder(tmp_path / "home", "a")


@pytest.mark.parametrize("kind", ["facts", "context"])
def test_a_megabyte_that_is_asked_for_a_hundred_times_is_read_once(made: Path, tmp_path: Path, kind: str) -> None:
    """In time too: a hundred readings take less than ten fresh ones, though a machine under load takes its time for either."""
    folder = filled(made, tmp_path, 1 << 20)
    readings = Readings()
    ask: Any = getattr(readings, kind)

    def fresh() -> Any:
        return views.whole_of(folder, glance(folder)) if kind == "facts" else views.context_of(outlook(folder))

    def took(what: Callable[[], Any], times: int) -> float:
        began = time.thread_time()
        for _ in range(times):
            what()
        return time.thread_time() - began

    ask(folder)
    assert took(lambda: ask(folder), 100) < 10 * took(fresh, 1)


def test_of_a_log_that_grows_only_what_is_new_is_folded(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(made, tmp_path, 200_000)
    readings = Readings()
    with readings.state(folder):
        pass
    folded: list[str] = []
    real = module.folded

    def counted(state: Any, line: Any, *more: Any) -> Any:
        folded.append(line.kind)
        return real(state, line, *more)

    monkeypatch.setattr(module, "folded", counted)
    session = Session.open(tmp_path / "home", "a")
    say(session, "more")
    session.close()
    with readings.state(folder) as state:
        last = state.history.view[-1]
        assert folded == ["lease", "input", "admitted"] and isinstance(last, UserItem) and last.text == "more"


def test_what_is_kept_has_a_bound_and_the_oldest_goes_first() -> None:
    kept = Kept[str](10)
    for key in "abc":
        kept.put(key, key, 4)
    assert kept.get("a") is None and kept.get("b") == "b" and kept.size == 8
    kept.put("d", "d", 4)  # `b` was asked for since
    assert kept.get("c") is None and kept.get("b") == "b"
    kept.put("b", "large", 11)
    assert kept.get("b") is None and kept.size == 4
    kept.drop("d")
    assert kept.size == 0


def test_many_threads_that_read_one_pod_get_what_is_there(made: Path, tmp_path: Path) -> None:
    folder = filled(made, tmp_path, 50_000)
    readings = Readings()
    session = Session.open(tmp_path / "home", "a", durability="os")
    wrong: list[Any] = []
    over = threading.Event()

    def read() -> None:
        newest = 0
        while not over.is_set():
            facts = readings.facts(folder)
            if facts["items"] < newest:
                wrong.append((newest, facts["items"]))
            newest = facts["items"]

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(60):
        say(session, f"words {number}")
    over.set()
    for thread in threads:
        thread.join()
    session.close()
    assert not wrong and readings.facts(folder) == views.whole_of(folder, glance(folder))


@pytest.mark.anyio
async def test_a_pod_that_is_polled_while_it_runs_says_how_it_stands(rig: Rig) -> None:
    async with rig.up() as up:
        await up.make(task=None)
        for number in range(3):
            assert (await up.get("/v1/pods/p")).json()["inbox"] == 0
            await up.post("/v1/pods/p/messages", {"text": f"{number}"})
            await up.until("p", "finished")
            with anyio.fail_after(20):
                while (
                    len((await up.get("/v1/pods/p/context")).json())
                    and (await up.get("/v1/pods")).json()["pods"][0]["requests"] <= number
                ):
                    await anyio.sleep(0.02)
