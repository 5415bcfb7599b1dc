"""The argument parser of one command: help that ends with an example, errors of one line."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any, NoReturn

WIDTH = 78
"""Characters of a line of help, where the terminal's width does not say otherwise."""

LONGEST = 400
"""Characters that are shown of what is wrong with an argument, which may itself be of any length."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line and whose help ends with one example."""

    def __init__(self, prog: str, about: str, example: str) -> None:
        super().__init__(
            prog=prog, description=textwrap.fill(about[:1].upper() + about[1:] + ".", WIDTH, break_on_hyphens=False),
            epilog=f"example:\n  {example}", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """One line and the way to the help; exit code 2."""
        from pod.cli.failing import note

        said = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        note(f"pod: error: {said}; see `{self.prog} --help`")
        raise SystemExit(2)


class ActionParser(Parser):
    """The parser of an action inside `pod manifest`."""

    def __init__(self, prog: str, **_: Any) -> None:
        action = prog.rpartition(" ")[2]
        about, example = ACTIONS[action]
        super().__init__(prog, about, f"pod manifest {example}")


ACTIONS = {
    "new": ("write a commented manifest", "new agent.toml"),
    "check": ("validate a manifest and prove its arithmetic, offline", "check coder.toml"),
    "show": ("each value of a manifest with its source", "show coder.toml"),
    "schema": ("the JSON Schema of manifests, for editors", "schema > pod.json"),
}
"""The actions: what they do, and an example."""
