"""What telemetry must not do: fail a run, hold it, cost anything where it is off, or be loaded where nobody asked for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import get_current_span

from tests.otel.otel_rig import Traces
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker import tracing
from worker.testing import ScriptedModel, call, say
from worker.tracing import Told, Work

pytestmark = pytest.mark.anyio


class Broken:
    """A tracing that raises at the places that are named."""

    def __init__(self, *places: str) -> None:
        self.places, self.raised = places, 0

    def _at(self, place: str) -> None:
        if place in self.places:
            self.raised += 1
            raise RuntimeError(f"the tracer broke at {place}")

    def doing(self, work: Work) -> AbstractContextManager[object]:
        self._at("doing")
        return self._around()

    @contextmanager
    def _around(self) -> Any:
        self._at("enter")
        try:
            yield
        finally:
            self._at("exit")

    def told(self, told: Told) -> None:
        self._at("told")

    def outgoing(self) -> dict[str, str]:
        self._at("outgoing")
        return {}

    def incoming(self, headers: Any) -> AbstractContextManager[object]:
        self._at("incoming")
        return self._around()


@pytest.mark.parametrize("place", ["doing", "enter", "exit", "told", "outgoing", "incoming"])
async def test_a_tracing_that_fails_never_fails_a_run_and_is_logged_once(
    rig: Rig, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken(place)
    made = manifest(compaction=compacting(9_000))
    options: dict[str, Any] = {"tools": [Counted(1_000).tool], "compact_model": summariser(), "telemetry": broken}
    with caplog.at_level(logging.ERROR, "worker.tracing"):
        async with rig.open(Agent(caller(10)), made, **options) as pod:
            result = await pod.run("fetch")
            with tracing.using(pod.running.telemetry), tracing.incoming({"traceparent": "x"}):
                pass
    assert result.status == "finished" and broken.raised > 0
    (said,) = [record for record in caplog.records if record.name == "worker.tracing"]
    assert "the tracing Broken failed" in said.getMessage() and said.exc_info


async def test_what_the_run_raises_is_not_hidden_by_a_tracing_that_fails_on_it(rig: Rig) -> None:
    def bug(request: Any) -> Any:
        raise LookupError("a bug of the model's code")

    async with rig.open(ScriptedModel([bug]), telemetry=Broken("exit")) as pod:
        with pytest.raises(LookupError, match="a bug of the model's code"):
            await pod.run("go")


class Refusing(SpanProcessor):
    """Takes no span that ends."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("not taken")


async def test_a_processor_that_fails_on_an_end_leaves_what_comes_next_in_its_place(
    rig: Rig, traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    traces.tracers.add_span_processor(Refusing())
    before = get_current_span()
    async with rig.open(Agent(lambda request, n: say("done")), telemetry=traces.telemetry) as pod:
        for _ in range(2):
            assert (await pod.run("go")).status == "finished"
    assert get_current_span() is before
    assert [span.parent for span in traces.named("invoke_agent")] == [None, None]


class Swallowing(Broken):
    """A tracing whose context managers say that nothing was raised."""

    def doing(self, work: Work) -> AbstractContextManager[object]:
        class Hides(AbstractContextManager[object]):
            def __exit__(self, *_: object) -> bool:
                return True

        return Hides()


async def test_a_tracing_can_not_swallow_an_error(rig: Rig) -> None:
    def bug(request: Any) -> Any:
        raise LookupError("a bug of the model's code")

    async with rig.open(ScriptedModel([bug]), telemetry=Swallowing()) as pod:
        with pytest.raises(LookupError):
            await pod.run("go")


def fresh(rig: Rig, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own: the forks of other tests have everything loaded."""
    given = {"POD_HOME": str(rig.home), "PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=rig.cwd,
        env=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


PROGRAM = """
import sys
import pod
import anyio
from pod import Pod, Manifest
async def main():
    async with Pod.open(Manifest(), name="p", model="offline:surveyor") as p:
        await p.run("Survey the Python files in .")
assert not [m for m in sys.modules if m.startswith(("opentelemetry", "pod.otel"))], "with pod"
anyio.run(main)
assert not [m for m in sys.modules if m.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "pod.otel"))], "with a run"
"""


def test_nothing_of_it_is_loaded_where_nobody_asks_for_it(rig: Rig) -> None:
    done = fresh(rig, PROGRAM, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr


def test_without_the_extra_code_is_told_how_to_get_it(rig: Rig) -> None:
    done = fresh(rig, "import sys\nsys.modules['opentelemetry'] = None\nimport pod.otel")
    assert done.returncode == 1 and done.stderr.strip().endswith(
        "telemetry needs the extra `otel`: pip install '/path/to/checkout[otel]'"
    )


def best(what: Callable[[], object], rounds: int = 7) -> float:
    """The shortest of some rounds: what else the machine does makes none shorter."""

    def once() -> float:
        began = time.perf_counter()
        what()
        return time.perf_counter() - began

    return min(once() for _ in range(rounds))


def test_switched_off_it_costs_next_to_nothing() -> None:
    """Against encoding a small record as JSON, which each record costs anyway, several times what is done beside it."""
    from worker.items import UserItem
    from worker.records import Input

    record = Input(item=UserItem(text="a message of a few words"))
    work = Work()

    def off() -> None:
        for _ in range(2_000):
            tracing.told(record)
            with tracing.doing(work):
                pass

    def encodes() -> None:
        for _ in range(2_000):
            record.model_dump_json(exclude_none=True).encode()

    assert not tracing.outgoing()
    assert best(off) < best(encodes)


async def test_what_a_model_is_sent_and_how_much_is_on_record_are_the_same_with_telemetry(
    rig: Rig, traces: Traces
) -> None:
    sent: list[list[int]] = []
    without: dict[str, Any] = {}
    given: dict[str, Any] = {"telemetry": traces.telemetry}
    for name, options in (("without", without), ("with", given)):
        model = ScriptedModel([call("fetch", n=1), say("done")])
        async with rig.open(model, tools=[Counted(100).tool], name=name, **options) as pod:
            (await pod.run("go")).raise_for_status()
        sent.append([len(request.messages) for request in model.requests])
        sent[-1].append(len(rig.log(name)))
    assert sent[0] == sent[1]
