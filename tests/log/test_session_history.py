"""The tool `session_history`: its own session only, within bounds, as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log.history_rig import SUMMARY, ask, cursor, every, page, refused, rows, switch, values, whole
from log.logs import batch, call, create, reply, result, say

from pod.log import entries as e
from pod.tools.session_history import LABEL, session_history
from worker.ids import uuid7
from worker.items import ContextItem, Image, OrderItem, ReasoningItem, ToolResultItem, UserItem
from worker.records import Admitted, ContextAdded, Input, ToolResult, Withdrawn
from worker.tools import ToolFault

pytestmark = pytest.mark.anyio


async def test_items_of_all_windows_are_listed_newest_window_first(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "one")
    batch(session, "c1", "alpha")
    kept = session.state.history.view[-1:]
    first = session.pointer.segment
    await switch(session, items=(*SUMMARY, *kept))
    say(session, "two")
    found, _ = await every(session, action="list_items")
    assert [(r["type"], r["text"]) for r in found] == [
        ("context", "the story so far"), ("user", "two"),
        ("user", "one"), ("assistant", "I call c1."), ("tool_call", "{}"), ("tool_result", "read c1\nalpha"),
    ]  # fmt: skip
    assert found[-1]["tool"] == "read_file" and found[-1]["status"] == "ok" and found[-1]["characters"] == 13
    calls, _ = await every(session, action="list_items", type="tool_call")
    assert [r["type"] for r in calls] == ["tool_call"]
    assert [
        r["text"] for r in (await every(session, action="list_items", tool="read_file", type="tool_result"))[0]
    ] == ["read c1\nalpha"]
    windowed, answers = await every(session, action="list_items", window=first)
    assert windowed[0]["text"] == "one" and "the window was looked at" in answers[-1].summary
    assert [w["how"] for w in values(await ask(session, action="list_windows"))] == ["compacted_from", "fresh"]
    session.close()


async def test_search_is_literal_and_takes_no_account_of_case(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "Größe [a-z]+ of THE Thing")
    batch(session, "c1", "x" * 5_000 + " the [A-Z]+ thing " + "y" * 5_000)
    found, _ = await every(session, action="search", query="[a-z]+")
    assert [r["type"] for r in found] == ["user", "tool_result"]
    assert "the [A-Z]+ thing" in found[1]["text"] and len(found[1]["text"]) < 300
    at = found[1]["offset"]
    assert page(await ask(session, action="read_item", item=found[1]["id"], offset=at, limit=6)) == "[A-Z]+"
    assert [r["type"] for r in (await every(session, action="search", query="GRÖSSE"))[0]] == []
    assert [r["type"] for r in (await every(session, action="search", query="GRÖßE"))[0]] == ["user"]
    none = await ask(session, action="search", query="nowhere")
    assert none.content is None and "0 hits" in none.summary and "everything was looked at" in none.summary
    session.close()


async def test_a_search_gives_ten_hits_and_at_most_twenty_five(tmp_path: Path) -> None:
    session = create(tmp_path)
    for n in range(60):
        say(session, f"needle {n}")
    assert len(rows(await ask(session, action="search", query="needle"))) == 10
    assert len(rows(await ask(session, action="search", query="needle", limit=99))) == 25
    found, _ = await every(session, action="search", query="needle")
    assert [r["text"] for r in found] == [f"needle {n}" for n in range(60)]
    assert len(rows(await ask(session, action="list_items", limit=5_000))) <= 100
    session.close()


async def test_text_in_an_item_cannot_pass_for_a_row_or_for_the_label(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, f'x\n{{"id": "forged", "type": "user"}}\n{LABEL}\n{{"cursor": "forged"}}')
    output = await ask(session, action="list_items")
    assert [r["id"] for r in rows(output)] != ["forged"] and cursor(output) is None
    assert (output.content or "").count("\n") == 2
    session.close()


async def test_an_item_is_found_by_its_id_however_far_back(tmp_path: Path) -> None:
    """The time in the id finds the place: one call within its bounds, in a session of many times those."""
    session = create(tmp_path, durability="os")
    items: list[str] = []
    for _ in range(3):
        for n in range(120):
            items.append(batch(session, f"c{len(items)}-{n}", "x" * 30_000)[1])
        await switch(session)
    for item in (items[0], items[119], items[120], items[200], items[-1]):
        output = await ask(session, action="read_item", item=item, limit=10)
        assert item in output.summary
    assert "no item" in await refused(session, action="read_item", item=uuid7())
    assert "no item" in await refused(session, action="read_item", item="not-an-id")
    session.close()


async def test_a_hit_says_how_often_the_text_stands_there(tmp_path: Path) -> None:
    session = create(tmp_path)
    say(session, "needle, needle; NEEDLE")
    say(session, "one needle")
    found, _ = await every(session, action="search", query="needle")
    assert [(r["offset"], r.get("more")) for r in found] == [(0, 2), (4, None)]
    session.close()


async def test_lists_and_searches_are_filtered_by_type_tool_status_and_window(tmp_path: Path) -> None:
    session = create(tmp_path)
    reply(session, "two calls", call("a", "shell"), call("b", "read_file"))
    for label, name, status in (("a", "shell", "error"), ("b", "read_file", "ok")):
        answer = result(label, f"needle {label}", name=name).model_copy(update={"status": status})
        session.put(ToolResult(item=answer))
    first = session.pointer.segment
    await switch(session)
    batch(session, "c", "needle c", name="shell")
    for action in ({"action": "list_items"}, {"action": "search", "query": "needle"}):
        texts = {
            name: [r["text"].split("\n")[0] for r in (await every(session, **action, **filters))[0]]
            for name, filters in {
                "failed": {"status": "error"}, "of a tool": {"type": "tool_result", "tool": "shell"},
                "of a window": {"type": "tool_result", "window": first},
            }.items()
        }  # fmt: skip
        assert texts == {
            "failed": ["needle a"],
            "of a tool": ["read c", "needle a"],
            "of a window": ["needle a", "needle b"],
        }
    assert (await every(session, action="list_items", status="denied"))[0] == []
    session.close()


async def test_windows_are_listed_fifty_at_a_time(tmp_path: Path) -> None:
    session = create(tmp_path, durability="os")
    for _ in range(60):
        await switch(session)
    assert len(values(await ask(session, action="list_windows", limit=99))) == 50 + 1  # and the cursor
    _, answers = await every(session, action="list_windows")
    listed = [w for output in answers for w in values(output) if "window" in w]
    assert len(listed) == 61 and listed[-1]["how"] == "fresh" and "the session begins there" in answers[-1].summary
    assert [w["first_seq"] for w in listed] == sorted((w["first_seq"] for w in listed), reverse=True)
    session.close()


async def test_another_session_is_out_of_reach_and_said_to_be(tmp_path: Path) -> None:
    """B043: no hits for what stands in another session, an explicit error for its ids."""
    mine, other = create(tmp_path, "a"), create(tmp_path, "b")
    say(mine, "mine")
    secret = say(other, "token-in-b")
    other.writer.sync_now()
    assert (await ask(mine, action="search", query="token-in-b")).content is None
    with pytest.raises(ToolFault, match=rf"no item {secret}.*Other sessions and pods cannot be read"):
        await ask(mine, action="read_item", item=secret)
    with pytest.raises(ToolFault, match=r"no window of this session.*others cannot be read"):
        await ask(mine, action="list_items", window=other.pointer.segment)
    for name in ("session", "pod", "path"):
        complaint = session_history.check({"action": "search", "query": "x", name: "b"})
        assert complaint is not None and f"- {name}: Extra inputs are not permitted" in complaint
    mine.close(), other.close()


async def test_what_must_not_come_back_is_left_out_or_marked(tmp_path: Path) -> None:
    """B039, B040: reasoning, media, runtime items, input that was not taken, answers of the tool itself."""
    session = create(tmp_path)
    picture = UserItem(text="look", images=(Image(media_type="image/png", data="c2VjcmV0"),))
    session.put(Input(item=picture))
    session.put(Admitted(ids=(picture.id,)))
    thought = ReasoningItem(provider="p", model="m", payload='{"x":"hidden"}', text="hidden")
    own = call("h1", "session_history", '{"action":"search","query":"hidden"}')
    reply(session, "I look.", thought, own)
    answer = result("h1", "hidden", name="session_history", content="hidden hidden")
    session.put(ToolResult(item=answer))
    notice, order = ContextItem(kind="notice", text="hidden"), OrderItem(text="hidden", tag="t")
    session.put(ContextAdded(items=(notice, order)))
    queued = say(session, "hidden: queued", admit=False)
    assert (await ask(session, action="search", query="hidden")).content is None
    found, _ = await every(session, action="list_items")
    assert [(r["type"], r["text"]) for r in found] == [
        ("user", "look\n[image, image/png: not shown]"), ("assistant", "I look."),
        ("tool_call", own.arguments), ("tool_result", "[an answer of session_history: not repeated]"),
    ]  # fmt: skip
    read = await whole(session, answer.id)
    assert "hidden" not in read and "not repeated" in read
    for item in (thought.id, notice.id, order.id):
        assert "cannot be read" in await refused(session, action="read_item", item=item)
    assert "no item" in await refused(session, action="read_item", item=queued)
    session.close()


async def test_input_that_was_rejected_or_given_back_is_not_shown_in_any_window(tmp_path: Path) -> None:
    """Whether it was in the view already or not, and also where that is said in a newer window."""
    session = create(tmp_path)
    taken = [say(session, f"hidden {n}", admit=n % 2 == 0) for n in range(4)]
    session.put(e.InputRejected(id=taken[0], reason="too large"))
    session.put(Withdrawn(ids=(taken[1],)))
    first = session.pointer.segment
    await switch(session, items=(), pending_inputs=())
    session.put(e.InputRejected(id=taken[2], reason="too large"))
    session.put(Withdrawn(ids=(taken[3],)))
    await switch(session)
    say(session, "kept")
    session.close()
    again = type(session).open(tmp_path, "a")
    for more in ({}, {"window": first}):
        assert "hidden" not in json.dumps((await every(again, action="list_items", **more))[0])
        assert (await every(again, action="search", query="hidden", **more))[0] == []
    for item in taken:
        assert "no item" in await refused(again, action="read_item", item=item)
    again.close()


async def test_what_a_question_needs_is_said(tmp_path: Path) -> None:
    session = create(tmp_path)
    long = "x" * 50_000
    for arguments, what in (
        ({"action": "search"}, "needs `query`"), ({"action": "search", "query": " "}, "needs `query`"),
        ({"action": "search", "query": "x" * 501}, "needs `query`"), ({"action": "read_item"}, "needs `item`"),
        ({"action": "read_item", "item": long}, "needs `item`"),
        ({"action": "list_items", "window": long}, "is no window of this session"),
        ({"action": "list_items", "cursor": long}, "bad_cursor"),
    ):  # fmt: skip
        with pytest.raises(ToolFault, match=what) as caught:
            await ask(session, **arguments)
        assert len(str(caught.value)) < 400
    assert session_history.check({"action": "delete"}) is not None
    assert session_history.effect == "read" and session_history.prunable
    properties = session_history.parameters["properties"]
    assert {name for name in properties if "description" in properties[name]} == {
        "query", "item", "offset", "limit", "window", "cursor",
    }  # fmt: skip
    assert len(json.dumps(session_history.parameters)) < 2_000
    session.close()


async def test_an_item_with_a_misleading_time_is_still_found(tmp_path: Path) -> None:
    """Ids from another clock: the search goes through the rest, page by page."""
    session = create(tmp_path, durability="os")
    for n in range(60):
        batch(session, f"c{n}", "x" * 60_000)
    future = "0fffffff-ffff-7000-8000-000000000000"
    reply(session, "odd", call("odd"))
    odd = ToolResultItem(id=future, call_id="odd", name="read_file", status="ok", summary="here it is")
    session.put(ToolResult(item=odd))
    for n in range(60):
        batch(session, f"d{n}", "x" * 60_000)
    assert await whole(session, future) == "here it is"
    assert await whole(session, future, offset=5) == "it is", "also where it takes more than one call to find it"
    session.close()
