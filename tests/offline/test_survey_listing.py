"""Promises of listings in pieces: every file once, in the order of paths, from searches that show a few files each."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from worker.builtin.registry import builtin_tool
from worker.builtin.scope import Scope
from worker.offline import survey_listing
from worker.offline.survey_listing import Listing, Missing, Place, Search, Stops
from worker.tools import ToolContext

pytestmark = pytest.mark.anyio

ALPHABET = "ab-._ éz0~[]!^é{"


async def answer(root: Path, search: Search) -> Listing:
    folder, pattern, after = search.place
    arguments = {"pattern": pattern, "path": folder, "limit": search.limit, "after": after}
    context = ToolContext("call", "find_files", root, services={Scope: Scope(root, read=(".",))})
    found = await builtin_tool("find_files").run(arguments, context)
    paths = tuple(line for line in (found.content or "").split("\n") if line)
    return Listing(paths, len(paths) < search.limit)


def plant(root: Path, source: random.Random, alphabet: str, count: int) -> None:
    def name() -> str:
        return "".join(source.choice(alphabet) for _ in range(source.randrange(1, 5))).strip(".") or "x"

    folders = [root]
    for _ in range(count):
        folder = source.choice(folders)
        if source.random() < 0.25 and len(folders) < 15 and not (below := folder / name()).exists():
            below.mkdir()
            folders.append(below)
        for _ in range(source.randrange(1, 4)):
            file = folder / (name() + source.choice((".py", ".py", ".py", ".txt")))
            if not file.exists():
                file.write_text("")
    for folder in source.sample(folders, 3):
        (folder / "NOTE.txt").write_text("")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("other", [None, "NOTE.txt"])
async def test_pieces_give_every_file_once_in_the_order_of_paths(
    tmp_path: Path, seed: int, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a path is all that is remembered, and where searches of before are still in view."""
    source = random.Random(seed)
    monkeypatch.setattr(survey_listing, "LISTED", 10)
    monkeypatch.setattr(survey_listing, "PAGE", 12)
    tops = [".", "top", "top-b"]
    for top in tops[1:]:
        (tmp_path / top).mkdir()
        plant(tmp_path / top, source, ALPHABET if seed % 2 else "abc_-.", 30)
    folders = ["."] if seed % 3 == 0 else tops[1:]
    every = sorted(
        path.relative_to(tmp_path).as_posix()
        for path in tmp_path.rglob("*")
        if path.is_file() and (path.suffix == ".py" or path.name == other)
    )
    listings: dict[Place, Listing] = {}
    seen: list[str] = []
    searches = 0
    whole = False
    while not whole:
        stops = Stops(listings, folders, other, (None,))
        try:
            for path in stops.following(seen[-1] if seen else None):
                seen.append(path)
                if source.random() < 0.05:
                    listings.clear()
                    break
            else:
                whole = True
        except Missing as missing:
            searches += len(missing.searches)
            assert searches <= len(every)
            for search in missing.searches:
                listings[search.place] = await answer(tmp_path, search)
    assert seen == every
