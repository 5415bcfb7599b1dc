"""Which file an import names, where the set of files is too large to be in view: what is not known is looked up."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from worker.offline.survey_facts import Modules
from worker.offline.survey_listing import Listings, Place, Search, TooMany, literal

NAMES = 24
"""Names that one search looks up."""

CHARACTERS = 900
"""Characters of these names; a longer name is taken for one that no file has."""

SEARCHES = 5
"""Searches that one reply makes for imports."""

FOUND = 200
"""Files that one such search may find."""

_ENDINGS = ("", ".py", "/__init__.py")
_SEARCH = re.compile(r"(\*\*/)?\{(.+)\}\{\.py,/__init__\.py\}")
_ROOT = "**/"


class Lookups(Modules):
    """As `Modules`, from what searches have shown so far. Names that were needed and are not known stand in `needed`:
    while it is not empty, an answer may be wrong. Raises `TooMany`."""

    def __init__(self, listings: Listings, folders: Sequence[str]) -> None:
        super().__init__(())
        self.needed: dict[tuple[str, str], dict[str, None]] = {}
        self._order: list[tuple[tuple[str, str], str]] = []
        self._folders = folders
        self._known: dict[tuple[str, str], set[str]] = {}
        for (folder, pattern, _), listing in listings.items():
            search = _SEARCH.fullmatch(pattern)
            if search is None or listing.cut:
                continue
            for name in search[2].split(","):
                name = re.sub(r"\[([*?[])\]", r"\1", name)
                ends = {f"/{name.lstrip('/')}{ending}" for ending in _ENDINGS[1:]}
                if search[1]:
                    if not listing.whole:
                        raise TooMany(f"the files that could be the module {name} cannot be listed")
                    found = {path for path in listing.paths if any(("/" + path).endswith(end) for end in ends)}
                    self._known[folder, _ROOT + name] = found
                    for path in found:
                        base = str(_base(PurePosixPath(path)))
                        same = {each for each in found if str(_base(PurePosixPath(each))) == base}
                        self._known.setdefault((base, name), set()).update(same)
                else:
                    places = {_join(folder, end[1:]) for end in ends}
                    found = {path for path in places.intersection(listing.paths) if self._is_in(path)}
                    self._known.setdefault((folder, name.lstrip("/")), set()).update(found)

    def needs(self) -> int:
        """How many names are needed."""
        return sum(len(names) for names in self.needed.values())

    def forget(self, count: int) -> None:
        """Needs no more than the first names that were needed."""
        names = self._order[:count]
        self.needed.clear()
        self._order.clear()
        for place, name in names:
            self._need(place, name)

    def _need(self, place: tuple[str, str], name: str) -> None:
        if name not in self.needed.setdefault(place, {}):
            self.needed[place][name] = None
            self._order.append((place, name))

    def searches(self) -> list[Search]:
        """The searches for what is needed."""
        found: list[Search] = []
        for (folder, start), names in self.needed.items():
            part: list[str] = []
            for name in [*names, ""]:
                choice = f"{'' if start else '/'}{literal(name)}"
                if part and (not name or len(part) == NAMES or len(",".join([*part, choice])) > CHARACTERS):
                    # A single choice in braces would stand for itself, braces and all.
                    part += part if len(part) == 1 else []
                    found.append(Search(Place(folder, f"{start}{{{','.join(part)}}}{{.py,/__init__.py}}"), FOUND))
                    part = []
                part.append(choice)
        return found[:SEARCHES]

    def named(self, name: str) -> str | None:
        """The file with this module name, as far as it is known."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return None
        return min((path for base in self._bases(parts[0]) if (path := self._module(base, parts))), default=None)

    def file(self, folder: PurePosixPath, parts: Sequence[str]) -> str | None:
        """The module or package at a place, as far as it is known."""
        if not all(part.isidentifier() for part in parts):
            return None
        if parts:
            return min(self._at(str(folder), "/".join(parts)), default=None, key=_modules_first)
        package = self._at(str(folder), "__init__")
        beside = self._at(str(folder.parent), folder.name) if folder.name and not set("{},") & set(folder.name) else ()
        places = (f"{folder}.py", str(folder / "__init__.py"))
        return next((place for place in places if place in package or place in beside), None)

    def _bases(self, root: str) -> Iterator[str]:
        """The folders in which a module of this name begins a module's whole name."""
        if root == "__init__":
            return
        for folder in self._folders:
            found = self._known.get((folder, _ROOT + root))
            if found is None:
                self._need((folder, _ROOT), root)
                continue
            for base in sorted({str(_base(PurePosixPath(path))) for path in found}):
                if base == "." or not self._at(base, "__init__"):
                    yield base

    def _module(self, base: str, parts: Sequence[str]) -> str | None:
        packages = all(
            _join(base, "/".join(parts[:at]) + "/__init__.py") in self._at(base, "/".join(parts[:at]))
            for at in range(1, len(parts))
        )
        return min(self._at(base, "/".join(parts)), default=None, key=_modules_first) if packages else None

    def _at(self, folder: str, name: str) -> set[str]:
        """The module and the package of this name in a folder. A folder outside of the set has none."""
        if not self._is_in(_join(folder, name) + "/"):
            return set()
        found = self._known.get((folder, name))
        if found is None and len(name) < CHARACTERS // 2:
            self._need((folder, ""), name)
        return found or set()

    def _is_in(self, path: str) -> bool:
        return any(top == "." or path.startswith(top + "/") for top in self._folders)


def _modules_first(path: str) -> tuple[bool, str]:
    return path.endswith("/__init__.py"), path


def _base(path: PurePosixPath) -> PurePosixPath:
    return path.parent.parent if path.name == "__init__.py" else path.parent


def _join(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"
