"""`pod batch` as a user runs it: real processes, a provider on a real socket, kills, and the same command again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import Ran, Rig

from pod.cli.batch import _failures  # pyright: ignore[reportPrivateUsage]
from pod.cli.output import Output
from pod.cli.text import columns
from worker.testing.provider_server import Answer, Call, ProviderServer, RecordedRequest

SCOPE = '[scope]\nread = ["."]\nwrite = ["."]\n'
"""What lets an agent write in its working folder."""

Step = Callable[[RecordedRequest], Any]


def words(request: RecordedRequest) -> str:
    """All that a request says."""
    return request.body.decode()


def asked(request: RecordedRequest) -> str:
    """The task that a request is about."""
    return re.findall(r"Do (\w+)", words(request))[0]


def tasks(rig: Rig, *names: str) -> Path:
    path = rig.work / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": name, "task": f"Do {name}"}) + "\n" for name in names))
    return path


def batch(rig: Rig, *args: object, **env: str) -> Ran:
    return rig.pod("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", *args, **env)


def rows(rig: Rig, name: str = "tasks.results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (rig.work / name).read_text().splitlines()]


class Provider:
    """Answers each request; holds those of the tasks in `held` until the client is gone."""

    def __init__(self, *held: str, step: Step | None = None) -> None:
        self.held = set(held)
        self.step = step or (lambda request: Answer(f"did {asked(request)}"))
        self.begun, self.killed = threading.Event(), threading.Event()
        self.seen: list[str] = []
        self.server = ProviderServer(self._step, wire="openai-chat")

    def _step(self, request: RecordedRequest) -> Any:
        name = asked(request)
        self.seen.append(name)
        if name in self.held:
            self.begun.set()
            self.killed.wait(20)
            return Answer("too late")
        return self.step(request)


def told_to_end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGINT, and waits until the batch says that it heard it."""
    process.send_signal(signal.SIGINT)
    while b"SIGINT" not in (process.stderr.readline() if process.stderr else b"SIGINT"):
        pass


def killed(rig: Rig, provider: Provider, *args: object) -> None:
    """Begins the batch, and kills it once a held task has sent its request."""
    provider.begun.clear()
    provider.killed.clear()
    process = rig.start("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", *args, stdout=subprocess.DEVNULL)
    assert provider.begun.wait(20)
    process.kill()
    process.communicate()
    provider.killed.set()


