"""Webhooks: signed, at least once, from the log; a receiver that fails or stalls holds nobody."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from service.receiver_rig import KEY, SECRET, Heard, Receiver, Says, is_signed, receiving
from service.service_rig import Rig, answering

from pod.errors import UsageProblem
from pod.operations import clear
from pod.service import Webhook, outbox, telling
from pod.service.outbox import Outbox
from pod.service.telling import Retries
from pod.service.webhooks import webhooks_of_file
from worker import tool
from worker.items import ToolResultItem
from worker.models.base import Request
from worker.models.classify import retry_after
from worker.testing import call, say
from worker.testing.scripted import Step

pytestmark = pytest.mark.anyio
FAST = Retries(first=0.05, most=0.1)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "RETRIES", FAST)
    monkeypatch.setattr(telling, "SWEEP", 0.1)


def hook(receiver: Receiver, **more: Any) -> Webhook:
    return Webhook(**{"url": receiver.url, "secret": SECRET, **more})


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await anyio.sleep(0.02)


async def test_the_end_of_a_run_is_told_signed_and_without_what_was_said(rig: Rig) -> None:
    with receiving() as one, receiving() as two:
        hooks = [hook(one), hook(two, name="two", content=True)]
        async with rig.up(webhooks=hooks, model=answering(lambda request: say("the secret plan"))) as up:
            await up.make("team/p")
            await until(lambda: len(one.accepted) == len(two.accepted) == 1)
            await until(lambda: 'pod_webhooks_waiting{receiver="127.0.0.1"} 0.0' in metrics_of(up))
            await until(lambda: 'pod_webhooks_waiting{receiver="two"} 0.0' in metrics_of(up))
            metrics = (await up.get("/metrics")).text
    [heard], [more] = one.accepted, two.accepted
    assert is_signed(heard) and not is_signed(heard, bytes(32)) and is_signed(more)
    assert heard.headers["content-type"] == "application/json" and heard.id == more.id
    body = heard.body
    assert body["type"] == "run.ended" and body["timestamp"].endswith("Z")
    session = rig.folder("team/p").pointer().session
    assert body["data"].items() >= {"pod": "team/p", "session": session, "status": "finished", "exit_code": 0}.items()
    assert body["data"]["run"] and b"secret plan" not in heard.raw
    assert more.body["data"] == {**body["data"], "text": "the secret plan", "output": None, "error": None}
    assert 'pod_webhooks_total{outcome="accepted",receiver="two"} 1.0' in metrics


async def test_a_question_is_told_and_the_end_that_follows_its_answer(rig: Rig) -> None:
    @tool(effect="network")
    def send_mail(to: str) -> str:
        """Sends a mail."""
        return "sent"

    def play(request: Request) -> Step:
        ended = [item for item in request.items if isinstance(item, ToolResultItem)]
        return say("told them") if ended else call("send_mail", to="ann@corp.example")

    with receiving() as receiver, receiving() as only:
        hooks = [hook(receiver), hook(only, name="only", events=["approval.asked"], content=True)]
        async with rig.up(webhooks=hooks, model=answering(play), tools=[send_mail]) as up:
            await up.make()
            await until(lambda: receiver.kinds == ["approval.asked"])
            asked = receiver.accepted[0].body["data"]
            assert asked["tool"] == "send_mail" and asked["run"] and "ann@corp" not in str(asked)
            answer = await up.post(f"/v1/pods/p/approvals/{asked['id']}", {"approve": True})
            assert answer.status_code == 202
            await until(lambda: receiver.kinds == ["approval.asked", "run.ended"])
            assert receiver.accepted[1].body["data"]["run"] == asked["run"]
            assert only.kinds == ["approval.asked"] and "ann@corp" in only.accepted[0].body["data"]["summary"]


@pytest.mark.parametrize("wrong", [500, 302, 404, 429])
async def test_what_is_not_accepted_is_sent_again_with_the_same_id_and_another_time_is_signed(
    rig: Rig, wrong: int
) -> None:
    answers = [Says(wrong, {"location": "/elsewhere"}), Says(wrong), Says()]
    with receiving(lambda heard: answers.pop(0)) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make()
            await until(lambda: len(receiver.accepted) == 1)
    assert len(receiver.heard) == 3 and len({heard.id for heard in receiver.heard}) == 1
    assert all(is_signed(heard) for heard in receiver.heard) and len({heard.raw for heard in receiver.heard}) == 1


async def test_a_receiver_that_is_not_there_is_told_when_it_is(rig: Rig) -> None:
    with receiving() as receiver:
        port = receiver.port
    async with rig.up(webhooks=[hook(receiver)]) as up:
        await up.make()
        await up.until("p", "finished")
        await until(lambda: 'outcome="failed"' in up.service._metrics.text().decode())
        with receiving(port=port) as back:
            await until(lambda: back.kinds == ["run.ended"])


async def test_a_receiver_that_stalls_holds_no_run_and_no_other_and_is_asked_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "WHOLE", 0.3)
    go = threading.Event()

    def stall(heard: Heard) -> Says:
        if not go.is_set():
            go.wait(20)
            return Says(599)
        return Says()

    try:
        with receiving(stall) as dead, receiving() as other:
            async with rig.up(webhooks=[hook(dead, name="dead"), hook(other, name="other")]) as up:
                for number in range(20):
                    await up.make(f"p{number}")
                await until(lambda: len(other.accepted) == 20)
                assert not dead.accepted
                await until(lambda: len({heard.id for heard in dead.heard}) < len(dead.heard))  # asked again
                go.set()
                await until(lambda: len({heard.id for heard in dead.accepted}) == 20)
    finally:
        go.set()


async def test_retry_after_is_kept_for_all_that_a_busy_receiver_is_sent(rig: Rig) -> None:
    with receiving(lambda heard: Says(503, {"retry-after": "3600"})) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make("a")
            await until(lambda: len(receiver.heard) == 1)
            [one] = up.service.care.telling.receivers
            await until(lambda: one._held > 0)
            await up.make("b")
            await up.until("b", "finished")
            await until(lambda: one.waiting == 2)
            assert len(receiver.heard) == 1 and 3_500 < one._pause() < 3_601
        [path] = [p for p in (rig.root / "state" / "webhooks").rglob("*.json") if '"tries": 1' in p.read_text()]
        due = json.loads(path.read_text())["waiting"][0]
        assert due["next"] - due["since"] >= 3_600


async def test_no_receiver_asks_for_more_than_an_hour_and_nothing_is_given_up_for_what_it_asks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "RETRIES", Retries(first=0.05, most=0.1, asked=0.1))
    answers = [Says(503, {"retry-after": "999999999"}), Says(429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"})]
    with receiving(lambda heard: answers.pop(0) if answers else Says()) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make("a")
            await until(lambda: len(receiver.accepted) == 1)
    assert len(receiver.heard) == 3 and Retries().asked == 3_600


async def test_a_clock_that_is_set_back_keeps_no_event_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 30 * 86_400.0
    monkeypatch.setattr(telling, "time", SimpleNamespace(time=lambda: time.time() + ahead))
    monkeypatch.setattr(outbox, "time", SimpleNamespace(time=lambda: time.time() + ahead))
    answers = [Says(500)]
    with receiving(lambda heard: answers.pop(0) if answers else Says()) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            [one] = up.service.care.telling.receivers
            one.retries = Retries(first=600.0)
            await up.make("a")
            await until(lambda: len(receiver.heard) == 1 and one.waiting == 1 and not one._sending)
            ahead = 0.0
            await until(lambda: len(receiver.accepted) == 1)


async def test_410_switches_a_receiver_off_until_the_service_starts_anew_and_loses_nothing(rig: Rig) -> None:
    answers = [Says(410)]
    with receiving(lambda heard: answers.pop(0) if answers else Says()) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make("a")
            [one] = up.service.care.telling.receivers
            await until(lambda: one.off)
            await up.make("b")
            await up.until("b", "finished")
            await until(lambda: one.waiting == 2)
            assert len(receiver.heard) == 1
        async with rig.up(webhooks=[hook(receiver)]):
            await until(lambda: sorted(heard.body["data"]["pod"] for heard in receiver.accepted) == ["a", "b"])


async def test_what_nobody_accepts_is_given_up_after_its_time_and_that_is_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "RETRIES", Retries(first=0.05, most=0.05, whole=0.2))
    with receiving(lambda heard: Says(500)) as receiver, caplog.at_level(logging.DEBUG, "pod"):
        async with rig.up(webhooks=[hook(receiver, name="tickets")]) as up:
            await up.make()
            await until(lambda: 'pod_webhooks_total{outcome="given_up",receiver="tickets"} 1.0' in metrics_of(up))
            await until(lambda: 'pod_webhooks_waiting{receiver="tickets"} 0.0' in metrics_of(up))
        [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert "tickets" in said and "given up after" in said and "HTTP 500" in said and receiver.heard[0].id in said
    assert (
        SECRET not in caplog.text and base64.b64encode(KEY).decode() not in caplog.text and "/hook" not in caplog.text
    )
    many = len(receiver.heard)
    with receiving(port=receiver.port) as back:
        async with rig.up(webhooks=[hook(back, name="tickets")]) as up:
            await up.make("q")
            await until(lambda: len(back.heard) >= 1)
        assert [heard.body["data"]["pod"] for heard in back.heard] == ["q"] and many >= 2


def metrics_of(up: Any) -> str:
    return up.service._metrics.text().decode()


async def test_an_end_whose_telling_was_never_begun_is_told_after_a_restart_and_only_then(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies right behind the end: nothing of it is on record here but that the pod is watched."""
    with receiving() as receiver:
        with monkeypatch.context() as patch:
            patch.setattr(Outbox, "take", lambda self, name: [])
            async with rig.up(webhooks=[hook(receiver)]) as up:
                await up.make()
                await up.until("p", "finished")
        async with rig.up(webhooks=[hook(receiver)]):
            await until(lambda: len(receiver.accepted) == 1)
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make("q")
            await until(lambda: len(receiver.accepted) == 2)
        assert [heard.body["data"]["pod"] for heard in receiver.heard] == ["p", "q"]


