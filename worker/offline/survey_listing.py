"""The files of a survey in the order of their paths, however many: what follows a path is found from a few listings.

A set that one listing shows is taken from it. A larger one is never in view as a whole: it is listed piece by piece,
each piece behind a path, so a path is all that must be remembered; a piece that is still in view is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

LISTED = 250
"""Files that are listed at once; a larger set is listed piece by piece."""

PAGE = 100
"""Files that one piece shows."""


class Listing(NamedTuple):
    """The files that one search has shown. `whole` says that no others follow, `cut` that only the first of its
    answer are in view, `problem` what went wrong."""

    paths: tuple[str, ...]
    whole: bool = True
    cut: bool = False
    problem: str = ""


class Place(NamedTuple):
    """What a listing is of: files that match a pattern, behind a path ("" for all)."""

    folder: str
    pattern: str
    after: str = ""


class Search(NamedTuple):
    """A search for files."""

    place: Place
    limit: int


Listings = Mapping[Place, Listing]
"""What was listed."""


class Missing(Exception):
    """Something must be listed first."""

    def __init__(self, *searches: Search) -> None:
        super().__init__(str(searches))
        self.searches = searches


class TooMany(Exception):
    """The files cannot be listed; the text says why."""


class Stops:
    """The files to be surveyed below some folders: Python files, and those of another name if there is one."""

    def __init__(
        self, listings: Listings, folders: Sequence[str], other: str | None, own: Sequence[str | None]
    ) -> None:
        self._listings = listings
        self._own = frozenset(own)
        self._pattern = "*.py" if other is None else f"{{*.py,{literal(other)}}}"
        found = sorted({str(PurePosixPath(folder)) for folder in folders}, key=lambda folder: folder + "/")
        self.folders = [each for each in found if not any(_is_below(each, other) for other in found if other != each)]

    def all(self) -> list[str] | None:
        """All files, or None where they are too many to be listed at once. Raises `Missing`."""
        places = [Place(folder, self._pattern) for folder in self.folders]
        missing = [Search(place, LISTED) for place in places if place not in self._listings]
        if missing:
            raise Missing(*missing)
        found = [self._listings[place] for place in places]
        if not all(listing.whole for listing in found):
            return None
        return sorted({path for listing in found for path in listing.paths} - self._own)

    def problems(self) -> list[str]:
        """What was wrong with the folders themselves."""
        found = (self._listings.get(Place(folder, self._pattern)) for folder in self.folders)
        return [listing.problem for listing in found if listing and listing.problem]

    def following(self, path: str | None) -> Iterator[str]:
        """The files behind a path (None: all of them), in order. Raises `Missing` where the listings in view end, and
        `TooMany`."""
        after = path or ""
        for folder in self.folders:
            if after and not _is_below(after, folder) and after > folder + "/":
                continue
            for each in self._behind(folder, after if _is_below(after, folder) else ""):
                if each not in self._own:
                    yield each

    def _behind(self, folder: str, after: str) -> Iterator[str]:
        while True:
            listing = self._piece(folder, after)
            for path in listing.paths:
                if path > after:
                    yield path
            if listing.whole:
                return
            after = listing.paths[-1]

    def _piece(self, folder: str, after: str) -> Listing:
        """A listing in view that shows what follows a path."""
        near = sorted(
            place for place in self._listings if place[:2] == (folder, self._pattern) and place.after <= after
        )
        for place in reversed(near):
            listing = self._listings[place]
            if listing.problem:
                raise TooMany(listing.problem.rstrip(" ."))
            if listing.whole or listing.paths[-1] > after:
                return listing
        raise Missing(Search(Place(folder, self._pattern, after), PAGE))


def literal(text: str) -> str:
    """A pattern for this text; what a pattern can't say stands for any character."""
    return "".join(f"[{c}]" if c in "*?[" else "?" if c in "{}," else c for c in text)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") or (folder == "." and not path.startswith(("/", "../")) and path != "")
