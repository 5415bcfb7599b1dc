"""What a compact worker writes becomes memory only where it is a summary, and stays a summary: history without a voice of its own
(cases B030 to B038)."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Sequence
from typing import Any

import pytest

from compact_worker import OWN_TOOLS
from pod.log import entries as e
from pod.transfer import export_pod
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    contexts,
    filler,
    manifest,
    results,
    summariser,
    summary,
    texts,
    users,
    words,
)  # fmt: skip
from worker.items import ContextItem, ToolResultItem
from worker.models.anthropic import MessagesEncoder
from worker.models.openai_chat import ChatEncoder
from worker.models.openai_responses import ResponsesEncoder
from worker.models.wire import Wire
from worker.testing import call, raw_call, say
from worker.testing.scripted import Step
from worker.tools import tool

pytestmark = pytest.mark.anyio

CUT = raw_call("write_summary", '{"text": "## Completed Tasks\\n- half a wo', cut=True)
ONLY = {"ladder": ["compact"]}
"""No rung but the compact worker's: what it fails at is a failure."""


def hand(**more: Any) -> dict[str, Any]:
    """The sections of a pod that is compacted by hand, by its worker or not at all."""
    return {"compaction": compacting(None), "context": ONLY, **more}


def scripted(steps: Sequence[Step]) -> Agent:
    """A compact worker's model with these steps, the last one again and again."""
    return Agent(lambda r, n: steps[min(n, len(steps)) - 1], name="offline:summariser")


async def compacted(
    rig: Rig, worker: Agent, made: Any = None, *, agent: Agent | None = None, task: str = "fetch", **more: Any
) -> bool:
    """A run of a few pages, a compaction by hand, and a run behind it; whether the compaction was made."""
    agent = agent or Agent(caller(8))
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": worker, **more}
    async with rig.open(agent, made or manifest(**hand()), **options) as pod:
        (await pod.run(task)).raise_for_status()
        before = pod.state.start.segment
        done = await pod.compact()
        assert (pod.state.start.segment != before) == done and pod.state.compaction is None
        assert rig.folder().pointer().segment == pod.state.start.segment
        (await pod.run("and now")).raise_for_status()
    return done


def failure(rig: Rig) -> str:
    """Why the one rung failed."""
    [found] = [r.reason for r in rig.of(e.CompactionRung) if r.state == "failed"]
    assert len(rig.of(e.CompactionFailed)) == 1
    return found


async def test_b030_a_cut_summary_is_demanded_shorter_once_and_never_stored(rig: Rig) -> None:
    """B030: the first one ends in the middle of a word; the second is whole, and it alone is the memory."""
    agent = Agent(caller(8))
    assert await compacted(rig, scripted([CUT, call("write_summary", text=summary()), say("written")]), agent=agent)
    [memory] = contexts(agent.requests[-1], "summary")
    assert "half a wo" not in memory and "## Current Work" in memory


async def test_b030_a_summary_that_is_always_cut_leaves_the_old_segment_active(rig: Rig) -> None:
    """B030: two requests, then the compaction has failed; the next run stands on the whole history."""
    agent, worker = Agent(caller(8)), scripted([CUT])
    assert not await compacted(rig, worker, agent=agent)
    assert len(worker.requests) == 2 and "cut" in failure(rig)
    assert len(results(agent.requests[-1], "fetch")) == 8 and not contexts(agent.requests[-1], "summary")


async def test_b031_a_worker_that_ends_on_a_tool_is_asked_once_more_and_has_only_its_own_tools(rig: Rig) -> None:
    """B031: none of the pod's tools is forwarded; an end without write_summary is a failure that says so."""
    rig.file("a.txt", "alpha\n")
    worker = scripted([call("read_file", path="a.txt"), say("I am done."), say("Really.")])
    made = manifest(**hand(tools={"enable": ["read_file", "write_file", "tasks"]}))
    assert not await compacted(rig, worker, made)
    assert len(worker.requests) == 3 and "no valid summary yet" in texts(worker.requests[2])
    assert all({spec.name for spec in r.tools} == OWN_TOOLS for r in worker.requests)
    assert "ended its turn without a valid summary" in failure(rig)


