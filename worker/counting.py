"""Counting a request before it is sent: by the provider, or by the exact tokenizer. Slower than an estimate, so it is
done near a threshold only, and a failure never matters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

import anyio
import anyio.to_thread

from worker.errors import told
from worker.estimate import item_tokens, spec_tokens
from worker.models.base import Model, Request
from worker.models.reported import shown
from worker.text import clipped
from worker.tokenizer import count_blocking

LIMIT = 5.0
"""Seconds that a count may take."""


class Counted(NamedTuple):
    """Tokens and who counted; None with the problem where there is no count (an empty one: it was to be expected)."""

    tokens: int | None
    provenance: Literal["provider count", "tokenizer"]
    problem: str = ""


async def count_tokens(model: Model, request: Request) -> Counted:
    """Counts as the model's capabilities say, within 5 seconds from where its client is ready (which a send needs too).
    Never raises; cancelled, it leaves nothing behind."""
    if model.capabilities.counting == "tokenizer":
        return await _by_tokenizer(request)
    try:
        count: Callable[[Request], Awaitable[object]] | None = getattr(model, "count", None)
        if count is None:
            return Counted(None, "provider count", "it has no endpoint for that")
        prepare: Callable[[], Awaitable[None]] | None = getattr(model, "prepare", None)
        if prepare is not None:
            await prepare()
        with anyio.move_on_after(LIMIT):
            return _number(await count(request))
    except Exception as e:
        # Whatever fails here, the request itself may still go through; the reason is put on record.
        return Counted(None, "provider count", f"{type(e).__name__}: {clipped(told(e), 300)}")
    return Counted(None, "provider count", f"no answer within {LIMIT:g} s")


def _number(found: object) -> Counted:
    """What a provider's count gave, whatever that is: only a whole number above 0 is one."""
    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
        return Counted(int(found), "provider count")
    if isinstance(found, int) and not isinstance(found, bool) and found < 0:
        return Counted(None, "provider count", f"it said {shown(found)} tokens")
    empty = found is None or found == 0
    problem = "no number came" if empty else f"it gave no whole number ({type(found).__name__})"
    return Counted(None, "provider count", problem)


async def _by_tokenizer(request: Request) -> Counted:
    tokens: int | None = None
    with anyio.move_on_after(LIMIT):
        tokens = await anyio.to_thread.run_sync(tokenized, request, abandon_on_cancel=True)
    return Counted(tokens, "tokenizer")


def tokenized(request: Request) -> int | None:
    """Tokens of a request by the tokenizer; None where it is missing. Blocks."""
    failed = False

    def measure(text: str) -> int:
        nonlocal failed
        found = None if failed else count_blocking(text)
        failed = found is None
        return found or 0

    total = measure(request.system)
    total += sum(spec_tokens(spec, measure) for spec in request.tools)
    total += sum(item_tokens(item, measure) for item in tuple(request.items))
    return None if failed else total
