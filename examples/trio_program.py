"""Pods in a trio program: nurseries, deadlines and channels work on them as on anything else.

    python examples/trio_program.py

Two agents work side by side, their events meet in one channel; a third is given a tenth of a second, is cut off by an ordinary
trio deadline, and goes on later where it stood. The models are scripted, so it needs no key.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
import trio.lowlevel

from pod import Manifest, Pod
from pod.events import Event
from worker import tool
from worker.testing import ScriptedModel, call, say

MANIFEST = Manifest.model_validate({"tools": {"enable": []}})


@tool
async def measure(place: str) -> str:
    """Measures the temperature.

    Args:
        place: Where.
    """
    await trio.lowlevel.checkpoint()  # a trio program's tools may use trio itself
    return f"{place}: 21 °C"


@tool
async def listen() -> str:
    """Waits for a signal that is long in coming."""
    await trio.sleep_forever()
    raise AssertionError


async def work(name: str, home: Path, events: trio.MemorySendChannel[tuple[str, Event]]) -> None:
    """One agent, its events told as they come."""
    model = ScriptedModel([call("measure", place=name), say(f"It is mild in the {name}.")])
    async with (
        events,
        Pod.open(MANIFEST, name=name, home=home, model=model, tools=[measure]) as pod,
        pod.start("How warm is it?") as run,
    ):
        async for event in run:
            await events.send((name, event))


async def side_by_side(home: Path) -> Counter[str]:
    """How often each tool was called by whom."""
    called: Counter[str] = Counter()
    send, receive = trio.open_memory_channel[tuple[str, Event]](10)
    async with trio.open_nursery() as nursery, receive:
        async with send:
            for name in ("kitchen", "garden"):
                nursery.start_soon(work, name, home, send.clone())
        async for name, event in receive:
            if event.type == "tool.completed":
                called[f"{name}: {event.name}"] += 1
    return called


async def with_a_deadline(home: Path) -> str:
    """What an agent says that was cut off, when it goes on."""
    async with Pod.open(
        MANIFEST, name="patient", home=home, model=ScriptedModel([call("listen")]), tools=[listen]
    ) as pod:
        with trio.move_on_after(0.1) as deadline:
            await pod.run("Wait for the signal.")
        print("cut off:", deadline.cancelled_caught)
    # Later, in this process or in another one. The call that nobody saw the end of is not made again by itself.
    async with Pod.reopen("patient", home=home, model=ScriptedModel([say("No signal yet.")]), tools=[listen]) as pod:
        return (await pod.resume()).raise_for_status().text


async def main() -> None:
    with TemporaryDirectory() as folder:
        home = Path(folder)
        print(dict(await side_by_side(home)))
        print(await with_a_deadline(home))


if __name__ == "__main__":
    trio.run(main)
