"""A pod that was killed, cancelled or failed goes on where it stood (cases B074 to B079, B063, B087)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod import Pod, StoreError, UsageProblem
from pod.log import entries as e
from pod.log.inbox import Command, post
from pod.session import load
from pod.testing import FailingFiles
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    filler,
    manifest,
    results,
    summariser,
    texts,
    until,
    users,
    words,
)  # fmt: skip
from worker.builtin.process_table import look_at
from worker.items import ToolResultItem
from worker.records import Input, ReplyRecord, ToolResult, ToolsChanged, ToolStarted, Withdrawn
from worker.testing import call, calls, hang, reply, say
from worker.tools import tool

pytestmark = pytest.mark.anyio

PRELUDE = """
import os, sys
from pathlib import Path
import anyio
from tests.pod.pod_rig import *
from worker.testing import call, calls, say
home, cwd, backend = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rig = Rig.__new__(Rig)
rig.home, rig.cwd = home, cwd
"""


def interrupted(rig: Rig) -> list[ToolResultItem]:
    return [r.item for r in rig.of(ToolResult) if r.item.status == "interrupted"]


DIES_IN_THE_SECOND = (
    PRELUDE
    + """
@tool(effect="write")
async def act(n: int) -> str:
    "Acts."
    if n == 2:
        os._exit(9)
    return f"acted {n}"

async def main():
    agent = Agent(lambda r, n: calls([call("act", n=1), call("act", n=2)]))
    async with rig.open(agent, tools=[act]) as pod:
        await pod.run("act twice")

anyio.run(main, backend=backend)
"""
)


@tool(effect="write", name="act")
async def acting(n: int) -> str:
    """Acts."""
    return f"acted {n}"


async def test_b074_a_call_without_a_result_gets_one_once_also_after_two_resumes(
    rig: Rig, anyio_backend_name: str
) -> None:
    """B074: killed between call and result; the first resume records the interruption, the second adds nothing."""
    rig.run_in_process(DIES_IN_THE_SECOND, anyio_backend_name, check=9)
    async with rig.open(Agent(lambda r, n: hang()), tools=[acting]) as pod:
        with anyio.move_on_after(5) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pod.resume)
                await until(lambda: pod.running.worker.history.counters.requests or interrupted(rig))
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
    agent = Agent(lambda r, n: say("done"))
    async with rig.open(agent, tools=[acting]) as pod:
        assert (await pod.resume()).status == "finished"
        assert not pod.state.history.unresolved
    (item,) = interrupted(rig)
    assert "outcome unknown" in item.summary and item.name == "act"
    assert [r.status for r in results(agent.requests[-1])] == ["ok", "interrupted"]
    assert users(agent.requests[-1]) == ["act twice"]


async def test_b075_a_run_cancelled_during_its_first_tool_takes_a_new_prompt(rig: Rig) -> None:
    """B075: the call gets an interrupted result at the next run, and nothing else is in the way."""
    entered = anyio.Event()

    @tool(effect="write")
    async def act(n: int) -> str:
        """Acts."""
        entered.set()
        await anyio.sleep_forever()
        return "never"

    agent = Agent(lambda r, n: call("act", n=1) if n == 1 else say("done"))
    async with rig.open(agent, tools=[act]) as pod:
        async with pod.start("begin") as run:
            await entered.wait()
            result = await run.interrupt()
        assert result.status == "cancelled" and result.resumable and not result.withdrawn
        assert (await pod.run("next")).text == "done"
    (item,) = interrupted(rig)
    assert "outcome unknown" in item.summary
    assert [type(i).__name__ for i in agent.requests[-1].items] == [
        "UserItem",
        "ToolCallItem",
        "ToolResultItem",
        "UserItem",
    ]


async def test_b076_a_reopened_pod_sends_byte_identical_messages(rig: Rig) -> None:
    """B076: after a compaction and a prune the request built in-process and the one after a restart are equal."""
    made = manifest(
        prune={"enabled": True, "min_savings": 2_000, "protected_tokens": 1_500}, compaction=compacting(9_000)
    )
    one = Agent(caller(12))
    async with rig.open(one, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
        assert await pod.compact()
        one.play = lambda r, n: call("fetch", n=n) if n <= 20 else say("done")
        (await pod.run("go on")).raise_for_status()
        assert pod.state.history.edits
        assert pod.state.totals.prunes and len(rig.segments()) >= 2
        again = pod.running.worker.sender
        live = again._request(again.model)
    two = Agent(lambda r, n: say("ok"))
    async with rig.open(two, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        sender = pod.running.worker.sender
        loaded = sender._request(sender.model)
        assert loaded.messages == live.messages and loaded.system == live.system and loaded.tools == live.tools
        assert loaded.cache_key == live.cache_key
        await pod.run("one more")
    assert two.requests[0].messages.startswith(live.messages[:-1]), "the prefix cache stays warm"
    shown = texts(two.requests[0])
    assert "page 1 line" not in shown, "nothing from before the boundary but the tail"


async def test_b077_a_resume_reads_the_active_segment_alone(rig: Rig) -> None:
    """B077: many generations: what lies in old segments is neither counted nor even read."""
    made = manifest(compaction=compacting(5_000, retained_tokens=1_400))
    async with rig.open(Agent(caller(40)), made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        (await pod.run("go")).raise_for_status()
    paths = rig.segments()
    assert len(paths) >= 12
    for path in paths[:-1]:
        path.write_bytes(b"no entry at all\n" * 1_000)
    agent = Agent(lambda r, n: say("still here"))
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        assert (await pod.run("and now?")).text == "still here"
        assert pod.state.totals.segments == len(paths)
    assert "go" in words(agent.requests[0])


DIES_WHILE_COMPACTING = (
    PRELUDE
    + """
