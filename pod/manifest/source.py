"""Reads the text of one manifest file: encoding, TOML, and where each key stands."""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pod.manifest.errors import KeyPath, ManifestError, Problem, Severity
from pod.manifest.locate import locate
from pod.manifest.syntax import deep_place, syntax_problem
from pod.manifest.values import is_array, is_table

LayerName: TypeAlias = Literal["default", "user", "project", "manifest", "environment", "set"]

NO_FILE = "no such file"
LOST_LINK = "is a link that leads nowhere"
A_FOLDER = "is a folder, and a file is needed"
"""What `no_file` says most."""

DEEPEST = 50
"""Levels of tables and arrays that a manifest may have."""

LARGEST_FILE = 1 << 20
"""Bytes that a manifest or a configuration may have."""

LARGEST = 2**63 - 1
"""The largest whole number of a manifest: TOML promises 64 bits."""

TOO_LARGE = f"a whole number has more than 64 bits; the largest is {LARGEST:,}"
_DIGITS = re.compile(r"\d[\d_]{4000,}")
_TOO_DEEP = f"tables and arrays are nested deeper than {DEEPEST} levels"

# The longer marks first: that of UTF-32 begins like that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from.

    `file` is the file as it is shown, or the name of the environment variable, or the `--set` argument; `key` is
    the key as it was written, where that is an old name.
    """

    layer: LayerName
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: KeyPath | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.layer
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass
class Layer:
    """The values of one source before they are merged. `base` is the folder that its relative paths start from; `text` and
    `digest` (SHA-256 of the bytes) are those of a file.
    """

    name: LayerName
    file: str | None
    base: Path
    data: dict[str, Any]
    origins: dict[KeyPath, Origin] = field(default_factory=dict[KeyPath, Origin])
    text: str = ""
    digest: str = ""

    def problem(
        self, path: KeyPath, message: str, *, key: str, hint: str = "", severity: Severity = "error"
    ) -> Problem:
        """A problem at a key of this layer."""
        origin = nearest_origin(self.origins, path)
        return Problem(
            message,
            file=origin.file if origin else self.file,
            line=origin.line if origin else None,
            column=origin.column if origin else None,
            key=key,
            hint=hint,
            severity=severity,
            path=path,
        )


def nearest_origin(origins: Mapping[KeyPath, Origin], path: KeyPath) -> Origin | None:
    """The origin of a key, else of what it stands in, else of anything in it."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return next((origin for key, origin in origins.items() if key[: len(path)] == path), None) if path else None


def shown(path: Path) -> str:
    """A path as it is shown: relative where it lies in the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # elsewhere, or the current folder is gone
        return str(path)


def is_there(path: Path) -> bool:
    """Whether a name is there, whatever it stands for; also where it can't be told: reading it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True


def no_file(path: Path) -> str | None:
    """Why there is no file at a path, in words; None where there is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return LOST_LINK if path.is_symlink() else NO_FILE
    except (OSError, ValueError) as e:
        return str(getattr(e, "strerror", None) or e).lower()
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None if stat.S_ISREG(mode) else A_FOLDER
    return "is a FIFO, and a file is needed" if stat.S_ISFIFO(mode) else "is a device or a socket, and a file is needed"


def decode(data: bytes, file: str) -> str:
    """The text of a file. A byte order mark of UTF-8 is dropped (case B139). Raises `ManifestError` for another
    encoding.
    """
    if data.startswith(codecs.BOM_UTF8):
        data = data[len(codecs.BOM_UTF8) :]
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            raise _wrong_encoding(file, f"the file is {encoding}")
    if data[1:2] == b"\0" or data[:1] == data[2:3] == b"\0":
        raise _wrong_encoding(file, "the file looks like UTF-16 (every other byte is zero)")
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        column = len(data[data.rfind(b"\n", 0, e.start) + 1 : e.start].decode()) + 1
        message = f"byte 0x{data[e.start]:02x} (number {e.start + 1}) is not UTF-8"
        raise _wrong_encoding(file, message, line, column) from None


def _wrong_encoding(file: str, message: str, line: int | None = None, column: int | None = None) -> ManifestError:
    return ManifestError([Problem(message, file=file, line=line, column=column, hint="save it as UTF-8")])


def read_layer(path: Path, layer: LayerName) -> Layer:
    """One file as a layer. Raises `ManifestError` where it cannot be read, decoded or parsed."""
    file = shown(path)
    if (why := no_file(path)) is not None:
        raise ManifestError([Problem(why, file=file)])
    data = _bytes_of(path, file)
    text = decode(data, file)
    deep = deep_place(text, DEEPEST)
    line, column = deep or (None, None)
    try:
        values = _parsed(text)
    except tomllib.TOMLDecodeError as e:
        raise ManifestError([syntax_problem(str(e), text, file)]) from None
    except RecursionError:
        raise ManifestError([Problem(_TOO_DEEP, file=file, line=line, column=column)]) from None
    if _is_deeper(values, DEEPEST):
        raise ManifestError([Problem(_TOO_DEEP, file=file, line=line, column=column)])
    origins = {key: Origin(layer, file, place.line, place.column) for key, place in locate(text).items()}
    return Layer(layer, file, path.parent, values, origins, text, sha256(data).hexdigest())


def _bytes_of(path: Path, file: str) -> bytes:
    """The bytes of a file of a fitting size: no more of it is read, and no pipe is waited for."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            data = opened.read(LARGEST_FILE + 1)
    except OSError as e:
        raise ManifestError([Problem(f"cannot be read: {e.strerror or e}", file=file)]) from None
    if len(data) > LARGEST_FILE:
        raise ManifestError([Problem(f"is too large: a manifest has at most {LARGEST_FILE:,} bytes", file=file)])
    return data


def _parsed(text: str) -> dict[str, Any]:
    """The values of a text. A number with more digits than the interpreter reads stands as one that is too large all the
    same.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        return tomllib.loads(_DIGITS.sub(str(LARGEST + 1), text))


def _is_deeper(value: object, levels: int) -> bool:
    if is_table(value):
        return levels == 0 or any(_is_deeper(inner, levels - 1) for inner in value.values())
    return is_array(value) and (levels == 0 or any(_is_deeper(inner, levels - 1) for inner in value))
