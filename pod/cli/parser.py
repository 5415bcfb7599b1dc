"""The argument parser of one command: help that ends with an example, errors of one line."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line and whose help ends with one example."""

    def __init__(self, prog: str, about: str, example: str) -> None:
        super().__init__(
            prog=prog, description=about[:1].upper() + about[1:] + ".", epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip

    @staticmethod
    def inner(*, prog: str, help: str = "", **_: Any) -> argparse.ArgumentParser:  # noqa: A002  # argparse's own name
        """A parser of an action inside a command."""
        example = {"new": "new agent.toml", "check": "check coder.toml", "show": "show coder.toml", "schema": "schema > pod.json"}
        action = prog.rpartition(" ")[2]
        return Parser(prog, help or f"{action} a manifest", f"pod manifest {example.get(action, action)}")

    def error(self, message: str) -> NoReturn:
        """One line and the way to the help; exit code 2."""
        print(f"pod: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)
