"""A final answer that must meet a JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pod import Manifest, Pod, UsageProblem
from worker.testing import ScriptedModel, Step, say

pytestmark = pytest.mark.anyio
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}},
    "required": ["count"],
    "additionalProperties": False,
}


def pod(folder: Path, steps: list[Step], schema: Any = SCHEMA) -> tuple[Pod, ScriptedModel]:
    path = folder / "schema.json"
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema), encoding="utf-8")
    manifest = Manifest.model_validate(
        {"worker": {"output_schema": str(path)}, "tools": {"enable": []}, "prune": {"enabled": False}}
    )
    model = ScriptedModel(steps)
    return Pod.open(manifest, name="p", home=folder / "home", cwd=folder, model=model), model


async def test_an_answer_that_meets_the_schema_is_the_output(tmp_path: Path) -> None:
    opened, model = pod(tmp_path, [say('```json\n{"count": 3}\n```')])
    async with opened as p:
        result = await p.run("count")
    assert result.output == {"count": 3}
    assert json.dumps(SCHEMA, sort_keys=True) in model.requests[0].system


async def test_an_answer_that_does_not_is_asked_for_once_more_with_the_complaint(tmp_path: Path) -> None:
    opened, model = pod(tmp_path, [say("three"), say('{"count": 3}')])
    async with opened as p:
        result = await p.run("count")
    assert result.status == "finished" and result.output == {"count": 3}
    order = model.requests[1].items[-1]
    assert order.type == "order" and "not one JSON value" in order.text


async def test_a_second_wrong_answer_fails_the_run_and_names_the_place(tmp_path: Path) -> None:
    opened, _ = pod(tmp_path, [say('{"count": "3"}'), say('{"count": "4"}')])
    async with opened as p:
        result = await p.run("count")
    assert (result.status, result.error_kind, result.exit_code) == ("failed", "output_invalid", 1)
    assert "count" in (result.error or "") and result.partial == '{"count": "4"}'


async def test_a_schema_may_come_back_to_itself_inside_the_value_and_a_too_deep_answer_fails_the_check(
    tmp_path: Path,
) -> None:
    tree = '{"type": "array", "items": {"$ref": "#"}}'
    opened, model = pod(tmp_path, [say("[" * 900 + "]" * 900), say("[[], [[]]]")], tree)
    async with opened as p:
        result = await p.run("a tree")
    assert result.output == [[], [[]]]
    assert "can't be held against the schema" in str(model.requests[1].items[-1])


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '{"type": 3}',
        "5",
        "[]",
        '{"$schema": 5}',
        '{"$ref": "#"}',
        '{"properties": {"a": {"$ref": "#/properties/b"}, "b": {"allOf": [{"$ref": "#/properties/a"}]}}}',
        '{"items": {"$ref": "#/nowhere"}}',
        '{"$ref": "http://example.invalid/schema"}',
        '{"pattern": "("}',
        '{"a": ' * 10_000,
    ],
)
async def test_a_file_that_is_no_schema_is_named_and_nothing_is_made(schema: str, tmp_path: Path) -> None:
    opened, _ = pod(tmp_path, [], schema)
    with pytest.raises(UsageProblem, match=r"schema\.json"):
        async with opened:
            pass
    assert not (tmp_path / "home").exists()


async def test_the_schema_itself_may_stand_in_the_place_of_its_file(tmp_path: Path) -> None:
    """Its fields keep their order."""
    text = '{"properties": {"why": {"type": "string"}, "count": {"type": "integer"}}, "required": ["count"]}'
    made = Manifest.model_validate({"worker": {"output_schema": text}, "tools": {"enable": []}})
    model = ScriptedModel([say("{}"), say('{"count": 3}')])
    async with Pod.open(made, name="p", home=tmp_path / "home", cwd=tmp_path, model=model) as p:
        assert (await p.run("count")).output == {"count": 3}
    assert text in model.requests[0].system and "required property" in str(model.requests[1].items[-1])


@pytest.mark.parametrize("schema", ['{"type": 3}', '{"$ref": "#"}', '{"a": '])
async def test_a_text_that_is_no_schema_is_named_by_its_key(schema: str, tmp_path: Path) -> None:
    made = Manifest.model_validate({"worker": {"output_schema": schema}, "tools": {"enable": []}})
    with pytest.raises(UsageProblem, match=r"\[worker\] output_schema: the text"):
        async with Pod.open(made, name="p", home=tmp_path / "home", cwd=tmp_path, model=ScriptedModel([])):
            pass
    assert not (tmp_path / "home").exists()
