"""`--otel`: OTLP over HTTP to a real socket, from commands as a user runs them; a collector that is away, silent or refuses."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli.cli_rig import MANIFEST, Rig
from cli.test_serve_command import TOKEN, Served
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pod.errors import UsageProblem
from pod.otel.exporting import FLUSH, Troubles, check_environment, undelivered
from worker.testing.provider_server import Answer, Call, ProviderServer

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")


class Collector:
    """Takes OTLP over HTTP on loopback, and answers with a status."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[Any]:
        """The spans that came."""
        found: list[Any] = []
        for path, body in self.bodies:
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                found += [span for r in request.resource_spans for scope in r.scope_spans for span in scope.spans]
        return found

    @property
    def services(self) -> set[str]:
        """The names of the services that sent them."""
        requests = [ExportTraceServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/traces"]
        return {
            attribute.value.string_value
            for request in requests
            for each in request.resource_spans
            for attribute in each.resource.attributes
            if attribute.key == "service.name"
        }

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics that came."""
        requests = [ExportMetricsServiceRequest.FromString(body) for path, body in self.bodies if path == "/v1/metrics"]
        return {
            metric.name
            for request in requests
            for each in request.resource_metrics
            for scope in each.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.work.mkdir()
    return made


@pytest.fixture
def provider(rig: Rig) -> Generator[ProviderServer]:
    with ProviderServer(lambda request: Answer("done"), wire="openai-chat") as server:
        text = MANIFEST.format(url=server.url, tools="", profile="workspace-write", more="")
        (rig.root / "agent.toml").write_text(text)
        yield server


def pod(rig: Rig, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pod", *map(str, words)], cwd=rig.work, env=rig.env(**environment), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


def run(rig: Rig, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return pod(rig, "run", rig.root / "agent.toml", "go", "--name", "p", "-p", *words, **environment)


@pytest.mark.slow
def test_a_run_and_its_resume_arrive_at_a_collector(rig: Rig, provider: ProviderServer) -> None:
    with Collector() as collector:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        done = run(rig, "--otel", **where, TRACEPARENT=PARENT, OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        assert "telemetry" not in done.stderr
        assert [span.name for span in collector.spans] == ["chat test-model", "segment", "invoke_agent p"]
        assert {span.trace_id for span in collector.spans} == {TRACE}
        assert collector.services == {"pod"}
        assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration", "pod.runs"} <= collector.metrics
        more = pod(rig, "resume", "p", "more", "-p", "--asyncio", "--otel", **where, OTEL_SERVICE_NAME="mine")
        assert more.returncode == 0, more.stderr
        assert len(collector.spans) == 6 and collector.services == {"pod", "mine"}


@pytest.mark.slow
def test_nothing_is_sent_where_it_is_not_asked_for(rig: Rig, provider: ProviderServer) -> None:
    with Collector() as collector:
        assert run(rig, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url).returncode == 0
        assert run(rig, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SDK_DISABLED="true").returncode == 0
        none = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
        assert run(rig, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **none).returncode == 0
    assert collector.spans == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["away", "silent", "refuses", "unavailable"])
def test_a_collector_that_does_not_take_it_neither_fails_nor_holds_a_run(
    rig: Rig, provider: ProviderServer, kind: str
) -> None:
    """Silent: it takes the connection and never answers. Unavailable: the exporter would try again for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Collector(401 if kind == "refuses" else 503) as collector:
        port = listener.getsockname()[1]
        if kind == "away":
            listener.close()
        answers = kind in {"refuses", "unavailable"}
        url = collector.url if answers else f"http://user:pass-word-1@127.0.0.1:{port}"
        without = time.monotonic()
        assert run(rig).returncode == 0
        without = time.monotonic() - without
        began = time.monotonic()
        done = run(rig, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=url)
        took = time.monotonic() - began
    assert (done.returncode, done.stdout) == (0, "done\n")
    (line,) = [line for line in done.stderr.splitlines() if "telemetry" in line]
    assert line.startswith("pod: warning: telemetry was not all delivered to http://127.0.0.1:")
    assert "pass-word-1" not in done.stderr and "Traceback" not in done.stderr
    # The bound, beside what a busy machine takes for a process that loads more.
    assert took < FLUSH + 4 * without + 10


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_without_the_extra_it_is_named_and_nothing_begins(rig: Rig, missing: str) -> None:
    """Also where other packages have brought a part of it."""
    program = (
        f"import sys; sys.modules['{missing}'] = None; from pod.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["run", "offline-survey", "go", "--otel", "--name", "p"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=rig.work, env=rig.env(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "pod: error: telemetry needs the extra `otel`: pip install '/path/to/checkout[otel]'\n"
    assert not rig.home.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://"),
    ],
)
def test_what_the_environment_asks_for_and_is_not_done_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageProblem, match=name):
        check_environment({name: value})
    check_environment({name: ""})


