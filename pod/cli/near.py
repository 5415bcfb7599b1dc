"""What was likely meant by a word that nothing is named."""

from __future__ import annotations

from collections.abc import Iterable

CUTOFF = 0.6
"""Likeness of two words (0 to 1) from which one may be meant by the other."""


def did_you_mean(word: str, known: Iterable[str], *, last: Iterable[str] = (), prefix: str = "") -> str:
    """`did you mean 'show'?`: the likeliest word, with `prefix`; nothing where none is near. One of `last` stands behind
    another that is near, however alike (`'run' or 'rm'`): what takes something away is never what is offered first.
    """
    import difflib

    near = difflib.get_close_matches(word, list(known), 3, CUTOFF)
    behind = frozenset(last)
    first = next((each for each in near if each not in behind), None)
    offered = dict.fromkeys(each for each in (first, *near[:1]) if each is not None)
    return f"did you mean {' or '.join(repr(prefix + each) for each in offered)}?" if offered else ""
