"""What the parsers hold, as plain data: for completion scripts and for the reference page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from pod.cli.commands import COMMANDS
from pod.cli.parser import ACTIONS

Kind: TypeAlias = Literal["none", "text", "choice", "pod", "manifest", "file", "dir"]
"""What can stand there: nothing (a switch), any text, one of `choices`, a pod, a manifest, a file, a folder."""

_KINDS: dict[str, Kind] = {"NAME": "pod", "MANIFEST": "manifest", "FILE": "file", "NAME_OR_FILE": "file", "DIR": "dir"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An option (with `flags`) or a positional argument. `value` is the word that stands for its value in help."""

    flags: tuple[str, ...]
    value: str
    kind: Kind
    choices: tuple[str, ...]
    help: str
    needed: bool
    repeated: bool
    group: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """One command, or one action of a command: its words, what it is for, an example, its arguments."""

    words: tuple[str, ...]
    summary: str
    about: str
    example: str
    positionals: tuple[Argument, ...]
    options: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """Its words as they are typed."""
        return " ".join(self.words)


def usages() -> Iterator[Usage]:
    """All commands, each before its actions."""
    for command in COMMANDS.values():
        parser = command.parser()
        inner = _actions_of(parser)
        arguments = tuple(_arguments(parser))
        about = command.about or command.summary
        yield _usage((command.name,), command.summary, about, command.example, arguments)
        for name, action in inner.items():
            summary, example = ACTIONS[f"{command.name} {name}"]
            words = (command.name, name)
            yield _usage(words, summary, summary, f"pod {example}", tuple(_arguments(action)))


def _usage(words: tuple[str, ...], summary: str, about: str, example: str, found: tuple[Argument, ...]) -> Usage:
    positionals, options = (tuple(a for a in found if bool(a.flags) is flagged) for flagged in (False, True))
    return Usage(words, summary, about, example, positionals, options)


def _actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in _all(parser):
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return cast("dict[str, argparse.ArgumentParser]", cast("Any", action).choices)
    return {}


def _all(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # pyright: ignore[reportPrivateUsage]  (argparse has no public view of what it holds)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    for group in parser._action_groups:  # pyright: ignore[reportPrivateUsage]
        title = group.title or ""
        for action in group._group_actions:  # pyright: ignore[reportPrivateUsage]
            if not isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
                yield _argument(action, "" if title in {"options", "positional arguments"} else title)


def _argument(action: argparse.Action, group: str) -> Argument:
    choices: tuple[str, ...] = tuple(str(choice) for choice in cast("Any", action.choices) or ())
    flags = tuple(action.option_strings)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    kind: Kind = "text"
    if action.nargs == 0:
        kind = "none"
    elif choices:
        kind = "choice"
    elif metavar:
        kind = _KINDS.get(metavar, "text")
    value = "" if kind == "none" else metavar or ("{" + ",".join(choices) + "}" if choices else action.dest.upper())
    return Argument(
        flags=flags, value=value, kind=kind, choices=choices, help=action.help or "", group=group,
        needed=action.required or (not flags and action.nargs != "?"),
        repeated=isinstance(action, argparse._AppendAction) or action.nargs == "+",  # pyright: ignore[reportPrivateUsage]
    )  # fmt: skip
