"""How much of a tool's output reaches the model: measured as it will be sent, cut on character borders, kept whole
elsewhere.
"""

from __future__ import annotations

import json
from typing import Protocol

import anyio.to_thread

from worker.items import SUMMARY_CHARS, ToolOutput
from worker.text import byte_prefix, byte_suffix, size


class ArtifactStore(Protocol):
    """Where whole outputs are kept. `worker.builtin.artifacts.Artifacts` is one."""

    def store(self, call_id: str, name: str, data: bytes | str) -> str:
        """Keeps `data` and returns the artifact's name. Blocks; raises `OSError`."""
        ...


def serialised_size(text: str) -> int:
    """Bytes of `text` inside a JSON string, without the quotes."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


def serialised_prefix(text: str, limit: int) -> str:
    """The longest start of `text` that has at most `limit` bytes as serialised."""
    text = byte_prefix(text, limit)
    if serialised_size(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if serialised_size(text[:middle]) <= limit else (low, middle - 1)
    return text[:low]


def serialised_suffix(text: str, limit: int) -> str:
    """The longest end of `text` that has at most `limit` bytes as serialised."""
    text = byte_suffix(text, limit)
    if serialised_size(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if serialised_size(text[len(text) - middle :]) <= limit else (low, middle - 1)
    return text[len(text) - low :] if low else ""


def head_and_tail(head: str, tail: str, total: int, limit: int, where: str) -> str:
    """A start and an end with a mark between them that counts what is left out; at most `limit` bytes as serialised.

    `total` is the size in bytes of the whole text that `head` starts and `tail` ends; `where` says where the whole
    is. The mark is always there, also where it alone is above a very small limit.
    """
    # The mark is measured with the largest count it can show, so that the final text keeps the limit.
    longest = _mark(total, where)
    room = max(limit - serialised_size(longest), 0)
    start = serialised_prefix(head, room // 2)
    end = serialised_suffix(tail, room - serialised_size(start))
    omitted = max(total - len(start.encode()) - len(end.encode()), 0)
    return f"{start}{_mark(omitted, where)}{end}"


def _mark(omitted: int, where: str) -> str:
    return f"\n[... {omitted} bytes left out; {where} ...]\n"


def kept_as(artifact: str | None) -> str:
    """The words of a mark for an output that is kept as `artifact`, or nowhere."""
    return f'the whole output: read_file(path="artifact:{artifact}")' if artifact else "they are not kept anywhere"


async def cap(
    output: ToolOutput, max_output: int, artifacts: ArtifactStore | None, call_id: str, *, name: str = "output.txt"
) -> ToolOutput:
    """`output` with a content of at most `max_output` bytes, measured as serialised.

    A larger content is stored as an artifact (unless the tool did so itself), and its head, its tail and the
    artifact's name stay. A summary of more than 400 characters is cut; where there is no content, the whole summary
    becomes the content. A store that fails costs the artifact, not the result: the mark says so. Cancelled, it may
    leave an artifact that nothing names.
    """
    summary, content = output.summary, output.content
    if len(summary) > SUMMARY_CHARS:
        content = summary if content is None else content
        summary = summary[: SUMMARY_CHARS - 3] + "..."
    if content is None or serialised_size(content) <= max_output:
        same = summary == output.summary
        return output if same else output.model_copy(update={"summary": summary, "content": content})
    data = content.encode()
    artifact = output.artifact
    where = kept_as(artifact)
    if artifact is None and artifacts is not None:
        try:
            artifact = await anyio.to_thread.run_sync(artifacts.store, call_id, name, data)
            where = kept_as(artifact)
        except OSError as e:
            where = f"the whole output ({size(len(data))}) could not be kept: {e.strerror or e}"
    content = head_and_tail(content, content, len(data), max_output, where)
    return output.model_copy(update={"summary": summary, "content": content, "artifact": artifact})
