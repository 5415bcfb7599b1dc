"""Answers of a human to several questions at once: a no holds, a yes for the run settles the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pod import Manifest, Pod
from worker.testing import ScriptedModel, call, reply, say

pytestmark = pytest.mark.anyio
TWO = reply(
    call("write_file", path="one.txt", content="1"),
    call("write_file", path="two.txt", content="2"),
)


def pod(folder: Path, model: Any, profile: str = "safe") -> Pod:
    sections = {"tools": {"enable": ["write_file"]}, "scope": {"write": ["."]}, "permissions": {"profile": profile}}
    manifest = Manifest.model_validate(sections)
    (folder / "work").mkdir(exist_ok=True)
    return Pod.open(manifest, name="p", home=folder / "home", cwd=folder / "work", model=model)


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_no_to_a_call_outweighs_a_yes_for_the_run(reopened: bool, tmp_path: Path) -> None:
    model = ScriptedModel([TWO, say("done")])
    async with pod(tmp_path, model) as p:
        result = await p.run("write both")
        assert result.status == "paused"
        first, second = p.approvals
        await p.deny(second.id, message="never")
        await p.approve(first.id)
        if not reopened:
            result = await p.resume()
    if reopened:
        async with pod(tmp_path, model) as p:
            result = await p.resume()
    assert result.status == "finished" and result.denials == 1
    assert (tmp_path / "work" / "one.txt").exists()
    assert not (tmp_path / "work" / "two.txt").exists()
    texts = [item.summary for item in model.requests[1].items if item.type == "tool_result"]
    assert "never" in texts[1]


async def test_a_yes_for_the_run_settles_the_other_questions_of_its_kind(tmp_path: Path) -> None:
    model = ScriptedModel([TWO, say("done")])
    async with pod(tmp_path, model) as p:
        await p.run("write both")
        await p.approve(p.approvals[0].id)
        assert p.approvals == []
        result = await p.resume()
    assert result.status == "finished"
    assert (tmp_path / "work" / "one.txt").exists() and (tmp_path / "work" / "two.txt").exists()


async def test_what_begins_a_stream_names_the_calls_that_wait_and_where_the_run_stands(tmp_path: Path) -> None:
    model = ScriptedModel([TWO, say("done")])
    async with pod(tmp_path, model) as p:
        assert (p.init_event().requests, p.init_event().calls) == (0, ())
        asked = await p.run("write both")
        await p.approve(p.approvals[0].id)
    async with pod(tmp_path, model) as p:
        init = p.init_event()
        assert init.requests == asked.requests == 1 and init.tokens > 0
        assert [call.name for call in init.calls] == ["write_file", "write_file"]
        assert (await p.resume()).status == "finished"
        assert p.init_event().calls == () and p.init_event().requests == 0


async def test_a_yes_for_one_call_leaves_the_other_open(tmp_path: Path) -> None:
    model = ScriptedModel([TWO, say("done")])
    async with pod(tmp_path, model) as p:
        await p.run("write both")
        first, second = p.approvals
        await p.approve(first.id, scope="once")
        assert [a.id for a in p.approvals] == [second.id]
        result = await p.resume()
        assert result.status == "paused" and result.approvals == (second.id,)
    assert (tmp_path / "work" / "one.txt").exists() and not (tmp_path / "work" / "two.txt").exists()


async def test_open_questions_outlast_another_manifest_and_another_message(tmp_path: Path) -> None:
    model = ScriptedModel([TWO, say("done")])
    async with pod(tmp_path, model) as p:
        asked = (await p.run("write both")).approvals
    async with pod(tmp_path, model, "workspace-write") as p:
        result = await p.run("go on")
        assert (result.status, result.exit_code, result.approvals) == ("paused", 3, asked)
        assert not list((tmp_path / "work").iterdir()) and len(model.requests) == 1
        await p.approve(asked[0], scope="once")
        await p.deny(asked[1])
        assert (await p.resume()).status == "finished"
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["one.txt"]