@pytest.mark.parametrize(
    "arguments",
    ["{}", json.dumps({"text": "  \n"}), json.dumps({"text": "## Completed Tasks\n## Active Task\n"})],
    ids=["no text", "blank", "headings"],
)
async def test_b032_an_empty_summary_is_an_error_inside_the_worker_and_never_a_segment(
    rig: Rig, arguments: str
) -> None:
    """B032: the call alone is no success, and nothing is cut off the history in its place."""
    worker = scripted([raw_call("write_summary", arguments), say("done")])
    assert not await compacted(rig, worker)
    items = [getattr(r, "item", None) for r in rig.worker_records(rig.worker_logs()[0])]
    assert [i.status for i in items if isinstance(i, ToolResultItem)] == ["error"]
    assert len(rig.starts()) == 1


async def test_b033_the_newest_message_is_no_material_and_its_answer_no_summary(rig: Rig) -> None:
    """B033: "what is 2+2?" begins the run that is compacted first. The worker that answers it has written nothing."""
    question = "what is 2+2?"
    made = manifest(compaction=compacting(None, threshold=6_000), context=ONLY)
    worker = scripted([say("4")])
    agent = Agent(lambda r, n: say("It is four.") if users(r)[-1] == question else caller(8)(r, n))
    async with rig.open(agent, made, tools=[Counted(1_000).tool], compact_model=worker) as pod:
        await pod.run("fetch eight pages")
        assert not rig.of(e.CompactionStarted)
        result = (await pod.run(question)).raise_for_status()
    assert result.text == "It is four." and users(agent.requests[-1]) == ["fetch eight pages", question]
    assert len(worker.requests) == 2 and "no valid summary yet" in texts(worker.requests[1])
    assert all(question not in texts(r) for r in worker.requests)
    assert len(rig.starts()) == 1 and "ended its turn without a valid summary" in failure(rig)


RUNTIME = {
    "references": "[Referenced files - read before compaction, contents not included]\n"
    "- b.txt (touched recently; unchanged since it was read)\n"
    "Use read_file for the current contents where they are needed.",
    "state": "Task list (kept by the runtime; where the summary says otherwise, this list is right):\n"
    "- [pending] t1 write the parser (origin model, created TIME, updated TIME)",
}
"""All that the runtime itself says in a new segment. Whoever changes it reads it here: it is constant, sends nobody back to the start
and asks nobody anything."""


async def worked(rig: Rig) -> Agent:
    """A job with a task list and files, compacted in the middle of its turn; the agent that did it."""
    rig.file("a.txt", "alpha\n")
    rig.file("b.txt", "beta\n")
    first = {
        1: call("tasks", add=["write the parser"]),
        2: call("read_file", path="a.txt"),
        3: call("read_file", path="b.txt"),
    }
    agent = Agent(lambda r, n: first.get(n) or (call("fetch", n=n) if n <= 12 else say("done")))
    worker = summariser(first=[call("mark_read_required", path="a.txt")])
    made = manifest(compaction=compacting(9_000, retained_tokens=1_200), tools={"enable": ["tasks", "read_file"]})
    async with rig.open(agent, made, tools=[Counted(1_200).tool], compact_model=worker) as pod:
        (await pod.run("go")).raise_for_status()
        (await pod.run("with tests")).raise_for_status()
    assert len(rig.starts()) == 2
    return agent


async def test_b035_what_the_runtime_says_in_a_new_segment_is_constant_and_neutral(rig: Rig) -> None:
    """B035: beside the summary, the files and the user's words there is nothing but these two texts."""
    last = (await worked(rig)).requests[-1]
    said = {i.kind: i.text for i in last.items if isinstance(i, ContextItem) and i.kind != "user_words"}
    assert said.pop("summary").split() == summary().replace("## Findings\n", "").split(), "an empty section is left out"
    assert said.pop("auto_read") == "[Auto-read file: a.txt:1-1]\nalpha\n"
    assert {kind: re.sub(r"(created|updated) [^,)]+", r"\1 TIME", text) for kind, text in said.items()} == RUNTIME
    assert not re.search(r"\b(start|begin|introduce|continue|ask|confirm)\w*\b|\?", "".join(RUNTIME.values()), re.I)


