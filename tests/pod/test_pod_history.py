"""`session_history` in a running pod: what left the context is found again, page by page, up to the floor of a clear."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pod import operations as op
from pod.tools.session_history import ANSWER_BYTES, LABEL
from tests.pod.pod_rig import Agent, Rig, capabilities, compacting, contexts, filler, manifest, results, summariser
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.testing import Step, call, say
from worker.tool_output import serialised_size

pytestmark = pytest.mark.anyio
PAGES = 9


def text_of(n: int) -> str:
    return f"page {n}: receipt-{n}\n{filler(1_500, f'p{n}')}\nend of page {n}"


@tool(effect="read")
def fetch(n: int) -> str:
    """A page."""
    return text_of(n)


class Searcher:
    """Fetches all pages; then searches the receipts, page by page, and reads the first item found whole."""

    def __init__(self) -> None:
        self.hits: list[dict[str, Any]] = []
        self.read = ""
        self.cursors: list[str] = []
        self.calls = 0

    def play(self, request: Request, number: int) -> Step:
        if number <= PAGES:
            return call("fetch", n=number)
        self.calls += 1
        if self.calls == 1:
            return self.search()
        last = next(i for i in reversed(request.items) if isinstance(i, ToolResultItem))
        assert last.name == "session_history" and last.status == "ok" and (last.content or "").startswith(LABEL)
        assert serialised_size(f"{last.summary}\n{last.content}") <= ANSWER_BYTES
        lines = (last.content or "").split("\n", 2)
        if lines[1].startswith('{"id"') and "characters" in (page := json.loads(lines[1])):
            self.read += lines[2]
            return self.item(cursor=page["cursor"]) if "cursor" in page else say("all receipts are found")
        found = [json.loads(line) for line in (last.content or "").split("\n")[1:]]
        self.hits += [row for row in found if "id" in row]
        if "cursor" in found[-1]:
            self.cursors.append(found[-1]["cursor"])
            return self.search(cursor=found[-1]["cursor"])
        assert "everything was looked at" in last.summary
        return self.item()

    def search(self, **more: Any) -> Step:
        return call("session_history", action="search", query="RECEIPT-", type="tool_result", limit=4, **more)

    def item(self, **more: Any) -> Step:
        return call("session_history", action="read_item", item=self.hits[0]["id"], limit=2_000, **more)


async def found_again(rig: Rig, ladder: list[str], how: str) -> Searcher:
    searcher = Searcher()
    made = manifest(
        compaction=compacting(8_000), context={"ladder": ladder, "buffer_tokens": 1_000}, worker={"max_requests": 60}
    )
    agent = Agent(searcher.play, capabilities=capabilities())
    async with rig.open(agent, made, tools=[fetch], compact_model=summariser()) as pod:
        result = (await pod.run("fetch all pages")).raise_for_status()
    assert result.text == "all receipts are found"
    assert how in [start.lineage.kind_ for start in rig.starts()]
    assert not any("receipt-1\n" in (r.content or "") for r in results(agent.requests[-1], "fetch")), "it had left"
    assert contexts(agent.requests[-1], "summary" if how == "compacted_from" else "lead_in")
    return searcher


@pytest.mark.parametrize(("rung", "how"), [("rollover", "rolled_over_from"), ("compact", "compacted_from")])
async def test_what_left_the_context_is_searched_and_read_in_pages(rig: Rig, rung: str, how: str) -> None:
    """B043: labelled data, in bounds; the tool's own answers, which hold every receipt, are no hits."""
    searcher = await found_again(rig, [rung], how)
    receipts = [re.findall(r"receipt-(\d+)", hit["text"]) for hit in searcher.hits]
    assert sorted(receipts) == [[str(n)] for n in range(1, PAGES + 1)]
    assert len(searcher.cursors) == 2 and {hit["tool"] for hit in searcher.hits} == {"fetch"}
    assert searcher.read.endswith(text_of(int(receipts[0][0])))


async def test_after_a_clear_the_pod_finds_nothing_of_before(rig: Rig) -> None:
    """Neither by search, by the id of an item, nor by a cursor that it still knows."""
    searcher = await found_again(rig, ["rollover"], "rolled_over_from")
    await op.clear(rig.home, "p")
    asked: list[dict[str, Any]] = [
        {"action": "search", "query": "receipt-"},
        {"action": "list_windows"},
        {"action": "read_item", "item": searcher.hits[0]["id"]},
        {"action": "search", "query": "RECEIPT-", "type": "tool_result", "limit": 4, "cursor": searcher.cursors[0]},
    ]

    def play(request: Request, number: int) -> Step:
        return call("session_history", **asked[number - 1]) if number <= len(asked) else say("nothing")

    agent = Agent(play)
    made = manifest(compaction=compacting(8_000), context={"ladder": ["rollover"], "buffer_tokens": 1_000})
    async with rig.open(agent, made, tools=[fetch], compact_model=summariser()) as pod:
        (await pod.run("what was there?")).raise_for_status()
    search, windows, item, gone = results(agent.requests[-1], "session_history")
    assert "0 hits" in search.summary and "cleared" in search.summary
    assert (windows.content or "").count('"window"') == 1
    assert item.status == "error" and "no item" in item.text() and "cleared" in item.text()
    assert gone.status == "error" and "stale_cursor" in gone.text()
