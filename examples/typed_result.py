"""A ticket goes in, an object of your own type comes out.

    python examples/typed_result.py

The agent works with tools as ever; its last message must then fit `Triage`. What does not fit is sent back once, with what is
wrong; a type checker knows that `result.output` is a `Triage`. Here the model is scripted, so it needs no key: leave out
`model=` and name yours in the manifest, `{"model": {"name": "anthropic:..."}}`.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Literal

import anyio
from pydantic import BaseModel, Field

from pod import Manifest, Pod, RunFailed
from worker import ToolFault, tool
from worker.models.base import Model
from worker.testing import ScriptedModel, call, say

MANIFEST = Manifest.model_validate(
    {"worker": {"system_prompt": "You triage tickets. Look the customer up first."}, "limits": {"max_tool_calls": 20}}
)


class Triage(BaseModel):
    """What to do with a ticket."""

    reason: str = Field(description="One sentence, for the customer.")
    queue: Literal["billing", "technical", "abuse"]
    urgency: int = Field(ge=1, le=5, description="5 is: wake somebody up.")


@tool
def customer(email: str, deps: dict[str, str]) -> str:
    """Looks a customer up.

    Args:
        email: Their address.
    """
    if email not in deps:
        raise ToolFault(f"no customer has the address {email}")
    return deps[email]


async def triage(ticket: str, customers: dict[str, str], *, home: str, model: Model | None = None) -> Triage:
    """What to do with a ticket. Raises `RunFailed` where the agent came to no answer."""
    async with Pod.open(MANIFEST, home=home, model=model, tools=[customer], deps=customers, output_type=Triage) as pod:
        result = await pod.run(ticket)
    return result.raise_for_status().output


def scripted() -> ScriptedModel:
    """Plays a model that gets the urgency wrong at first."""
    return ScriptedModel(
        [
            call("customer", email="ann@example.org"),
            say('{"reason": "You were charged twice.", "queue": "billing", "urgency": 9}'),
            say('{"reason": "You were charged twice.", "queue": "billing", "urgency": 4}'),
        ]
    )


async def main() -> None:
    with TemporaryDirectory() as home:
        try:
            done = await triage(
                "From ann@example.org: I was charged twice!",
                {"ann@example.org": "Ann, since 2021, plan: team"},
                home=home,
                model=scripted(),
            )
        except RunFailed as failed:
            print(failed)
        else:
            print(f"{done.queue}, urgency {done.urgency}: {done.reason}")


if __name__ == "__main__":
    anyio.run(main)
