"""What can go wrong between a worker and its model.

WorkerError
├── ConfigError                 a setting, tool or model name that cannot work (never retried)
└── ModelError                  a request that brought no reply
    ├── RateLimited             wait `retry_after` seconds, then again
    ├── Overloaded              the provider is busy; again later
    ├── ProviderDown            no connection, or a 5xx; again later
    ├── StreamBroken            the reply ended before its terminal event; again
    ├── StreamStalled           no content for too long; again
    ├── ContextOverflow         the input is larger than the window (`limit`, `requested`)
    │   └── TooLargeForTier     the input is larger than the rate tier lets through
    ├── QuotaExhausted          no credit left; never retried
    ├── AuthFailed              the key is missing, wrong or may not use this model
    ├── ModelNotFound           the provider does not know the model
    ├── InvalidHistory          the provider rejects the history (pairing, bound reasoning)
    ├── BadRequest              the provider rejects the request for another reason
    └── Refused                 the model or a filter refused to answer
"""

from __future__ import annotations

KEPT_WORDS = 300
"""Characters of a provider's message that are kept with what it taught."""


class WorkerError(Exception):
    """Base of all errors of the worker."""


class ConfigError(WorkerError):
    """A setting, a tool or a model name cannot work. The text names it and the way out."""


class ModelError(WorkerError):
    """A request brought no reply.

    `status` is the HTTP status (None without an answer), `code` the provider's own code, `request_id` the provider's id
    of the request, `model` the model that was asked. `gave_up` says, after retries, how many tries and seconds there
    were and what the bounds are; `attempts` counts them, 0 where that is not known. `memory` is the hash of the memory
    that the request carried as its provider had made it, empty where it carried none; `pictures` says whether it carried any.
    """

    kind = "model_error"
    retryable = False
    gave_up = ""
    attempts = 0
    memory = ""
    pictures = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        model: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.model = model


class RateLimited(ModelError):
    """The provider limits the rate. `retry_after` is in seconds, None where the provider does not say."""

    kind = "rate_limited"
    retryable = True


class Overloaded(ModelError):
    """The provider is overloaded (529, 503, `overloaded_error`)."""

    kind = "overloaded"
    retryable = True


class ProviderDown(ModelError):
    """No connection, a time-out before the answer, or a server error."""

    kind = "provider_down"
    retryable = True


class StreamBroken(ModelError):
    """The stream ended before its terminal event: what arrived is not a reply."""

    kind = "stream_broken"
    retryable = True


class StreamStalled(ModelError):
    """No content arrived for longer than the idle limit."""

    kind = "stream_stalled"
    retryable = True


class ContextOverflow(ModelError):
    """The input is larger than the model's window. `limit`, `requested` and `prompt` are tokens, where the provider
    names them: `requested` may hold the output that was asked for, `prompt` is the input alone."""

    kind = "overflow"

    def __init__(
        self,
        message: str,
        *,
        limit: int | None = None,
        requested: int | None = None,
        prompt: int | None = None,
        **rest: object,
    ) -> None:
        super().__init__(message, **rest)  # type: ignore[arg-type]  # the keywords of ModelError, passed through
        self.limit = limit
        self.requested = requested
        self.prompt = prompt


class TooLargeForTier(ContextOverflow):
    """The input is larger than the rate tier allows in a minute: only a smaller request helps, as with an overflow. The
    model's window is another thing: this says nothing of it."""

    kind = "too_large_for_tier"


class QuotaExhausted(ModelError):
    """No credit or spend limit reached."""

    kind = "quota"


class AuthFailed(ModelError):
    """The key is missing, wrong, or may not use this model."""

    kind = "auth"


class ModelNotFound(ModelError):
    """The provider does not know the model."""

    kind = "model_not_found"


class InvalidHistory(ModelError):
    """The provider rejects the history: pairing of calls, reasoning bound to another prefix."""

    kind = "invalid_history"


class BadRequest(ModelError):
    """The provider rejects the request."""

    kind = "bad_request"


class Refused(ModelError):
    """The model or a content filter refused. `partial` is the text that came before."""

    kind = "refused"

    def __init__(self, message: str, *, partial: str = "", **rest: object) -> None:
        super().__init__(message, **rest)  # type: ignore[arg-type]  # the keywords of ModelError, passed through
        self.partial = partial


def way_to_install(extra: str) -> str:
    """How an extra of this package is installed. It is on no index yet."""
    return f"pip install '/path/to/checkout[{extra}]'"


def told(error: BaseException) -> str:
    """What an error says. A foreign error's own text may itself raise; then this says so."""
    try:
        return str(error).strip()
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return f"(its text can't be read: {type(e).__name__})"


def alone(error: BaseException) -> BaseException:
    """The one error inside groups of one, as task groups make them: a group's own text says nothing."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ()) if _is_group(error) else ()
    return alone(inside[0]) if len(inside) == 1 else error


def holds(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or a group with one of it in it."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ()) if _is_group(error) else ()
    return isinstance(error, kind) or any(holds(each, kind) for each in inside)


def _is_group(error: BaseException) -> bool:
    # By the type: what a tool raises may call itself anything.
    return issubclass(type(error), BaseExceptionGroup)
