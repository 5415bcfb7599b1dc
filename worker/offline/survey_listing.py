"""The files of a survey in the order of their paths, however many: what follows a path is found from a few listings.

A set that one listing shows is taken from it. A larger one is never in view as a whole: a folder that is too large for
one listing is asked for its next files and its next folders behind a name, by patterns that only such names match. So a
path is all that must be remembered, and what was listed before and is still in view is used again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

LISTED = 250
"""Files that are listed at once; a larger set is listed piece by piece."""

PAGE = 100
"""Files that one piece shows."""

_ALTERNATIVES = 50
_PATTERN = 960
_SPECIAL = re.compile(r"[%*?\[{},]")
_MARK = re.compile(r"\{/([^,]*)/:([df])(\d+):(\d+),")


class Listing(NamedTuple):
    """The files that one search has shown. `whole` says that there are no others, `cut` that only the first of its
    answer are in view, `problem` what went wrong."""

    paths: tuple[str, ...]
    whole: bool = True
    cut: bool = False
    problem: str = ""


Listings = Mapping[tuple[str, str], Listing]
"""What was listed, by folder and pattern."""


class Search(NamedTuple):
    """A search for files."""

    folder: str
    pattern: str
    limit: int = PAGE


class Missing(Exception):
    """Something must be listed first."""

    def __init__(self, *searches: Search) -> None:
        super().__init__(str(searches))
        self.searches = searches


class TooMany(Exception):
    """A folder cannot be listed piece by piece either; the text says which."""


class Stops:
    """The files to be surveyed below some folders: Python files, and those of another name if there is one."""

    def __init__(
        self, listings: Listings, folders: Sequence[str], other: str | None, own: Sequence[str | None]
    ) -> None:
        self._listings = listings
        self._own = frozenset(own)
        self._other = other
        self._pattern = "*.py" if other is None else f"{{*.py,{literal(other)}}}"
        found = sorted({str(PurePosixPath(folder)) for folder in folders}, key=lambda folder: folder + "/")
        self.folders = [each for each in found if not any(_is_below(each, other) for other in found if other != each)]

    def all(self) -> list[str] | None:
        """All files, or None where they are too many to be listed at once. Raises `Missing`."""
        searches = [Search(folder, self._pattern, LISTED) for folder in self.folders]
        missing = [search for search in searches if search[:2] not in self._listings]
        if missing:
            raise Missing(*missing)
        found = [self._listings[search[:2]] for search in searches]
        if not all(listing.whole for listing in found):
            return None
        return sorted({path for listing in found for path in listing.paths} - self._own)

    def problems(self) -> list[str]:
        """What was wrong with the folders themselves."""
        found = (self._listings.get((folder, self._pattern)) for folder in self.folders)
        return [listing.problem for listing in found if listing and listing.problem]

    def following(self, path: str | None) -> Iterator[str]:
        """The files behind a path (None: all of them), in order. Raises `Missing` where the listings in view end."""
        return (each for each in self._following(path) if each not in self._own)

    def _following(self, path: str | None) -> Iterator[str]:
        folders = list(self.folders)
        if path is not None:
            while folders and not _is_below(path, folders[0]):
                folders.pop(0)
            if not folders:
                raise TooMany(f"{path} is in none of the folders")
            top = folders.pop(0)
            folder, _, name = _parted(path)
            yield from self._behind(folder, name)
            while folder != top:
                folder, _, name = _parted(folder)
                yield from self._behind(folder, name + "/")
        for each in folders:
            yield from self._behind(each, "")

    def _behind(self, folder: str, key: str) -> Iterator[str]:
        """The files of a folder behind a name in it (a folder's name ends with a slash), and all below them."""
        listing = self._listings.get((folder, self._pattern))
        if listing is None and not key:
            raise Missing(Search(folder, self._pattern))
        if listing is not None and listing.whole:
            yield from sorted(path for path in listing.paths if _key(path, folder) > key)
            return
        while True:
            names, last_name, below, last_folder = self._entries(folder, key)
            entries: dict[str, list[str] | None] = {**{name: [_join(folder, name)] for name in names}, **below}
            border = min((each for each in (last_name, last_folder) if each is not None), default=None)
            for name in sorted(entries):
                if border is not None and name > border:
                    break
                found = entries[name]
                yield from self._behind(_join(folder, name[:-1]), "") if found is None else found
            if border is None:
                return
            if border <= key:
                raise TooMany(f"the names in {folder} cannot be told apart by patterns")
            key = border

    def _entries(self, folder: str, key: str) -> tuple[list[str], str | None, dict[str, list[str] | None], str | None]:
        try:
            files = self._files(folder, key)
        except Missing as missing:
            try:
                self._folders(folder, key)
            except Missing as more:
                raise Missing(*missing.searches, *more.searches) from None
            raise
        return *files, *self._folders(folder, key)

    def _files(self, folder: str, key: str) -> tuple[list[str], str | None]:
        """Names of files behind a name, and up to which they are known (None: all)."""
        choices = [] if self._other is None or self._other <= key else [f"/{literal(self._other)}"]
        choices += [f"/{literal(key)}*"] if key and not key.endswith("/") else []
        choices += (
            [f"/{start}*py" if plain else f"/{start}*" for start, plain in _behind_name(key)] if key else ["/*.py"]
        )
        paths, whole = self._page(folder, key, "f", choices, ("",))
        names = sorted(_key(path, folder) for path in paths)
        wanted = [name for name in names if name > key and (name.endswith(".py") or name == self._other)]
        return wanted, None if whole or not names else names[-1]

    def _folders(self, folder: str, key: str) -> tuple[dict[str, list[str] | None], str | None]:
        """The files of each folder behind a name (None: they must be listed), and up to which folders are known."""
        choices = [f"/{literal(key)}*"] if key and not key.endswith("/") else []
        choices += [f"/{start}*" for start, _ in _behind_name(key)] if key else ["/*"]
        choices += [f"/{literal(key[:at])}" for at in range(1, len(key)) if key[at] < "/"]
        endings = ("/**/*.py",) if self._other is None else ("/**/*.py", f"/**/{literal(self._other)}")
        paths, whole = self._page(folder, key, "d", choices, endings)
        found: dict[str, list[str] | None] = {}
        self._group(found, paths, folder, key)
        if whole or not paths:
            return found, None
        last = max(_key(path, folder).partition("/")[0] for path in paths)
        # Folders come by name, but "a-b/" stands before "a/": such neighbours of the last one are asked for.
        near = Search(folder, f"/{literal(last)}[ -.]*/**/*.py")
        listing = self._listings.get(near[:2])
        if listing is None:
            raise Missing(near)
        if not listing.whole:
            raise TooMany(f"the folders beside {_join(folder, last)} cannot be listed")
        self._group(found, listing.paths, folder, key)
        if last + "/" > key:
            found[last + "/"] = None
        return found, last + "/"

    def _group(self, found: dict[str, list[str] | None], paths: Sequence[str], folder: str, key: str) -> None:
        for path in sorted(set(paths)):
            name, slash, _ = _key(path, folder).partition("/")
            if slash and name + "/" > key:
                known = found.setdefault(name + "/", [])
                assert known is not None
                known.append(path)

    def _page(
        self, folder: str, key: str, kind: str, choices: Sequence[str], endings: Sequence[str]
    ) -> tuple[list[str], bool]:
        """The entries of one kind behind a name, from what was listed behind it or behind an earlier one."""
        for bound in sorted(self._bounds(folder, kind, key), reverse=True):
            paths, whole = self._listed(folder, bound, kind)
            if whole or any(_key(path, folder) > key for path in paths):
                return paths, whole
        raise Missing(*_searches(folder, key, kind, choices, endings))

    def _bounds(self, folder: str, kind: str, key: str) -> set[str]:
        found = (_bound(pattern) for where, pattern in self._listings if where == folder)
        return {bound for bound, of, _, _ in filter(None, found) if of == kind and bound <= key}

    def _listed(self, folder: str, bound: str, kind: str) -> tuple[list[str], bool]:
        parts: dict[int, Listing] = {}
        count = 0
        for (where, pattern), listing in self._listings.items():
            read = _bound(pattern) if where == folder else None
            if read is not None and read[:2] == (bound, kind):
                parts[read[2]], count = listing, read[3]
        paths: list[str] = []
        for number in range(count):
            part = parts.get(number)
            paths += part.paths if part else ()
            if part is None or not part.whole:
                return paths, False
        return paths, True


def _searches(folder: str, key: str, kind: str, choices: Sequence[str], endings: Sequence[str]) -> list[Search]:
    """The choices as patterns of a bounded length. The first choice of each matches nothing: it says what it is for."""
    ending = endings[0] if len(endings) == 1 else "{" + ",".join(endings) + "}"
    mark = "/" + _SPECIAL.sub(lambda found: f"%{ord(found[0]):02x}", key) + "/:"
    room = _PATTERN - len(mark) - len(ending)
    groups: list[list[str]] = [[]]
    for choice in choices:
        if len(groups[-1]) >= _ALTERNATIVES // len(endings) or sum(len(each) + 1 for each in groups[-1]) > room - len(
            choice
        ):
            groups.append([])
        groups[-1].append(choice)
    return [
        Search(folder, "{" + ",".join([f"{mark}{kind}{number}:{len(groups)}", *group]) + "}" + ending)
        for number, group in enumerate(groups)
    ]


