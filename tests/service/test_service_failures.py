"""What fails beneath the service: a manifest with a mistake, a folder that can't be written, a system out of files for a while."""

from __future__ import annotations

import errno
import json
from typing import Any

import anyio
import pytest
from service.service_rig import Rig, answering

from pod.service import care
from worker import tool
from worker.models.base import Request
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio


async def test_a_manifest_with_a_mistake_is_told_with_its_place_and_nothing_is_made(rig: Rig) -> None:
    rig.manifest("odd", "[compaction]\nthreshold = nan\n")
    async with rig.up() as up:
        answer = await up.post("/v1/pods", {"manifest": "odd", "name": "p"})
        assert answer.status_code == 422 and answer.json()["error"] == "not_possible"
        assert "odd.toml:7" in answer.json()["message"] and "threshold" in answer.json()["message"]
        assert (await up.get("/v1/pods/p")).status_code == 404


@pytest.mark.parametrize("place", ["keys", "pods"])
async def test_a_state_that_can_not_be_written_is_a_store_that_does_not_answer(rig: Rig, place: str) -> None:
    state = rig.root / "state"
    state.mkdir()
    (state / place).write_text("no folder")
    async with rig.up() as up:
        answer = await up.post("/v1/pods", {"manifest": "plain", "name": "p"}, idempotency_key="one")
        assert answer.status_code == 503 and answer.json()["error"] == "store", answer.text
        assert str(rig.root) not in answer.text
        (state / place).unlink()
        answer = await up.post("/v1/pods", {"manifest": "plain", "name": "p"}, idempotency_key="one")
        assert answer.status_code == 201, answer.text


async def test_a_system_that_fails_for_a_while_ends_no_service_and_loses_no_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failures = care._standing, [OSError(errno.EMFILE, "Too many open files")] * 2

    def standing(folder: Any) -> Any:
        if failures:
            raise failures.pop()
        return whole(folder)

    async with rig.up() as up:
        await up.make("p", task=None)
        monkeypatch.setattr(care, "RESTS", (0.0, 0.0))
        monkeypatch.setattr(care, "_standing", standing)
        assert (await up.post("/v1/pods/p/messages", {"text": "go"})).status_code == 202
        await up.until("p", "finished")
        assert not failures
        # Nor does what nobody foresaw.
        failures += [ValueError("unforeseen")]
        assert (await up.post("/v1/pods/p/messages", {"text": "and on"})).status_code == 202
        with anyio.fail_after(20):
            while failures:
                await anyio.sleep(0.01)
        assert (await up.get("/readyz")).status_code == 200


async def test_a_key_whose_answer_was_lost_does_nothing_twice(rig: Rig) -> None:
    @tool(effect="network")
    def send_mail(to: str) -> str:
        """Sends a mail."""
        return "sent"

    def play(request: Request) -> Step:
        return say("done") if any(item.type == "tool_result" for item in request.items) else call("send_mail", to="ann")

    def killed() -> None:
        for path in (rig.root / "state" / "keys").glob("*.json"):
            path.write_text(json.dumps({"asked": json.loads(path.read_bytes())["asked"]}))

    async with rig.up(model=answering(play), tools=[send_mail]) as up:
        await up.make()
        label = (await up.until("p", "waiting"))["approvals"][0]["id"]
        answers = [
            await up.post(f"/v1/pods/p/approvals/{label}", {"approve": True}, idempotency_key="yes"),
        ]
        await up.until("p", "finished")
        killed()
        answers.append(await up.post(f"/v1/pods/p/approvals/{label}", {"approve": True}, idempotency_key="yes"))
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        assert (await up.post(f"/v1/pods/p/approvals/{label}", {"approve": True})).status_code == 404
        for path, body, good in (("fork", {"name": "f"}, 201), ("clear", {}, 200)):
            with anyio.fail_after(20):
                while (answer := await up.post(f"/v1/pods/p/{path}", body, idempotency_key=path)).status_code != good:
                    assert answer.json()["error"] == "in_use", answer.text
                    await anyio.sleep(0.01)
            killed()
            segment = rig.folder().pointer().segment
            answer = await up.post(f"/v1/pods/p/{path}", body, idempotency_key=path)
            assert answer.status_code == 409 and answer.json()["error"] == "outcome_unknown", answer.text
            assert rig.folder().pointer().segment == segment
