"""What a provider's failure means: one pure function from an answer to one of our errors (facts, providers 3.1 to 3.3).

Order: the provider's own code, the HTTP status with the sub-cases of 429, then the wording of the JSON body with a deny
list. What looks like a success and is none (silent overflow) is judged by `empty_stream` and `silent_overflow`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from worker.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    InvalidHistory,
    ModelError,
    ModelNotFound,
    Overloaded,
    ProviderDown,
    QuotaExhausted,
    RateLimited,
    Refused,
    TooLargeForTier,
)
from worker.models.base import StopReason, Usage
from worker.rates import http_date
from worker.text import clipped

MAX_MESSAGE = 1_000
"""Characters of a provider's message that an error keeps."""

MAX_TEXT = 32 * 1024
"""Characters of a body that are looked at: half from its start, half from its end. A proxy may answer with any page."""

_CODES: dict[str, type[ModelError]] = {
    "context_length_exceeded": ContextOverflow,
    "context_window_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "model_context_window_exceeded": ContextOverflow,
    "request_too_large": ContextOverflow,
    "insufficient_quota": QuotaExhausted,
    "billing_error": QuotaExhausted,
    "billing_not_active": QuotaExhausted,
    "billing_hard_limit_reached": QuotaExhausted,
    "contract_spend_limit_reached": QuotaExhausted,
    "enforced_spend_limit_reached": QuotaExhausted,
    "payment_required": QuotaExhausted,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "ramp_limit_exceeded": RateLimited,
    "overloaded_error": Overloaded,
    "overloaded": Overloaded,
    "slow_down": Overloaded,
    "compaction_unavailable": Overloaded,
    "api_error": ProviderDown,
    "server_error": ProviderDown,
    "internal_server_error": ProviderDown,
    "timeout_error": ProviderDown,
    "invalid_api_key": AuthFailed,
    "authentication_error": AuthFailed,
    "permission_error": AuthFailed,
    "account_deactivated": AuthFailed,
    "model_not_found": ModelNotFound,
    "not_found_error": ModelNotFound,
    "content_filter": Refused,
    "content_policy_violation": Refused,
    "invalid_prompt": Refused,
    "bio_policy": Refused,
    "misalignment_policy_violation": Refused,
    "compaction_block_ambiguous": InvalidHistory,
    "compaction_block_misplaced": InvalidHistory,
    "compaction_content_mismatch": InvalidHistory,
    "compaction_incomplete_turn": InvalidHistory,
    "compaction_nothing_to_summarize": BadRequest,
    "compaction_too_many_tool_references": BadRequest,
    "compaction_signature_invalid": InvalidHistory,
    "compaction_tool_changes_mismatch": InvalidHistory,
}

_OVERFLOW = re.compile(
    r"context[_ ](?:length|window)[_ ]exceeded|exceed_context_size|model_context_window_exceeded"
    r"|maximum (?:context|prompt) length|(?:model'?s|available|the) context (?:length|limit|size|window)"
    r"|(?:prompt|input) (?:is|was) too long|input too long"
    r"|exceeds? (?:the )?(?:context window|available context size|maximum number of tokens)"
    r"|exceed(?:s|ed)? (?:the )?(?:model )?(?:context|token) (?:limit|window)"
    r"|reduce the length of the messages|too large for model with \d+"
    r"|token count .{0,20}exceeds the (?:limit|maximum)|current length is \d+ while limit is \d+"
    r"|context (?:size|window) (?:has been )?exceed|context the overflows|must be <= \d+.{0,200}max_new_tokens"
    r"|max_new_tokens.{0,200}must be <= \d+|max_tokens must be at least 1, got -\d+"
    r"|input length and .{0,3}max_tokens.{0,3} exceed",
    re.IGNORECASE,
)
_DENY = re.compile(
    r"string_above_max_length|string too long.*'user'|rate limit|quota|billing|per (?:minute|day)", re.IGNORECASE
)
_RATE = re.compile(r"tokens per min|\bTPM\b|\bLimit:? \d[\d,_]*, (?:Used:? \d[\d,_]*, )?Requested:? \d", re.IGNORECASE)
_QUOTA = re.compile(
    r"credit balance is too low|spend(?:ing)? limit|insufficient (?:credit|balance|funds|quota)|requires more credits"
    r"|exceeded your current quota|billing",
    re.IGNORECASE,
)
_HISTORY = re.compile(
    r"bound to a different conversation"
    r"|without (?:corresponding|its|a matching|any) .{0,40}(?:tool|following|reasoning)"
    r"|tool_use.{0,80}tool_result|tool_result.{0,80}tool_use|tool_call_id|tool_calls.{0,60}must be followed"
    r"|role .?tool.? must be|no tool (?:call|output) found|required following item|reasoning.{0,60}without"
    r"|thinking.{0,60}(?:cannot be modified|must remain)|invalid .?signature.? in .?thinking|roles must alternate"
    r"|encrypted.content.{0,60}(?:could not be|verif|decrypt)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model.{0,80}(?:does not exist|not found|not available|is not supported|unknown)"
    r"|(?:unknown|no such|invalid) model",
    re.IGNORECASE,
)
_POLICY = re.compile(r"content (?:management )?policy|content_filter|safety system|flagged as", re.IGNORECASE)
_TIER = re.compile(r"too large for|tokens per min|\bTPM\b", re.IGNORECASE)