async def test_what_another_process_runs_is_told_too_and_what_was_before_is_not(rig: Rig) -> None:
    from pod import Pod

    model = answering()
    async with rig.up() as up:
        await up.make()
        await up.until("p", "finished")
    with receiving() as receiver:
        async with rig.up(webhooks=[hook(receiver)], model=model) as up:
            await up.post("/v1/pods/p/messages", {"text": "on"})
            await until(lambda: len(receiver.accepted) == 1)
            await up.until("p", "finished")
            async with Pod.reopen("p", home=rig.home, model=model) as pod:
                await pod.run("and on")
            await until(lambda: len(receiver.accepted) == 2)
    assert [heard.body["data"]["seq"] for heard in receiver.accepted] == sorted(
        heard.body["data"]["seq"] for heard in receiver.accepted
    )


async def test_more_than_may_wait_is_read_from_the_log_when_there_is_room(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 2)
    monkeypatch.setattr("pod.tail.MOST", 3)
    monkeypatch.setattr("pod.tail.Tail.read.__defaults__", (3,))
    up_yet = threading.Event()
    with receiving(lambda heard: Says() if up_yet.is_set() else Says(500)) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make(task=None)
            for number in range(6):
                await up.post("/v1/pods/p/messages", {"text": f"{number}"})
                await until_idle(up)
            [one] = up.service.care.telling.receivers
            assert one.waiting <= 4
            up_yet.set()
            await until(lambda: len({heard.id for heard in receiver.accepted}) == len(ends(rig)))
        assert len(receiver.accepted) == len(ends(rig)) > 2