from pod.log.files import Files
point = sys.argv[4]

class Dying(Files):
    def rename(self, source, target):
        segment = target.suffix == ".jsonl" and armed
        if segment and point == "before the segment's file":
            os._exit(9)
        if target.name == "pod.json" and armed and point == "before the pointer":
            os._exit(9)
        super().rename(source, target)
        if target.name == "pod.json" and armed and point == "after the pointer":
            os._exit(9)

armed = False

def seen(event):
    global armed
    if event.type == "compaction.started":
        armed = True
        if point == "after the start":
            os._exit(9)

class Worker(Agent):
    async def send(self, request, emit):
        if point == "in the worker" and self.served:
            os._exit(9)
        return await super().send(request, emit)

async def main():
    worker = Worker(summariser().play, name="offline:s")
    made = manifest(compaction=compacting(9_000))
    async with rig.open(Agent(caller(14)), made, tools=[Counted(1_200).tool], compact_model=worker, files=Dying(), observers=[seen]) as pod:
        await pod.run("go")

anyio.run(main, backend=backend)
"""
)


@pytest.mark.parametrize(
    "point",
    ["after the start", "in the worker", "before the segment's file", "before the pointer", "after the pointer"],
)
async def test_b078_killed_while_compacting_leaves_the_old_or_the_new_segment_and_a_mark(
    rig: Rig, point: str, anyio_backend_name: str
) -> None:
    """B078: never half of it; the attempt is marked interrupted once, what it had cost is booked once, and a new one can run."""
    rig.run_in_process(DIES_WHILE_COMPACTING, anyio_backend_name, point, check=9)
    replies = [r for log in rig.worker_logs() for r in rig.worker_records(log) if isinstance(r, ReplyRecord)]
    assert len(replies) == {"after the start": 0, "in the worker": 1}.get(point, 2)
    new = point == "after the pointer"
    assert len(rig.segments()) == (2 if new else 1)
    load(rig.segments()[-1])
    agent = Agent(lambda r, n: call("fetch", n=100 + n) if n <= 6 else say("done"))
    made = manifest(compaction=compacting(9_000))
    for _ in range(2):
        async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
            assert pod.state.compaction is None
            booked = pod.state.totals.by.get("compaction:offline:s", {})
            assert booked.get("requests", 0) == len(replies)
            assert booked.get("prompt_tokens", 0) == sum(reply.usage.input_tokens or 0 for reply in replies)
            assert pod.state.history.counters.worker_requests == len(replies)
    assert len(rig.of(e.CompactionInterrupted)) == (0 if new else 1)
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=summariser()) as pod:
        result = (await pod.resume()).raise_for_status()
    assert result.text == "done" and len(rig.segments()) >= 2
    assert len(rig.of(e.RunStarted)) == 1 and all(words(r).count("go") == 1 for r in agent.requests)
    assert len(rig.of(e.CompactionCompleted)) == len(rig.segments()) - 1


async def test_b079_a_write_whose_sync_failed_is_neither_doubled_nor_its_tool_repeated(rig: Rig) -> None:
    """B079: the bytes are there, but nobody was told: the run stops, and the resume finds each record once."""
    made = manifest(log={"durability": "fsync"})
    fetch = Counted(10, effect="write")
    reached: set[str] = set()
    for at in range(2, 30):
        name, files = f"p{at}", FailingFiles(at, "sync", done=True)
        agent = Agent(caller(2))
        before = len(fetch.calls)
        try:
            async with rig.open(agent, made, name, tools=[fetch.tool], files=files) as pod:
                result = await pod.run("go")
                assert result.status == "finished"
                if files.count < at:
                    break
        except (StoreError, OSError) as error:
            reached.add(type(error).__name__)
        files.healed = True
        if not rig.folder(name).exists():
            continue
        ran = len(fetch.calls) - before
        agent = Agent(lambda r, n: call("fetch", n=9) if not results(r) else say("done"))
        async with rig.open(agent, made, name, tools=[fetch.tool]) as pod:
            if pod.state.unanswered:
                (await pod.resume()).raise_for_status()
        ids = [r.item.id for r in rig.of(Input, name)] + [r.call_id for r in rig.of(ToolStarted, name)]
        assert len(ids) == len(set(ids))
        results_ = [r.item.call_id for r in rig.of(ToolResult, name)]
        assert len(results_) == len(set(results_)) and ran <= 2
    assert "StoreError" in reached and at > 6


async def test_b071_a_tool_is_not_run_where_its_start_could_not_be_written(rig: Rig) -> None:
    """A full disk before a call: the call is not executed, the run stops with the store's error, resumable later."""
    fetch = Counted(10, effect="write")
    stopped = 0
    for at in range(1, 40):
        name, files = f"p{at}", FailingFiles(at, "write")
        before = len(fetch.calls)
        try:
            async with rig.open(Agent(caller(1)), name=name, tools=[fetch.tool], files=files) as pod:
                await pod.run("go")
            if files.count < at:
                break
        except (StoreError, OSError):
            stopped += 1
        if not rig.folder(name).exists():
            continue
        started = [r.call_id for r in rig.of(ToolStarted, name)]
        assert len(fetch.calls) - before <= len(started)
        async with rig.open(Agent(caller(1)), name=name, tools=[fetch.tool]) as pod:
            if pod.state.unanswered:
                (await pod.resume()).raise_for_status()
    assert stopped > 5