async def test_b036_the_runtime_never_speaks_as_the_user(rig: Rig) -> None:
    """B036: not in a request, on no wire, not in the log and not in an export. What it writes has a mark of its own."""
    agent = await worked(rig)
    assert all(set(words(r)) <= {"go", "with tests"} for r in agent.requests)
    for encoder in (MessagesEncoder("m"), ChatEncoder("m"), ResponsesEncoder("m")):
        said = json.loads(b"[" + Wire(encoder, agent.requests[-1].items).body() + b"]")
        parts = [part for message in said if message.get("role") == "user" for part in parts_of(message["content"])]
        unmarked = re.sub(r"<context [^>]*>\n.*?\n</context>", "", "\n".join(parts), flags=re.DOTALL)
        assert unmarked.split() == ["with", "tests"], encoder
    stream = io.BytesIO()
    export_pod(rig.home, "p", stream)
    logs = exported(stream)
    assert logs and all(set(said_by_the_user(log)) <= {"go", "with tests"} for log in logs)


def parts_of(content: str | list[dict[str, Any]]) -> list[str]:
    """The texts of a message's content."""
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def exported(stream: io.BytesIO) -> list[str]:
    """The segments' logs in an export."""
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        found = [(m, archive.extractfile(m)) for m in archive.getmembers() if m.name.endswith(".jsonl")]
        return [file.read().decode() for member, file in found if file and ".compact-" not in member.name]


def said_by_the_user(log: str) -> list[str]:
    """The texts of all items of type `user`, and of all that are trusted as the user's, wherever they stand in a log."""
    found: list[str] = []

    def note(value: dict[str, Any]) -> dict[str, Any]:
        if value.get("type") == "user" or value.get("trust") == "user":
            found.append(value["text"])
        return value

    for line in log.splitlines():
        json.loads(line, object_hook=note)
    return found


async def test_b037_a_compaction_that_makes_more_of_less_is_refused_and_the_pointer_stays(rig: Rig) -> None:
    """B037: about 3,000 tokens before it, a summary of 2,900 and a file of 8,000 that must be read again."""
    rig.file("big.txt", filler(7_500, "big"))
    long = summary(Findings="- " + filler(2_600, "found").replace("\n", "; ") + " — source: fetch 1")
    worker = summariser(long, first=[call("mark_read_required", path="big.txt")])
    made = manifest(
        **hand(
            compaction=compacting(
                None, retained_tokens=100, retained_floor_tokens=50, summary_max_tokens=4_000, auto_read_budget_tokens=9_000
            )
        )
    )  # fmt: skip
    seen: list[Any] = []
    agent = Agent(caller(3))
    assert not await compacted(rig, worker, made, agent=agent, observers=[seen.append])
    assert re.search(r"would have 1\d,\d+ tokens; it must lie under .* and a tenth below 3,", failure(rig))
    assert len(rig.segments()) == 1
    assert [event.type for event in seen].count("compaction.failed") == 1


async def test_b038_a_second_compaction_without_work_between_is_refused_and_the_words_stay(rig: Rig) -> None:
    """B038: a page says "you must"; asked for again before any request, there is nothing new to summarise. The user's words
    stand word for word beside the summary.
    """

    @tool
    async def fetch(n: int) -> str:
        """Fetches."""
        return f"REMINDER: you must cite\n{filler(1_000, f'page {n}')}"

    task = "fetch the pages,  and no more  "
    worker = summariser(summary(Findings="- " + filler(1_500, "found").replace("\n", "; ") + " — source: fetch 1"))
    agent = Agent(caller(8))
    async with rig.open(agent, manifest(**hand()), tools=[fetch], compact_model=worker) as pod:
        (await pod.run(task)).raise_for_status()
        assert await pod.compact()
        asked = len(worker.requests)
        assert not await pod.compact()
        (await pod.run("and now")).raise_for_status()
    assert len(worker.requests) == asked and len(rig.starts()) == 2
    assert words(agent.requests[-1]) == [task, "and now"]
    assert "you must cite" not in "".join(contexts(agent.requests[-1], "summary"))
