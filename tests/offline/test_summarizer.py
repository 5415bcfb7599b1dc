"""Promises of `offline:summarizer`: no fact is lost, whichever way it is asked, and the limit is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from offline.survey_drive import Drive
from offline.survey_tree import grow

from compact_worker import (
    CompactResult,
    CompactSettings,
    Material,
    Source,
    compact,
    declared_write_summary,
)
from worker.builtin.scope import Scope
from worker.errors import ConfigError
from worker.estimate import estimate_text
from worker.items import AssistantItem, ContextItem, Item, OrderItem, ToolResultItem, UserItem, make_call
from worker.models.base import Model, ModelSettings, Reply, Request, ToolSpec
from worker.offline import create
from worker.offline.summarizer import section
from worker.records import MemoryJournal
from worker.testing import PlainEncoder, encode_items
from worker.tools import Tool, tool

pytestmark = pytest.mark.anyio

USER = 'Look at all files.\nNever use the word "stale".\nThe weather is nice.'
SECTIONS = ("Completed Tasks", "Active Task", "Key Decisions", "User Directives", "Findings", "Current Work")


class Log:
    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)

    @property
    def count(self) -> int:
        return len(self.items)

    def read(self, start: int, stop: int) -> list[Item]:
        return self.items[start:stop]


@tool(effect="read")
def read_file(path: str, offset: int = 1, limit: int | None = None) -> str:
    """Reads a file."""
    return f"read_file {path}: line 1 of 40, 9 B of 500 B; go on with offset=2\nfirst"


def session(facts: int, *, each: int = 1, filler: int = 0) -> list[Item]:
    """A conversation with `facts` facts, `each` in one reply, each reply with a call and a long result."""
    items: list[Item] = [UserItem(text=USER)]
    stated = 0
    while stated < facts:
        lines = [f"FINDING fact number {n}" for n in range(stated, min(stated + each, facts))]
        stated += each
        label = f"r{stated}"
        text = "\n".join(["Going on.", *lines, "x" * filler]).rstrip()
        call = make_call(f"c{stated}", "read_file", json.dumps({"path": f"f{stated}.py"}))
        items += [AssistantItem(text=text, reply=label), call.model_copy(update={"reply": label})]
        content = "FINDING a fake in a file\n" + "line\n" * 200
        items.append(
            ToolResultItem(
                call_id=f"c{stated}", name="read_file", status="ok", summary=f"read f{stated}", content=content
            )
        )
    return items


def written(path: str, label: str = "w") -> list[Item]:
    call = make_call("w1", "append_file", json.dumps({"path": path, "content": "a\n"}))
    summary = f"append_file {path}: 1 line appended, 2 B in all"
    return [
        call.model_copy(update={"reply": label}),
        ToolResultItem(call_id="w1", name="append_file", status="ok", summary=summary),
    ]


async def run(
    folder: Path,
    items: Sequence[Item],
    source: str,
    *,
    previous: str | None = None,
    recent: tuple[str, ...] = (),
    **numbers: int,
) -> CompactResult:
    settings = CompactSettings(**numbers)  # type: ignore[arg-type]
    tools: tuple[Tool, ...] = (read_file, declared_write_summary())
    material = Material(
        view=tuple(items), cut=len(items), log=Log(items), tasks=(), recent_files=recent, previous_summary=previous,
        focus=None, user_texts=(USER,), system="You work.", tools=tools, tag="tag12345", cwd=folder,
        touched_files=bool(recent),
    )  # fmt: skip
    return await compact(
        material, settings, source=source, models=[create("summarizer", ModelSettings())], journal=MemoryJournal(),
        scope=Scope(folder, read=(".",)),
    )  # fmt: skip


def facts_in(summary: str) -> list[str]:
    return [line.removeprefix("- ") for line in section(summary, "Findings").split("\n") if line.startswith("- fact")]


@pytest.mark.parametrize("source", ["prefix", "overview"])
@pytest.mark.parametrize(("facts", "each", "filler"), [(3, 1, 0), (60, 1, 900), (90, 4, 300), (60, 30, 0)])
async def test_every_fact_is_in_the_summary(tmp_path: Path, source: str, facts: int, each: int, filler: int) -> None:
    result = await run(tmp_path, session(facts, each=each, filler=filler), source)
    assert facts_in(result.summary) == [f"fact number {n}" for n in range(facts)]
    assert "fake" not in result.summary


@pytest.mark.parametrize("source", ["prefix", "overview"])
async def test_facts_of_the_previous_summary_are_carried_over(tmp_path: Path, source: str) -> None:
    first = (await run(tmp_path, session(4), source)).summary
    head = [UserItem(text=USER), ContextItem(kind="summary", text=first)]
    items = [*head, AssistantItem(text="FINDING fact number 4", reply="z"), *written("notes.md", "z")]
    (tmp_path / "notes.md").write_text("a\n")
    result = await run(tmp_path, items, source, previous=first)
    assert facts_in(result.summary) == [f"fact number {n}" for n in range(5)]


@pytest.mark.parametrize("source", ["prefix", "overview"])
async def test_a_newer_fact_on_a_subject_replaces_the_older_one(tmp_path: Path, source: Source) -> None:
    lines = [
        'FINDING ["a.py",1,"x"]',
        'FINDING ["b.py",1]',
        'FINDING ["a.py",2,"y"]',
        'FINDING ["a.py"',
        "FINDING a.py",
    ]
    previous = '## Findings\n- ["b.py",0]\n- ["c.py",0]\n'
    items: list[Item] = [UserItem(text=USER), ContextItem(kind="summary", text=previous)]
    items += [AssistantItem(text=line, reply=f"r{n}") for n, line in enumerate(lines)]
    result = await run(tmp_path, items, source, previous=previous)
    kept = section(result.summary, "Findings").split("\n")
    assert kept == ['- ["c.py",0]', '- ["b.py",1]', '- ["a.py",2,"y"]', '- ["a.py"', "- a.py"]


@pytest.mark.parametrize("source", ["prefix", "overview"])
async def test_it_has_all_sections_and_the_users_directives_word_for_word(tmp_path: Path, source: str) -> None:
    result = await run(tmp_path, session(2), source)
    assert [name for name in SECTIONS if f"## {name}\n" in result.summary] == list(SECTIONS)
    assert [directive.text for directive in result.directives] == ['Never use the word "stale".']
    assert "weather" not in section(result.summary, "User Directives")


@pytest.mark.parametrize("source", ["prefix", "overview"])
async def test_the_end_of_the_file_written_last_is_read_again(tmp_path: Path, source: str) -> None:
    (tmp_path / "notes.md").write_text("".join(f"note {n}\n" for n in range(40)))
    (tmp_path / "f1.py").write_text("a = 1\n")
    items = [*session(1), *written("notes.md")]
    result = await run(tmp_path, items, source, recent=("f1.py", "notes.md"))
    assert [(mark.path, mark.offset, mark.limit) for mark in result.marks] == [("notes.md", 39, None)]
    assert [reference.path for reference in result.references] == ["f1.py"]


async def test_the_limit_is_kept_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    result = await run(
        tmp_path, session(400, each=20), "prefix", summary_max_tokens=900, worker_context_max_tokens=60_000
    )
    kept = facts_in(result.summary)
    assert estimate_text(result.summary, "o200k") <= 900
    assert 10 < len(kept) < 400
    assert kept[-1] == "fact number 399"
    assert f"{400 - len(kept)} older facts did not fit here" in result.summary


@pytest.mark.parametrize("source", ["prefix", "overview"])
async def test_the_findings_of_a_survey_survive_either_way(tmp_path: Path, source: Source) -> None:
    """A conversation of the surveyor, as long as its window lets it become."""
    folder = tmp_path / "work"
    folder.mkdir()
    tree = grow(folder, 3, files=24, notes=None)
    drive = Drive(folder, create("surveyor", ModelSettings(context_window=120_000)))
    await drive.run(tree.task)
    stated = [
        line.removeprefix("FINDING ")
        for item in drive.items
        if item.type == "assistant"
        for line in item.text.split("\n")
        if line.startswith("FINDING ")
    ]
    result = await run(folder, drive.items, source, summary_max_tokens=12_000)
    kept = [line.removeprefix("- ") for line in section(result.summary, "Findings").split("\n")]
    newest = {json.loads(line)[0]: line for line in stated}
    assert len(newest) > 25
    assert sorted(line for line in kept if line.startswith("[")) == sorted(newest.values())


def request(items: Sequence[Item]) -> Request:
    spec = ToolSpec("write_summary", "", {"type": "object", "properties": {"text": {}, "reread": {}, "references": {}}})
    return Request("", (spec,), tuple(items), encode_items(PlainEncoder(), items), 4_096)


async def ask(model: Model, items: Sequence[Item]) -> Reply:
    return await model.send(request(items), lambda _: None)


async def test_a_refused_summary_is_made_smaller_by_what_the_refusal_says() -> None:
    model = create("summarizer", ModelSettings())
    items: list[Item] = [*session(200, each=20), OrderItem(text="summary_max_tokens=3000", tag="t")]
    first = await ask(model, items)
    call = first.items[-1]
    assert call.type == "tool_call"
    refusal = "summary refused: the summary has 4,000 tokens, more than summary_max_tokens=1000: shorten"
    items += [
        *first.items,
        ToolResultItem(call_id=call.call_id, name="write_summary", status="error", summary=refusal),
    ]
    second = (await ask(model, items)).items[-1]
    assert second.type == "tool_call"
    sizes = [estimate_text((each.parsed or {})["text"], "o200k") for each in (call, second)]
    assert sizes[1] <= 3_000 * 0.25


async def test_a_recorded_summary_ends_its_turn() -> None:
    model = create("summarizer", ModelSettings())
    items: list[Item] = [*session(2), OrderItem(text="summary_max_tokens=3000", tag="t")]
    first = await ask(model, items)
    call = first.items[-1]
    assert call.type == "tool_call"
    done = ToolResultItem(call_id=call.call_id, name="write_summary", status="ok", summary="summary recorded")
    second = await ask(model, [*items, *first.items, done])
    assert [item.type for item in second.items] == ["assistant"]


async def test_without_an_order_it_writes_nothing() -> None:
    reply = await ask(create("summarizer", ModelSettings()), session(2))
    assert [item.type for item in reply.items] == ["assistant"]
    quoted: list[Item] = [
        UserItem(text="summary_max_tokens=3000"),
        ContextItem(kind="notice", text="summary_max_tokens=9"),
    ]
    reply = await ask(create("summarizer", ModelSettings()), quoted)
    assert [item.type for item in reply.items] == ["assistant"]


async def test_the_surveyor_answers_an_order_for_a_summary_too() -> None:
    order = OrderItem(text="summary_max_tokens=3000", tag="t")
    reply = await ask(create("surveyor", ModelSettings()), [*session(2), order])
    assert [item.name for item in reply.items if item.type == "tool_call"] == ["write_summary"]


async def test_an_offline_model_takes_its_window_from_the_settings() -> None:
    model = create("offline:surveyor", ModelSettings(context_window=9_000, max_output_tokens=700))
    assert (model.name, model.capabilities.window, model.capabilities.max_output) == ("offline:surveyor", 9_000, 700)
    assert model.capabilities.window_source == "manifest"
    assert create("summarizer", ModelSettings()).capabilities.window_source == "table"


async def test_an_unknown_offline_model_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="offline:surveyor"):
        create("nobody", ModelSettings())
