"""The command line's entrance: finds the command, loads only that one, and turns what goes wrong into one line and
an exit code.

Nothing heavy is imported here: `pod --help` costs little more than the interpreter's own start.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from pod.cli.commands import COMMANDS, GROUPS, Action, Command
from pod.cli.streams import Nowhere, stand_in

EXIT_CODES = (
    ("0", "finished; denials on the way are counted in the result"),
    ("1", "failed"),
    ("2", "a mistake in the command or the manifest; nothing was touched"),
    ("3", "waiting for a human; `pod approve` or `pod deny` answers, with `--resume` it goes on"),
    ("4", "a configured limit ended it; `pod resume` goes on"),
    ("5", "the model refused"),
    ("69, 77", "the model or a required server is not available; the key is not accepted"),
    ("75", "temporary: rate limit, provider down, pod in use; run it again"),
    ("130, 143", "stopped by SIGINT, SIGTERM; `pod resume` goes on"),
)
"""What the exit codes mean, for the help."""

BROKEN_PIPE = 141
"""Exit code after the reader of standard output went away: that of a program that SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Never raises for what a user can get wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    stand_in()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    try:
        code = _code(arguments)
        _say("")
    except BaseException as error:
        from pod.cli.failing import report
        from worker.errors import alone

        if isinstance(alone(error), BrokenPipeError):
            _leave_stdout()
            return BROKEN_PIPE
        if type(alone(error)).__name__ == "OutputFailed":
            _leave_stdout()
        return report(error)
    return code


def _code(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1


def _say(text: str) -> None:
    """Prints a text; all that is still to be written goes out here, not while the interpreter ends."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from pod.cli.output import OutputFailed

        raise OutputFailed(error) from error


def _leave_stdout() -> None:
    """Where nothing more can be written, the interpreter's own flush at the end must not complain either."""
    try:
        return sys.stdout.flush()
    except (OSError, ValueError):
        pass  # what was kept back can't be written
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        sys.stdout = Nowhere()


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr)
        return 2
    name = arguments[0]
    if name == "help" and len(arguments) > 1:
        return _help_on(arguments[1:])
    if name in {"-h", "--help", "help"}:
        _say(f"{_help()}\n")
        return 0
    if name in {"-V", "--version"}:
        from importlib.metadata import version

        _say(f"pod {version('pod-runtime')}\n")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        return _unknown(name)
    values = _parsed(command, arguments[1:])  # before the command is loaded: help and mistakes need nothing of it
    if command.name not in WITHOUT_HOME and not getattr(values, "ephemeral", False):
        _check_home()
    if not getattr(values, "otel", False):
        return _loaded(command)(values)
    from pod.cli.telemetry import traced

    with traced(command.name, values):
        return _loaded(command)(values)


def _loaded(command: Command) -> Action:
    """What does the command, loaded without the garbage collector and all that is there kept from its later rounds.

    Modules make much that stays and hardly any garbage: the many rounds while they are loaded would find nothing. It is on again
    afterwards, also where loading failed; where it was off (a program that calls `main`, or one with a collector of its own) it stays
    as it was.
    """
    if not gc.isenabled():
        return command.load()
    gc.disable()
    try:
        found = command.load()
        gc.freeze()
        return found
    finally:
        gc.enable()


def _help_on(words: list[str]) -> int:
    """The help of a command, or of an action of one."""
    from pod.cli.parser import WITH_ACTIONS

    known = 2 if words[0] in WITH_ACTIONS else 1
    if words[0] in COMMANDS and (more := [word for word in words[known:] if word not in {"-h", "--help"}]):
        from pod.cli.failing import complain

        complain(f"`pod help {' '.join(words[:known])}` takes nothing more: {' '.join(more)}")
        return 2
    return _dispatch([*words, "--help"])


TAKES_AWAY = frozenset({"rm", "gc", "clear", "rewind"})
"""Commands that take something away: never the first to be offered for a word that is none."""

WITHOUT_HOME = frozenset({"manifest", "models", "tools", "completion"})
"""Commands that look at no pod."""


def _check_home() -> None:
    """Where pods lie must be a folder, or be one that can be made. Raises `UsageProblem`."""
    from pod.errors import UsageProblem
    from pod.log.folder import default_home

    home = default_home()
    for path in (home / "pods", home, *home.parents):
        try:
            if path.is_dir():
                return
            found = path.exists()
        except OSError as error:
            raise UsageProblem(f"{path}: {error.strerror}; pods lie in {home}") from None
        if found:
            which = "POD_HOME" if os.environ.get("POD_HOME") else "XDG_STATE_HOME"
            raise UsageProblem(f"{path} is not a folder; pods lie in {home} ({which} names another place)")


def _parsed(command: Command, arguments: list[str]) -> Any:
    from pod.cli.parser import WITH_ACTIONS

    parser = command.parser()
    if command.name in WITH_ACTIONS:
        return parser.parse_args(arguments)
    return parser.parse_intermixed_args(arguments)  # options may stand between a manifest and its task


def _unknown(name: str) -> int:
    from pod.cli.failing import note
    from pod.cli.near import did_you_mean

    what = "option" if name.startswith("-") else "command"
    words = ("--help", "--version") if what == "option" else COMMANDS
    hint = did_you_mean(name, words, last=TAKES_AWAY) or "`pod --help` lists the commands"

    note(f"pod: error: unknown {what} {name!r}; {hint}")
    return 2


def _exit_code(codes: str, meaning: str) -> str:
    import textwrap

    return textwrap.fill(f"  {codes:<10} {meaning}", 78, subsequent_indent=" " * 13)


def _help() -> str:
    lines = ["usage: pod COMMAND ...", "", "Runs autonomous agents for hours or days and never loses its place."]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<10} {COMMANDS[name].summary}" for name in names]
    lines += ["", "exit codes:", *(_exit_code(codes, meaning) for codes, meaning in EXIT_CODES)]
    lines += ["", "`pod COMMAND --help` or `pod help COMMAND` says more, with an example.", "", "example:"]
    return "\n".join(
        [
            *lines,
            '  pod run offline-survey "Survey the files in src. Report to report.md."',
        ]
    )
