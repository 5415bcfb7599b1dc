"""`pod queue schedule`, `pod queue limit` and `pod batch --partition` as a user runs them: real nodes, one database, a witness outside."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Rig

from tests.engine.test_queue_commands import (
    Provider,
    asked,
    asked_of,
    batch_words,
    inputs,
    node,
    nodes,
    rows,
    tasks,
    until,
)
from worker.testing.provider_server import Answer, ProviderServer, RecordedRequest


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.work.mkdir()
    return made


def add_words(rig: Rig, *more: object, cron: str = "* * * * * *", name: str = "report") -> tuple[object, ...]:
    manifest = rig.root / "agent.toml"
    return ("queue", "schedule", "add", name, "--cron", cron, "--manifest", manifest, "--task", "Do report", *more)


def pods_of(rig: Rig, name: str = "report") -> list[str]:
    return sorted(f"{name}/{each.name}" for each in (rig.home / "pods" / name).glob("*") if each.is_dir())


class Witness:
    """A provider that counts, from outside, how many pods ask at once; it answers when told to."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.inside: list[str] = []
        self.most = 0
        self.most_of: dict[str, int] = {}
        self.seen = 0
        self.let = 0
        self.server = ProviderServer(self._step, wire="openai-chat")

    def _step(self, request: RecordedRequest) -> Any:
        name = asked(request)
        tenant = name.partition("_")[0]
        with self.lock:
            self.seen += 1
            self.inside.append(tenant)
            self.most = max(self.most, len(self.inside))
            self.most_of[tenant] = max(self.most_of.get(tenant, 0), self.inside.count(tenant))
            self.lock.wait_for(lambda: self.let > 0, timeout=30)
            self.let -= 1
            self.inside.remove(tenant)
        return Answer(f"did {name}")

    def answer(self, many: int) -> None:
        with self.lock:
            self.let += many
            self.lock.notify_all()


def test_two_nodes_begin_each_time_of_a_schedule_once_and_a_killed_one_is_not_missed(rig: Rig) -> None:
    provider = Provider()
    with provider.server as server, ExitStack() as stack:
        rig.manifest(server)
        made = rig.pod(*add_words(rig, "--overlap", "allow", "--json"))
        assert made.code == 0 and len(made.json["next"]) == 5, made.err
        assert "no node serves the queue 'batch'" in made.err
        first = stack.enter_context(node(rig))
        stack.enter_context(node(rig, "--asyncio"))
        until(lambda: nodes(rig) == 2)
        until(lambda: len(pods_of(rig)) >= 2)
        first.kill()
        before = len(pods_of(rig))
        until(lambda: len(pods_of(rig)) >= before + 2)
        assert rig.pod("queue", "schedule", "pause", "report").code == 0
        began = [row[0] for row in asked_of(rig, "SELECT workflow_uuid FROM workflow_status")]
        until(lambda: asked_of(rig, "SELECT 1 FROM workflow_status WHERE status IN ('ENQUEUED', 'PENDING')") == [])
    pods = pods_of(rig)
    assert len(pods) >= 4 and all(re.fullmatch(r"report/\d{8}T\d{6}Z", pod) for pod in pods)
    assert [inputs(rig, pod) for pod in pods] == [1] * len(pods), "each pod was told its task once"
    assert {each.partition("@")[0] for each in began} <= set(pods)


def test_what_no_node_served_begins_once_when_one_does_and_a_node_that_comes_to_a_halt_begins_nothing(rig: Rig) -> None:
    provider = Provider("report")
    with provider.server as server:
        rig.manifest(server)
        assert rig.pod(*add_words(rig, "--queue", "batch")).code == 0
        until(lambda: ago(rig) > 2)
        with node(rig) as one:
            until(lambda: provider.seen)
            # Its run is held, so all times after the first are left out, each as it comes.
            until(lambda: '"why":"report/' in row_of(rig))
            one.send_signal(signal.SIGTERM)
            until(lambda: ago(rig) > 2.5)
            provider.go.set()
            assert one.wait(20) == 0
        shown = rig.pod("queue", "schedule", "show", "report", "--json").json
    assert pods_of(rig) == [shown["pod"]] and provider.seen == ["report"]


def row_of(rig: Rig) -> str:
    ((text,),) = asked_of(rig, "SELECT schedule FROM pod_schedule")
    return str(text)


def ago(rig: Rig) -> float:
    """Seconds since the last time that some node decided about."""
    return time.time() - float(json.loads(row_of(rig))["decided"])