_N = r"(\d[\d,_]{0,30})"
# Each pattern with the order of its groups: l is the limit, r the tokens asked for, r+ is added to r.
_NUMBERS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), tuple(order.split()))
    for pattern, order in (
        (rf"{_N}\s*\+\s*{_N}\s*>\s*{_N}", "r r+ l"),
        (rf"{_N} tokens\s*>\s*{_N}", "r l"),
        (rf"passed {_N} input tokens.{{0,120}}context length is only {_N}", "r l"),
        (rf"maximum \w+ length (?:is|of) {_N}.{{0,160}}?(?:resulted in|requested|contains)(?: about)? {_N}", "l r"),
        (rf"limit:? {_N}.{{0,40}}?requested:? {_N}", "l r"),
        (rf"token limit:? {_N}.{{0,40}}?requested:? {_N}", "l r"),
        (rf"requested tokens \({_N}\) exceed context window of {_N}", "r l"),
        (rf"token count\s*(?:of|\()?\s*{_N}\)? exceeds the (?:limit|maximum)[^0-9(]*\(?{_N}", "r l"),
        (rf"contains {_N} tokens.{{0,120}}?model with {_N}", "r l"),
        (rf"current length is {_N} while limit is {_N}", "r l"),
        (rf"first {_N} tokens.{{0,160}}context (?:length|size|window) of(?: only)? {_N}", "r l"),
        (rf"must be <= {_N}.{{0,80}}?given:? {_N}", "l r"),
        (rf"request \({_N} tokens\) exceeds the available context size \({_N}", "r l"),
        (rf"maximum (?:context|prompt) length (?:is|of) {_N}", "l"),
        (rf"model with {_N} maximum context length", "l"),
        (rf"exceeds the limit of {_N}", "l"),
        (rf"context (?:length|size|window|limit)[^0-9]{{0,20}}{_N}", "l"),
    )
)  # fmt: skip


