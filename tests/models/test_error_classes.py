"""What a provider's failure means: golden bodies of the facts file, section 3."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from worker.errors import (
    AuthFailed,
    BadRequest,
    ContextOverflow,
    InvalidHistory,
    ModelNotFound,
    Overloaded,
    ProviderDown,
    QuotaExhausted,
    RateLimited,
    Refused,
    TooLargeForTier,
)
from worker.models.base import Usage
from worker.models.classify import classify, empty_stream, numbers, prompt_size, retry_after, silent_overflow


def openai(message: str, code: object = None, kind: str = "invalid_request_error", **more: object) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None, **more}}


def claude(message: str, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, object]:
    details = {"error_code": code} if code else None
    return {"type": "error", "error": {"type": kind, "message": message, "details": details}, "request_id": "req_x"}


OVERFLOWS = {
    "openai responses 400": (
        400,
        openai("Your input exceeds the context window of this model.", "context_length_exceeded"),
        None,
        None,
    ),
    "openai responses in the stream": (
        None,
        {"type": "error", "code": "context_length_exceeded", "message": "too much"},
        None,
        None,
    ),
    "openai responses failed": (
        None,
        {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded", "message": "x"}}},
        None,
        None,
    ),
    "openai chat": (
        400,
        openai(
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130500 tokens.",
            "context_length_exceeded",
            param="messages",
        ),
        128_000,
        130_500,
    ),
    "openai chat with output": (
        400,
        openai(
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens "
            "(8000 in the messages, "
            "1000 in the completion).",
            "context_length_exceeded",
        ),
        8_192,
        9_000,
    ),
    "anthropic": (400, claude("prompt is too long: 215000 tokens > 200000 maximum"), 200_000, 215_000),
    "anthropic older": (
        400,
        claude("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        200_000,
        210_000,
    ),
    "anthropic bytes": (413, claude("Request exceeds the maximum size", "request_too_large"), None, None),
    "bedrock": (400, {"message": "Input is too long for requested model."}, None, None),
    "vertex list": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "status": "INVALID_ARGUMENT",
                    "message": "The input token count (1200000) exceeds the maximum number of tokens allowed "
                    "(1048576).",
                }
            }
        ],
        1_048_576,
        1_200_000,
    ),
    "openrouter": (
        400,
        {
            "error": {
                "code": 400,
                "message": "This endpoint's maximum context length is 65536 tokens. However, you requested "
                "about 70000 tokens.",
            }
        },
        65_536,
        70_000,
    ),
    "vllm": (
        400,
        {
            "object": "error",
            "type": "BadRequestError",
            "code": 400,
            "param": "input_tokens",
            "message": "You passed 5000 input tokens and requested 100 output tokens. However, "
            "the model's context length "
            "is only "
            "4096 tokens.",
        },
        4_096,
        5_000,
    ),
    "vllm older": (400, openai("max_tokens must be at least 1, got -904.", 400, "BadRequestError"), None, None),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9000,
                "n_ctx": 4096,
                "message": "the request exceeds the available context size, try increasing it",
            }
        },
        4_096,
        9_000,
    ),
    "llama.cpp fork 500": (
        500,
        {"error": {"code": 500, "type": "server_error", "message": "the request exceeds the available context size"}},
        None,
        None,
    ),
    "llama-cpp-python": (
        400,
        openai("Requested tokens (3005) exceed context window of 2048", "context_length_exceeded"),
        2_048,
        3_005,
    ),
    "lm studio": (
        None,
        {
            "error": "Trying to keep the first 5000 tokens when context the overflows. However, the model "
            "is loaded with context "
            "length of only 4096 tokens"
        },
        4_096,
        5_000,
    ),
    "mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
            "context length",
            "type": "invalid_request_error",
        },
        32_768,
        40_000,
    ),
    "deepseek": (
        400,
        openai("This model's maximum context length is 131072 tokens. However, you requested 140000 tokens."),
        131_072,
        140_000,
    ),
    "groq": (
        400,
        openai("Please reduce the length of the messages or completion.", "context_length_exceeded"),
        None,
        None,
    ),
    "xai": (
        400,
        {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."},
        131_072,
        537_812,
    ),
    "copilot": (400, openai("prompt token count of 140000 exceeds the limit of 128000"), 128_000, 140_000),
    "kimi": (400, openai("Your request exceeded model token limit: 262144 (requested: 300000)"), 262_144, 300_000),
    "minimax": (400, openai("invalid params, context window exceeds limit"), None, None),
    "cerebras without a body": (413, "", None, None),
    "cerebras": (400, openai("Current length is 9000 while limit is 8192"), 8_192, 9_000),
    "tgi": (
        422,
        {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"},
        4_096,
        5_000,
    ),
    "B059 a gateway's 403": (403, openai("context window exceeded"), None, None),
    "B059 413": (413, "Payload Too Large", None, None),
    "B059 400": (400, claude("prompt is too long"), None, None),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_every_known_shape_of_overflow_is_recognised_with_its_numbers(name: str) -> None:
    status, body, limit, requested = OVERFLOWS[name]
    error = classify(status, body)
    assert type(error) is ContextOverflow, (type(error), error.message)
    assert (error.limit, error.requested) == (limit, requested)


OTHERS = {
    "B059 control: a wrong key": (403, openai("invalid key"), AuthFailed),
    "a field that is too long is no overflow": (
        400,
        openai("Invalid 'user': string too long. Expected maximum length 64", "string_above_max_length"),
        BadRequest,
    ),
    "a 429 is judged before its text": (
        429,
        openai("rate limit: the prompt was 'input is too long'", "rate_limit_exceeded"),
        RateLimited,
    ),
    "openai quota": (
        429,
        openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
        QuotaExhausted,
    ),
    "quota text without a code": (
        429,
        openai("You exceeded your current quota, please check your plan."),
        QuotaExhausted,
    ),
    "openai rate with a billing link": (
        429,
        openai("Rate limit reached. Add a payment method at /account/billing", "rate_limit_exceeded", "requests"),
        RateLimited,
    ),
    "tokens per minute with room": (
        429,
        openai(
            "Rate limit reached on tokens per min (TPM): Limit 30000, Used 25000, Requested 9000.",
            "rate_limit_exceeded",
            "tokens",
        ),
        RateLimited,
    ),
    "anthropic rate": (429, claude("slow down", "rate_limit_error"), RateLimited),
    "anthropic ramp": (429, claude("ramp", "rate_limit_error", "ramp_limit_exceeded"), RateLimited),
    "anthropic spend limit": (429, claude("limit", "rate_limit_error", "enforced_spend_limit_reached"), QuotaExhausted),
    "anthropic billing": (402, claude("pay", "billing_error"), QuotaExhausted),
    "anthropic credit in a 400": (400, claude("Your credit balance is too low to access the API."), QuotaExhausted),
    "openrouter credit": (402, {"error": {"code": 402, "message": "requires more credits"}}, QuotaExhausted),
    "B105 overload": (529, claude("Overloaded", "overloaded_error"), Overloaded),
    "overload in a stream": (None, claude("Overloaded", "overloaded_error"), Overloaded),
    "503": (503, "<html><body>Service Unavailable</body></html>", Overloaded),
    "500": (500, claude("oops", "api_error"), ProviderDown),
    "502": (502, "", ProviderDown),
    "504": (504, claude("late", "timeout_error"), ProviderDown),
    "408": (408, "", ProviderDown),
    "409": (409, openai("conflict"), ProviderDown),
    "401": (401, openai("Incorrect API key provided", "invalid_api_key"), AuthFailed),
    "403": (403, claude("not yours", "permission_error"), AuthFailed),
    "404 model": (404, openai("The model `x` does not exist", "model_not_found"), ModelNotFound),
    "400 model": (400, openai("The model `x` does not exist or you have no access"), ModelNotFound),
    "thinking bound elsewhere": (
        400,
        claude("messages.3: thinking block is bound to a different conversation"),
        InvalidHistory,
    ),
    "anthropic pairing": (
        400,
        claude("tool_use ids were found without tool_result blocks immediately after: a"),
        InvalidHistory,
    ),
    "openai pairing": (400, openai("No tool output found for function call call_1."), InvalidHistory),
    "chat pairing": (
        400,
        openai("An assistant message with 'tool_calls' must be followed by tool messages for each 'tool_call_id'"),
        InvalidHistory,
    ),
    "reasoning alone": (
        400,
        openai("Item 'rs_1' of type 'reasoning' was provided without its required following item."),
        InvalidHistory,
    ),
    "compaction": (400, claude("x", "invalid_request_error", "compaction_signature_invalid"), InvalidHistory),
    "content filter": (400, openai("filtered", "content_filter"), Refused),
    "invalid prompt in a stream": (None, {"type": "error", "code": "invalid_prompt", "message": "policy"}, Refused),
    "a number as the code of a 200": (200, {"error": {"code": 502, "message": "upstream"}}, ProviderDown),
    "a rate limit as the body of a 200": (200, {"error": {"code": 429, "message": "slow"}}, RateLimited),
    "a number as text": (200, {"error": {"code": "401", "message": "key"}}, AuthFailed),
    "an unknown event of a stream": (None, {"error": {"message": "something"}}, ProviderDown),
    "an invalid request in a stream": (None, claude("bad field"), BadRequest),
    "plain bad request": (400, openai("unknown parameter: foo", "unknown_parameter"), BadRequest),
    "validation list": (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, BadRequest),
    "nothing at all": (400, None, BadRequest),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_overflow_gets_its_own_class(name: str) -> None:
    status, body, kind = OTHERS[name]
    error = classify(status, body)
    assert type(error) is kind, (type(error), error.message)
    assert error.message


def test_a_request_above_the_rate_tier_needs_compaction_not_patience() -> None:
    body = openai(
        "Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 45000.",
        "rate_limit_exceeded",
        "tokens",
    )
    error = classify(429, body, {"retry-after": "5"})
    assert type(error) is TooLargeForTier
    assert (error.limit, error.requested) == (30_000, 45_000)
    assert not error.retryable and error.retry_after is None
    assert type(classify(413, body)) is TooLargeForTier
    assert (
        type(classify(429, openai("Request too large for gpt-x", "rate_limit_exceeded", "tokens"))) is TooLargeForTier
    )


RATES = {
    "413 without a code": (413, openai("Request too large on tokens per minute (TPM): Limit 600, Requested 7193")),
    "413 as an overflow": (413, openai("Too many tokens per min. Limit: 600, Requested: 7,193", "request_too_large")),
    "429 that speaks of context": (429, openai("TPM: Limit 300, Requested 2000. context length exceeded")),
    "400": (400, openai("Limit 600, Used 100, Requested 7193. The context window is exceeded")),
}


@pytest.mark.parametrize("name", RATES)
def test_a_rate_limit_of_tokens_is_no_overflow_of_the_window_whatever_its_status(name: str) -> None:
    error = classify(*RATES[name])
    assert type(error) is TooLargeForTier, (type(error), error.message)
    assert type(classify(413, openai("tokens per min (TPM): Limit 9000, Used 8000, Requested 2000"))) is RateLimited


def test_status_code_and_request_id_are_kept() -> None:
    """B105: two classes, each with its status and the provider's id."""
    busy = classify(529, claude("Overloaded", "overloaded_error"), {"request-id": "req_1"}, model="m")
    limited = classify(429, claude("slow", "rate_limit_error"), {"x-request-id": "req_2"}, model="m")
    assert (busy.kind, busy.status, busy.request_id, busy.code) == ("overloaded", 529, "req_1", "overloaded_error")
    assert (limited.kind, limited.status, limited.request_id) == ("rate_limited", 429, "req_2")
    assert busy.model == "m"
    assert classify(400, claude("x")).request_id == "req_x"


NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": format_datetime(NOW.replace(second=7), usegmt=True)}, 7.0),
        ({"retry-after": format_datetime(NOW.replace(hour=11), usegmt=True)}, 0.0),
        ({"retry-after": "Sun, 29 Nov 2026 12:00:07"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_each_form_of_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    """B103."""
    assert retry_after(headers, now=NOW.timestamp()) == seconds
    assert classify(429, None, headers, now=NOW.timestamp()).retry_after == seconds


def test_googles_retry_delay_means_a_rate_and_not_a_quota() -> None:
    body = [
        {
            "error": {
                "code": 429,
                "message": "You exceeded your current quota",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
            }
        }
    ]
    error = classify(429, body)
    assert type(error) is RateLimited
    assert error.retry_after == 34.0


@pytest.mark.parametrize(
    "body", [[], [1], {"error": None}, {"error": []}, {"error": 3}, "null", b"\xff\xfe", 7, {"detail": 1}]
)
def test_no_shape_of_body_breaks_the_classifier(body: object) -> None:
    assert classify(400, body).status == 400
    assert classify(None, body).message


def test_a_long_message_is_cut_and_a_page_loses_its_tags() -> None:
    assert len(classify(400, openai("x" * 5_000)).message) == 1_000
    assert classify(502, "<html><h1>Bad</h1> gateway</html>").message == "Bad gateway"


def test_numbers_with_separators_are_read() -> None:
    assert numbers("prompt is too long: 1,200,000 tokens > 1_000_000 maximum") == (1_000_000, 1_200_000)
    assert numbers("nothing here") == (None, None)


@pytest.mark.parametrize(
    ("text", "input_tokens"),
    [
        ("prompt is too long: 1,200,000 tokens > 1_000_000 maximum", 1_200_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", 190_000),
        ("maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 9_000),
        ("you requested 9000 tokens (8000 in the messages, 1000 in the completion)", 8_000),
        ("Request too large for gpt-x on tokens per min (TPM): Limit 30000, Requested 45000.", None),
        ("exceeds the context window", None),
    ],
)
def test_the_size_of_the_input_alone_is_told_from_one_with_the_output(text: str, input_tokens: int | None) -> None:
    """B055: an exact size corrects the estimator; a sum with the output only bounds it."""
    assert prompt_size(text) == input_tokens
    assert classify(400, {"error": {"message": text, "code": "context_length_exceeded"}}).prompt == input_tokens  # type: ignore[attr-defined]


def test_a_reply_that_stops_for_length_with_no_output_near_the_window_is_an_overflow() -> None:
    """B059."""

    def judge(
        tokens: int | None, *, produced: bool = False, output: int = 0, known: bool = True, asked: int = 4_000
    ) -> str | None:
        usage = Usage(input_tokens=tokens, output_tokens=output)
        return silent_overflow(
            stop="length", produced=produced, asked=asked, usage=usage, window=32_000, window_known=known
        )

    assert judge(31_900)
    assert judge(29_000)
    assert judge(None)
    assert judge(500, known=False)
    assert judge(500) is None
    assert judge(31_900, produced=True) is None
    assert judge(31_900, output=4_000) is None, "a limit spent on hidden reasoning is not an overflow"


def test_a_local_server_that_counts_far_less_than_was_sent_has_cut_the_prompt() -> None:
    def judge(reported: int, *, local: bool) -> str | None:
        usage = Usage(input_tokens=reported, output_tokens=10)
        return silent_overflow(
            stop="end", produced=True, asked=100, usage=usage, window=9, window_known=True, estimate=10_000, local=local
        )

    assert judge(2_048, local=True)
    assert judge(9_000, local=True) is None
    assert judge(2_048, local=False) is None


def test_an_empty_stream_is_an_overflow_where_servers_answer_so_and_else_only_near_the_window() -> None:
    assert empty_stream(size=100, window=32_000, known=False)
    assert not empty_stream(size=100, window=32_000, known=True)
    assert empty_stream(size=90_000, window=32_000, known=True)
