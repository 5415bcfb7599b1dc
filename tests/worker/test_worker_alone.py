"""A worker without a pod: what `worker` exports, the example in its docstring, memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest

import worker
from worker import (
    ConfigError,
    Finished,
    Interceptor,
    MemoryJournal,
    Paused,
    Record,
    ToolContext,
    make_worker,
    tool,
)  # fmt: skip
from worker.history import History
from worker.interceptor import ALLOW, Pause
from worker.items import ToolOutput
from worker.testing import ScriptedModel, call, say

MUCH = "much, of a finished worker"
HEAVY = "openai anthropic tiktoken trio asyncio rich pydantic anyio genai_prices"


@tool
def act(n: int) -> str:
    """Acts."""
    return f"did {n}"


def test_the_example_in_the_docstring_runs() -> None:
    text = worker.__doc__ or ""
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "worker.__doc__", "exec"), {"__name__": "example"})


def test_importing_the_worker_costs_nothing_and_using_its_names_brings_no_provider() -> None:
    program = (
        "import sys, worker\n"
        f"heavy = '{HEAVY}'.split()\n"
        "assert not [m for m in heavy if m in sys.modules], sys.modules.keys()\n"
        "for name in worker.__all__: getattr(worker, name)\n"
        "assert not [m for m in heavy[:6] if m in sys.modules], [m for m in heavy if m in sys.modules]\n"
        "assert set(worker.__all__) <= set(dir(worker))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = worker.nothing_of_this_name  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_records_are_kept_in_memory_by_default() -> None:
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        made = make_worker(model, [act], system="Be exact.")
        assert await made.ask("go") == Finished("ok")
    journal = made.ledger.journal
    assert isinstance(journal, MemoryJournal)
    assert [r.kind for r in journal.records] == [
        "input", "admitted", "reply", "tool_started", "tool_result", "reply"
    ]  # fmt: skip
    assert model.requests[0].system == "Be exact."
    assert [spec.name for spec in model.requests[0].tools] == ["act"]


@pytest.mark.anyio
async def test_a_plain_function_is_made_into_a_tool_and_gets_what_the_embedder_lends() -> None:
    async def lookup(key: str, ctx: ToolContext, deps: dict[str, str]) -> str:
        """Looks up."""
        return f"{ctx.name}: {deps[key]}"

    with ScriptedModel([call("lookup", key="a"), say("ok")]) as model:
        made = make_worker(model, [lookup], deps={"a": "1"})
        await made.ask("go")
    assert made.history.view[2].text() == "lookup: 1"  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_each_ask_is_a_run_of_its_own_with_counters_of_its_own() -> None:
    begun: list[str] = []

    class Count(Interceptor):
        def begin_run(self) -> None:
            begun.append("run")

    with ScriptedModel([say("a"), say("b")]) as model:
        made = make_worker(model, interceptors=[Count()])
        await made.ask("1")
        await made.ask("2")
    assert begun == ["run", "run"]
    assert made.history.counters.requests == 1


@pytest.mark.anyio
async def test_a_paused_run_goes_on_with_run() -> None:
    class Ask(Interceptor):
        allowed = False

        async def before_tool(self, ctx: Any) -> Any:
            return ALLOW if self.allowed else Pause("a1")

    ask = Ask()
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        made = make_worker(model, [act], interceptors=[ask])
        assert await made.ask("go") == Paused(("a1",))
        ask.allowed = True
        assert await made.run() == Finished("ok")


@pytest.mark.anyio
async def test_a_worker_goes_on_from_records_that_another_left() -> None:
    """A store of the user's own: the records alone are enough."""
    with ScriptedModel([call("act", n=1), say("ok")]) as model:
        first = make_worker(model, [act])
        await first.ask("go")
    journal = first.ledger.journal
    assert isinstance(journal, MemoryJournal)
    with ScriptedModel([say("again")]) as model:
        second = make_worker(model, [act])
        for record in journal.records:
            second.ledger.fold(record)
        assert second.history.view == first.history.view
        assert await second.ask("more") == Finished("again")
    assert [i.type for i in model.requests[0].items] == ["user", "tool_call", "tool_result", "assistant", "user"]


def test_two_tools_of_one_name_and_an_unknown_model_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match="two tools are named 'act'"):
        make_worker(ScriptedModel([]), [act, act])
    with pytest.raises(ConfigError, match="nowhere"):
        make_worker("nowhere:model")


@pytest.mark.anyio
async def test_finished_workers_do_not_stay_in_memory() -> None:
    """B148: no closure, cache or table holds a worker's history once nobody else does."""
    alive: list[weakref.ref[Any]] = []

    async def one() -> None:
        model = ScriptedModel([call("act", n=1), say("ok")])
        made = make_worker(model, [tool(name="act")(lambda_of(20_000))], interceptors=[Interceptor()])
        await made.ask("go")
        alive.extend(weakref.ref(x) for x in (made.ledger, made.ledger.journal, model, made.history.view[2]))

    for _ in range(20):
        await one()
    gc.collect()
    assert len(alive) == 80
    assert [ref for ref in alive if ref() is not None] == []
    histories = [x for x in gc.get_objects() if type(x) is History]
    assert not [h for h in histories if any(getattr(i, "summary", "") == MUCH for i in h.view)]


def lambda_of(size: int) -> Any:
    def body(n: int) -> ToolOutput:
        """Gives much."""
        return ToolOutput(summary=MUCH, content="x" * size)

    return body


def test_records_are_named_as_a_log_names_them() -> None:
    kinds = [kind.kind for kind in Record.__subclasses__() if kind.__module__ == "worker.records"]
    assert all(kinds)
    assert len(set(kinds)) == len(kinds)