def test_a_place_is_told_without_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:secret@collector.example:4318/path?key=hidden")
    assert undelivered("why") == "telemetry was not all delivered to https://collector.example:4318: why"


def test_a_connection_that_nobody_took_is_told_without_the_words_of_libraries() -> None:
    troubles = Troubles(None)
    said = (
        "Transient error HTTPConnectionPool(host='127.0.0.1', port=9): Max retries exceeded with url: /v1/metrics (Caused by NewConnectionError"
        "(\"HTTPConnection(host='127.0.0.1', port=9): Failed to establish a new connection: [Errno 111] Connection refused\")) encountered"
    )
    troubles.emit(logging.LogRecord("exporter", logging.WARNING, "", 0, said, None, None))
    assert troubles.first == "Connection refused; $OTEL_EXPORTER_OTLP_ENDPOINT names the collector"


@pytest.mark.slow
def test_a_batch_and_a_service_are_traced_too(rig: Rig, provider: ProviderServer) -> None:
    (rig.work / "tasks.jsonl").write_text("".join(json.dumps({"id": n, "task": f"Do {n}"}) + "\n" for n in "ab"))
    with Collector() as collector:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        done = pod(rig, "batch", "tasks.jsonl", "--manifest", rig.root / "agent.toml", "-p", "--otel", **where)
        assert done.returncode == 0, done.stderr
        assert sorted(s.name for s in collector.spans if "agent" in s.name) == [
            "invoke_agent tasks/0",
            "invoke_agent tasks/1",
        ]
        assert len({span.trace_id for span in collector.spans}) == 2
        collector.bodies.clear()
        served = Served(rig.home, "--manifests", str(rig.root), "--otel", env=rig.env(**where)).until_up()
        try:
            make(served.url, "s")
            until(lambda: [s for s in collector.spans if s.name == "invoke_agent s" and s.trace_id == TRACE])
        finally:
            served.close()
    assert not [line for line in served.said if re.search("telemetry|Traceback", line)]
    assert os.environ.get("TRACEPARENT") is None


def make(url: str, name: str) -> None:
    """Makes a pod through the service, as a part of somebody's trace."""
    import httpx2

    body = {"manifest": "agent", "name": name, "task": "go"}
    headers = {"authorization": f"Bearer {TOKEN}", "traceparent": PARENT}
    answer = httpx2.post(f"{url}/v1/pods", json=body, headers=headers, trust_env=False)
    assert answer.status_code == 201, answer.text


def until(holds: Any, within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


def test_a_call_of_a_tool_arrives_with_the_run(rig: Rig) -> None:
    steps = [Answer(calls=[Call("shell", {"command": "echo $TRACEPARENT > told.txt"})]), Answer("done")]
    with Collector() as collector, ProviderServer(steps, wire="openai-chat") as server:
        allowed = '[[permissions.rules]]\ntool = "shell"\nmatch = "*"\naction = "allow"\n'
        text = MANIFEST.format(url=server.url, tools='"shell"', profile="workspace-write", more="")
        (rig.root / "agent.toml").write_text(text + allowed)
        done = run(rig, "--otel", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        assert done.returncode == 0, done.stderr
    (ran,) = [span for span in collector.spans if span.name == "execute_tool shell"]
    assert (rig.work / "told.txt").read_text().split("-")[1:3] == [ran.trace_id.hex(), ran.span_id.hex()]
