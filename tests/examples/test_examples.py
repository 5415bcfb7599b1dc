"""Each example does what it shows."""

from __future__ import annotations

import ast
import inspect
import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import anyio
import anyio.to_thread
import forked
import httpx2
import pytest
from examples.examples_rig import EXAMPLES, ROOT, example, serving

from pod import pod_names

PROGRAMS = {
    "typed_result": "billing, urgency 4: You were charged twice.\n",
    "trio_program": "{'garden: measure': 1, 'kitchen: measure': 1}\ncut off: True\nNo signal yet.\n",
}
TOKEN = "the-token-of-the-tests"


def test_every_example_is_named_in_the_readme_and_tested_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}}
    named = set(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    here = Path(__file__).read_text(encoding="utf-8")
    assert files == named
    assert all(path.partition(".")[0] in here for path in files)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_runs_by_itself(name: str, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = forked.run([EXAMPLES / f"{name}.py"], cwd=tmp_path, env=environment)
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(re.findall(r"\w+", out)) == sorted(re.findall(r"\w+", PROGRAMS[name]))
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_a_program_that_wants_a_secret_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable, begin in (
        ("fastapi_service", "POD_TOKEN", "create"),
        ("webhook_worker", "WEBHOOK_SECRET", "main"),
    ):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(SystemExit, match=f"^{variable} is not set"):
            getattr(example(name), begin)()


@pytest.mark.anyio
async def test_typed_result_runs_on_both_backends(capsys: pytest.CaptureFixture[str]) -> None:
    await example("typed_result").main()
    assert capsys.readouterr().out == PROGRAMS["typed_result"]


# -- notebook.ipynb ------------------------------------------------------------------------------------------------


def cells(kind: str) -> list[dict[str, Any]]:
    found = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in found["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_one_of_format_4_5_and_kept_without_outputs() -> None:
    found = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert set(found) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    labels = [cell["id"] for cell in found["cells"]]
    assert len(set(labels)) == len(labels) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", label) for label in labels)
    for cell in found["cells"]:
        extra = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set[str]()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | extra
        assert "".join(cell["source"]).strip() and not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.anyio
async def test_the_notebooks_cells_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    """As a kernel runs them: each compiled with `await` at its top, all in one namespace, its last expression shown."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown: list[str] = []
    for cell in cells("code"):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        await ran(compile(tree, cell["id"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if isinstance(last, ast.Expr):
            shown.append(repr(await ran(compile(ast.Expression(last.value), cell["id"], "eval"), names)))
    assert shown[0] == "[Planet(name='Mars', moons=2)]"
    assert shown[1].startswith("FinishedResult(pod='planets', ") and "output=[Planet(name='Mars'" in shown[1]
    assert "output=[{'name': 'Mars', 'moons': 2}]" in shown[2], "without the type it is plain JSON"
    assert "event loop" in names["said"] and "await pod.run(...)" in names["said"]
    assert "distance -> 228" in capsys.readouterr().out


async def ran(code: Any, names: dict[str, Any]) -> Any:
    found = eval(code, names)
    return await found if inspect.iscoroutine(found) else found


# -- sync_caller.py ------------------------------------------------------------------------------------------------


class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_sync_caller_answers_many_threads_through_one_loop(tmp_path: Path, backend: str) -> None:
    from worker.testing import FunctionModel

    module = example("sync_caller")
    threads: set[str] = set()

    def parrot(request: Any) -> Any:
        threads.add(threading.current_thread().name)
        return module.parrot(request)

    model = FunctionModel("offline:parrot", parrot)
    with (
        module.Agents(tmp_path, model=model, backend=backend) as agents,
        make_server("127.0.0.1", 0, module.application(agents), server_class=Threaded, handler_class=Silent) as server,
    ):
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda n: httpx2.post(url, content=f"number {n}", timeout=30), range(12)))
            blank = httpx2.post(url, content=" ", timeout=30)
        finally:
            server.shutdown()
            serving.join()
    assert [answer.json() for answer in answers] == [
        {"text": f"You asked: number {n}", "sure": True} for n in range(12)
    ]
    assert blank.status_code == 400 and len(threads) == 1 and len(list(pod_names(tmp_path))) == 12


# -- fastapi_service.py --------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_fastapi_service_streams_a_run_and_its_pod_is_found_beside_it(tmp_path: Path) -> None:
    app = example("fastapi_service").create(tmp_path, token=TOKEN)
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        asked = {"text": "Order 17 came broken."}
        assert (await client.post("/reviews", json=asked)).status_code == 401
        wrong = {"authorization": "Bearer another-token-altogether"}
        assert (await client.post("/reviews", json=asked, headers=wrong)).status_code == 401
        client.headers["authorization"] = f"Bearer {TOKEN}"
        assert (await client.post("/reviews", json={"text": ""})).status_code == 422
        async with client.stream("POST", "/reviews", json=asked) as answer:
            assert answer.status_code == 200
            lines = [json.loads(line) async for line in answer.aiter_lines()]
        name = lines[0]["pod"]
        assert [(line["what"], line.get("text")) for line in lines] == [
            ("tool.completed", "a vase, sent on Monday"),
            ("finished", None),
        ]
        assert lines[-1]["verdict"] == {"reason": "So it reads.", "mood": "angry"}
        found = (await client.get(f"/agents/v1/pods/{name}/result")).json()
        assert found["result"]["output"] == lines[-1]["verdict"]


@pytest.mark.anyio
async def test_fastapi_service_ends_no_run_because_its_caller_went_away(tmp_path: Path) -> None:
    module = example("fastapi_service")
    go_on = anyio.Event()

    class Slow(module.FunctionModel):
        async def send(self, request: Any, emit: Any) -> Any:
            if request.items[-1].type == "tool_result":
                await go_on.wait()
            return await super().send(request, emit)

    app = module.create(tmp_path, token=TOKEN, model=Slow("offline:judge", module.judge))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=30, headers=headers) as client:
        async with client.stream("POST", "/reviews", json={"text": "Order 18 is nice."}) as answer:
            async for line in answer.aiter_lines():
                name = json.loads(line)["pod"]
                break
        go_on.set()
        found = await until(lambda: client.get(f"/agents/v1/pods/{name}/result"), lambda a: a.json().get("result"))
    assert found.json()["result"]["output"]["mood"] == "content"


async def until(ask: Callable[[], Any], enough: Callable[[Any], Any]) -> Any:
    with anyio.fail_after(20):
        while not enough(found := await ask()):
            await anyio.sleep(0.02)
    return found


# -- webhook_worker.py ---------------------------------------------------------------------------------------------

SECRET = b"a secret of both sides"
CREATED = {"kind": "ticket.created", "ticket": "t-1", "text": "ticket t-1: pay back 500, please"}


class Hooks:
    """The worker on a socket, what it paid back, and a sender that knows the secret."""

    def __init__(self, folder: Path) -> None:
        self.module, self.folder = example("webhook_worker"), folder
        self.paid: list[tuple[str, int]] = []
        self.requests = 0

    def worker(self) -> Any:
        def clerk(request: Any) -> Any:
            self.requests += 1
            return self.module.clerk(request)

        model = self.module.FunctionModel("offline:clerk", clerk)
        return self.module.WebhookWorker(self.folder, SECRET, refund=lambda *a: self.paid.append(a), model=model)

    async def send(self, client: Any, delivery: str, event: Any, *, at: int | None = None, **changed: str) -> Any:
        body = json.dumps(event).encode()
        now = str(int(time.time()) if at is None else at)
        headers = {
            "x-delivery": delivery, "x-timestamp": now, "x-signature": self.module.signature(SECRET, delivery, now, body),
        }  # fmt: skip
        return await client.post("/hooks", content=body, headers={**headers, **changed})

    async def done(self, worker: Any) -> None:
        with anyio.fail_after(20):
            while await anyio.to_thread.run_sync(worker.deliveries.left):
                await anyio.sleep(0.02)


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)


@pytest.mark.anyio
async def test_webhook_worker_starts_and_answers_a_pod_once_for_each_delivery(hooks: Hooks) -> None:
    worker = hooks.worker()
    decided = {"kind": "refund.decided", "ticket": "t-1", "approved": True, "by": "ann"}
    async with serving(worker.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        for new in (True, False):
            answer = await hooks.send(client, "delivery-1", CREATED)
            assert (answer.status_code, answer.json()["new"]) == (202, new)
        await hooks.done(worker)
        assert hooks.paid == [] and hooks.requests == 1, "it asks before it pays"
        for new in (True, False):
            assert (await hooks.send(client, "delivery-2", decided)).json()["new"] == new
            await hooks.done(worker)
        assert hooks.paid == [("t-1", 500)] and hooks.requests == 2
        assert (await hooks.send(client, "delivery-1", CREATED)).json()["new"] is False, "also long after"
    again = hooks.worker()
    async with serving(again.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        assert (await hooks.send(client, "delivery-2", decided)).json()["new"] is False, "and in another process"
    assert hooks.paid == [("t-1", 500)] and hooks.requests == 2


@pytest.mark.anyio
async def test_webhook_worker_pays_nothing_back_after_a_no(hooks: Hooks) -> None:
    worker = hooks.worker()
    async with serving(worker.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        await hooks.send(client, "delivery-1", CREATED)
        await hooks.done(worker)
        no = {"kind": "refund.decided", "ticket": "t-1", "approved": False, "by": "ann"}
        await hooks.send(client, "delivery-2", no)
        await hooks.done(worker)
    assert hooks.paid == [] and hooks.requests == 2


@pytest.mark.anyio
@pytest.mark.parametrize("point", ["before it began", "after its end"])
async def test_webhook_worker_goes_on_with_what_it_had_accepted_when_it_died(hooks: Hooks, point: str) -> None:
    """After its end: the run was over, the file not yet put aside. The same work is not done twice."""
    body = json.dumps(CREATED).encode()
    if point == "after its end":
        first = hooks.worker()
        async with serving(first.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
            await hooks.send(client, "delivery-1", {**CREATED, "text": "thank you"})
            await hooks.done(first)
        body = json.dumps({**CREATED, "text": "thank you"}).encode()
        (hooks.folder / "deliveries" / "done" / "delivery-1").unlink()
    assert hooks.worker().deliveries.take("delivery-1", body)
    second = hooks.worker()
    async with serving(second.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        await hooks.done(second)
        assert (await hooks.send(client, "delivery-1", CREATED)).json()["new"] is False
    assert hooks.requests == 1 and list(pod_names(hooks.folder / "pods")) == ["tickets/t-1"]


@pytest.mark.anyio
async def test_webhook_worker_refuses_what_is_not_signed_is_old_or_is_no_delivery(hooks: Hooks) -> None:
    worker = hooks.worker()
    async with serving(worker.app) as url, httpx2.AsyncClient(base_url=url, timeout=30) as client:
        answers = [
            await hooks.send(client, "delivery-1", CREATED, **{"x-signature": "sha256=00"}),
            await hooks.send(client, "delivery-1", CREATED, **{"x-delivery": "delivery-2"}),
            await hooks.send(client, "delivery-1", CREATED, **{"x-timestamp": str(int(time.time()) + 1)}),
            await hooks.send(client, "delivery-1", CREATED, at=int(time.time()) - 4_000),
            await hooks.send(client, "../../escape", CREATED),
            await hooks.send(client, "delivery-1", {**CREATED, "ticket": "../up"}),
            await hooks.send(client, "delivery-1", "x" * 300_000),
        ]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 401, 400, 422, 413]
        assert worker.deliveries.left() == []
    assert hooks.requests == 0 and not (hooks.folder / "pods").exists()
