"""The same task through the runtime: a Pod with a durable log and all interceptors, against the same server.

python pod_loop.py URL STEPS TOOL_BYTES FRAME_FILE FOLDER [trio|asyncio]      prints a JSON row and writes the frame
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import anyio

from pod import Manifest, Pod
from worker.models.wire import Wire
from worker.tools import tool

os.environ.setdefault("BENCH_KEY", "sk-bench")

_SIZE = 200
WARM = 10
"""Steps after which memory is looked at first: client, TLS and lazy imports are then there."""

_seen: list[int] = []
_warm: list[float] = []


@tool
def echo(text: str) -> str:
    """Echo the text, with the output of the step.

    Args:
        text: What to echo.
    """
    _seen.append(1)
    if len(_seen) == WARM:
        _warm.append(_resident())
    return f"{text} {'x' * _SIZE}"[:_SIZE]


def _resident() -> float:
    """Resident memory now, in kB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1000


def manifest(url: str) -> Manifest:
    """All interceptors on; the window is large enough that nothing is pruned or compacted."""
    return Manifest.model_validate(
        {
            "model": {
                "name": "openai-chat:bench", "base_url": url, "api_key_env": "BENCH_KEY", "context_window": 50_000_000,
                "max_output_tokens": 4096,
            },
            "tools": {"enable": []},
            "permissions": {"profile": "unattended"},
            "prune": {"protected_tokens": 10_000_000},
            "compaction": {"threshold": 20_000_000, "request_threshold": 30_000_000},
            "limits": {"max_total_tokens": 10_000_000_000, "repeat_call": {"stop": 1000}},
        }
    )  # fmt: skip


async def task(url: str, steps: int, frame: Path, folder: Path) -> dict[str, float]:
    async with Pod.open(manifest(url), name="bench", home=folder, cwd=folder, tools=[echo]) as pod:
        result = await pod.run("Echo until told to stop.")
        assert result.status == "finished" and result.text == "All steps are done.", result
        assert result.requests == steps + 1
        sender = pod.running.worker.sender
        wire: Wire = sender._followers[sender.model.name].wire
        await anyio.Path(frame).write_text(json.dumps(frame_of(pod)))
        grown = _resident() - _warm[0]
        return {"encoded": wire.encoded, "items": len(pod.state.history.view), "grown_kb": grown}


def frame_of(pod: Pod) -> dict[str, str]:
    """Head, tail and first message of the bodies that were sent, so that another loop can send the same bytes."""
    sender = pod.running.worker.sender
    model = sender.model
    request = sender._request(model)
    body = model.body(request)
    at = body.index(request.messages)
    head, tail = body[:at], body[at + len(request.messages) :]
    first = Wire(model.encoder)
    first.extend([i for i in request.items if i.type == "user"][:1])
    return {"head": head.decode(), "tail": tail.decode(), "user": first.body().decode()}


def main() -> None:
    global _SIZE
    url, steps, frame, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[4]), Path(sys.argv[5])
    _SIZE = int(sys.argv[3])
    backend = sys.argv[6] if len(sys.argv) > 6 else "asyncio"
    import openai  # the same import outside the measured part as in the floor

    _ = openai
    holds: list[float] = []
    if "--holds" in sys.argv:
        _watch_callbacks(holds)
    before = resource.getrusage(resource.RUSAGE_SELF)
    counts = anyio.run(task, url, steps, frame, folder, backend=backend)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    stored = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    row = {"cpu": cpu, "rss_kb": after.ru_maxrss, "stored": stored, **counts}
    print(json.dumps({**row, "hold_ms": 1000 * sorted(holds)[-3] if len(holds) > 2 else 0.0}))


def _watch_callbacks(holds: list[float]) -> None:
    """Keeps the CPU time of each callback of the event loop: what one of them holds, no other task can use.

    CPU time of this thread, so that a busy machine does not count; the two longest are left out by the reader (start and end).
    """
    import asyncio.events
    import time

    run = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        spent = time.thread_time() - begun
        if spent > 0.001:
            holds.append(spent)

    asyncio.events.Handle._run = timed


if __name__ == "__main__":
    main()
