"""The gate: what goes on record, to a model or to anyone who watches has passed it, once, when it is made.

It stands in the ledger (`worker.ledger`), before the journal: the log, the view that requests are made of, and observers all
get the same masked record, so a restart gives the same bytes. What comes before a record passes it by itself: a tool's output before it is capped
and kept, a streamed text, the outcome of a run, the texts of a new segment.

Known values are masked everywhere; what only looks like a secret (`worker.shapes`) is masked in what models and tools say, and not in
a user's or a project's own words. What a provider sealed (`payload`) and pictures pass as they are, and so do ids: those that a
provider chose have passed `Gate.id` where they came in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel

from worker.codes import SECRET_MASKED
from worker.items import ContextItem, Image, OpaqueItem, OrderItem, ToolCallItem, ToolOutput, UserItem
from worker.masking import SHORTEST, MaskedStream, Masker
from worker.records import Input, Record, ReplyRecord, ToolResult, Warned

T = TypeVar("T")
R = TypeVar("R", bound=Record)

_AS_THEY_ARE = frozenset({"payload", "id", "ids", "call_id", "native_id", "reply", "provider_id", "inbox", "artifact"})

LONGEST_ID = 1_024
"""Characters of an id that a provider chose."""

_ODD_IN_ID = re.compile(r"[^!-~]")

_SCREENED = (UserItem, OrderItem, ContextItem, OpaqueItem)
"""Items whose text is the user's, or was screened by whoever made it."""


@dataclass
class Gate:
    """Masks what passes. One for each ledger's session: it also keeps, in memory alone, the calls whose arguments held a secret,
    since they run with what the model wrote.
    """

    masker: Masker = field(default_factory=lambda: Masker({}))
    _calls: dict[str, ToolCallItem] = field(default_factory=dict[str, ToolCallItem])

    def admit(self, record: R) -> R:
        """The record as it may be written; the same object where nothing in it is a secret."""
        if not self.masker:
            return record
        if isinstance(record, ToolResult):
            self._calls.pop(record.item.call_id, None)
        masked = self.masked(record)
        if masked is not record and isinstance(record, ReplyRecord) and isinstance(masked, ReplyRecord):
            for old, new in zip(record.items, masked.items, strict=True):
                if isinstance(old, ToolCallItem) and new is not old:
                    self._calls[old.call_id] = old
        return masked

    def warning(self, record: Record, admitted: Record) -> Warned | None:
        """What a human must know of a message that was changed: the model reads it otherwise than it was written."""
        if admitted is record or not isinstance(record, Input):
            return None
        marks = self.masker.names_in(record.item.text)
        names = [mark.removeprefix("[secret ").removesuffix("]") for mark in marks]
        message = (
            f"your message holds the value of {', '.join(names)}: it is replaced in the log and for the model. A tool "
            "that needs it reads the environment variable; `[log] redact = false` sends and logs values as they are"
        )
        return Warned(code=SECRET_MASKED, message=message, figures={"names": names, "input": record.item.id})

    def original(self, call: ToolCallItem) -> ToolCallItem | None:
        """The call as the model wrote it; None where that held a secret and is not kept any more (another process)."""
        return self._calls.get(call.call_id) if call.masked else call

    def output(self, output: ToolOutput) -> ToolOutput:
        """A tool's output; also what a cut by the tool left of a secret is masked."""
        if not self.masker:
            return output
        summary, count = self.masker.mask_cut(output.summary)
        content = output.content
        if content is not None:
            content, more = self.masker.mask_cut(content)
            count += more
        return output.model_copy(update={"summary": summary, "content": content}) if count else output

    def cut(self, text: str) -> str:
        """A text that may be a part of a larger one; also what a cut left of a secret is masked."""
        return self.masker.mask_cut(text)[0] if self.masker else text

    def id(self, given: str | None) -> str | None:
        """An id that a provider chose, as it goes on record; None where it is none that one would choose: long, of other than visible ASCII
        characters, or with a secret in it.
        """
        if not given or len(given) > LONGEST_ID or _ODD_IN_ID.search(given):
            return None
        return None if self.masker and self.masker.holds(given) else given

    def stream(self) -> MaskedStream:
        """For a text that comes in pieces."""
        return MaskedStream(self.masker)

    def masked(self, value: T) -> T:
        """A value with all its texts masked (a text, records, events, outcomes, JSON); the same object where none held a secret."""
        return self._through(value, self.masker)

    def own(self, value: T) -> T:
        """The same for a user's or a project's own words: what only looks like a secret stays."""
        return self._through(value, self.masker.values)

    def _through(self, value: T, masker: Masker) -> T:
        if not masker:
            return value
        return cast("T", _walk(value, masker)) if masker.holds("\0".join(_texts(value))) else value


