"""A final answer that is an object of a type: asked for, validated, mended once, kept with the pod."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from pod import Manifest, Pod, PodHost, UsageProblem
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.reading import SessionReader
from worker import tool
from worker.testing import ScriptedModel, Step, call, say

pytestmark = pytest.mark.anyio


class Answer(BaseModel):
    """What was counted."""

    why: str
    count: int = Field(alias="howMany", ge=0)

    @field_validator("why")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("say why")
        return value


@dataclass
class Day:
    day: date
    places: tuple[int, int]


class Named(TypedDict):
    name: str


GOOD = '{"why": "seen", "howMany": 3}'


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.manifest = Manifest.model_validate({"tools": {"enable": []}, "prune": {"enabled": False}})

    def open(self, steps: list[Step], output_type: Any = Any, **options: Any) -> tuple[Pod[Any], ScriptedModel]:
        model = ScriptedModel(steps)
        given = {"home": self.home, "cwd": self.folder, "model": model, "output_type": output_type, **options}
        return Pod.open(given.pop("manifest", self.manifest), name="p", **given), model

    def reopen(self, steps: list[Step], **options: Any) -> tuple[Pod[Any], ScriptedModel]:
        model = ScriptedModel(steps)
        return Pod.reopen("p", home=self.home, model=model, **options), model

    def changes(self) -> list[str]:
        lines = SessionReader(PodFolder(self.home, "p")).lines(0)
        return [c for line in lines if isinstance(r := e.record_of(line), e.ManifestChanged) for c in r.changes]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(
    ("output_type", "answer", "output"),
    [
        (Answer, GOOD, Answer(why="seen", howMany=3)),
        (Answer, f"```json\n{GOOD}\n```", Answer(why="seen", howMany=3)),
        (Day, '{"day": "2026-02-03", "places": [1, 2]}', Day(date(2026, 2, 3), (1, 2))),
        (Named, '{"name": "Ann"}', {"name": "Ann"}),
        (list[Answer], f"[{GOOD}]", [Answer(why="seen", howMany=3)]),
        (Answer | Day, '{"day": "2026-02-03", "places": [1, 2]}', Day(date(2026, 2, 3), (1, 2))),
        (Literal["yes", "no"], '"yes"', "yes"),
        (int, "0", 0),
        (bool, "false", False),
        (str, '""', ""),
        (int | None, "null", None),
        (dict[str, int], "{}", {}),
        (Annotated[float, Field(gt=0)], "1.5", 1.5),
    ],
)
async def test_an_answer_becomes_an_object_of_its_type(rig: Rig, output_type: Any, answer: str, output: Any) -> None:
    opened, model = rig.open([say(answer)], output_type)
    async with opened as pod:
        result = await pod.run("count")
    assert result.status == "finished" and result.text == answer
    assert result.output == output and type(result.output) is type(output)
    assert "meets this JSON Schema" in model.requests[0].system


async def test_the_model_sees_the_fields_in_their_order_and_what_is_said_of_them(rig: Rig) -> None:
    opened, model = rig.open([say(GOOD)], Answer)
    async with opened as pod:
        await pod.run("count")
    system = model.requests[0].system
    assert "What was counted." in system and system.index('"why"') < system.index('"howMany"')


async def test_a_wrong_answer_is_asked_for_once_more_with_what_is_wrong(rig: Rig) -> None:
    opened, model = rig.open([say('{"why": " ", "howMany": -1}'), say(GOOD)], Answer)
    async with opened as pod:
        result = await pod.run("count")
    assert result.output == Answer(why="seen", howMany=3) and len(model.requests) == 2
    order = model.requests[1].items[-1]
    assert order.type == "order"
    assert "why: Value error, say why" in order.text and "howMany: Input should be greater than" in order.text


async def test_a_second_wrong_answer_fails_the_run_and_each_message_has_its_own_retry(rig: Rig) -> None:
    wrong = '{"why": "seen", "howMany": "many"}'
    opened, model = rig.open([say(wrong), say(wrong), say("?"), say(GOOD)], Answer)
    async with opened as pod:
        result = await pod.run("count")
        assert (result.status, result.error_kind, result.exit_code) == ("failed", "output_invalid", 1)
        assert "howMany: Input should be a valid integer" in (result.error or "")
        assert result.output is None and result.partial == wrong and len(model.requests) == 2
        assert (await pod.run("count again")).output == Answer(why="seen", howMany=3)


async def test_written_as_json_the_output_is_what_the_model_answered(rig: Rig) -> None:
    """The stream's `result` and the log have the same, whatever the object is made of."""
    opened, _ = rig.open([say('{"day": "2026-02-03", "places": [1, 2]}')], Day)
    async with opened as pod, pod.start("when") as run:
        seen = [event async for event in run]
        ended = [event async for event in pod.events() if event.type == "run.ended"]
    raw = {"day": "2026-02-03", "places": [1, 2]}
    assert run.result.output == Day(date(2026, 2, 3), (1, 2))
    last: Any = seen[-1]
    assert last.result["output"] == raw and json.loads(run.result.model_dump_json())["output"] == raw
    assert last.result == run.result.model_dump(mode="json") and len(ended) == 1


