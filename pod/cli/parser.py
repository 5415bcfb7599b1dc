"""The argument parser of one command: help that ends with an example, errors of one line."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any, NoReturn, cast

WIDTH = 78
"""Characters of a line of help, where the terminal's width does not say otherwise."""

LONGEST = 400
"""Characters that are shown of what is wrong with an argument, which may itself be of any length."""


SAID = ("TASK", "INPUT", "TEXT")
"""The arguments that hold words for the agent."""

UNRECOGNIZED = "unrecognized arguments: "
"""How argparse begins what it says of arguments that it does not know."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line and whose help ends with one example."""

    def __init__(self, prog: str, about: str, example: str) -> None:
        super().__init__(
            prog=prog, description=textwrap.fill(about[:1].upper() + about[1:] + ".", WIDTH, break_on_hyphens=False),
            epilog=f"example:\n  {example}", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """One line with what may be meant, and the way to the help; exit code 2."""
        from pod.cli.failing import note

        said = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        if message.startswith(UNRECOGNIZED) and (hint := self._meant(message.removeprefix(UNRECOGNIZED).split())):
            said = f"{said}; {hint}"
        note(f"pod: error: {said}{' See' if said.endswith('?') else '; see'} `{self.prog} --help`")
        raise SystemExit(2)

    def _meant(self, words: list[str]) -> str:
        """The option that the first of the words that looks like one may stand for."""
        from pod.cli.near import did_you_mean

        wrong = next((word.partition("=")[0].strip("-") for word in words if word[:1] == "-" and len(word) > 2), "")
        return did_you_mean(wrong, sorted(option[2:] for option in self._long_options()), prefix="--")

    def _long_options(self) -> set[str]:
        """Those of this parser and of its actions: argparse has the outer parser say what an inner one does not know."""
        found = {option for option in self._option_string_actions if option.startswith("--")}
        for action in self._actions:
            if isinstance(choices := cast("Any", action.choices), dict):
                inner = cast("dict[str, Any]", choices).values()
                found.update(*(each._long_options() for each in inner if isinstance(each, Parser)))
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """An empty word is a variable that the caller's shell left empty: taken as not given it would mean something else,
        such as the current folder. The words for the agent have an error of their own.
        """
        said = not action.option_strings and action.metavar in SAID
        if (
            "" in arg_strings and not said and action.nargs != argparse.PARSER
        ):  # that one's words have parsers of their own
            raise argparse.ArgumentError(action, "is empty; give it a value, or leave it out")
        return super()._get_values(action, arg_strings)  # type: ignore[misc]  # argparse has no public hook for this

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A value that is none of the choices is told with the one that may be meant."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from pod.cli.near import did_you_mean

            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}; {hint}" if hint else error.message) from None


class ActionParser(Parser):
    """The parser of an action inside a command that has some."""

    def __init__(self, prog: str, **_: Any) -> None:
        about, example = ACTIONS[prog.removeprefix("pod ")]
        super().__init__(prog, about, f"pod {example}")


ACTIONS = {
    "manifest new": ("write a commented manifest", "manifest new agent.toml"),
    "manifest check": ("validate a manifest and prove its arithmetic, offline", "manifest check coder.toml"),
    "manifest show": ("each value of a manifest with its source", "manifest show coder.toml"),
    "manifest schema": ("the JSON Schema of manifests, for editors", "manifest schema > pod.json"),
    "queue ls": ("what is on the queues, and the nodes that serve them", "queue ls --queue nightly"),
    "queue show": ("one pod's task, and each time that it was on a queue", "queue show nightly/3"),
    "queue cancel": (
        "take pods off their queue, or end their runs; `retry` goes on with them",
        "queue cancel nightly/3",
    ),
    "queue limit": (
        "bound what runs and begins of a queue over all nodes, from now on",
        "queue limit nightly --together 8 --each-partition 2 --starts 30 --per 60",
    ),
    "queue schedule": (
        "have pods begin at times of their own, as cron does, while nodes serve the queue",
        "queue schedule add tidy --cron @daily --manifest coder --task 'Tidy up'",
    ),
    "queue retry": ("put pods on their queue again: what ended, was cancelled or waits", "queue retry nightly/3"),
}
"""The actions by their words: what they do, and an example."""

WITH_ACTIONS = frozenset(words.partition(" ")[0] for words in ACTIONS)
"""The commands that have actions."""