def _walk(value: Any, masker: Masker) -> Any:
    if isinstance(value, str):
        return masker.mask(value)[0] if len(value) >= SHORTEST else value
    if isinstance(value, Image):
        return value
    if isinstance(value, BaseModel):
        return _model(value, masker)
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        walked = {_walk(key, masker): _walk(inner, masker) for key, inner in pairs}
        same = all(a is c and b is d for (a, b), (c, d) in zip(pairs, walked.items(), strict=False))
        return cast("Any", value) if same else walked
    if isinstance(value, tuple | list):
        inner = cast("tuple[Any, ...] | list[Any]", value)
        new = [_walk(each, masker) for each in inner]
        if all(a is b for a, b in zip(inner, new, strict=True)):
            return inner
        return tuple(new) if isinstance(inner, tuple) else new
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _walk(getattr(value, f.name), masker) for f in fields(value)}
        same = all(getattr(value, name) is new for name, new in changed.items())
        return value if same else replace(value, **changed)
    return value


@cache
def _fixed(model: type[BaseModel]) -> frozenset[str]:
    """Fields that are never masked: ids, sealed payloads, and words that only the program writes (a type, a status), for a value
    that is a part of such a word must not break the record."""
    words = (name for name, info in model.model_fields.items() if _is_word(info.annotation))
    return _AS_THEY_ARE | frozenset(words)


def _is_word(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return True
    inner = get_args(annotation)
    return bool(inner) and all(each is type(None) or _is_word(each) for each in inner)


def _model(value: BaseModel, masker: Masker) -> BaseModel:
    if isinstance(value, _SCREENED) or (isinstance(value, Record) and value.screened):
        masker = masker.values
    as_they_are = _fixed(type(value))
    changed = {
        name: new
        for name, old in value.__dict__.items()
        if name not in as_they_are and (new := _walk(old, masker)) is not old
    }
    if isinstance(value, ToolCallItem):
        arguments = _arguments(value, masker)
        changed = {**changed, "arguments": arguments} if arguments != value.arguments else changed
        changed |= {"masked": True} if changed else {}
    return value.model_copy(update=changed) if changed else value


def _arguments(call: ToolCallItem, masker: Masker) -> str:
    """Arguments are JSON: they are masked as what they mean, then as they stand, where that still holds one."""
    text, parsed = call.arguments, call.parsed
    walked = _walk(parsed, masker)
    if walked is not parsed:
        text = json.dumps(walked, ensure_ascii=False)
    return masker.mask(text)[0] if masker.holds(text) else text


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value that may hold a secret."""
    if isinstance(value, str):
        if len(value) >= SHORTEST:
            yield value
    elif isinstance(value, Image):
        return
    elif isinstance(value, BaseModel):
        as_they_are = _fixed(type(value))
        for name, inner in value.__dict__.items():
            if name not in as_they_are:
                yield from _texts(inner)
        if isinstance(value, ToolCallItem) and "\\" in value.arguments:
            yield from _texts(value.parsed)
    elif isinstance(value, dict):
        for key, inner in cast("dict[Any, Any]", value).items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, tuple | list):
        for inner in cast("tuple[Any, ...]", value):
            yield from _texts(inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from _texts(getattr(value, f.name))
