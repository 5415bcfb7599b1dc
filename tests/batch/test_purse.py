"""A purse: together, pods never pass its limit, however their requests fall."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interceptors.purse import Aside, Booked, Purse
from pod.batch.batch import Batch, Settings
from pod.batch.record import BatchFolder
from pod.batch.setting_aside import AsideRecord
from pod.batch.tasks import Task
from pod.batch.workspaces import Workspaces
from pod.errors import PodError, StoreError, UsageProblem
from pod.log.files import Files
from pod.manifest import load_manifest
from pod.store.documents import FolderDocuments
from tests.pod.pod_rig import Agent, capabilities
from worker.items import AssistantItem
from worker.models.base import Price, Usage
from worker.results import Failed, LimitReached
from worker.testing import FunctionModel, call, make_reply, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio


async def spend(purse: Purse, chance: random.Random, requests: int, ended: list[Any]) -> None:
    """One pod: each request costs at most what was set aside for it."""
    spent = 0.0
    share = purse.join("p", lambda: Booked(spent))
    for _ in range(requests):
        ahead = chance.uniform(0, 1)
        outcome = await share.take(ahead)
        if outcome is not None:
            ended.append(outcome)
            break
        assert purse.spent_usd + purse.aside_usd(share) + ahead <= purse.limit_usd + 1e-9
        for _ in range(chance.randrange(3)):
            await anyio.lowlevel.checkpoint()
        spent += chance.choice([ahead, ahead * chance.random(), 0.0])
        share.settled()
        assert purse.spent_usd <= purse.limit_usd + 1e-9
    share.leave()


@given(st.integers(0, 10_000), st.floats(0.1, 10), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_together_pods_never_pass_the_limit_and_none_waits_for_ever(seed: int, limit: float, pods: int) -> None:
    async def main() -> None:
        purse, chance, ended = Purse(limit), random.Random(seed), list[Any]()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for _ in range(pods):
                    group.start_soon(spend, purse, random.Random(chance.random()), 6, ended)
        assert purse.spent_usd <= limit + 1e-9
        assert all(isinstance(outcome, LimitReached) for outcome in ended)

    anyio.run(main, backend="trio" if seed % 2 else "asyncio")


async def test_a_request_waits_for_what_others_have_set_aside_and_no_longer() -> None:
    purse, spent = Purse(1.0), {"a": 0.0, "b": 0.0}
    first, second = purse.join("a", lambda: Booked(spent["a"])), purse.join("b", lambda: Booked(spent["b"]))
    assert await first.take(0.8) is None
    got: list[Any] = []

    async def second_takes() -> None:
        got.append(await second.take(0.5))

    async with anyio.create_task_group() as group:
        group.start_soon(second_takes)
        await anyio.wait_all_tasks_blocked()
        assert not got, "0.8 of 1.0 is set aside"
        spent["a"] = 0.3
        first.settled()
    assert got == [None]
    ended = await first.take(0.75)
    assert isinstance(ended, LimitReached) and ended.figures["used"] == 0.3, (
        "what is set aside may come free, what is spent does not"
    )


async def test_a_cancelled_wait_sets_nothing_aside() -> None:
    purse = Purse(1.0)
    first, second = purse.join("a", Booked), purse.join("b", Booked)
    assert await first.take(0.9) is None
    with anyio.move_on_after(0) as scope:
        await second.take(0.5)
    assert scope.cancelled_caught and second.aside_usd == 0.0
    first.release()
    assert await second.take(1.0) is None


async def test_a_cost_that_cannot_be_bounded_is_not_spent() -> None:
    purse = Purse(1.0)
    ended = await purse.join("a", Booked).take(None)
    assert isinstance(ended, Failed) and ended.kind == "unknown_price"
    assert isinstance(await purse.join("b", lambda: Booked(0.0, 1)).take(0.1), Failed)


async def test_what_a_pod_has_cost_before_counts_once() -> None:
    purse = Purse(1.0, known={"a": 0.4, "gone": 0.3})
    assert purse.spent_usd == pytest.approx(0.7)
    share = purse.join("a", lambda: Booked(0.5))
    assert purse.spent_usd == pytest.approx(0.8)
    share.leave()
    again = purse.join("a", lambda: Booked(0.5))
    assert purse.spent_usd == pytest.approx(0.8)
    again.leave()


PRICE = Price(input=10.0, output=50.0, cache_read=1.0, cache_write=12.5, source="test")
MANIFEST = """
version = 1
[worker]
system_prompt = "Work."
instructions = []
[model]
name = "offline:surveyor"
[tools]
enable = []
[prune]
enabled = false
[log]
durability = "os"
"""


class Quiet:
    """Nobody watches."""

    event = None

    def began(self, task: Any, hosted: Any) -> None: ...

    def ended(self, task: Any, row: Any) -> None: ...


def made(tmp_path: Path, cap: float | None, agents: Any) -> Settings:
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "m.toml").write_text(MANIFEST)
    tasks = [Task(n, str(n), f"task {n}", f"t:{n}") for n in range(30)]
    work, home = tmp_path / "work", tmp_path / "home"
    return Settings(
        manifest=load_manifest(tmp_path / "m.toml", cwd=work), tasks=tasks, chosen=range(30), folder=BatchFolder(home, "b"),
        workspaces=Workspaces("none", work, tmp_path / "w", "b"), source=tmp_path / "t.jsonl", out=tmp_path / "r.jsonl", concurrency=8,
        max_cost_usd=cap, options=agents,
    )  # fmt: skip


async def test_a_batch_stops_at_its_cap_and_a_higher_one_goes_on_to_the_end(tmp_path: Path) -> None:
    """Each task costs about 0.05 dollars in three requests; the cap holds over both runs, with eight pods at once."""

    @tool(effect="read")
    async def look(n: int) -> str:
        """Looks."""
        await anyio.lowlevel.checkpoint()
        return "x"

    def play(request: Any, number: int) -> Any:
        done = sum(item.type == "tool_result" for item in request.items)
        usage = Usage(input_tokens=900, output_tokens=150)
        return reply(call("look", n=done) if done < 2 else say("done"), usage=usage)

    agent = Agent(play, capabilities=capabilities(price=PRICE))
    settings = made(tmp_path, 0.4, {"model": agent, "tools": [look]})
    first = Batch.prepare(settings, Quiet())
    summary = await first.run()
    assert first.purse is not None
    spent = first.purse.spent_usd
    assert 0.2 < spent <= 0.4 and summary.spent and summary.exit_code == 4
    assert (
        summary.by_status.get("finished", 0) + summary.by_status.get("limit", 0) + summary.left == 30 and summary.left
    )
    second = Batch.prepare(made(tmp_path, 40.0, settings.options), Quiet())
    assert second.purse is not None and second.purse.spent_usd == pytest.approx(spent)
    summary = await second.run()
    assert summary.by_status == {"finished": 30} and summary.exit_code == 0
    assert summary.cost_usd == pytest.approx(second.purse.spent_usd) and second.purse.spent_usd > spent
    assert agent.served == 90, "no request was made twice"


async def test_requests_that_kills_cut_off_count_against_the_cap(tmp_path: Path) -> None:
    """What lies on the disk while requests are under way is what a kill leaves: the next process begins with a copy of it."""
    cost, cap, sent = 100 * 10e-6 + 150 * 50e-6, 0.5, 0

    async def answer(request: Any) -> Any:
        nonlocal sent
        if (tmp_path / "left").exists():
            await anyio.sleep_forever()  # the process is dead
        sent += 1
        if dying and sent == dies_at:
            shutil.copytree(tmp_path / "home", tmp_path / "left", copy_function=copied)
            killed.cancel()
        await anyio.sleep(0.01)
        return make_reply(AssistantItem(text="done"), usage=Usage(input_tokens=100, output_tokens=150))

    def copied(source: str, target: str) -> None:
        with suppress(FileNotFoundError):  # one under way, which has its name by now
            shutil.copy2(source, target)

    model = FunctionModel("offline:priced", answer, capabilities=capabilities(price=PRICE, output=250))
    spent = summary = None
    for dying in (True, True, True, False):
        (tmp_path / "r.jsonl").unlink(missing_ok=True)
        dies_at = sent + 6
        batch = Batch.prepare(made(tmp_path, cap, {"model": model}), Quiet())
        assert batch.purse is not None and batch.purse.spent_usd >= sent * cost - 1e-9
        with anyio.CancelScope() as killed:
            summary = await batch.run()
        spent = batch.purse.spent_usd
        if dying:
            shutil.rmtree(tmp_path / "home")
            (tmp_path / "left").rename(tmp_path / "home")
    assert spent is not None and sent * cost <= spent <= cap
    assert summary is not None and summary.cost_usd is not None and summary.cost_usd < spent
    told = FolderDocuments(tmp_path / "home").read("aside", ["b"])["b"]
    assert b'"aside": {}' in told, "nothing is under way any more"


async def test_nothing_is_sent_whose_cost_cannot_be_put_on_record(tmp_path: Path) -> None:
    purse = Purse(1.0, keep=AsideRecord(FolderDocuments(tmp_path / "file"), "b").keep)
    (tmp_path / "file").write_text("in the way")
    share = purse.join("a", Booked)
    with pytest.raises(PodError, match=r"aside\.json"):
        await share.take(0.9)
    assert share.aside_usd == 0.0 and await Purse(1.0).join("b", Booked).take(0.9) is None


async def test_requests_that_begin_together_are_put_on_record_together(tmp_path: Path) -> None:
    writes: list[str] = []

    class Counted(FolderDocuments):
        def write(self, kind: Any, documents: Mapping[str, bytes]) -> None:
            writes.append(kind)
            super().write(kind, documents)

    record = AsideRecord(Counted(tmp_path), "b")
    purse = Purse(100.0, keep=record.keep)
    async with anyio.create_task_group() as group:
        for n in range(50):
            group.start_soon(purse.join(f"b/{n}", Booked).take, 0.5)
    assert len(writes) <= 3 and purse.aside() == {f"b/{n}": Aside(0.5, 0.0) for n in range(50)}
    again = AsideRecord(FolderDocuments(tmp_path), "b")
    again.take_up({"b/0": 0.2, "b/1": 0.0})
    assert again.lost_usd == pytest.approx(49 * 0.5), "what was booked is not lost"
    once_more = AsideRecord(FolderDocuments(tmp_path), "b")
    once_more.take_up({})
    assert once_more.lost_usd == pytest.approx(49 * 0.5), "and nothing is lost twice"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1, "lost": {"b/0": -1}, "aside": {}}', '{"format": 2}'])
def test_a_record_that_was_altered_is_refused(tmp_path: Path, text: str) -> None:
    FolderDocuments(tmp_path).write("aside", {"b": text.encode()})
    with pytest.raises(UsageProblem, match=r"aside\.json"):
        AsideRecord(FolderDocuments(tmp_path), "b").take_up({})


async def test_a_full_disk_ends_the_batch_and_fails_no_task(tmp_path: Path) -> None:
    class Full(Files):
        def write(self, fd: int, data: bytes) -> None:
            if full and data.count(b"\n") and b"did" in data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(fd, data)

    agent = Agent(lambda request, number: say("did it"), capabilities=capabilities(price=PRICE))
    full = True
    settings = made(tmp_path, None, {"model": agent, "files": Full()})
    with pytest.raises(StoreError, match="No space left on device"):
        await Batch.prepare(settings, Quiet()).run()
    assert not (tmp_path / "r.jsonl").read_bytes(), "none of them failed"
    full = False
    summary = await Batch.prepare(made(tmp_path, None, settings.options), Quiet()).run()
    assert summary.by_status == {"finished": 30}
