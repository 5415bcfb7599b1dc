"""The OpenAPI document says what the service does, and nothing else is answered."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from service.service_rig import Rig

from pod.service.operations import OPERATIONS

pytestmark = pytest.mark.anyio


async def test_every_operation_stands_in_the_document_with_its_answers(rig: Rig) -> None:
    async with rig.up() as up:
        document = (await up.get("/openapi.json")).json()
    found = {made["operationId"]: made for path in document["paths"].values() for made in path.values()}
    assert found.keys() == {operation.name for operation in OPERATIONS}
    for operation in OPERATIONS:
        made = found[operation.name]
        assert {str(status) for status in operation.answers} <= made["responses"].keys()
        assert operation.role in made["description"] and ("requestBody" in made) is (operation.method == "POST")
        assert ("Idempotency-Key" in str(made["parameters"])) is (operation.method != "GET")


async def test_every_answer_is_as_the_document_says(rig: Rig) -> None:
    async with rig.up() as up:
        document = (await up.get("/openapi.json")).json()
        await up.make(task="go")
        await up.until("p", "finished")
        tried: list[tuple[str, str, Any]] = [
            ("GET", "/v1/caller", None), ("GET", "/v1/pods/p/timeline", None), ("GET", "/v1/pods/p/timeline?limit=0", None),
            ("GET", "/v1/pods/p/entries/1", None), ("GET", "/v1/pods/p/entries/999999", None), ("GET", "/v1/pods/p/entries/x", None),
            ("GET", "/v1/pods/none/timeline", None), ("GET", "/v1/pods/none/entries/1", None),
            ("GET", "/v1/manifests", None), ("GET", "/v1/pods", None), ("GET", "/v1/pods/p", None), ("GET", "/v1/pods/p/events", None),
            ("GET", "/v1/pods/p/approvals", None), ("GET", "/v1/pods/p/context", None), ("GET", "/v1/pods/p/result", None),
            ("GET", "/v1/pods/p/history", None), ("GET", "/v1/pods/none", None), ("GET", "/v1/pods/p/history?action=x", None),
            ("GET", "/v1/pods/p/events?after=x", None), ("GET", "/v1/pods?limit=0", None), ("GET", "/v1/pods?more=1", None),
            ("POST", "/v1/pods", {"manifest": "plain", "name": "q"}), ("POST", "/v1/pods", {"manifest": "plain", "name": "q"}),
            ("POST", "/v1/pods/p/messages", {"text": "x"}), ("POST", "/v1/pods/p/messages", {}),
            ("POST", "/v1/pods/p/approvals/x", {"approve": True}), ("POST", "/v1/pods/p/compact", {"dry_run": True}),
            ("POST", "/v1/pods/p/compact", {"focus": "x"}), ("POST", "/v1/pods/p/stop", {}), ("POST", "/v1/pods/q/resume", {}),
            ("POST", "/v1/pods/p/fork", {"name": "r"}), ("POST", "/v1/pods/p/fork", {"name": "r"}), ("POST", "/v1/pods/none/fork", {"name": "s"}),
            ("POST", "/v1/pods/r/rewind", {"to": 3}), ("POST", "/v1/pods/r/rewind", {"to": 0}), ("POST", "/v1/pods/none/rewind", {"to": 1}),
            ("POST", "/v1/pods/r/clear", {}), ("POST", "/v1/pods/none/clear", {}), ("DELETE", "/v1/pods/r", None), ("DELETE", "/v1/pods/r", None),
            ("DELETE", "/v1/pods/p", {"force": True}),
        ]  # fmt: skip
        for method, path, body in tried:
            answer = await up.client.request(method, path, json=body)
            template = next(t for t in document["paths"] if matches(t, path.partition("?")[0]))
            made = document["paths"][template][method.lower()]["responses"]
            assert str(answer.status_code) in made, (method, path, answer.text)
            schema = made[str(answer.status_code)]["content"]["application/json"]["schema"]
            jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


def matches(template: str, path: str) -> bool:
    parts, given = template.split("/"), path.split("/")
    return len(parts) == len(given) and all(a == b or a.startswith("{") for a, b in zip(parts, given, strict=True))