_PROMPTS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_N}\s*\+\s*{_N}\s*>\s*{_N}",
        rf"{_N} tokens\s*>\s*{_N}",
        rf"passed {_N} input tokens",
        rf"messages resulted in {_N} tokens",
        rf"\({_N} (?:tokens )?(?:in|from) the (?:messages|prompt|input)",
        rf"requested tokens \({_N}\) exceed context window",
        rf"(?:prompt|input) token count\s*(?:of|\()?\s*{_N}\)? exceeds",
        rf"prompt contains {_N} tokens",
        rf"request \({_N} tokens\) exceeds the available context size",
    )
)
"""Wordings that name the input alone."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """The parts of an error body that decide."""

    message: str
    codes: tuple[str, ...]
    number: int | None
    text: str
    fields: Mapping[str, Any]
    request_id: str | None


def classify(
    status: int | None,
    body: object,
    headers: Mapping[str, str] | None = None,
    *,
    model: str = "",
    now: float | None = None,
) -> ModelError:
    """The error that an answer means.

    `status` is the HTTP status, None for an error event inside a stream. `body` is the decoded JSON, or text, or None.
    `headers` have lower-case names. `now` is the time in seconds since the epoch for a `retry-after` that is a date;
    the clock when None.
    """
    headers = headers or {}
    fault = _read(body)
    if status in (None, 200):
        # OpenRouter and others put the real status into the body of a 200 or into a stream event.
        status = fault.number if fault.number is not None and 400 <= fault.number < 600 else None
    kind = _kind(status, fault, headers)
    limit, requested = numbers(fault.text, fault.fields)
    if issubclass(kind, RateLimited) and _over_tier(fault, limit, requested):
        kind = TooLargeForTier
    message = fault.message or (
        f"HTTP status {status} without an explanation" if status else "an error without an explanation"
    )
    rest: dict[str, Any] = {
        "status": status,
        "code": fault.codes[0] if fault.codes else None,
        "request_id": headers.get("x-request-id") or headers.get("request-id") or fault.request_id,
        "retry_after": retry_after(headers, now=now) if kind.retryable else None,
        "model": model,
    }
    if kind.retryable and rest["retry_after"] is None:
        rest["retry_after"] = _retry_delay(fault.text)
    if issubclass(kind, ContextOverflow):
        return kind(message, limit=limit, requested=requested, prompt=prompt_size(fault.text, fault.fields), **rest)
    return kind(message, **rest)


def _kind(status: int | None, fault: _Fault, headers: Mapping[str, str]) -> type[ModelError]:
    known = next((_CODES[code] for code in fault.codes if code in _CODES), None)
    if known in (None, ContextOverflow) and _RATE.search(fault.message):
        return RateLimited
    if status == 429:
        if known in (QuotaExhausted, ContextOverflow, RateLimited):
            return known
        told_to_wait = retry_after(headers) is not None or _retry_delay(fault.text) is not None
        return QuotaExhausted if _QUOTA.search(fault.message) and not told_to_wait else RateLimited
    if known is AuthFailed and status == 403 and _overflows(fault):
        return ContextOverflow
    if known is ProviderDown and status in (500, None) and _overflows(fault):
        return ContextOverflow
    if known is not None:
        return known
    match status:
        case 401:
            return AuthFailed
        case 402:
            return QuotaExhausted
        case 403:
            # A gateway may report the window with 403 (B059); any other 403 is about rights.
            return ContextOverflow if _overflows(fault) else AuthFailed
        case 404:
            return ModelNotFound
        case 408 | 409:
            return ProviderDown
        case 413:
            return ContextOverflow
        case 503 | 529:
            return Overloaded
        case None:
            return _by_wording(fault, ProviderDown if not _is_our_fault(fault) else BadRequest)
        case _ if status >= 500:
            return ContextOverflow if _overflows(fault) else ProviderDown
        case _:
            return _by_wording(fault, BadRequest)


def _by_wording(fault: _Fault, otherwise: type[ModelError]) -> type[ModelError]:
    if _overflows(fault):
        return ContextOverflow
    for pattern, kind in (
        (_QUOTA, QuotaExhausted),
        (_HISTORY, InvalidHistory),
        (_NO_MODEL, ModelNotFound),
        (_POLICY, Refused),
    ):
        if pattern.search(fault.message):
            return kind
    return otherwise


def _overflows(fault: _Fault) -> bool:
    return _OVERFLOW.search(fault.text) is not None and _DENY.search(fault.text) is None


def _is_our_fault(fault: _Fault) -> bool:
    return any(code.startswith("invalid") or code == "bad_request" for code in fault.codes)


def _over_tier(fault: _Fault, limit: int | None, requested: int | None) -> bool:
    if limit is not None and requested is not None:
        return requested > limit
    return "tokens" in fault.codes and _TIER.search(fault.message) is not None and "too large" in fault.message.lower()


def _read(body: object) -> _Fault:
    if isinstance(body, bytes):
        body = body.decode("utf-8", "replace")
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            text = re.sub(r"<[^>]{0,200}>", " ", _ends(body)).strip()
            return _Fault(clipped(" ".join(text.split()), MAX_MESSAGE), (), None, text, {}, None)
    outer: object = body
    if isinstance(outer, list) and outer:
        outer = cast("list[object]", outer)[0]
    fields: dict[str, Any] = cast("dict[str, Any]", outer) if isinstance(outer, dict) else {}
    inner = fields.get("error", fields)
    error: dict[str, Any] = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {"message": inner}
    response = fields.get("response")
    if "error" not in fields and isinstance(response, dict):
        found = cast("dict[str, Any]", response).get("error")
        error = cast("dict[str, Any]", found) if isinstance(found, dict) else error
    details = error.get("details")
    named: list[object] = [cast("dict[str, Any]", details).get("error_code")] if isinstance(details, dict) else []
    named += [error.get("code"), error.get("type"), error.get("status"), fields.get("code")]
    codes = tuple(dict.fromkeys(str(x).lower() for x in named if isinstance(x, str) and x and not x.isdigit()))
    numbers_named = (str(x) for x in named if isinstance(x, int | str))
    number = next((int(x) for x in numbers_named if len(x) <= 9 and x.isascii() and x.isdigit()), None)
    message = (
        error.get("message") or error.get("msg") or error.get("detail") or fields.get("detail") or fields.get("message")
    )
    if message is None and body not in (None, ""):
        message = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    if message is not None and not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    request_id = fields.get("request_id")
    return _Fault(
        message=clipped(message or "", MAX_MESSAGE),
        codes=codes,
        number=number,
        text=_ends(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False).replace('\\"', "'")),
        fields=error,
        request_id=request_id if isinstance(request_id, str) else None,
    )


def _ends(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT // 2]} … {text[-MAX_TEXT // 2 :]}"


def numbers(text: str, fields: Mapping[str, Any] | None = None) -> tuple[int | None, int | None]:
    """The window and the tokens asked for, where a message names them: a learned limit and an exact size.

    Where a message counts prompt and output apart, the tokens asked for are their sum, as in the message's own
    comparison.
    """
    fields = fields or {}
    limit, requested = fields.get("n_ctx"), fields.get("n_prompt_tokens")
    if isinstance(limit, int):
        return limit, requested if isinstance(requested, int) else None
    for pattern, order in _NUMBERS:
        found = pattern.search(text)
        if found is None:
            continue
        values: dict[str, int] = {}
        for name, group in zip(order, found.groups(), strict=True):
            value = int(re.sub(r"\D", "", group)[:15])
            values[name[0]] = values.get(name[0], 0) + value
        if all(values.values()):
            return values.get("l"), values.get("r")
    return None, None


def prompt_size(text: str, fields: Mapping[str, Any] | None = None) -> int | None:
    """The tokens of the input alone, where a message names them: an exact size."""
    named = (fields or {}).get("n_prompt_tokens")
    if isinstance(named, int):
        return named if named > 0 else None
    found = next((match for pattern in _PROMPTS if (match := pattern.search(text))), None)
    return int(re.sub(r"\D", "", found.group(1))[:15]) or None if found else None


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Seconds to wait as the provider says: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date (B103)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if not value:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds
    at = http_date(value)
    return None if at is None else max(at - (time.time() if now is None else now), 0.0)


def _number(text: str | None) -> float | None:
    if text and not text.isascii():
        return None  # other digits than those of a header
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _retry_delay(text: str) -> float | None:
    """Google's `RetryInfo` in the body."""
    found = re.search(r'"retryDelay"\s*:\s*"([\d.]+)s"', text)
    return _number(found.group(1)) if found else None


