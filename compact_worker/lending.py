"""What a compact worker borrows from the pod: its rules about files, and its services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compact_worker.files import Permit, anything
from compact_worker.material import Material
from worker.builtin.tool_state import ToolState
from worker.history import History
from worker.interceptor import Allow, Answer, CallContext, Deny, Interceptor, Pause
from worker.items import ToolCallItem
from worker.tools import Tool


def permit_of(permissions: Interceptor | None, material: Material, history: History) -> Permit:
    """Asks the pod's rules for `read_file` about each file.

    What they would ask a human is a read in scope here, and the scope decides about it.
    """
    if permissions is None:
        return anything
    reading = next((t for t in material.tools if t.name == "read_file"), _READ_FILE)

    async def permit(path: str) -> str | None:
        call = ToolCallItem(call_id="compact_worker", name=reading.name, arguments="{}")
        context = CallContext(call, reading, {"path": path}, history, material.tag)
        match await permissions.before_tool(context):
            case Allow() | Pause():
                return None
            case Deny(message=message):
                return message
            case Answer(output=output):
                return output.summary
            case _:
                return f"{path}: the pod's rules end a run that reads this file"

    return permit


def lent(services: Mapping[type, object]) -> dict[type, object]:
    """The pod's services, with a copy of its tool state: what a compaction does must not show in the pod."""
    state = services.get(ToolState)
    copied = {ToolState: ToolState(state.values(), now=state.now)} if isinstance(state, ToolState) else {}
    return {**services, **copied}


async def _unused(values: dict[str, Any], context: object) -> None:
    """Stands for a tool that is only asked about."""


_READ_FILE = Tool(
    name="read_file",
    description="",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}},
    call=_unused,
)
