"""What bounds a queue over all nodes: how many run together, on each node and of each partition, and how many start in a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pod.errors import UsageProblem

LONGEST = 86400.0
"""Seconds over which starts may be counted, at most."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Those of one queue; what is None is not bounded. `per` is seconds: at most `starts` begin in any time of that length."""

    together: int | None = None
    each_node: int | None = None
    each_partition: int | None = None
    starts: int | None = None
    per: float | None = None

    def changed(self, **values: Any) -> Limits:
        """With other values. Raises `UsageProblem` where they do not go together."""
        made = replace(self, **values)
        if made.starts is None:
            if values.get("per") is not None:
                raise UsageProblem("--per is the time in which starts are counted: give --starts N as well")
            return replace(made, per=None)
        if made.per is None:
            raise UsageProblem("--starts is counted over a time: give --per SECONDS as well")
        return made

    def on_node(self, own: int) -> int:
        """How many a node may run at once that itself would run so many."""
        return min(own, self.each_node or own, self.together or own)

    def of_partition(self) -> int | None:
        """How many of one partition may run at once; what all may together bounds that too."""
        bounds = [bound for bound in (self.each_partition, self.together) if bound is not None]
        return min(bounds) if self.each_partition is not None else None

    def words(self) -> str:
        """The limits in words; empty where there are none."""
        said = [
            (self.together, f"{self.together} together"),
            (self.each_node, f"{self.each_node} on each node"),
            (self.each_partition, f"{self.each_partition} of each partition"),
            (self.starts, f"{self.starts} starts in {self.per:g} s" if self.per else ""),
        ]
        return ", ".join(words for value, words in said if value is not None)

    def as_json(self) -> dict[str, Any]:
        """Every one, by its name."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """What `as_json` made, of this version or a later one."""
        known = {each.name for each in fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})


NO_LIMITS = Limits()
"""Those of a queue of which nothing is said."""