def _bound(pattern: str) -> tuple[str, str, int, int] | None:
    """Behind which name, for which kind, and as which of how many patterns one of these patterns was made."""
    found = _MARK.match(pattern)
    return (unquote(found[1]), found[2], int(found[3]), int(found[4])) if found else None


def _behind_name(key: str) -> list[tuple[str, bool]]:
    """Starts of the names behind a name, and whether an ending that is longer than one character may follow."""
    return [(literal(key[:at]) + _above(key[at]), "." not in key[:at]) for at in reversed(range(len(key)))]


def _above(char: str) -> str:
    """A class of characters with all that stand behind this one, and perhaps some before it."""
    if char < "!":
        return "[! ]"
    end = {",": "+", "{": "z", "}": "|", "[": "Z", "\\": "Z", "]": "Z", "-": "+"}.get(char, char)
    return f"[!!-{end}]"


def literal(text: str) -> str:
    """A pattern for this text; what a pattern can't say stands for any character."""
    return "".join(f"[{c}]" if c in "*?[" else "?" if c in "{}," else c for c in text)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/") or (folder == "." and not path.startswith(("/", "../")))


def _parted(path: str) -> tuple[str, str, str]:
    folder, slash, name = path.rpartition("/")
    return folder or ("/" if slash else "."), slash, name


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder.rstrip('/')}/{name}"


def _key(path: str, folder: str) -> str:
    return path if folder == "." else path[len(folder.rstrip("/")) + 1 :]