def test_a_schedule_is_listed_shown_held_begun_by_hand_and_taken_away(rig: Rig) -> None:
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        words = add_words(
            rig, "--zone", "Europe/Berlin", "--partition", "acme", "--priority", "7", cron="15 30 2 * * MON"
        )
        assert rig.pod(*words).code == 0
        shown = rig.pod("queue", "schedule", "show", "report", "--json").json
        times = [datetime.fromisoformat(each) for each in shown["next"]]
        assert len(times) == 5 and all((t.weekday(), t.hour, t.minute, t.second) == (0, 2, 30, 15) for t in times)
        text = rig.pod("queue", "schedule", "show", "report").text
        assert text.count("02:30:15 CE") == 5 and "Do report" in text and "acme" in text
        listed = rig.pod("queue", "schedule", "ls")
        assert "report" in listed.text and "Europe/Berlin" in listed.text and "no node serves" in listed.err
        again = rig.pod(*words)
        assert again.code == 2 and "--replace puts this one in its place" in again.err
        assert rig.pod(*words, "--replace").code == 0
        assert "is paused" in rig.pod("queue", "schedule", "pause", "report").text
        assert "paused" in rig.pod("queue", "schedule", "ls").text
        assert "already" in rig.pod("queue", "schedule", "pause", "report").text
        assert "goes on: 20" in rig.pod("queue", "schedule", "resume", "report").text
        began = [rig.pod("queue", "schedule", "run", "report", "--json").json["said"] for _ in range(2)]
        with node(rig, "--until-empty") as one:
            assert one.wait(20) == 0
        assert len(pods_of(rig)) == 2 and all(any(pod in said for said in began) for pod in pods_of(rig))
        ended = rig.pod("queue", "show", pods_of(rig)[0]).text
        assert "acme" in ended and "done" in ended
        assert "is gone" in rig.pod("queue", "schedule", "remove", "report").text
        assert "there are no schedules" in rig.pod("queue", "schedule", "ls").text
    assert len(provider.seen) == 2


ADD, WHAT = ("add", "r", "--cron"), ("--manifest", "M", "--task", "x")

