"""Standard output, kept for the result alone: what else prints there goes to standard error (case B126).

What a command tells of a session is shown as `visible` does, so that no control character from outside reaches a
terminal (case B095), and with replacements for what the console can't show (case B147). The result of a run and an
artifact are shown so on a terminal alone: a pipe or a file gets them unchanged. JSON is always UTF-8, one value a
line, each line written whole with its newline (case B127); it escapes what `visible` does.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, TypeAlias, cast

from pod.cli.text import hidden
from pod.errors import PodError, UsageProblem
from worker.text import visible, visible_json

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pod.target import Target

STDOUT = {None, "", "-", "/dev/stdout"}
"""What `-o` may say for standard output."""

Format: TypeAlias = Literal["text", "json", "stream-json"]


class OutputFailed(PodError):
    """What goes to standard output (or to the file of `-o`) can't be written there."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"the output can't be written: {cause.strerror or cause}")


@contextmanager
def written() -> Generator[None]:
    """While something is written. Raises `OutputFailed`; a reader that went away stays a `BrokenPipeError`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error) from error


class Output:
    """Where a result goes, and as what.

    `live` says whether progress may be drawn, `ask` whether a human can be asked.
    """

    def __init__(self, form: Format, stream: TextIO, *, printing: bool, quiet: bool, verbose: bool) -> None:
        self.format: Format = form
        self.quiet = quiet
        self.verbose = verbose
        terminal = is_terminal(sys.stderr) and not printing
        self.live = terminal and not quiet and os.environ.get("TERM") not in {None, "", "dumb"}
        self.ask = terminal and is_terminal(sys.stdin)
        self._stream = stream

    def text(self, text: str) -> None:
        """A result, with a newline at its end. Raises `BrokenPipeError`, `OutputFailed`."""
        put(text, self._stream)

    def json(self, text: str) -> None:
        """One JSON value as one line. Blocks while the reader is slow. Raises `BrokenPipeError`, `OutputFailed`."""
        write_json(text + "\n", self._stream)


@contextmanager
def output_of(args: Any) -> Generator[Output]:
    """The output that the flags ask for; while it is open, nothing else can reach standard output."""
    form: Format = "json" if args.json else args.output_format or "text"
    printing, quiet, verbose = bool(args.print), bool(args.quiet), bool(args.verbose)
    with _only_ours() as stream:
        if args.output in STDOUT:
            yield Output(form, stream, printing=printing, quiet=quiet, verbose=verbose)
            return
        from pod.target import Target

        with _into(Target(Path(args.output))) as file:
            yield Output(form, file, printing=printing, quiet=quiet, verbose=verbose)


def not_over(given: str | None, files: Iterable[str | Path | None]) -> None:
    """Refuses `-o` where it names a file that the command reads. Raises `UsageProblem`."""
    for file in files:
        try:
            same = bool(given) and file is not None and Path(given or "").samefile(file)
        except (OSError, ValueError):
            continue
        if same:
            raise UsageProblem(f"-o {given} would replace {file}, which the run reads; name another file")


@contextmanager
def _into(target: Target) -> Generator[TextIO]:
    """A stream into a target, which is not touched before the first text."""
    raw = _Late(target)
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n", write_through=True)
    try:
        yield stream
    finally:
        with written():
            raw.close()


class _Late(io.RawIOBase):
    """Opens its target at the first write; what that wrote replaces what stood there, and the rest follows."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._fd: int | None = None

    @property
    def name(self) -> str:
        """What was named."""
        return str(self._target.given)

    def isatty(self) -> bool:
        """Whether it may be a terminal: any device is taken for one."""
        return self._target.given.is_char_device()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Writes all of it."""
        fd = self._target.open() if self._fd is None else self._fd
        view = memoryview(data).cast("B")
        try:
            while view:
                view = view[os.write(fd, view) :]
            self._target.keep()
        except OSError:
            self._target.close()
            self._fd = None
            raise
        self._fd = fd
        return memoryview(data).nbytes

    def close(self) -> None:
        """Gives the target up."""
        if not self.closed:
            super().close()
            self._target.close()


@contextmanager
def _only_ours() -> Generator[TextIO]:
    """Standard output for our own use: `print` in a tool, and children that inherit the descriptor, reach standard
    error.
    """
    ours, real = sys.stdout, sys.stdout is sys.__stdout__
    if not real:
        sys.stdout = sys.stderr
        try:
            yield ours
        finally:
            sys.stdout = ours
        return
    ours.flush()
    number = ours.fileno()
    kept = os.dup(number)
    os.dup2(2, number)
    stream = io.TextIOWrapper(os.fdopen(kept, "wb"), encoding=ours.encoding, errors="replace", newline="\n")
    sys.stdout = sys.stderr
    try:
        yield stream
    finally:
        sys.stdout = ours
        os.dup2(kept, number)
        _close(stream)


def _close(stream: TextIO) -> None:
    try:
        stream.close()
    except OSError:
        return  # the reader is gone; what was to be said of that has been said by the write that failed


def _showable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding, "replace")


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def write_json(line: str, stream: TextIO) -> None:
    """JSON text in UTF-8, whatever the encoding of the stream is, with escapes for what `visible` escapes. Raises
    `BrokenPipeError`, `OutputFailed`.
    """
    line = visible_json(line)
    buffer = cast("BinaryIO | None", getattr(stream, "buffer", None))
    with written():
        if buffer is None:
            stream.write(line)
        else:
            stream.flush()
            buffer.write(line.encode("utf-8", "replace"))
        stream.flush()


def _write(text: str, stream: TextIO) -> None:
    with written():
        stream.write(_showable(text if text.endswith("\n") else text + "\n", stream))
        stream.flush()


def put(text: str, stream: TextIO | None = None) -> None:
    """Prints a text that is the result itself: shown as `visible` does on a terminal, unchanged into a pipe or a file. Raises
    `BrokenPipeError`, `OutputFailed`."""
    target = sys.stdout if stream is None else stream
    _write(visible(text) if is_terminal(target) else text, target)


def show(text: str) -> None:
    """Prints text for people on standard output. Raises `BrokenPipeError`, `OutputFailed`."""
    _write(visible(hidden(text)), sys.stdout)


def show_bytes(data: bytes) -> None:
    """Puts bytes on standard output as they are; a terminal gets text for people. Raises `BrokenPipeError`, `OutputFailed`."""
    buffer = cast("BinaryIO | None", getattr(sys.stdout, "buffer", None))
    with written():
        if buffer is None or is_terminal(sys.stdout):
            text = data.decode(errors="replace")
            sys.stdout.write(_showable(visible(text), sys.stdout) if buffer else text)
        else:
            sys.stdout.flush()
            buffer.write(data)
        sys.stdout.flush()


def show_json(value: Any) -> None:
    """Prints a JSON value, indented, in UTF-8."""
    import json

    write_json(hidden(json.dumps(value, ensure_ascii=False, indent=2, default=str)) + "\n", sys.stdout)
