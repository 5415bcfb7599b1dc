"""What a program that embeds pods relies on: whole streams, early refusals, warnings, versions, and an end to stalls."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import pod as pod_package
import worker as worker_package
from pod import Pod, PodBusy, UsageProblem
from pod.log import entries as e
from pod.log.inbox import Command, post
from pod.result import RunResult
from tests.pod.pod_rig import (
    Agent,
    Counted,
    Rig,
    caller,
    compacting,
    manifest,
    results,
    summariser,
    types,
    users,
)
from worker.errors import ConfigError, ProviderDown
from worker.interceptor import CONTINUE, Decision, Interceptor, RequestContext, Yield
from worker.items import OrderItem
from worker.models.base import FALLBACK_WINDOW, Capabilities
from worker.records import Input, Warned
from worker.testing import call, fail, hang, say

pytestmark = pytest.mark.anyio


# -- whole streams -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finished", "failed", "limit", "cancelled", "raised"])
async def test_a_stream_begins_with_init_and_ends_with_exactly_one_result(rig: Rig, end: str) -> None:
    """However the run ends, also where it raises."""

    class Broken(Agent):
        async def send(self, request: Any, emit: Any) -> Any:
            raise ZeroDivisionError("a bug of the adapter")

    plays = {
        "finished": caller(2), "limit": caller(5), "failed": lambda r, n: fail(ProviderDown("down")), "cancelled": lambda r, n: hang(),
    }  # fmt: skip
    agent = Broken(caller(1)) if end == "raised" else Agent(plays[end])
    made = manifest(worker={"max_requests": 3})
    async with rig.open(agent, made, tools=[Counted(20).tool]) as pod, pod.start("go") as run:
        seen: list[Any] = []
        async for event in run:
            seen.append(event)
            if event.type == "request.started" and end == "cancelled":
                await run.interrupt("now")
        with pytest.raises(StopAsyncIteration):
            await run.__anext__()
        if end != "raised":
            assert seen[-1].result == run.result.model_dump(mode="json")
        told = RunResult.model_validate(seen[-1].result)
        assert told.status == ("failed" if end == "raised" else end) and told.pod == "p"
    assert types(seen)[0] == "init" and types(seen)[-1] == "result"
    assert types(seen).count("init") == types(seen).count("result") == 1
    assert (seen[0].pod, seen[0].model, seen[0].window) == ("p", "offline:agent", 200_000)
    numbers = [event.seq for event in seen]
    assert numbers == sorted(numbers)


async def test_every_event_says_when_in_utc(rig: Rig) -> None:
    """Those that pass as well: `request.started`, `text.delta`, `compaction.progress`, `init`, `result`."""
    seen: list[Any] = []
    made = manifest(compaction=compacting(8_000))
    async with (
        rig.open(
            Agent(caller(9)), made, tools=[Counted(1_500).tool], compact_model=summariser(), observers=[seen.append]
        ) as pod,
        pod.start("go") as run,
    ):
        seen += [event async for event in run]
        seen += [event async for event in pod.events()]
    assert {"init", "result", "request.started", "text.delta", "compaction.progress"} <= set(types(seen))
    for event in seen:
        assert event.at.endswith("Z") and datetime.fromisoformat(event.at).utcoffset() == timedelta(0), event


async def test_a_second_run_of_a_pod_has_a_stream_of_its_own(rig: Rig) -> None:
    async with rig.open(Agent(lambda r, n: say(f"answer {n}"))) as pod:
        for number in (1, 2):
            async with pod.start("go") as run:
                seen = [event async for event in run]
            assert types(seen)[0] == "init" and types(seen).count("result") == 1
            assert seen[-1].result["text"] == f"answer {number}"


# -- blank messages, missing folders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t", "\u2003"])
async def test_a_blank_message_is_refused_before_anything_is_stored(rig: Rig, text: str) -> None:
    async with rig.open(Agent(caller(0))) as pod:
        before = pod.state.last_seq
        for say_it in (pod.run, pod.send):
            with pytest.raises(UsageProblem, match="the message is empty"):
                await say_it(text)
        with pytest.raises(UsageProblem, match="the message is empty"):
            pod.start(text)
        assert pod.state.last_seq == before and not pod.running.busy
        async with pod.start("go") as run:
            await run.wait()
            before = pod.state.last_seq
            with pytest.raises(UsageProblem, match="the message is empty"):
                await run.steer(text)
        assert pod.state.last_seq == before
    assert [r.item.text for r in rig.of(Input)] == ["go"]


async def test_a_blank_message_in_the_inbox_is_left_out_with_a_warning_and_taken_once(rig: Rig) -> None:
    agent = Agent(lambda r, n: say("done"))
    async with rig.open(agent) as pod:
        for _ in range(2):
            post(pod.running.session.folder, Command(id="blank", kind="send", args={"text": " \n"}))
            await pod.run("go")
    assert [w.code for w in rig.of(Warned)] == ["empty_message"]
    assert [users(request) for request in agent.requests] == [["go"], ["go", "go"]]


@pytest.mark.parametrize("kind", ["missing", "a file"])
async def test_a_working_folder_that_is_none_is_named_on_entering_and_nothing_is_made(rig: Rig, kind: str) -> None:
    path = rig.cwd / "nowhere"
    if kind == "a file":
        path.write_text("x")
    pod = Pod.open(manifest(), name="p", home=rig.home, cwd=path, model=Agent(caller(0)))
    with pytest.raises(UsageProblem, match="nowhere") as caught:
        async with pod:
            pass
    assert ("does not exist" if kind == "missing" else "not a folder") in str(caught.value)
    assert not rig.home.exists()


async def test_a_second_writer_is_told_who_is_first(rig: Rig) -> None:
    async with rig.open(Agent(caller(0))):
        with pytest.raises(PodBusy, match="in use"):
            async with rig.open(Agent(caller(0))):
                pass


# -- an unknown window -----------------------------------------------------------------------------------------------


async def test_an_unknown_window_is_warned_of_once_a_session(rig: Rig) -> None:
    """B054: through runs, a compaction and a restart; the warning names the model, the window and the key."""
    unknown = Capabilities(window=FALLBACK_WINDOW, window_source="fallback", max_output=1_000, family="o200k")

    def agent(steps: int) -> Agent:
        return Agent(caller(steps), capabilities=unknown, name="openai-chat:mine")

    made = manifest(compaction=compacting(8_000))
    options: dict[str, Any] = {"tools": [Counted(1_500).tool], "compact_model": summariser()}
    async with rig.open(agent(9), made, **options) as pod:
        async with pod.start("go") as run:
            warned = [event async for event in run if event.type == "warning"]
        await pod.run("again")
    async with rig.open(agent(1), made, **options) as pod:
        await pod.run("and again")
    assert len(rig.segments()) > 1
    assert [w.code for w in rig.of(Warned)] == [w.code for w in warned] == ["unknown_window"]
    for part in ("openai-chat:mine", "32,768", "[model] context_window"):
        assert part in warned[0].message
    assert warned[0].figures == {"model": "openai-chat:mine", "window": 32_768, "key": "model.context_window"}


async def test_another_unknown_model_in_the_session_is_warned_of_too(rig: Rig) -> None:
    unknown = Capabilities(window=FALLBACK_WINDOW, window_source="fallback", max_output=1_000, family="o200k")
    for name in ("openai-chat:a", "openai-chat:b", "openai-chat:a"):
        async with rig.open(Agent(caller(0), capabilities=unknown, name=name)) as pod:
            await pod.run("go")
    assert [w.figures["model"] for w in rig.of(Warned)] == ["openai-chat:a", "openai-chat:b"]


async def test_a_known_window_is_not_warned_of(rig: Rig) -> None:
    async with rig.open(Agent(caller(0))) as pod:
        await pod.run("go")
    assert not rig.of(Warned)


# -- no progress -----------------------------------------------------------------------------------------------------


def forgetful(files: int = 7) -> Agent:
    """Reads the same files again whenever its results are gone: what it had learned is in no summary."""

    def play(request: Any, number: int) -> Any:
        read = len(results(request, "fetch"))
        return call("fetch", n=read) if read < files + 3 else say("done")

    return Agent(play)


async def test_a_run_that_loses_its_progress_at_each_compaction_comes_to_an_end(rig: Rig) -> None:
    """Reminded, warned, stopped, with the bound in the error; and resumable."""
    made = manifest(compaction=compacting(10_000, retained_tokens=300, retained_floor_tokens=200))
    agent = forgetful()
    async with rig.open(agent, made, tools=[Counted(1_500).tool], compact_model=summariser()) as pod:
        with anyio.fail_after(60):
            result = await pod.run("go")
        assert (result.status, result.error_kind, result.exit_code) == ("limit", "no_progress", 4)
        assert "8 times in a row" in (result.error or "") and "stall.stop is 8" in (result.error or "")
        assert result.details["limit"] == 8 and result.compactions < 20 and result.resumable
        warned = [w for w in rig.of(Warned) if w.code == "no_progress"]
        assert [w.figures["used"] for w in warned] == [3, 4, 5, 6, 7]
        orders = [i.text for request in agent.requests for i in request.items if isinstance(i, OrderItem)]
        assert any("3 times in a row" in text and "At 8" in text for text in orders)
        agent.play = lambda r, n: say("done")
        assert (await pod.resume()).text == "done"


async def test_a_stall_is_counted_through_restarts(rig: Rig) -> None:
    """The pod is closed and opened again every five requests, while the run stays open."""

    class Leave(Interceptor):
        requests = 0

        async def before_request(self, ctx: RequestContext) -> Decision:
            self.requests += 1
            return CONTINUE if self.requests % 6 else Yield("leave")

    made = manifest(
        compaction=compacting(10_000, retained_tokens=300, retained_floor_tokens=200), limits={"stall": {"remind": 1, "stop": 3}}
    )  # fmt: skip
    agent, opened, result = forgetful(), 0, None
    while result is None or result.status == "yielded":
        options: dict[str, Any] = {
            "tools": [Counted(1_500).tool],
            "compact_model": summariser(),
            "interceptors": [Leave()],
        }
        async with rig.open(agent, made, **options) as pod:
            opened += 1
            assert opened < 40
            result = await (pod.run("go") if result is None else pod.resume())
    assert result.error_kind == "no_progress" and opened > 3
    assert len(rig.of(e.RunStarted)) == 1
    assert [w.figures["used"] for w in rig.of(Warned) if w.code == "no_progress"] == [1, 2]


# -- packages --------------------------------------------------------------------------------------------------------


def test_packages_name_their_version_and_their_public_names() -> None:
    from importlib.metadata import version

    for package in (pod_package, worker_package):
        assert package.__version__ == version("pod-runtime")
        listed = {name for name in dir(package) if not name.startswith("_")}
        assert listed == set(package.__all__)
        assert "__version__" in dir(package)
        for name in package.__all__:
            assert getattr(package, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            package.nothing  # noqa: B018


def test_an_uninstalled_tree_has_an_unknown_version_and_importing_reads_no_metadata(tmp_path: Path) -> None:
    program = """