async def test_b063_finished_calls_are_not_repeated_after_a_kill_and_starts_are_durable(
    rig: Rig, anyio_backend_name: str
) -> None:
    """B063: c1 and c2 finished, c3 running; their starts stand in the log before each ran."""
    ledger = rig.cwd / "ledger"
    program = (
        PRELUDE
        + f"""
@tool(effect="write")
async def act(n: int) -> str:
    "Acts."
    text = "".join(p.read_text() for p in (home / "pods" / "p").glob("*.jsonl"))
    with open({str(ledger)!r}, "a") as f:
        f.write(f"{{n}} {{text.count('tool_started')}}\\n")
    if n == 3:
        os.kill(os.getpid(), 9)
    return f"acted {{n}}"

async def main():
    agent = Agent(lambda r, n: call("act", n=n))
    async with rig.open(agent, tools=[act]) as pod:
        await pod.run("act")

anyio.run(main, backend=backend)
"""
    )
    rig.run_in_process(program, anyio_backend_name, check=-9)
    assert ledger.read_text() == "1 1\n2 2\n3 3\n"
    agent = Agent(lambda r, n: say("done"))
    async with rig.open(agent, tools=[acting]) as pod:
        (await pod.resume()).raise_for_status()
    assert [r.status for r in results(agent.requests[0])] == ["ok", "ok", "interrupted"]
    assert ledger.read_text().count("\n") == 3