REFUSED: dict[str, tuple[list[str], str]] = {
    "a cron text that is none": ([*ADD, "99 * * * *", *WHAT], "(bad minute): it should be five fields"),
    "a zone that is none": ([*ADD, "@daily", *WHAT, "--zone", "Berlin"], "a name such as UTC, Europe/Berlin"),
    "a day that never comes": ([*ADD, "0 0 31 2 *", *WHAT], "'0 0 31 2 *'"),
    "no manifest of that name": ([*ADD, "@daily", "--manifest", "none.toml", "--task", "x"], "none.toml"),
    "no manifest": ([*ADD, "@daily", "--task", "x"], "needs --manifest"),
    "no task": ([*ADD, "@daily", "--manifest", "M", "--task", " "], "the task is empty"),
    "a name that is none": (["add", "../r", "--cron", "@daily", "--manifest", "M", "--task", "x"], "can't name a schedule"),
    "no name": (["show"], "which schedule?"),
    "a name for all": (["ls", "r"], "lists all"),
    "a key of a manifest without add": (["pause", "r", "--cron", "@daily"], "--cron: for `pod queue schedule add`"),
    "a word that is none": (["stop", "r"], "invalid choice"),
    "no folder": ([*ADD, "@daily", *WHAT, "-C", "none"], "no such folder"),
    "a partition that is none": ([*ADD, "@daily", *WHAT, "--partition", "a\tb"], "characters that can be shown"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_schedule_says_why_in_one_line_and_nothing_is_written(rig: Rig, what: str) -> None:
    args, said = REFUSED[what]
    manifest = str(rig.manifest(None))
    ran = rig.pod("queue", "schedule", *[manifest if word == "M" else word for word in args])
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err, ran.err
    assert not rig.home.exists()


def test_a_schedule_that_is_not_there_is_told_with_what_may_be_meant(rig: Rig) -> None:
    rig.manifest(None)
    assert rig.pod(*add_words(rig, cron="@daily")).code == 0
    for what in ("show", "pause", "run", "remove"):
        ran = rig.pod("queue", "schedule", what, "repotr")
        assert ran.code == 2 and "there is no schedule 'repotr'; did you mean 'report'?" in ran.err


def test_two_nodes_together_keep_to_the_limits_of_their_queue_and_to_new_ones_at_once(rig: Rig) -> None:
    names = [f"big_{n}" for n in range(6)] + [f"small_{n}" for n in range(4)]
    lines = [json.dumps({"id": name, "task": f"Do {name}", "tenant": name.partition("_")[0]}) for name in names]
    (rig.work / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    witness = Witness()
    with witness.server as server, ExitStack() as stack:
        rig.manifest(server)
        set_ = rig.pod("queue", "limit", "batch", "--together", "3", "--each-partition", "2")
        assert set_.text == "queue batch: 3 together, 2 of each partition\n"
        for backend in ((), ("--asyncio",)):
            stack.enter_context(node(rig, "--concurrency", "4", *backend))
        until(lambda: nodes(rig) == 2)
        batch = rig.start(*batch_words(rig, "--partition", "$tenant"))
        stack.callback(batch.kill)
        until(lambda: len(witness.inside) == 3)
        assert set(witness.inside) == {"big", "small"}
        shown = rig.pod("queue", "ls").text
        assert "queue batch: 3 together, 2 of each partition" in shown and "batch/big" in shown
        witness.answer(2)
        until(lambda: witness.seen == 5)
        assert witness.most == 3 and max(witness.most_of.values()) == 2
        assert rig.pod("queue", "limit", "batch", "--together", "none", "--each-partition", "none").code == 0
        until(lambda: len(witness.inside) == 8)
        witness.answer(len(names))
        _, err = batch.communicate(timeout=90)
        assert batch.returncode == 0, err
        assert "limits" not in rig.pod("queue", "ls", "--queue", "batch").text
    assert {row["status"] for row in rows(rig).values()} == {"finished"} and witness.seen == len(names)


def test_two_nodes_together_start_no_more_in_a_time_than_they_may(rig: Rig) -> None:
    tasks(rig, *(f"t{n}" for n in range(5)))
    provider = Provider()
    with provider.server as server, ExitStack() as stack:
        rig.manifest(server)
        assert rig.pod("queue", "limit", "batch", "--starts", "2", "--per", "1").code == 0
        for _ in range(2):
            stack.enter_context(node(rig, "--concurrency", "4"))
        until(lambda: nodes(rig) == 2)
        ran = rig.pod(*batch_words(rig))
        assert ran.code == 0, ran.err
    began = sorted(row[0] / 1000 for row in asked_of(rig, "SELECT started_at_epoch_ms FROM workflow_status"))
    assert len(began) == 5 and all(third - first >= 1 for first, third in zip(began, began[2:], strict=False)), began


LIMITS_REFUSED = {
    "a time without starts": (["batch", "--per", "60"], "give --starts N as well"),
    "starts without a time": (["batch", "--starts", "60"], "give --per SECONDS as well"),
    "none at all": (["batch", "--together", "0"], "from 1 on or `none`, not '0'"),
    "a time that is too long": (["batch", "--starts", "1", "--per", "1e9"], "a day (86400) at most"),
    "a queue that is none": (["a/b", "--together", "1"], "not 'a/b'"),
}


@pytest.mark.parametrize("what", LIMITS_REFUSED)
def test_a_refused_limit_says_why_in_one_line(rig: Rig, what: str) -> None:
    args, said = LIMITS_REFUSED[what]
    ran = rig.pod("queue", "limit", *args)
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err, ran.err
    assert rig.pod("queue", "limit", "batch").text == "queue batch: no limits over all nodes\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("$tenant", "tasks.jsonl:2: --partition wants the field 'tenant'"),
        ("$", "a dollar that begins no field"),
        ("a\x07b", "can't be a partition's key"),
    ],
)
def test_a_partition_that_a_task_has_not_is_refused_before_anything_is_queued(rig: Rig, given: str, said: str) -> None:
    (rig.work / "tasks.jsonl").write_text('{"task": "Do one", "tenant": "a"}\n{"task": "Do two"}\n')
    rig.manifest(None)
    ran = rig.pod(*batch_words(rig, "--partition", given))
    assert ran.code == 2 and said in ran.err, ran.err
    assert not rig.home.exists()
    local = rig.pod("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", "--partition", "a")
    assert local.code == 2 and "--partition: for queues; give --engine dbos" in local.err


def test_a_schedule_of_a_later_version_is_named_beside_the_others_and_can_be_taken_away(rig: Rig) -> None:
    with ProviderServer([], wire="openai-chat") as server:
        rig.manifest(server)
        for name in ("report", "later", "elsewhere"):
            assert rig.pod(*add_words(rig, name=name, cron="@daily")).code == 0
        with closing(sqlite3.connect(rig.home / "engine.sqlite")) as connection, connection:
            changed = "UPDATE pod_schedule SET schedule = replace(schedule, '\"format\":1', '\"format\":2') WHERE name = 'later'"
            assert connection.execute(changed).rowcount == 1
            moved = "UPDATE pod_schedule SET schedule = replace(schedule, 'UTC', 'Sea/Lost') WHERE name = 'elsewhere'"
            assert connection.execute(moved).rowcount == 1
        listed = rig.pod("queue", "schedule", "ls")
        way_out = "`pod queue schedule remove later` takes it away"
        assert listed.code == 0 and b"report" in listed.out and b"later" not in listed.out and way_out in listed.err
        assert b"elsewhere" not in listed.out and re.search("warning: schedule elsewhere: .*Sea/Lost", listed.err)
        assert [each["name"] for each in rig.pod("queue", "schedule", "ls", "--json").json] == ["report"]
        for words in (("show", "later"), ("pause", "later"), add_words(rig, "--replace", name="later")[2:]):
            refused = rig.pod("queue", "schedule", *words)
            assert refused.code == 2 and way_out in refused.err, words
        assert rig.pod("queue", "schedule", "remove", "later").code == 0
        assert not re.search("warning.*later", rig.pod("queue", "schedule", "ls").err)
