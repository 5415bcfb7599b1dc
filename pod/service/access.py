"""Who may use the service, and in which form a request must come. All of it is decided before any handler runs.

A page of somebody else's in a user's browser can send requests here (with its own `Origin`), and can have its name resolved
to this machine (with its own `Host`): both are refused, whatever they ask for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from pod.errors import UsageProblem

Role: TypeAlias = Literal["read", "operate", "admin"]
"""What a token may: look; also make pods, talk to them, answer and stop them; also take a pod away: as a file, or for good."""

ROLES: tuple[Role, ...] = get_args(Role)
"""Each may what those before it may."""

SHORTEST = 16
"""Characters that a token has at least."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""The names of this machine for itself."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a token belongs to."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether that includes what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a service, as hashes. Empty: whoever reaches it may everything."""

    known: Mapping[bytes, Holder] = field(default_factory=dict[bytes, Holder])

    @classmethod
    def single(cls, token: str, role: Role = "admin", name: str = "token") -> Tokens:
        """One token. Raises `UsageProblem` where it is too short or no plain text."""
        return cls({_hashed(_checked(token)): Holder(name, role)})

    @classmethod
    def generated(cls) -> tuple[Tokens, str]:
        """A new token that may everything, and its text."""
        token = secrets.token_urlsafe(32)
        return cls.single(token), token

    @classmethod
    def of_file(cls, path: Path) -> Tokens:
        """Those of a TOML file that nobody else may read: `[tokens.NAME]` with `role` and either `token` or its `sha256`.

        Raises `UsageProblem`, which names the table that is wrong.
        """
        value = private_toml(path, "--tokens")
        table: Any = value.get("tokens")
        if set(value) != {"tokens"} or not isinstance(table, dict) or not table:
            raise UsageProblem(f'--tokens {path}: one table for each token is needed: [tokens.ann] role = "operate"')
        known: dict[bytes, Holder] = {}
        for name, given in cast("dict[str, Any]", table).items():
            try:
                label, holder = _entry(name, given)
            except UsageProblem as problem:
                raise UsageProblem(f"--tokens {path}: [tokens.{name[:64]}]: {problem}") from None
            if label in known:
                raise UsageProblem(f"--tokens {path}: [tokens.{name}] has the token of [tokens.{known[label].name}]")
            known[label] = holder
        return cls(known)

    def holder(self, given: str | None) -> Holder | None:
        """Whose token this is. It takes as long for any that is none."""
        if not self.known:
            return Holder("local", "admin")
        label = _hashed(given or "")
        found: Holder | None = None
        for known, holder in self.known.items():
            if hmac.compare_digest(known, label):
                found = holder
        return found


def private_toml(path: Path, flag: str) -> dict[str, Any]:
    """What stands in a TOML file with secrets, which nobody else may read. Raises `UsageProblem`, which names the flag."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            value = tomllib.load(file)
    except OSError as error:
        raise UsageProblem(f"{flag} {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{flag} {path}: no TOML: {error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageProblem(f"{flag} {path}: others may read it or write to it: chmod 600 {path}")
    return value


def _entry(name: str, given: object) -> tuple[bytes, Holder]:
    if not _NAME.fullmatch(name):
        raise UsageProblem("a name has letters, digits, '.', '_' and '-', at most 64")
    if not isinstance(given, dict):
        raise UsageProblem("a table is needed")
    entry = cast("dict[str, Any]", given)
    role: Any = entry.get("role")
    if role not in ROLES:
        raise UsageProblem(f"role is one of {', '.join(ROLES)}")
    if set(entry) == {"role", "token"} and isinstance(entry["token"], str):
        return _hashed(_checked(entry["token"])), Holder(name, role)
    if set(entry) == {"role", "sha256"} and re.fullmatch(r"[0-9a-f]{64}", str(entry["sha256"])):
        return bytes.fromhex(entry["sha256"]), Holder(name, role)
    raise UsageProblem("besides role it has either token or sha256 (64 hexadecimal digits), and nothing else")


def _checked(token: str) -> str:
    if not token.strip():
        raise UsageProblem("the token is empty: whoever reaches the service could do everything")
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageProblem(
            f"a token has at least {SHORTEST} printable characters and no spaces: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return token


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True)
class Hosts:
    """Under which names the service is asked: others come from a page that had its name resolved to here."""

    names: frozenset[str] = frozenset(LOOPBACK)

    @classmethod
    def of(cls, more: Iterable[str]) -> Hosts:
        """This machine's own names and these. Raises `UsageProblem`."""
        found: set[str] = set(LOOPBACK)
        for name in more:
            if (match := _HOST.fullmatch(name)) is None or match[2]:
                raise UsageProblem(f"--allow-host {name!r}: the name of a host alone, without a port")
            found.add(match[1].lower())
        return cls(frozenset(found))

    def knows(self, hosts: Collection[str]) -> bool:
        """Whether a request's `Host` (there is one) is one of ours."""
        if len(hosts) != 1:
            return False
        match = _HOST.fullmatch(next(iter(hosts)))
        return match is not None and match[1].lower() in self.names


def is_same_origin(origin: str, host: str, scheme: str) -> bool:
    """Whether a page of this very service sent a request."""
    return origin.lower() in {f"{scheme}://{host.lower()}", f"https://{host.lower()}"}