async def test_an_idempotent_call_is_run_again_and_others_are_not(rig: Rig, anyio_backend_name: str) -> None:
    """A started call whose tool is declared idempotent is run again after a kill; permission is asked anew."""
    program = DIES_IN_THE_SECOND.replace('@tool(effect="write")', '@tool(effect="read", idempotent=True)').replace(
        'calls([call("act", n=1), call("act", n=2)])', 'call("act", n=2)'
    )
    rig.run_in_process(program, anyio_backend_name, check=9)
    ran: list[int] = []

    @tool(effect="read", idempotent=True)
    async def act(n: int) -> str:
        """Acts."""
        ran.append(n)
        return "acted"

    agent = Agent(lambda r, n: say("done"))
    async with rig.open(agent, tools=[act]) as pod:
        (await pod.resume()).raise_for_status()
    assert ran == [2] and [r.status for r in results(agent.requests[0])] == ["ok"]


async def test_a_pod_has_one_writer_and_the_second_is_told_who(rig: Rig) -> None:
    """B069 at the pod: busy with the owner; the log is unchanged, and another pod is not affected."""
    from pod import PodBusy

    async with rig.open(Agent(lambda r, n: say("ok"))) as pod:
        await pod.run("hello")
        before = rig.segments()[0].read_bytes()
        with pytest.raises(PodBusy, match=f"process {os.getpid()}"):
            async with rig.open(Agent(lambda r, n: say("ok"))):
                pass
        assert rig.segments()[0].read_bytes() == before
        async with rig.open(Agent(lambda r, n: say("ok")), name="other") as other:
            assert (await other.run("hi")).text == "ok"


async def test_an_open_run_goes_on_without_input_and_keeps_its_counters(rig: Rig, anyio_backend_name: str) -> None:
    """B160: killed in the middle; figures of the run are sums over both processes, its start is the first's."""
    program = (
        PRELUDE
        + """
from worker.models.base import Usage
from worker.testing import reply
async def main():
    def play(r, n):
        if n == 4:
            os._exit(9)
        return reply(call("fetch", n=n), usage=Usage(input_tokens=1000 * n, output_tokens=10))
    async with rig.open(Agent(play), tools=[Counted(50).tool]) as pod:
        await pod.run("go")
anyio.run(main, backend=backend)
"""
    )
    rig.run_in_process(program, anyio_backend_name, check=9)
    from worker.models.base import Usage

    agent = Agent(lambda r, n: reply(say("done"), usage=Usage(input_tokens=7_000, output_tokens=10)))
    async with rig.open(agent, tools=[Counted(50).tool]) as pod:
        result = (await pod.resume()).raise_for_status()
    assert result.requests == 4 and result.tool_calls == 3
    assert result.input_tokens == 1_000 + 2_000 + 3_000 + 7_000 and result.output_tokens == 40
    assert len(rig.of(e.RunStarted)) == 1 and rig.of(Input)[0].item.text == "go"


async def test_a_finished_pod_has_nothing_to_resume_and_says_so(rig: Rig) -> None:
    async with rig.open(Agent(lambda r, n: say("ok"))) as pod:
        await pod.run("hello")
        before = {path: path.read_bytes() for path in rig.folder().path.rglob("*") if path.is_file()}
        for refused in (pod.resume, lambda: pod.run("  "), lambda: pod.send(""), lambda: pod.approve("none")):
            with pytest.raises(UsageProblem):
                await refused()
        with pytest.raises(UsageProblem, match="nothing to go on with"):
            await pod.resume()
        assert before == {path: path.read_bytes() for path in rig.folder().path.rglob("*") if path.is_file()}
        post(rig.folder(), Command(kind="stop"))
        with pytest.raises(UsageProblem, match="nothing to go on with"):
            await pod.resume()
        assert len(list(rig.folder().inbox.iterdir())) == 1, "what waits in the inbox waits on"
        post(rig.folder(), Command(kind="send", args={"text": "more"}))
        assert (await pod.resume()).text == "ok", "a message that waits there is something to go on with"


def test_a_script_whose_task_is_blank_makes_no_pod(rig: Rig) -> None:
    with pytest.raises(UsageProblem, match="empty"):
        Pod.run_sync(manifest(), " ", name="p", home=rig.home, cwd=rig.cwd, model=Agent(lambda r, n: say("ok")))
    assert not rig.home.exists()