async def until_idle(up: Any) -> None:
    with anyio.fail_after(20):
        while up.service.care.hosted or (await up.get("/v1/pods/p")).json()["inbox"]:
            await anyio.sleep(0.02)


def ends(rig: Rig) -> list[int]:
    from log.logs import lines_of

    [path] = (rig.home / "pods" / "p").glob("*.jsonl")
    return [line.seq for line in lines_of(path) if line.kind == "run_ended"]


async def test_after_a_clear_nothing_of_before_is_said_and_a_removed_pod_leaves_no_mark(rig: Rig) -> None:
    from pod.removing import remove

    up_yet = threading.Event()
    with receiving(lambda heard: Says() if up_yet.is_set() else Says(500)) as receiver:
        model = answering(lambda request: say("the secret plan"))
        async with rig.up(webhooks=[hook(receiver, content=True)], model=model) as up:
            await up.make()
            await until(lambda: len(receiver.heard) >= 1)
            assert receiver.heard[0].body["data"]["text"] == "the secret plan"
            await until_idle(up)
            await clear(rig.home, "p")
            # What was on its way at that moment can't be taken back.
            await until(lambda: "text" not in receiver.heard[-1].body["data"])
            up_yet.set()
            await until(lambda: len(receiver.accepted) == 1)
            assert "text" not in receiver.accepted[0].body["data"]
            remove(rig.home, "p")
            await until(lambda: not list((rig.root / "state" / "webhooks").rglob("*.json")))