async def test_the_schema_stays_with_the_pod_and_holds_without_the_type(rig: Rig) -> None:
    opened, _ = rig.open([say(GOOD)], Answer)
    async with opened as pod:
        await pod.run("count")
    again, model = rig.reopen([say("three"), say(GOOD)])
    async with again as pod:
        result = await pod.run("count again")
    assert result.output == {"why": "seen", "howMany": 3}
    assert "does not meet the output schema" in str(model.requests[1].items[-1])
    assert rig.changes() == []


async def test_a_run_that_was_interrupted_is_validated_when_it_goes_on(rig: Rig) -> None:
    @tool
    def look() -> str:
        """Looks."""
        return "a thing"

    opened, _ = rig.open([call("look")], Answer, tools=[look])
    async with opened as pod, pod.start("count") as run:
        async for event in run:
            if event.type == "tool.started":
                await run.interrupt("after_tools")
    again, model = rig.reopen([say("one thing"), say(GOOD)], tools=[look], output_type=Answer)
    async with again as pod:
        assert (await pod.resume()).output == Answer(why="seen", howMany=3)
    assert len(model.requests) == 2 and rig.changes() == []


async def test_another_type_applies_from_the_next_answer_on_and_is_on_record(rig: Rig) -> None:
    opened, _ = rig.open([say(GOOD)], Answer)
    async with opened as pod:
        await pod.run("count")
    for output_type, answer, output in ((list[int], "[3]", [3]), (Answer, GOOD, Answer(why="seen", howMany=3))):
        again, model = rig.reopen([say(answer)] * 2, output_type=output_type)
        async with again as pod:
            for _ in range(2):
                assert (await pod.run("again")).output == output
        orders = [item.text for item in model.requests[1].items if item.type == "order"]
        assert len(orders) == len(rig.changes()), "asked for once each"
        assert ("array" in orders[-1].partition("Schema:")[2][:60]) == (output_type == list[int])
    last, _ = rig.reopen([say(GOOD)])
    async with last as pod:
        assert (await pod.run("once more")).output == {"why": "seen", "howMany": 3}
    assert all(change.startswith("worker.output_schema: ") for change in rig.changes()) and len(rig.changes()) == 2


async def test_a_message_with_a_key_gives_the_same_object_again_or_says_that_it_is_of_another_type(rig: Rig) -> None:
    opened, _ = rig.open([say(GOOD)], Answer)
    async with opened as pod:
        first = await pod.run("count", key="one")
    again, _ = rig.open([], Answer)
    async with again as pod:
        assert (await pod.run("count", key="one")).output == first.output == Answer(why="seen", howMany=3)
    other, _ = rig.open([], list[int])
    async with other as pod:
        with pytest.raises(UsageProblem, match="not of this output_type"):
            await pod.run("count", key="one")


async def test_the_type_comes_before_the_schema_of_the_manifest(rig: Rig) -> None:
    made = Manifest.model_validate({"worker": {"output_schema": '{"type": "boolean"}'}, "tools": {"enable": []}})
    opened, _ = rig.open([say("3")], int, manifest=made)
    async with opened as pod:
        assert (await pod.run("count")).output == 3


async def test_a_hosted_pod_ends_with_the_object(rig: Rig) -> None:
    async with PodHost() as host:
        hosted = host.start(
            rig.manifest, "count", name="p", home=rig.home, cwd=rig.folder, model=ScriptedModel([say(GOOD)]),
            output_type=Answer,
        )  # fmt: skip
        assert (await hosted.wait()).raise_for_status().output.count == 3


def no_schema() -> Any:
    return Callable[[int], int]


class Plain:
    pass


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Plain, "Plain"),
        (no_schema(), "Callable"),
        ([Answer, int], r"A \| B"),
        ("Answer", "is no type"),
        (Answer(why="x", howMany=1), "output_type"),
    ],
)
def test_what_is_no_type_of_an_answer_is_named_before_anything_is_made(rig: Rig, given: Any, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        rig.open([], given)
    assert not rig.home.exists()
