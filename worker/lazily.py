"""Names of a package that are imported when they are first used, so that a module of it costs no more than what it needs itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(
    package: dict[str, Any], homes: Mapping[str, str], **made: Callable[[], Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, whose namespace (`globals()`) is given.

    `homes` has its names, apart by blanks, by the module of the package in which they live; `made` are names that are in none, each
    with what makes its value.
    """
    label: str = package["__name__"]
    home = {name: f"{label}.{module}" for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in home:
            value = getattr(import_module(home[name]), name)
        elif name in made:
            value = made[name]()
        else:
            raise AttributeError(f"module {label!r} has no attribute {name!r}")
        package[name] = value
        return value

    def names() -> list[str]:
        return sorted({*(name for name in package if name.startswith("__")), *home, *made})

    return get, names
