'''One conversation loop with a model: items, tools, models, the loop.

A worker knows *yield*; it knows nothing of compaction, pods or logs on disk. Without a pod its records stay in memory:

```python
import anyio

from worker import Finished, make_worker, tool
from worker.testing import ScriptedModel, call, say


@tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


async def main() -> None:
    # A script stands for a paid model; `make_worker("anthropic:claude-opus-5-5", [add])` asks a real one.
    model = ScriptedModel([call("add", a=2, b=3), say("It is 5.")])
    worker = make_worker(model, [add], system="You are a calculator.")
    outcome = await worker.ask("What is 2 + 3?")
    assert outcome == Finished("It is 5.")
    assert [item.type for item in worker.history.view] == ["user", "tool_call", "tool_result", "assistant"]
    await model.aclose()


anyio.run(main)
```

Names are imported when they are first used, so that `import worker` costs nothing.
'''

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.lazily import at_first_use

__version__: str

if TYPE_CHECKING:
    from worker.budget import Budget
    from worker.errors import ConfigError, ModelError, WorkerError
    from worker.history import Counters, History
    from worker.interceptor import (
        ALLOW,
        CONTINUE,
        Allow,
        Answer,
        Append,
        CallContext,
        Continue,
        Decision,
        Deny,
        Edit,
        Interceptor,
        Note,
        Pause,
        RequestContext,
        Stop,
        ToolDecision,
        Yield,
    )
    from worker.items import (
        AssistantItem,
        ContextItem,
        FileRange,
        Image,
        Item,
        OpaqueItem,
        OrderItem,
        ReasoningItem,
        ToolCallItem,
        ToolOutput,
        ToolResultItem,
        UserItem,
    )
    from worker.ledger import Ledger
    from worker.loop import Observer, Worker
    from worker.models.base import Capabilities, Delta, Model, ModelSettings, Reply, Request, ToolSpec, Usage
    from worker.models.registry import create_model
    from worker.occupancy import Occupancy
    from worker.pacing import Paces, PaceView, paces, use_paces
    from worker.records import Journal, MemoryJournal, Record, Warned
    from worker.results import Cancelled, Failed, Finished, LimitReached, Outcome, Paused, Yielded
    from worker.retry import RetryPolicy
    from worker.simple import make_worker
    from worker.tools import Tool, ToolContext, ToolFault, tool

_HOMES = {
    "budget": "Budget",
    "errors": "ConfigError ModelError WorkerError",
    "history": "Counters History",
    "interceptor": "ALLOW CONTINUE Allow Answer Append CallContext Continue Decision Deny Edit Interceptor Note Pause "
    "RequestContext Stop ToolDecision Yield",
    "items": "AssistantItem ContextItem FileRange Image Item OpaqueItem OrderItem ReasoningItem ToolCallItem "
    "ToolOutput ToolResultItem UserItem",
    "ledger": "Ledger",
    "loop": "Observer Worker",
    "models.base": "Capabilities Delta Model ModelSettings Reply Request ToolSpec Usage",
    "models.registry": "create_model",
    "occupancy": "Occupancy",
    "pacing": "PaceView Paces paces use_paces",
    "records": "Journal MemoryJournal Record Warned",
    "results": "Cancelled Failed Finished LimitReached Outcome Paused Yielded",
    "retry": "RetryPolicy",
    "simple": "make_worker",
    "tools": "Tool ToolContext ToolFault tool",
}

__all__ = [
    "ALLOW",
    "CONTINUE",
    "Allow",
    "Answer",
    "Append",
    "AssistantItem",
    "Budget",
    "CallContext",
    "Cancelled",
    "Capabilities",
    "ConfigError",
    "ContextItem",
    "Continue",
    "Counters",
    "Decision",
    "Delta",
    "Deny",
    "Edit",
    "Failed",
    "FileRange",
    "Finished",
    "History",
    "Image",
    "Interceptor",
    "Item",
    "Journal",
    "Ledger",
    "LimitReached",
    "MemoryJournal",
    "Model",
    "ModelError",
    "ModelSettings",
    "Note",
    "Observer",
    "Occupancy",
    "OpaqueItem",
    "OrderItem",
    "Outcome",
    "PaceView",
    "Paces",
    "Pause",
    "Paused",
    "ReasoningItem",
    "Record",
    "Reply",
    "Request",
    "RequestContext",
    "RetryPolicy",
    "Stop",
    "Tool",
    "ToolCallItem",
    "ToolContext",
    "ToolDecision",
    "ToolFault",
    "ToolOutput",
    "ToolResultItem",
    "ToolSpec",
    "Usage",
    "UserItem",
    "Warned",
    "Worker",
    "WorkerError",
    "Yield",
    "Yielded",
    "create_model",
    "make_worker",
    "paces",
    "tool",
    "use_paces",
]


def _version() -> str:
    """The version of the installed distribution; a tree that is not installed has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pod-runtime")
    except PackageNotFoundError:
        return "0+unknown"


__getattr__, __dir__ = at_first_use(globals(), _HOMES, __version__=_version)
