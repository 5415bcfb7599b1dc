"""Whether objects are interceptors that a worker can ask: mistakes are named before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

from worker.errors import ConfigError
from worker.interceptor import Interceptor

HOOKS = tuple(
    name for name, value in vars(Interceptor).items() if inspect.isfunction(value) and not name.startswith("_")
)
"""The methods that a worker calls."""


def checked(given: Any) -> tuple[Interceptor, ...]:
    """The interceptors of a list. Raises `ConfigError` for what is no list, and as `check` for each."""
    if isinstance(given, Interceptor):
        raise ConfigError(f"interceptors=[...] is a list: write [{given.name}(...)], not one interceptor alone")
    if isinstance(given, str | bytes | type) or not isinstance(given, Iterable):
        raise ConfigError(f"interceptors=[...] is a list of interceptors, not {_named(given)}")
    found = tuple(cast("Iterable[Any]", given))
    for each in found:
        try:
            check(each)
        except ConfigError as error:
            raise ConfigError(f"interceptors=[...]: {error}") from None
    return found


def check(given: Any) -> None:
    """Raises `ConfigError` for what is no interceptor, and for methods that can't be called as they must."""
    if isinstance(given, type):
        if issubclass(given, Interceptor):
            raise ConfigError(f"{given.__name__} is a class: give an object of it, {given.__name__}()")
        raise ConfigError(f"the class {given.__name__} is not derived from worker.Interceptor")
    if not isinstance(given, Interceptor):
        raise ConfigError(f"{_named(given)} is no interceptor: derive its class from worker.Interceptor")
    for hook in HOOKS:
        if (wrong := _wrong(type(given), hook)) is not None:
            raise ConfigError(f"{type(given).__name__}.{hook} {wrong}")


def _wrong(kind: type[Interceptor], hook: str) -> str | None:
    """What is wrong with a method. One behind a decorator is taken as it is: what it gives shows only when it is called."""
    own, base = inspect.getattr_static(kind, hook), getattr(Interceptor, hook)
    if own is base or not inspect.isfunction(own) or hasattr(own, "__wrapped__"):
        return None
    names = list(inspect.signature(base).parameters)
    written = f"def {hook}({', '.join(names)})"
    try:
        inspect.signature(own).bind(*names)
    except TypeError:
        return f"takes other arguments: write {written!r}"
    if inspect.isasyncgenfunction(own) or inspect.isgeneratorfunction(own):
        return "contains a `yield`, so it gives no decision: `return Yield(...)` leaves the loop"
    if inspect.iscoroutinefunction(base) and not inspect.iscoroutinefunction(own):
        return f"must be async: write {f'async {written}'!r}"
    if inspect.iscoroutinefunction(own) and not inspect.iscoroutinefunction(base):
        return f"must not be async, it is called without `await`: write {written!r}"
    return None


def _named(given: object) -> str:
    return f"{type(given).__name__} ({ascii(given)[:60]})"