def test_a_webhook_tells_neither_its_secret_nor_its_address() -> None:
    made = Webhook(url="https://hooks.example/T0/B0/very-secret-path", secret=SECRET)
    assert made.name == "hooks.example" and SECRET not in repr(made) and "very-secret" not in repr(made)
    assert repr(KEY) not in repr(made)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"url": "http://hooks.example/x"}, "https"),
        ({"url": "ftp://hooks.example/x"}, "https"),
        ({"url": "hooks.example"}, "https"),
        ({"url": "https:///x"}, "https"),
        ({"url": "https://hooks.example:99999/"}, "no address"),
        ({"url": "https://ann:pw@hooks.example/"}, "user name or password"),
        ({"url": "https://hooks.example/a b"}, "https"),
        ({"secret": "whsec_"}, "24 to 64"),
        ({"secret": "whsec_not base64!"}, "24 to 64"),
        ({"secret": base64.b64encode(KEY).decode()}, "whsec_"),
        ({"secret": f"whsec_{base64.b64encode(bytes(23)).decode()}"}, "24 to 64"),
        ({"secret": f"whsec_{base64.b64encode(bytes(65)).decode()}"}, "24 to 64"),
        ({"secret": []}, "needs a secret"),
        ({"events": ["run.started"]}, "run.ended, approval.asked"),
        ({"events": []}, "run.ended, approval.asked"),
    ],
)
def test_a_webhook_that_can_not_be_is_refused_without_its_secret(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageProblem, match=why) as caught:
        Webhook(**{"url": "https://hooks.example/", "secret": SECRET, **given})
    assert SECRET not in str(caught.value) and "pw" not in str(caught.value)


async def test_during_a_change_of_the_secret_both_sign(rig: Rig) -> None:
    new = bytes(range(1, 33))
    secrets = [f"whsec_{base64.b64encode(new).decode()}", SECRET]
    with receiving() as receiver:
        async with rig.up(webhooks=[hook(receiver, secret=secrets)]) as up:
            await up.make()
            await until(lambda: len(receiver.accepted) == 1)
    assert is_signed(receiver.accepted[0]) and is_signed(receiver.accepted[0], new)


def test_two_of_one_name_are_refused(rig: Rig) -> None:
    one = Webhook(url="https://hooks.example/a", secret=SECRET)
    with pytest.raises(UsageProblem, match="a name of its own"):
        rig.app(webhooks=[one, Webhook(url="https://hooks.example/b", secret=SECRET)])


GOOD = f'url = "https://hooks.example/"\nsecret = "{SECRET}"'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "one table for each address"),
        ("[webhooks", "no TOML"),
        ("webhooks = 1", "one table for each address"),
        (f"[hooks.a]\n{GOOD}", "one table for each address"),
        ('[webhooks.a]\nurl = "https://a.example/"', "url and secret are needed"),
        (f"[webhooks.a]\n{GOOD}\nmore = 1", "not more"),
        (f'[webhooks."a b"]\n{GOOD}', "a name has"),
        (f"[webhooks.a]\n{GOOD}\ncontent = 1", "true or false"),
        (f'[webhooks.a]\n{GOOD}\nevents = "run.ended"', "a list of texts"),
        (f"[webhooks.a]\n{GOOD}\nevents = [1]", "a list of texts"),
        ('[webhooks.a]\nurl = 1\nsecret = "x"', "url is text"),
        ("[webhooks]\na = 1", "a table is needed"),
    ],
)
def test_a_file_that_is_wrong_names_what_is_wrong_and_no_secret(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UsageProblem, match=why) as caught:
        webhooks_of_file(file)
    assert SECRET not in str(caught.value) and str(file) in str(caught.value)


def test_a_file_that_others_may_read_is_refused_and_a_good_one_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hooks.toml"
    file.write_text(f'[webhooks.a]\n{GOOD}\nevents = ["run.ended"]\ncontent = true\n[webhooks.b]\n{GOOD}\n')
    file.chmod(0o644)
    with pytest.raises(UsageProblem, match="chmod 600"):
        webhooks_of_file(file)
    file.chmod(0o600)
    a, b = webhooks_of_file(file)
    assert (a.name, a.events, a.content, b.name, b.content) == ("a", ["run.ended"], True, "b", False)


def test_pauses_grow_twofold_to_their_most() -> None:
    retries = Retries(first=5, most=3_600, whole=86_400)
    assert [retries.pause(tries, 0.5) for tries in (1, 2, 3, 11, 40, 10_000)] == [5, 10, 20, 3_600, 3_600, 3_600]
    assert retries.pause(1, 0.0) == 4 and retries.pause(1, 1.0) == pytest.approx(6)


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 0), ("7", 7), ("x", 0), ("-1", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("٣", 0)]
)
def test_a_retry_after_that_is_none_counts_nothing(given: str | None, seconds: float) -> None:
    headers = {} if given is None else {"retry-after": given}
    assert (retry_after(headers) or 0.0) == seconds


async def test_an_answer_is_not_read_beyond_its_bound(rig: Rig) -> None:
    with receiving(lambda heard: Says(200, {"content-length": "1000000"}, b"x" * 8_192)) as receiver:
        async with rig.up(webhooks=[hook(receiver)]) as up:
            await up.make()
            await until(lambda: 'outcome="accepted"' in metrics_of(up))
            await until(lambda: 'waiting{receiver="127.0.0.1"} 0.0' in metrics_of(up))
    assert len(receiver.heard) == 1
