"""What a refusal says to do, to whoever is at the other end: a client, or who mounts the service."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx2
import pytest
from service.service_rig import TOKEN, Rig
from starlette.applications import Starlette
from starlette.routing import Mount

from pod.errors import UsageProblem
from pod.service.serving import listening

pytestmark = pytest.mark.anyio


async def test_a_path_a_method_and_a_pod_that_are_none_are_told_in_words_of_the_interface(rig: Rig) -> None:
    async with rig.up() as up:
        path = await up.get("/v1/pod")
        assert path.status_code == 404 and path.json()["message"] == (
            "there is nothing at /v1/pod; GET /openapi.json describes all that there is"
        )
        method = await up.client.delete("/v1/manifests")
        assert method.status_code == 405 and method.json()["message"].startswith(
            "DELETE is nothing that can be done there;"
        )
        pod = (await up.get("/v1/pods/a/b")).json()
        assert pod == {
            "error": "no_such_pod",
            "message": "there is no pod named 'a/b'; GET /v1/pods lists those that there are",
        }


async def test_a_name_that_is_none_and_a_blank_message_are_told_without_a_pattern_to_read(rig: Rig) -> None:
    async with rig.up() as up:
        named = await up.post("/v1/pods", {"manifest": "plain", "name": "my pod!"})
        assert named.status_code == 422 and named.json()["message"].startswith("name: letters, digits,")
        await up.make(task=None)
        blank = await up.post("/v1/pods/p/messages", {"text": "  "})
        assert blank.json()["message"] == "text: it is blank"


async def test_manifests_are_offered_with_what_they_say_of_themselves(rig: Rig) -> None:
    (rig.manifests / "told.toml").write_text('version = 1\n[pod]\ndescription = "Sorts\\n mail."\n')
    (rig.manifests / "torn.toml").write_text("version = \n")
    (rig.manifests / "odd.toml").write_text('version = 1\npod = "no table"\n')
    async with rig.up() as up:
        found = (await up.get("/v1/manifests")).json()
    assert found["manifests"] == ["odd", "plain", "told", "torn"] and found["descriptions"] == {"told": "Sorts mail."}


async def test_an_app_that_forgot_to_begin_the_service_is_told_how(rig: Rig) -> None:
    app = Starlette(routes=[Mount("/agents", rig.app())])
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost", headers=headers
    ) as client:
        answer = await client.get("/agents/v1/manifests")
        ready = await client.get("/agents/readyz")
    assert answer.status_code == 503 and answer.json()["error"] == "not_begun"
    assert "`running()` in its own lifespan" in answer.json()["message"]
    assert ready.status_code == 503 and ready.json() == {"status": "not_begun"}


def test_a_port_that_is_taken_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageProblem, match="--port takes another"):
        listening("127.0.0.1", taken.getsockname()[1], None)


def test_a_socket_in_no_folder_is_not_told_of_ports(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="can't listen on") as told:
        listening("127.0.0.1", 0, tmp_path / "none" / "s.sock")
    assert "--port" not in str(told.value)
