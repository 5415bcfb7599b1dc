"""Code of the user's own that a manifest names: imported and made into objects, whatever it does on the way."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pod.errors import PodError, UsageProblem
from worker.errors import ConfigError, told

GUARD = 'put what a script does behind `if __name__ == "__main__":`'


class _Loader(SourceFileLoader):
    """Leaves nothing beside the file that it loads."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """What was compiled is not kept."""


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


def beside(reference: str, cause: BaseException | None, *folders: Path) -> Path | None:
    """The first of these folders in which the module lies that could not be found; None where it lies in none, or the cause is another."""
    top = top_of(reference)
    if not isinstance(cause, ModuleNotFoundError) or cause.name != top:
        return None
    return next((each for each in folders if (each / f"{top}.py").is_file() or (each / top).is_dir()), None)


def top_of(reference: str) -> str:
    """The outermost package or module of a reference."""
    return reference.partition(":")[0].partition(".")[0]


def load_from_file(reference: str, what: str) -> Any:
    """What `folder/file.py:name` names; other modules beside the file are not found by it. Raises `NotLoaded`."""
    path, _, name = reference.rpartition(":")
    with users_code(lambda why: NotLoaded(what, reference, why)):
        file = Path(path).absolute()
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        key = f"pod_user_file_{file.stem}"
        spec = importlib.util.spec_from_file_location(key, file, loader=_Loader(key, str(file)))
        if file.suffix != ".py" or spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module  # as an import does: dataclasses and pickles ask for it
        spec.loader.exec_module(module)
        return getattr(module, name)