def test_each_task_has_a_pod_a_line_and_a_row_of_the_page_and_again_nothing_is_done(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        ran = batch(rig, "--concurrency", "2")
        assert ran.code == 0, ran.err
        first = (rig.work / "tasks.results.jsonl").read_bytes()
        again = batch(rig, "--json")
    assert again.code == 0 and again.json["by_status"] == {"finished": 3} and again.json["ran"] == 0
    assert len(provider.seen) == 3 and (rig.work / "tasks.results.jsonl").read_bytes() == first
    found = sorted(rows(rig), key=lambda row: row["index"])
    assert [(r["index"], r["id"], r["pod"], r["status"], r["text"]) for r in found] == [
        (n, name, f"tasks/{n}", "finished", f"did {name}") for n, name in enumerate(("one", "two", "three"))
    ]
    wanted = {"output", "error", "usage", "cost_usd", "requests", "compactions", "duration_s"}
    assert wanted <= found[0].keys() and found[0]["requests"] == 1
    assert "finished:     3" in ran.text and "3 tasks, 3 to do" in ran.err
    page = (rig.work / "tasks.results.html").read_text()
    assert all(f"did {name}" in page for name in ("one", "two", "three"))
    assert set(rig.pod("ls", "--names").text.split()) == {"tasks/0", "tasks/1", "tasks/2"}
    told = rig.pod("batch", "report", "tasks", "--json")
    assert told.json["by_status"] == {"finished": 3} and told.code == 0


def test_b129_what_a_kill_left_at_started_is_gone_on_with_and_what_ended_is_not_done_again(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider("two")
    with provider.server as server:
        rig.manifest(server)
        killed(rig, provider, "--concurrency", "1")
        assert [row["id"] for row in rows(rig)] == ["one"]
        provider.held.clear()
        ran = batch(rig, "--concurrency", "1")
    assert ran.code == 0, ran.err
    assert provider.seen == ["one", "two", "two", "three"]
    assert [row["id"] for row in rows(rig)] == ["one", "two", "three"]
    assert "3 tasks, 1 ended before, 2 to do" in ran.err
    log = rig.pod("log", "tasks/1", "--json")
    assert sum(line["type"] == "input" for line in log.lines) <= 1, "the task was said once"


def test_b130_an_item_that_hangs_is_given_up_after_its_attempts_and_the_batch_ends(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider("two")
    with provider.server as server:
        rig.manifest(server)
        for _ in range(2):
            killed(rig, provider, "--concurrency", "1", "--attempts", "2")
        ran = batch(rig, "--concurrency", "1", "--attempts", "2")
        assert ran.code == 1, ran.err
        assert {row["id"]: (row["status"], row["error_kind"]) for row in rows(rig)} == {
            "one": ("finished", None), "two": ("failed", "poisoned"), "three": ("finished", None)
        }  # fmt: skip
        (given_up,) = [row for row in rows(rig) if row["status"] == "failed"]
        assert "it was begun 2 times" in given_up["error"] and "--retry-failed" in ran.err
        provider.held.clear()
        tried = batch(rig, "--concurrency", "1", "--attempts", "2", "--retry-failed")
    assert tried.code == 0 and sorted(row["id"] for row in rows(rig)) == ["one", "three", "two"]


def test_results_that_a_kill_or_a_user_took_away_are_made_anew_from_the_logs(rig: Rig) -> None:
    tasks(rig, "one", "two")
    provider = Provider(
        step=lambda request: Answer("no", stop="refusal", refusal=True) if asked(request) == "two" else Answer("yes")
    )
    with provider.server as server:
        rig.manifest(server)
        assert batch(rig).code == 1
        before = sorted(rows(rig), key=lambda row: row["index"])
        (rig.work / "tasks.results.jsonl").unlink()
        assert batch(rig).code == 1
    assert len(provider.seen) == 2 and sorted(rows(rig), key=lambda row: row["index"]) == before


def test_poison_among_good_tasks_stops_alone_and_takes_no_innocent_along(rig: Rig) -> None:
    """Two tasks kill their process in a tool, again and again; whoever runs the batch starts it anew each time."""
    names = [f"good{n}" for n in range(60)]
    names[7:7], names[33:33] = ["poison1"], ["poison2"]
    tasks(rig, *names)

    def step(request: RecordedRequest) -> Any:
        name = asked(request)
        if name.startswith("poison"):
            return Answer(calls=[Call("die")])
        return Answer(f"did {name}")

    (rig.root / "poison.py").write_text(
        'import os, signal\n\ndef die() -> str:\n    """Takes the process down."""\n    os.kill(os.getpid(), signal.SIGKILL)\n    return \'\'\n'
    )

    provider = Provider(step=step)
    with provider.server as server:
        rig.manifest(server)
        path = rig.root / "agent.toml"
        allowed = '\n[[permissions.rules]]\ntool = "die"\naction = "allow"\n'
        path.write_text(path.read_text().replace("enable = []", 'enable = []\npython = ["poison:die"]') + allowed)
        codes: list[int] = []
        while not codes or codes[-1] == -signal.SIGKILL:
            codes.append(batch(rig, "--concurrency", "10", "-q", PYTHONPATH=str(rig.root)).code)
            assert len(codes) < 12
    found = {row["id"]: row for row in rows(rig)}
    assert codes[-1] == 1 and len(rows(rig)) == len(found) == 62
    assert sorted(name for name, row in found.items() if row["status"] == "failed") == ["poison1", "poison2"]
    assert all(found[name]["error_kind"] == "poisoned" for name in ("poison1", "poison2"))
    assert all(found[name]["status"] == "finished" for name in names if name.startswith("good"))
    assert provider.seen.count("poison1") <= 3 and provider.seen.count("poison2") <= 3


def test_a_signal_lets_runs_end_at_a_boundary_and_the_same_command_goes_on(rig: Rig) -> None:
    tasks(rig, "one", "two", "three")
    provider = Provider("two")
    with provider.server as server:
        rig.manifest(server)
        process = rig.start("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", "--concurrency", "2")
        assert provider.begun.wait(20)
        told_to_end(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=90)
        provider.held.clear()
        provider.killed.set()
        assert process.returncode == 130
        assert batch(rig).code == 0
    assert sorted(row["id"] for row in rows(rig)) == ["one", "three", "two"]


def test_what_a_signal_left_is_told_with_the_way_on(rig: Rig) -> None:
    tasks(rig, "one", "two")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        process = rig.start("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", "--concurrency", "1")
        assert provider.begun.wait(20)
        told_to_end(process)
        provider.killed.set()
        _, err = process.communicate(timeout=90)
    assert process.returncode == 130 and b"1 have no end yet; the same command goes on" in err


def test_the_figures_of_a_task_are_of_all_its_runs(rig: Rig) -> None:
    tasks(rig, "one")
    begun, go_on = threading.Event(), threading.Event()

    def step(request: RecordedRequest) -> Any:
        seen = len(provider.seen)
        if seen == 2:
            begun.set()
            go_on.wait(20)
        return Answer("did it") if seen == 3 else Answer(calls=[Call("list_files", {"path": "."})])

    provider = Provider(step=step)
    with provider.server as server:
        rig.manifest(server)
        process = rig.start("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml")
        assert begun.wait(20)
        told_to_end(process)
        go_on.set()
        process.communicate(timeout=90)
        assert process.returncode == 130 and not rows(rig)
        assert batch(rig).code == 0
    (row,) = rows(rig)
    assert row["status"] == "finished" and row["requests"] == len(provider.seen) == 3
    assert row["usage"]["input_tokens"] > 0


def test_what_waits_for_a_human_is_answered_and_goes_on(rig: Rig) -> None:
    tasks(rig, "one", "two")

    def step(request: RecordedRequest) -> Any:
        if '"role":"tool"' in words(request).replace(" ", "") or asked(request) == "two":
            return Answer("done")
        return Answer(calls=[Call("shell", {"command": "echo hello > said.txt"})])

    provider = Provider(step=step)
    with provider.server as server:
        rig.manifest(server, tools=["shell"], profile="safe", more="")
        path = rig.root / "agent.toml"
        path.write_text(path.read_text().replace('profile = "safe"', 'profile = "safe"\nwhen_headless = "pause"'))
        ran = batch(rig)
        assert ran.code == 3 and "pod approve tasks/INDEX" in ran.err
        assert {row["id"]: row["status"] for row in rows(rig)} == {"one": "paused", "two": "finished"}
        assert rig.pod("approve", "tasks/0", "--all").code == 0
        again = batch(rig)
    assert again.code == 0, again.err
    assert {row["id"]: row["status"] for row in rows(rig)} == {"one": "finished", "two": "finished"}
    assert (rig.work / "said.txt").read_text() == "hello\n"


def test_each_task_has_a_copy_or_a_worktree_of_its_own(rig: Rig) -> None:
    def step(request: RecordedRequest) -> Any:
        if '"role":"tool"' in words(request).replace(" ", ""):
            return Answer("done")
        return Answer(calls=[Call("write_file", {"path": "made.txt", "content": asked(request)})])

    (rig.work / "seed.txt").write_text("seed")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    for command in (
        ["init", "-q"],
        ["add", "seed.txt"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=rig.work, check=True, env=env)
    tasks(rig, "one", "two")
    with Provider(step=step).server as server:
        rig.manifest(server, tools=["write_file"], more=SCOPE)
        for kind in ("copy", "git-worktree"):
            ran = batch(rig, "--workspace", kind, "--name", kind, "--out", rig.root / f"{kind}.jsonl")
            assert ran.code == 0, ran.err
            folder = rig.root / "home-work" / kind
            assert {n: (folder / n / "made.txt").read_text() for n in ("0", "1")} == {"0": "one", "1": "two"}
            assert (folder / "1" / "seed.txt").read_text() == "seed"
    assert not (rig.work / "made.txt").exists()
    branches = subprocess.run(
        ["git", "branch", "--list", "pod/*"], cwd=rig.work, capture_output=True, text=True, check=True
    ).stdout
    assert "pod/git-worktree/0" in branches and "pod/git-worktree/1" in branches


def test_answers_are_graded_and_a_grader_that_fails_fails_no_task(rig: Rig) -> None:
    (rig.root / "graders.py").write_text(
        "def length(task, result):\n    return {'score': len(result.text), 'want': task['id']}\n"
        "async def broken(task, result):\n    raise RuntimeError('no idea')\n"
    )
    tasks(rig, "one", "three")
    with Provider().server as server:
        rig.manifest(server)
        env = {"PYTHONPATH": str(rig.root)}
        ran = batch(rig, "--grade", "graders:length", **env)
        broken = batch(rig, "--grade", "graders:broken", "--name", "b", "--out", "b.jsonl", **env)
        nowhere = batch(rig, "--grade", "graders:none", "--name", "c", **env)
    assert ran.code == 0 and "mean grade:   8.000 of 2" in ran.text
    assert {row["id"]: row["grade"] for row in rows(rig)} == {
        "one": {"score": 7.0, "want": "one"},
        "three": {"score": 9.0, "want": "three"},
    }
    assert broken.code == 0 and "not graded:   2" in broken.text
    assert [row["grade"]["error"] for row in rows(rig, "b.jsonl")] == ["RuntimeError: no idea"] * 2
    assert nowhere.code == 2 and "graders:none" in nowhere.err and not (rig.home / "batches" / "c").exists()


def test_a_grader_comes_from_a_file_that_is_named_and_what_it_could_not_grade_is_graded_by_the_same_command(
    rig: Rig,
) -> None:
    tasks(rig, "one", "three")
    grader = rig.root / "graders.py"
    grader.write_text("def length(task, result):\n    raise ValueError('not\\nyet')\n")
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        broken = batch(rig, "--grade", f"{grader}:length")
        report = rig.pod("batch", "report", "tasks")
        page = (rig.work / "tasks.results.html").read_text()
        grader.write_text("def length(task, result):\n    return {'score': len(result.text), 'want': 'long'}\n")
        graded = batch(rig, "--grade", f"{grader}:length")
        grader.write_text("def length(task, result):\n    return 1\n")
        kept = batch(rig, "--grade", f"{grader}:length")
        anew = batch(rig, "--grade", f"{grader}:length", "--regrade")
    assert broken.code == 0 and "no grade: ValueError: not yet" in broken.err
    assert (
        "2 could not be graded (first: ValueError: not" in broken.err
        and "the same command grades them again" in broken.err
    )
    assert report.text.count("no grade: ValueError") == page.count("no grade: ValueError") == 2
    assert graded.code == 0 and "2 tasks, 2 to do" in graded.err and "mean grade:   8.000 of 2" in graded.text
    assert "2 ended before, 0 to do" in kept.err and "mean grade:   8.000 of 2" in kept.text
    assert "mean grade:   1.000 of 2" in anew.text and sorted(row["id"] for row in rows(rig)) == ["one", "three"]
    assert sorted(provider.seen) == ["one", "three"], "no task was done again"


def test_grading_anew_leaves_a_task_whose_log_is_gone_as_it_is(rig: Rig) -> None:
    tasks(rig, "one", "two")
    (rig.root / "graders.py").write_text("def good(task, result):\n    return True\n")
    provider = Provider()
    with provider.server as server:
        rig.manifest(server)
        assert batch(rig).code == 0 and rig.pod("rm", "tasks/0").code == 0
        ran = batch(rig, "--grade", f"{rig.root / 'graders.py'}:good")
    assert ran.code == 0 and sorted(provider.seen) == ["one", "two"]
    assert {row["id"]: row.get("grade") for row in rows(rig)} == {"one": None, "two": {"score": 1.0}}


def test_a_preview_shows_what_would_be_run_and_begins_nothing(rig: Rig) -> None:
    tasks(rig, *(f"number{n}" for n in range(5)))
    rig.manifest(None, tools=["write_file"], more=SCOPE)
    before = {path for path in rig.root.rglob("*") if path.is_file()}
    ran = batch(rig, "--dry-run", "--limit", "4", "--template", "Please:\n$task")
    as_json = batch(rig, "--dry-run", "--json", "--workspace", "copy")
    assert ran.code == 0 and "nothing was begun" in ran.err
    assert "tasks:     4 of 5" in ran.text and "tasks/0 (number0) is told:\n  Please:\n  Do number0" in ran.text
    assert "... and 1 task more" in ran.text and "number3" not in ran.text
    assert "4 tasks at once write in the same folder" in ran.err and "--workspace copy" in ran.err
    assert [task["text"] for task in as_json.json["tasks"]] == [f"Do number{n}" for n in range(5)]
    assert "same folder" not in as_json.err
    assert {path for path in rig.root.rglob("*") if path.is_file()} == before


def test_workspaces_beside_the_working_folder_may_be_named_from_there(rig: Rig) -> None:
    tasks(rig, "one")
    (rig.work / "seed.txt").write_text("seed")
    with Provider().server as server:
        rig.manifest(server)
        ran = batch(rig, "--workspace", "copy", "--workspaces", "../beside")
        inside = batch(rig, "--workspace", "copy", "--workspaces", "../work/inside", "--name", "b")
    assert ran.code == 0, ran.err
    assert (rig.root / "beside" / "tasks" / "0" / "seed.txt").read_text() == "seed"
    assert inside.code == 2 and "which is inside of" in inside.err


def test_a_grader_that_the_agents_may_change_is_warned_of(rig: Rig) -> None:
    tasks(rig, "one")
    (rig.work / "graders.py").write_text("def good(task, result):\n    return True\n")
    rig.manifest(None, tools=["write_file"], more=SCOPE)
    ran = batch(rig, "--dry-run", "--grade", "graders.py:good")
    apart = batch(rig, "--dry-run", "--grade", "graders.py:good", "--workspace", "copy")
    assert ran.code == 0 and "the agents may change" in ran.err and "graders.py" in ran.err
    assert apart.code == 0 and "may change" not in apart.err


REFUSED: dict[str, tuple[list[str], str]] = {
    "no manifest": (["batch", "tasks.jsonl"], "a batch needs a manifest"),
    "no tasks": (["batch", "gone.jsonl", "--manifest", "M"], "gone.jsonl: there is no such file or folder"),
    "a manifest that is none": (["batch", "tasks.jsonl", "--manifest", "nowhere"], "nowhere"),
    "two files of tasks": (["batch", "tasks.jsonl", "more.jsonl", "--manifest", "M"], "a batch has one file or folder of tasks"),
    "a grader of no module": (
        ["batch", "tasks.jsonl", "--manifest", "M", "--grade", "not_there:good"], "or a file with its path: --grade folder/graders.py:FUNCTION"
    ),
    "a grader of no file": (["batch", "tasks.jsonl", "--manifest", "M", "--grade", "gone.py:good"], "there is no file gone.py"),
    "a grader that its file lacks": (["batch", "tasks.jsonl", "--manifest", "M", "--grade", "mine.py:bad"], "no attribute 'bad'"),
    "grading anew without a grader": (["batch", "tasks.jsonl", "--manifest", "M", "--regrade"], "--regrade: with which function?"),
    "a page of a run": (["batch", "tasks.jsonl", "--manifest", "M", "--html", "x.html"], "--html is for `pod batch report`"),
    "no concurrency": (["batch", "tasks.jsonl", "--manifest", "M", "--concurrency", "0"], "a whole number from 1 on, not '0'"),
    "no money": (["batch", "tasks.jsonl", "--manifest", "M", "--max-cost", "-1"], "US dollars, above zero, not '-1'"),
    "a price that is not known": (["batch", "tasks.jsonl", "--manifest", "M", "--max-cost", "5"], "(--max-cost) can't be held"),
    "a name that is none": (["batch", "tasks.jsonl", "--manifest", "M", "--name", "a/b"], "'a/b' can't be a batch's name"),
    "results over the tasks": (["batch", "tasks.jsonl", "--manifest", "M", "--out", "tasks.jsonl"], "is the file of the tasks"),
    "results in no folder": (["batch", "tasks.jsonl", "--manifest", "M", "--out", "no/r.jsonl"], "there is no folder"),
    "results over something else": (["batch", "tasks.jsonl", "--manifest", "M", "--out", "other.txt"], "other.txt:1: not the result of a task"),
    "results in a pipe": (["batch", "tasks.jsonl", "--manifest", "M", "--out", "pipe"], "pipe: no file that results can lie in"),
    "results in a link to nothing": (["batch", "tasks.jsonl", "--manifest", "M", "--out", "dangling"], "no file that results can lie in"),
    "results among the tasks": (["batch", "folder", "--manifest", "M", "--out", "folder/r.jsonl"], "it would be taken for a task"),
    "a name that is no UTF-8": (["batch", "odd", "--manifest", "M"], "its name is no UTF-8"),
    "no repository": (["batch", "tasks.jsonl", "--manifest", "M", "--workspace", "git-worktree"], "is no git repository with a commit"),
    "a template without a field": (["batch", "tasks.jsonl", "--manifest", "M", "--template", "Fix $what"], "the template wants $what"),
    "a template that is not there": (["batch", "tasks.jsonl", "--manifest", "M", "--template", "@gone"], "--template @gone: No such file"),
    "a report of nothing": (["batch", "report", "nothing"], "neither a file of results nor a batch"),
    "a report with an output": (["batch", "report", "x", "--out", "y"], "takes the name of a batch or a file of results"),
}  # fmt: skip


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    rig = Rig(tmp_path_factory.mktemp("refused"))
    rig.work.mkdir()
    tasks(rig, "one")
    (rig.work / "more.jsonl").write_text('"x"\n')
    (rig.work / "other.txt").write_text("mine\n")
    (rig.work / "mine.py").write_text("def good(task, result):\n    return True\n")
    os.mkfifo(rig.work / "pipe")
    (rig.work / "dangling").symlink_to("nowhere")
    for folder in ("folder", "odd"):
        (rig.work / folder).mkdir()
        (rig.work / folder / "a.txt").write_text("Do one\n")
    Path(os.fsdecode(os.fsencode(rig.work / "odd") + b"/\xff.txt")).write_text("Do two\n")
    rig.manifest(None)
    return rig


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_batch_says_why_and_writes_nothing(refusing: Rig, what: str) -> None:
    args, said = REFUSED[what]
    before = {path: path.read_bytes() for path in refusing.root.rglob("*") if path.is_file()}
    ran = refusing.pod(*(str(refusing.root / "agent.toml") if arg == "M" else arg for arg in args))
    assert ran.code == 2 and said in ran.err and "Traceback" not in ran.err and not ran.out
    assert {path: path.read_bytes() for path in refusing.root.rglob("*") if path.is_file()} == before


def test_other_tasks_under_the_same_name_are_refused_and_more_behind_them_are_taken(rig: Rig) -> None:
    tasks(rig, "one", "two")
    with Provider().server as server:
        rig.manifest(server)
        assert batch(rig).code == 0
        tasks(rig, "one", "another")
        ran = batch(rig)
        assert ran.code == 2 and "tasks.jsonl:2: not the task that the batch 'tasks' was begun with" in ran.err
        tasks(rig, "one")
        fewer = batch(rig)
        assert fewer.code == 2 and "was begun with 2 tasks, and here are 1" in fewer.err
        tasks(rig, "one", "two", "three")
        assert batch(rig, "--json").json["ran"] == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_report_keeps_to_the_width_of_its_terminal_whatever_the_ids(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("pod.cli.batch.is_terminal", lambda stream: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda *given: os.terminal_size((width, 24)))
    said = "no connection to the provider at its usual place, once more " * 5
    rows = [{"id": id_, "status": "failed", "error": said} for id_ in ("i" * 300, "漢字" * 80, "é" * 90, "short")]
    _failures(Output("text", sys.stdout, printing=True, quiet=False, verbose=False), rows)
    lines = capsys.readouterr().out.splitlines()
    at = {columns(line[: line.index("failed")]) for line in lines if "failed" in line}
    assert len(at) == 1 and max(map(columns, lines)) <= width, "\n".join(lines)
    assert sum("no connec" in line for line in lines) == 4, "each reason is seen"


def test_one_process_runs_a_batch_at_a_time(rig: Rig) -> None:
    tasks(rig, "one")
    provider = Provider("one")
    with provider.server as server:
        rig.manifest(server)
        process = rig.start("batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", stdout=subprocess.DEVNULL)
        assert provider.begun.wait(20)
        other = batch(rig)
        process.kill()
        process.communicate()
        provider.killed.set()
    assert other.code == 75 and "another process runs the batch 'tasks'" in other.err


def test_two_hundred_tasks_are_finished_once_each_through_kills_at_random_moments(rig: Rig) -> None:
    import random

    seed = 20_261_130
    chance = random.Random(seed)
    (rig.work / "a.py").write_text("def f():\n    return 1\n")
    (rig.work / "tasks.jsonl").write_text(
        "".join(json.dumps({"task": f"Survey the files. Report to report-{n}.md."}) + "\n" for n in range(200))
    )
    command = ["batch", "tasks.jsonl", "--manifest", "offline-survey", "--concurrency", "50", "-q"]
    for _ in range(4):
        process = rig.start(*command, stdout=subprocess.DEVNULL)
        try:
            process.wait(1.0 + 1.5 * chance.random())
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
    began = time.monotonic()
    ran = rig.pod(*command)
    assert ran.code == 0, f"seed {seed}: {ran.err}"
    found = [row["index"] for row in rows(rig)]
    assert sorted(found) == list(range(200)), f"seed {seed}"
    assert time.monotonic() - began < 60