async def test_tools_that_changed_at_a_resume_are_recorded_once(rig: Rig) -> None:
    """Other schemas are `tools_changed`; the same ones are not, and the request offers the new ones."""
    async with rig.open(Agent(lambda r, n: say("ok")), tools=[acting]) as pod:
        await pod.run("hello")
    assert not rig.of(ToolsChanged)
    agent = Agent(lambda r, n: say("ok"))
    for _ in range(2):
        async with rig.open(agent, tools=[acting, Counted(5).tool]) as pod:
            await pod.run("again")
    assert len(rig.of(ToolsChanged)) == 1
    assert [spec.name for spec in agent.requests[-1].tools] == ["act", "fetch"]


async def test_instructions_that_changed_between_runs_enter_once_and_the_next_segment_has_them(rig: Rig) -> None:
    """The prompt of a segment stays; the change is an item at the run's start; the new segment's prompt holds it."""
    rig.file("AGENTS.md", "Use tabs.")
    agent = Agent(lambda r, n: say(f"ok {n} " + filler(300, f"o{n}")))
    made = manifest(compaction=compacting(None, retained_tokens=300, retained_floor_tokens=100))
    async with rig.open(agent, made, compact_model=summariser()) as pod:
        await pod.run("one")
        assert "Use tabs." in agent.requests[-1].system
        rig.file("AGENTS.md", "Use four blanks.")
        for text in ("two", "three", "four"):
            await pod.run(text)
        notes = [i.text for i in agent.requests[-1].items if getattr(i, "kind", "") == "instructions"]
        assert len(notes) == 1 and "Use four blanks." in notes[0]
        assert len({r.system for r in agent.requests}) == 1
        assert await pod.compact()
        await pod.run("five")
    assert "Use four blanks." in agent.requests[-1].system and "Use tabs." not in agent.requests[-1].system


async def test_b087_stopping_answers_only_when_the_process_group_is_gone(rig: Rig) -> None:
    """B087: the command ignores the first signal; after the answer nothing of it is left."""
    pids = rig.cwd / "pids"
    command = f"trap '' TERM; echo $$ > {pids}; (trap '' TERM; sleep 60) & sleep 60"
    agent = Agent(lambda r, n: call("shell", command=command) if n == 1 else say("done"))
    made = manifest(tools={"enable": ["shell"]}, permissions={"rules": [{"tool": "*", "action": "allow"}]})
    async with rig.open(agent, made) as pod:
        async with pod.start("run it") as run:
            await until_file(pids)
            result = await run.interrupt()
        assert result.status == "cancelled"
        pid = int(pids.read_text())
        assert look_at(pid) is None
        assert (await pod.run("next")).text == "done"


async def until_file(path: Path) -> None:
    with anyio.fail_after(10):
        while not path.exists() or not path.read_text().strip():
            await anyio.sleep(0.01)


async def test_survivors_of_a_killed_runtime_are_ended_before_their_call_is_closed(
    rig: Rig, anyio_backend_name: str
) -> None:
    """Killed while a command runs: the resume finds the command by its environment, ends it, and records that."""
    pids = rig.cwd / "pids"
    program = (
        PRELUDE
        + f"""
async def main():
    agent = Agent(lambda r, n: call("shell", command="echo $$ > {pids}; exec sleep 120"))
    made = manifest(tools={{"enable": ["shell"]}}, permissions={{"rules": [{{"tool": "*", "action": "allow"}}]}})
    async with rig.open(agent, made) as pod:
        async with pod.start("go") as run:
            while not Path({str(pids)!r}).exists() or not Path({str(pids)!r}).read_text().strip():
                await anyio.sleep(0.01)
            os._exit(9)
anyio.run(main, backend=backend)
"""
    )
    rig.run_in_process(program, anyio_backend_name, check=9)
    pid = int(pids.read_text())
    agent = Agent(lambda r, n: say("done"))
    made = manifest(tools={"enable": ["shell"]})
    async with rig.open(agent, made) as pod:
        (await pod.resume()).raise_for_status()
    assert look_at(pid) is None
    (killed,) = rig.of(e.OrphanKilled)
    assert pid in killed.pids
    kinds = rig.kinds()
    assert kinds.index("orphan_killed") < kinds.index("tool_result")


