"""Webhooks: addresses of the operator's choice that are told of ends of runs and of questions, in signed requests.

Form and signature are those of Standard Webhooks (`webhook-id`, `webhook-timestamp`, `webhook-signature`), so that its libraries
verify them. Nobody who asks the service through HTTP can name an address.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args
from urllib.parse import urlsplit

import httpx2

from pod.errors import UsageProblem
from pod.service.access import private_toml
from worker.models.transport import is_loopback

Kind: TypeAlias = Literal["run.ended", "approval.asked"]
"""What a webhook tells of: a run is over; a call waits for a human."""

KINDS: tuple[Kind, ...] = get_args(Kind)

PREFIX = "whsec_"
"""What a secret begins with; behind it stand its bytes in base64."""

LEAST, MOST = 24, 64
"""Bytes of a secret."""

FLAG = "--webhooks"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NEW = "python3 -c 'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(32)).decode())'"


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """An address that is told of what happens, under a name that logs and figures call it by (its host, unless it is given one).

    `secret` signs what is sent; of several, each does, so that a receiver may change from one to the next. With `content` it is also
    told what was said: the answer of a run or its error, the summary of a question. Raises `UsageProblem`, in which no secret stands.
    """

    url: str = field(repr=False)
    secret: str | Sequence[str] = field(repr=False)
    events: Sequence[Kind] = KINDS
    content: bool = False
    name: str = ""
    keys: tuple[bytes, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        host = _checked(self.url)
        secrets = (self.secret,) if isinstance(self.secret, str) else tuple(self.secret)
        if not secrets:
            raise UsageProblem(f"a webhook is signed, so it needs a secret: {_NEW}")
        if not self.events or not set(self.events) <= set(KINDS):
            raise UsageProblem(f"events are some of {', '.join(KINDS)}")
        object.__setattr__(self, "name", self.name or host)
        object.__setattr__(self, "keys", tuple(_key(secret) for secret in secrets))


def webhooks_of_file(path: Path) -> tuple[Webhook, ...]:
    """Those of a TOML file that nobody else may read: `[webhooks.NAME]` with `url`, `secret`, and `events` and `content` where they
    are wanted.

    Raises `UsageProblem`, which names the table that is wrong.
    """
    value = private_toml(path, FLAG)
    table: Any = value.get("webhooks")
    if set(value) != {"webhooks"} or not isinstance(table, dict) or not table:
        raise UsageProblem(
            f'{FLAG} {path}: one table for each address is needed: [webhooks.tickets] url = "https://…" secret = "{PREFIX}…"'
        )
    found: list[Webhook] = []
    for name, given in cast("dict[str, Any]", table).items():
        try:
            found.append(_entry(name, given))
        except UsageProblem as problem:
            raise UsageProblem(f"{FLAG} {path}: [webhooks.{name[:64]}]: {problem}") from None
    return tuple(found)


def signed(webhook: Webhook, label: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt at second `at` (since 1970). `label` is that of the event, the same in each attempt."""
    text = b".".join([label.encode(), str(at).encode(), body])
    marks = [base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode() for key in webhook.keys]
    return {
        "content-type": "application/json",
        "user-agent": "pod-runtime",
        "webhook-id": label,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{mark}" for mark in marks),
    }


def body_of(kind: str, at: str, data: dict[str, Any]) -> bytes:
    """What is sent. `at` is the time of the event."""
    return json.dumps({"type": kind, "timestamp": at, "data": data}, ensure_ascii=False).encode()


def _entry(name: str, given: object) -> Webhook:
    if not _NAME.fullmatch(name):
        raise UsageProblem("a name has letters, digits, '.', '_' and '-', at most 64")
    if not isinstance(given, dict):
        raise UsageProblem("a table is needed")
    entry = cast("dict[str, Any]", given)
    if more := set(entry) - {"url", "secret", "events", "content"}:
        raise UsageProblem(f"it has url, secret, events and content, not {', '.join(sorted(more))[:100]}")
    if "url" not in entry or "secret" not in entry:
        raise UsageProblem("url and secret are needed")
    for key, kind in (("url", str), ("content", bool)):
        if key in entry and not isinstance(entry[key], kind):
            raise UsageProblem(f"{key} is {'text' if kind is str else 'true or false'}")
    for key, alone in (("secret", True), ("events", False)):
        value = entry.get(key, [])
        if not (alone and isinstance(value, str)) and not _is_texts(value):
            raise UsageProblem(f"{key} is {'text, or ' if alone else ''}a list of texts")
    return Webhook(name=name, **entry)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))


def _checked(url: str) -> str:
    """The host of an address, which itself is told to nobody: it may hold a secret."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UsageProblem("url is no address that can be asked") from None
    if parts.scheme not in {"http", "https"} or not host or not _is_plain(url):
        raise UsageProblem("url is an https address (http to this machine alone)")
    if parts.username is not None or parts.password is not None:
        raise UsageProblem("url holds a user name or password: requests are signed, that is how they are known")
    if parts.scheme == "http" and not is_loopback(url):
        raise UsageProblem(f"url is plain http to {host}: use https (http is for this machine alone)")
    return host


def _is_plain(url: str) -> bool:
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return url.isascii() and url.isprintable() and " " not in url


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not LEAST <= len(key) <= MOST:
        raise UsageProblem(f"a secret is {PREFIX} and {LEAST} to {MOST} bytes in base64; a new one: {_NEW}")
    return key
