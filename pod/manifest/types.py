"""The value types that several sections of a manifest share."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

_PERCENT = re.compile(r"(\d{1,2}(?:\.\d+)?)%")
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}|::1")
_MODEL_NAME = re.compile(r"[a-z][a-z0-9-]*:\S+")


class Section(BaseModel):
    """A table of the manifest: immutable, without unknown keys, without conversions (`"8"` is not a number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def __init__(self, /, **values: Any) -> None:
        """A table that code makes. Raises `ManifestError`, as the class methods do: each wrong key with what may be meant."""
        with _explaining(type(self), values):
            super().__init__(**values)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """A table of these values. Raises `ManifestError`."""
        with _explaining(cls, obj):
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """A table of values as JSON. Raises `ManifestError`."""
        with _explaining(cls, json_data):
            return super().model_validate_json(json_data, **options)

    @classmethod
    def parsed(cls, values: Any) -> Self:
        """`model_validate` for a caller that knows where each value was written. Raises pydantic's own `ValidationError`."""
        return super().model_validate(values)


# pydantic goes through an `__init__` of its model's own where it makes inner tables, and would get our error in the place of its own.
Section.__init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def _explaining(section: type[Section], values: object) -> Generator[None]:
    try:
        yield
    except ValidationError as error:
        from pod.manifest.validate import explained

        raise explained(error, section, values) from None


def _trigger(value: Any) -> int | str:
    if isinstance(value, str):
        found = _PERCENT.fullmatch(value)
        if found and float(found[1]) > 0:
            return value
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError('should be a number of tokens above 0, or a share like "60%" (above 0%, below 100%)')


def _can_be_started(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command[0]:
        raise ValueError("should begin with a program, not with an empty word")
    if any("\0" in word for word in command):
        raise ValueError("holds a NUL character, which no program can be given")
    return command


def trigger_tokens(trigger: int | str, available: int) -> int:
    """A trigger in tokens. `available` (tokens) is what the window leaves for input; a share is taken of it."""
    if isinstance(trigger, int):
        return trigger
    return int(available * float(trigger.removesuffix("%")) / 100)


def _savings(value: Any) -> int | str:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError('should be a number of tokens, or "auto"')


def _reasoning(value: Any) -> int | str:
    if isinstance(value, str) and re.fullmatch("[a-z]+", value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError('should be a label like "low", "medium" or "high", or a budget in tokens above 0')


def _model_name(value: str) -> str:
    if not _MODEL_NAME.fullmatch(value):
        raise ValueError('should be written provider:model, for example "anthropic:claude-sonnet-5-5"')
    return value


def _base_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname or "", parts.port
    except ValueError as e:
        raise ValueError(f"is not a URL: {e}") from None
    if re.search(r"[\0-\x20\x7f]", value):
        raise ValueError("is not a URL: it holds spaces or control characters")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError('should be a URL that begins with "https://"')
    if parts.username or parts.password:
        raise ValueError("must hold no user name or password; name the variable of the key in api_key_env")
    if parts.scheme == "http" and not _LOOPBACK.fullmatch(host):
        raise ValueError("plain http goes only to this machine (localhost, 127.0.0.1, ::1); use https")
    return value


def _host(value: str) -> str:
    from worker.addresses import unfit_host

    if why := unfit_host(value):
        raise ValueError(f"{value!r} is no host: {why}")
    return value


Tokens: TypeAlias = Annotated[int, Field(gt=0)]
"""A number of tokens above 0."""

Count: TypeAlias = Annotated[int, Field(gt=0)]
"""A whole number above 0."""

Seconds: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A time in seconds above 0."""

Strings: TypeAlias = Annotated[tuple[str, ...], Strict(False)]
"""A TOML array of strings."""

Command: TypeAlias = Annotated[tuple[str, ...], Strict(False), Field(min_length=1), AfterValidator(_can_be_started)]
"""A program and its arguments; no shell reads them."""

Trigger: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_trigger),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d{1,2}(\.\d+)?%$"},
            ]
        }
    ),
]
"""Tokens, or a share such as `"60%"` of what the window leaves for input."""

Savings: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_savings),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0}]}),
]
"""Tokens, or `"auto"`."""

Reasoning: TypeAlias = Annotated[
    int | str,
    BeforeValidator(_reasoning),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "integer", "exclusiveMinimum": 0}]}),
]
"""A label, or a budget in tokens."""

ModelName: TypeAlias = Annotated[str, AfterValidator(_model_name)]
"""`provider:model`."""

Host: TypeAlias = Annotated[str, AfterValidator(_host)]
"""A host that a tool may ask, as `worker.addresses.HostEntry` reads it."""

BaseUrl: TypeAlias = Annotated[str, AfterValidator(_base_url)]
"""An https address, or plain http to this machine."""


class Written:
    """A string of one form: `pattern` for programs, `how` it should be written for people."""

    def __init__(self, pattern: str, how: str) -> None:
        self.pattern, self.how = pattern, how

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^{self.pattern}$"}

    def _checked(self, value: str) -> str:
        if re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"should be {self.how}")
        return value


EnvName: TypeAlias = Annotated[
    str,
    Written(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable: letters, digits and '_', no digit first"),
]
"""The name of an environment variable."""

Reference: TypeAlias = Annotated[
    str, Written(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", 'written module:function, for example "my_pkg.tools:search_docs"')
]
"""`package.module:name`."""