async def test_input_is_given_back_where_the_run_was_cancelled_before_anything_came_of_it(rig: Rig) -> None:
    """Cancelled in its first request: withdrawn. After a reply: kept. Messages of others are never withdrawn."""
    agent = Agent(lambda r, n: hang())
    async with rig.open(agent) as pod:
        await pod.send("from elsewhere")
        async with pod.start("mine") as run:
            await until(lambda: agent.requests)
            result = await run.interrupt()
        (mine,) = [r.item.id for r in rig.of(Input) if r.item.text == "mine"]
        assert result.withdrawn == (mine,) and [w.ids for w in rig.of(Withdrawn)] == [(mine,)]
        agent.play = lambda r, n: say("ok")
        (await pod.run("again")).raise_for_status()
    assert users(agent.requests[-1]) == ["from elsewhere", "again"]


async def test_input_of_an_earlier_run_is_never_withdrawn_with_a_later_one(rig: Rig) -> None:
    """The first run failed on its message; a second one is cancelled before its first request: the first stays."""
    from worker.errors import ProviderDown
    from worker.testing import fail

    agent = Agent(lambda r, n: fail(ProviderDown("down")))
    async with rig.open(agent) as pod:
        assert (await pod.run("first")).error_kind == "provider_down"
        gate = anyio.Event()

        async def stuck() -> None:
            gate.set()
            await anyio.sleep_forever()

        pod.running._between_runs = stuck  # type: ignore[method-assign]
        async with pod.start("second") as run:
            await gate.wait()
            result = await run.interrupt()
        (second,) = [r.item.id for r in rig.of(Input) if r.item.text == "second"]
        assert result.withdrawn == (second,)
        del pod.running.__dict__["_between_runs"]
        agent.play = lambda r, n: say("ok")
        (await pod.resume()).raise_for_status()
    assert users(agent.requests[-1]) == ["first"]


async def test_the_old_log_and_the_new_segment_give_the_same_carry(rig: Rig) -> None:
    """Property over scripted runs: what a boundary carries is what the old segment's fold says, and survives a load."""
    import random

    compactions = 0
    for seed in range(4):
        chance = random.Random(seed)
        name = f"s{seed}"
        rig.file("a.txt", "alpha\n" * 30)

        def play(request: Any, n: int, chance: random.Random = chance) -> Any:
            if n > 18:
                return say("done")
            return chance.choice(
                [
                    call("fetch", n=n),
                    call("fetch", n=n),
                    call("tasks", add=[f"task {n}"]),
                    call("read_file", path="a.txt"),
                    calls([call("fetch", n=n), call("nosuch")]),
                ]
            )

        made = manifest(
            tools={"enable": ["tasks", "read_file"]}, prune={"enabled": seed % 2 == 0, "min_savings": 1_500, "protected_tokens": 1_000},
            compaction=compacting(5_500, retained_tokens=chance.choice([800, 1_500, 2_500])),
        )  # fmt: skip
        async with rig.open(Agent(play), made, name, tools=[Counted(900).tool], compact_model=summariser()) as pod:
            for n in range(3):
                await pod.run(f"message {n}")
            await pod.send("waiting")
            live = pod.state.carry()
        segments, starts = rig.segments(name), rig.starts(name)
        assert rig.carry(name).model_dump(exclude={"summary"}) == live.model_dump(exclude={"summary"})
        compactions += len(segments) - 1
        for old, start in zip(segments, starts[1:], strict=False):
            before, after = load(old, "o200k"), start.carry
            told = before.carry().model_dump(exclude={"totals", "summary", "omitted_words"})
            assert told == after.model_dump(exclude={"totals", "summary", "omitted_words"})
            assert after.totals.segments == before.totals.segments + 1
            assert after.totals.prompt_tokens == before.totals.prompt_tokens
            assert {i.id for i in start.pending_inputs} == set(before.history.queue)
            if start.open_run is not None:
                assert start.open_run.run == before.run
                assert start.open_run.counters.requests == before.history.counters.requests
        assert rig.of(ReplyRecord, name)
    assert compactions >= 4
