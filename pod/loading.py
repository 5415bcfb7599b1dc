"""Code of the user's own that a manifest names: imported and made into objects, whatever it does on the way."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from pod.errors import PodError, UsageProblem
from worker.errors import ConfigError, told

GUARD = 'put what a script does behind `if __name__ == "__main__":`'


class NotLoaded(UsageProblem):
    """What a manifest names can't be imported, or does not stand there. `reason` says why."""

    def __init__(self, what: str, reference: str, reason: str) -> None:
        self.reference, self.reason = reference, reason
        super().__init__(f"{what} {reference!r} can't be loaded: {reason}")


@contextmanager
def users_code(problem: Callable[[str], Exception]) -> Generator[None]:
    """Runs code of the user's own. Whatever it raises comes out as `problem(reason)`, an exit of the interpreter too.

    Problems that the runtime itself tells stay as they are, and so does Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, PodError, ConfigError):
        raise
    except BaseException as error:
        raise problem(reason(error)) from error


def reason(error: BaseException) -> str:
    """Why code of the user's own could not be taken."""
    if isinstance(error, ImportError | AttributeError):
        return told(error)
    if isinstance(error, SystemExit):
        return f"it ends the program (SystemExit: {told(error)}); {GUARD}"
    return f"{type(error).__name__}: {told(error)}"


def load_object(reference: str, what: str) -> Any:
    """What `package.module:name` names. Raises `NotLoaded`."""
    module, _, name = reference.partition(":")
    with users_code(lambda why: NotLoaded(what, reference, why)):
        return getattr(importlib.import_module(module), name)