import sys
import pod, worker
assert "importlib.metadata" not in sys.modules
import importlib.metadata
def version(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
print(pod.__version__, worker.__version__)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": str(root)}
    )  # fmt: skip
    assert done.stdout.split() == ["0+unknown", "0+unknown"], done.stderr


async def test_a_pod_that_is_not_open_says_how_to_open_it(rig: Rig) -> None:
    pod = rig.open(Agent(lambda r, n: say("ok")), manifest())
    with pytest.raises(UsageProblem, match="not open: use it inside"):
        await pod.run("go")
    with pytest.raises(UsageProblem, match="not open"):
        _ = pod.state
    async with pod:
        assert (await pod.run("go")).status == "finished"
        with pytest.raises(UsageProblem, match="is entered already"):
            await pod.__aenter__()
    for attempt in (lambda: pod.run("more"), pod.resume, lambda: pod.send("more"), pod.compact):
        with pytest.raises(UsageProblem, match="is closed: enter it again"):
            await attempt()
    assert pod.state.totals.requests == 1, "what it did can still be looked at"
    async with pod:
        assert (await pod.run("more")).status == "finished"


async def test_a_wrong_scope_and_an_async_observer_are_refused(rig: Rig) -> None:
    async def observe(event: object) -> None: ...

    with pytest.raises(UsageProblem, match=r"observer .*observe is async"):
        rig.open(Agent(lambda r, n: say("ok")), manifest(), observers=[observe])
    async with rig.open(Agent(lambda r, n: say("ok")), manifest()) as pod:
        with pytest.raises(UsageProblem, match="'forever' is none: it is 'once' or 'run'"):
            await pod.approve("x", scope="forever")  # type: ignore[arg-type]


# -- interceptors that can't be asked -------------------------------------------------------------------------------


class SlowObserver(Interceptor):
    async def observe(self, record: Any) -> None:  # type: ignore[override]  # the mistake
        pass


@pytest.mark.parametrize(
    "given, said",
    [
        ([SlowObserver()], "SlowObserver.observe must not be async"),
        ([Interceptor], "Interceptor is a class: give an object of it"),
        (Interceptor(), "is a list: write"),
    ],
)
async def test_a_mistake_with_an_interceptor_is_named_on_entering_and_no_pod_is_made(
    rig: Rig, given: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        async with rig.open(Agent(caller(1)), interceptors=given):
            pass
    assert not rig.folder().exists()
