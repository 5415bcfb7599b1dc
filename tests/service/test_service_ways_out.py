"""What a refusal says to do, to whoever is at the other end: a client, or who mounts the service."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import httpx2
import pytest
from service.service_rig import TOKEN, Rig
from starlette.applications import Starlette
from starlette.routing import Mount

from pod.cli.serve import _offered  # pyright: ignore[reportPrivateUsage]
from pod.errors import UsageProblem
from pod.service.serving import listening
from pod.service.shelf import Shelf

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
        extra = await up.post("/v1/pods", {"manifest": "plain", "nmae": "p"})
        assert extra.json()["message"] == "nmae: nothing of this name is taken; GET /openapi.json describes what is"
        await up.make(task=None)
        blank = await up.post("/v1/pods/p/messages", {"text": "  "})
        assert blank.json()["message"] == "text: it is blank"


async def test_manifests_are_offered_with_what_they_say_of_themselves(rig: Rig) -> None:
    (rig.manifests / "told.toml").write_text('version = 1\n[pod]\ndescription = "Sorts\\n mail."\n')
    (rig.manifests / "torn.toml").write_text("version = \n")
    (rig.manifests / "odd.toml").write_text('version = 1\npod = "no table"\n')
    (rig.manifests / "bare.toml").write_text("version = 1\n")
    (rig.manifests / "wrong.toml").write_text('version = 1\n[model]\nname = "offline:surveyor"\nnmae = 1\n')
    async with rig.up() as up:
        found = (await up.get("/v1/manifests")).json()
        refused = await up.post("/v1/pods", {"manifest": "wrong", "name": "p"})
        assert refused.status_code == 422 and refused.json() == {
            "error": "unfit_manifest",
            "message": "the manifest 'wrong' can't be used: wrong.toml:4: [model] nmae: unknown key; did you mean name?",
        }
        assert (await up.get("/v1/pods")).json()["pods"] == []
        await up.make("p", manifest="bare")  # the name is free, and the model is the service's
        await up.until("p", "finished")
    assert found["manifests"] == ["bare", "odd", "plain", "told", "torn", "wrong"] and found["descriptions"] == {
        "told": "Sorts mail."
    }


def test_who_starts_the_service_is_told_what_is_offered_and_which_manifests_are_none(tmp_path: Path) -> None:
    given = argparse.Namespace(manifests=str(tmp_path), shipped=[])
    assert _offered(given, []).startswith(f"no NAME.toml in {tmp_path} is a manifest, so no pod can be made here: ")
    assert _offered(given, ["a", "b"]) == "pods can be made from a, b"
    assert _offered(given, [*"abcdefghijkl"]).endswith(" i, j and 2 more")
    (tmp_path / "torn.toml").write_text("version = \n")
    shelf = Shelf(tmp_path, ["coder"])
    [(name, why)] = shelf.unfit(tmp_path)
    assert name == "torn" and why == "torn.toml:1:11: is not valid TOML: Invalid value"


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
