"""The hand-written durable fragment loop: no runtime, only the provider's client, items encoded once, each step committed to SQLite.

It sends the bodies that it is given byte for byte as the runtime does (head and tail are taken from the runtime's encoder), so that both
put equal bytes on the wire.

    python floor_loop.py URL STEPS TOOL_BYTES HEAD_FILE FOLDER      prints a JSON row
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

import anyio


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def parse(content: bytes) -> tuple[str, list[dict[str, str]]]:
    """Text and calls of a streamed reply that was read whole."""
    text, calls = "", list[dict[str, str]]()
    for line in content.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        choices: list[Any] = json.loads(line[6:])["choices"]
        if not choices:
            continue
        delta = choices[0]["delta"]
        text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"].get("arguments") or ""
    return text, calls


def shown(output: str) -> str:
    """A tool's text as the runtime shows it: a longer one has a line of summary first."""
    if len(output) <= 400:
        return output
    count = len(output.encode())
    return f"echo, {count} B\n{output}" if count < 1000 else f"echo, {count / 1000:.1f} kB\n{output}"


async def task(url: str, steps: int, tool_bytes: int, frame: dict[str, str], folder: Path) -> int:
    import httpx2
    import openai

    db = sqlite3.connect(folder / "journal.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("CREATE TABLE item (seq INTEGER PRIMARY KEY, body BLOB)")
    filler = "x" * tool_bytes
    head, tail = frame["head"].encode(), frame["tail"].encode()
    parts = [head, frame["user"].encode()]
    count = 0
    async with openai.AsyncOpenAI(base_url=url, api_key="sk-bench", max_retries=0) as client:
        while True:
            count += 1
            response = await client.post("/chat/completions", content=b"".join([*parts, tail]), cast_to=httpx2.Response)
            text, calls = parse(response.content)
            if not calls:
                assert text == "All steps are done."
                break
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                    for c in calls
                ],
            }
            new = [encode(message)]
            for call in calls:
                mark = json.loads(call["arguments"])["text"]
                output = shown(f"{mark} {filler}"[:tool_bytes])
                new.append(encode({"role": "tool", "tool_call_id": call["id"], "content": output}))
            for body in new:
                parts += (b",", body)
            db.execute("BEGIN")
            db.executemany("INSERT INTO item (body) VALUES (?)", [(b,) for b in new])
            db.execute("COMMIT")
    db.close()
    assert count == steps + 1
    return count


def main() -> None:
    url, steps, size, frame, folder = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        Path(sys.argv[4]),
        Path(sys.argv[5]),
    )
    value = json.loads(frame.read_text())
    import openai  # outside the measured part, as with the runtime

    _ = openai
    before = resource.getrusage(resource.RUSAGE_SELF)
    anyio.run(task, url, steps, size, value, folder, backend="asyncio")
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        json.dumps(
            {
                "cpu": cpu,
                "rss_kb": after.ru_maxrss,
                "stored": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
            }
        )
    )


if __name__ == "__main__":
    main()