def empty_stream(*, size: int, window: int, known: bool) -> bool:
    """Whether a 200 answer without any event is a candidate for overflow rather than a broken stream.

    Local and compatible servers answer so when the prompt does not fit (facts, providers 3.1: llama-cpp-python, LM
    Studio). `known` says that the endpoint is a vendor's own, which reports overflow properly: there only an input that
    may be near the window counts. `size` is the request in bytes, `window` in tokens.
    """
    return not known or size / 3 > window / 2


def silent_overflow(
    *,
    stop: StopReason,
    produced: bool,
    asked: int,
    usage: Usage,
    window: int,
    window_known: bool,
    estimate: int | None = None,
    local: bool = False,
) -> str | None:
    """Why a reply that looks complete is an overflow, or None (B059).

    `produced` says that the reply has text or calls, `asked` is the output limit of the request, `estimate` the size of
    the input as the runtime reckons it, `local` that the server is one that may drop the front of a prompt without a
    word.
    """
    reported = usage.input_tokens
    if stop == "length" and not produced and usage.output_tokens <= max(16, asked // 20):
        near = reported is None or not window_known or reported >= window * 0.8 or reported + asked > window
        if near:
            return "the reply stopped for length with no output: the input fills the window"
    if local and estimate is not None and reported is not None and estimate > 2_000 and reported < estimate * 0.6:
        return f"the server counted {reported} tokens of about {estimate}: it dropped the front of the input"
    return None
