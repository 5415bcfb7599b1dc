"""The way to a provider and back: the SDK's client as transport only, with raw bytes in both directions.

The SDK gives authentication, base URL, headers, proxies and error classes. Its transform of the history, its response
models and its retries are not used: the body is bytes that were encoded once, and the stream is read by our own parser.
"""

from __future__ import annotations

import hashlib
import importlib
import ipaddress
import json
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import anyio.to_thread

from worker.errors import AuthFailed, BadRequest, ConfigError, ModelError, ProviderDown, StreamBroken, StreamStalled
from worker.models.base import Heard, ModelSettings
from worker.models.classify import classify
from worker.models.sse import EventTooLarge, SSEParser
from worker.pacing import Account
from worker.tls import tls

SDK: TypeAlias = Literal["openai", "anthropic"]

WRITE_TIMEOUT = 60.0
"""Seconds for sending one piece of a request (facts, providers, recommendation 5)."""

POOL_TIMEOUT = 30.0
"""Seconds to wait for a free connection (facts, providers, recommendation 5)."""

ATTEMPT_TIMEOUT = 3_600.0
"""Seconds for one attempt as a whole: a stream that drips for ever ends too."""

GRACE = 5.0
"""Seconds that a reply which is already complete may take for its last figures (usage) and the end of its body."""

DRAIN = 0.25
"""Seconds for the rest of a finished body, so that its connection can be used again."""

KEEP_PLAIN = 16 * 1024 * 1024
"""Bytes kept of an answer that is no event stream."""

NO_KEY = "none"
"""Sent as the key to a server that was given none."""

OF_THE_ACCOUNT = ("authorization", "x-api-key", "api-key", "openai-organization", "openai-project")
"""Headers of the settings that say whose limits count, as a key does."""

_MARK = os.urandom(32)
"""Goes into what stands for a key: outside of this process that can't be compared with anything."""


class Answer(NamedTuple):
    """An answer in one piece: its JSON, its text as it came, the provider's id of the request."""

    value: object
    text: str
    request_id: str | None


class Sink(Protocol):
    """Takes the events of one stream.

    `complete` says that what arrived is a whole reply even if the stream ended now; `finished` that nothing more is
    wanted.
    """

    complete: bool
    finished: bool

    def event(self, name: str, data: str) -> bool:
        """Takes one event and says whether it carries content (pings do not). Raises `ModelError` for an error."""
        ...

    def plain(self, status: int, content_type: str, body: bytes) -> None:
        """Takes an answer in which there was no event. Raises `ModelError` unless it is a reply."""
        ...


def is_loopback(url: str) -> bool:
    """Whether the host of this URL is this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_base_url(url: str) -> str:
    """The URL without its last slash. Raises `ConfigError`: plain http is for loopback only, and a URL holds no
    password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"base_url {url!r} is not an http or https address")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("base_url holds a user name or password: name the key's variable with api_key_env instead")
    if parts.scheme == "http" and not is_loopback(url):
        raise ConfigError(
            f"base_url {url!r} is plain http: a key would travel unencrypted; use https (http is for loopback)"
        )
    return url.rstrip("/")


class Transport:
    """Sends bodies and reads streams. One SDK client, made in a thread at the first use, for one event loop.

    `key_env` names the variable with the key, None for a server without one. `client` is a ready client of the SDK
    (Azure, Vertex, a proxy): it is used as it is, and its owner closes it.
    """

    def __init__(
        self,
        sdk: SDK,
        *,
        base_url: str,
        key_env: str | None,
        settings: ModelSettings,
        model: str,
        client: Any = None,
    ) -> None:
        self._sdk: SDK = sdk
        self._base_url = base_url
        self._key_env = key_env
        self._settings = settings
        self._model = model
        self._given = client
        self._client: Any = None
        self._loop: object = None
        self._key = ""
        self._account: Account | None = None
        self._account_of: object = None

    async def exchange(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        sink: Sink,
        *,
        wait: float = 0.0,
        heard: Heard | None = None,
    ) -> Mapping[str, str]:
        """Posts `body`, feeds the stream to `sink`, and returns the answer's headers.

        `wait` is how many seconds without content are borne, where that is more than the settings allow; `heard` is told
        the headers about limits when they come, also those of a refusal. Raises `ModelError`. However it ends, also
        cancelled, the connection is closed or back in the pool when it returns.
        """
        client = await self._ready()
        with anyio.CancelScope(deadline=anyio.current_time() + ATTEMPT_TIMEOUT) as attempt:
            response = await self._post(client, path, body, headers, wait, heard)
            try:
                await self._read(response, sink, max(self._settings.idle_timeout, wait))
            except ModelError as e:
                e.request_id = e.request_id or _request_id(response.headers)
                raise
            return response.headers
        if attempt.cancelled_caught and not sink.complete:
            raise StreamStalled(f"the request took longer than {ATTEMPT_TIMEOUT:.0f} s", model=self._model)
        return {}

    async def prepare(self) -> None:
        """Makes the client where there is none yet."""
        await self._ready()

    @property
    def account(self) -> Account:
        """What the provider limits as one, for requests that are sent now: this address, key and model."""
        if self._given is not None:
            key = getattr(self._given, "api_key", None) or f"client {id(self._given)}"
        elif self._key_env is None:
            key = NO_KEY
        elif self._client is not None:
            key = self._key
        else:
            key = os.environ.get(self._key_env, "").strip()
        if self._account is None or self._account_of != key:
            url = self._base_url if self._given is None else str(getattr(self._given, "base_url", "")).rstrip("/")
            given = {name.lower(): value for name, value in self._settings.extra_headers.items()}
            parts = [str(key), *(given.get(name, "") for name in OF_THE_ACCOUNT)]
            mark = hashlib.blake2b("\0".join(parts).encode(errors="replace"), key=_MARK, digest_size=16)
            self._account, self._account_of = Account(self._model, url, mark.hexdigest()), key
        return self._account

    async def ask(
        self, path: str, body: bytes, headers: Mapping[str, str], *, wait: float = 0.0, heard: Heard | None = None
    ) -> Answer:
        """Posts `body` and returns the JSON of the answer. Raises `ModelError`.

        `wait` is how many seconds the server may think before it answers, where that is more than the settings allow;
        `heard` is as that of `exchange`.
        However it ends, also cancelled, the connection is closed or back in the pool when it returns.
        """
        import httpx2

        response = await self._post(await self._ready(), path, body, headers, wait, heard)
        chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        kept, ended = bytearray(), False
        failure: ModelError
        try:
            async for chunk in chunks:
                kept += chunk
                if len(kept) > KEEP_PLAIN:
                    break
            ended = True
            text = kept.decode()
            return Answer(json.loads(text), text, _request_id(response.headers))
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as e:
            failure = self._broken(e)
        except (ValueError, RecursionError) as e:
            failure = BadRequest(f"the answer is not valid JSON ({self._cause(e)})", model=self._model)
        finally:
            await _release(chunks, response, drain=ended)
        raise failure

    async def aclose(self) -> None:
        """Closes the client, unless it was given. Called in the event loop that sent."""
        client, self._client = self._client, None
        if client is not None:
            with anyio.CancelScope(shield=True):
                await client.close()

    async def _post(
        self, client: Any, path: str, body: bytes, headers: Mapping[str, str], wait: float, heard: Heard | None
    ) -> Any:
        import httpx2

        sdk = importlib.import_module(self._sdk)
        settings = self._settings
        options: dict[str, Any] = {
            "headers": dict(headers),
            "max_retries": 0,
            "timeout": httpx2.Timeout(
                connect=settings.connect_timeout,
                read=max(settings.read_timeout, wait),
                write=WRITE_TIMEOUT,
                pool=POOL_TIMEOUT,
            ),
        }
        # Clients for Azure, Vertex and the like rewrite the address from the body's fields, so they get the body as a
        # dict.
        plain = type(client).__name__ in ("AsyncOpenAI", "AsyncAnthropic")
        payload: dict[str, Any] = {"content": body} if plain else {"body": json.loads(body)}
        failure: ModelError
        try:
            response = await client.post(path, cast_to=httpx2.Response, stream=True, options=options, **payload)
            if heard is not None:
                heard(_about_rates(response.headers))
            return response
        except sdk.APIStatusError as e:
            if heard is not None:
                heard(_about_rates(e.response.headers))
            failure = self._status_error(e.response)
        except sdk.APITimeoutError as e:
            failure = ProviderDown(f"no answer in time ({self._cause(e)})", model=self._model)
        except (sdk.APIError, httpx2.HTTPError, httpx2.StreamError, OSError) as e:
            failure = ProviderDown(f"no connection to the provider ({self._cause(e)})", model=self._model)
        except self._sdk_error(sdk) as e:
            failure = BadRequest(f"the SDK cannot send this request ({self._cause(e)})", model=self._model)
        # Raised outside of the handler: the SDK's error holds the whole request, body and key.
        raise failure

    async def _read(self, response: Any, sink: Sink, idle: float) -> None:
        import httpx2

        chunks: AsyncGenerator[bytes, None] = response.aiter_bytes()
        parser = SSEParser()
        kept = bytearray()
        content_type = str(response.headers.get("content-type") or "").lower()
        events = 0
        failure: ModelError | None = None
        scope = anyio.CancelScope(deadline=anyio.current_time() + idle)
        try:
            with scope:
                while not sink.finished:
                    try:
                        chunk = await anext(chunks)
                    except StopAsyncIteration:
                        found = parser.close()
                        ended = True
                    except (httpx2.HTTPError, httpx2.StreamError, OSError) as e:
                        failure = self._broken(e)
                        break
                    else:
                        if not events and len(kept) < KEEP_PLAIN:
                            kept += chunk
                        try:
                            found = parser.feed(chunk)
                        except EventTooLarge as e:
                            failure = StreamBroken(str(e), model=self._model)
                            break
                        ended = False
                    content = False
                    for event in found:
                        events += 1
                        content = sink.event(event.name, event.data) or content
                        if sink.finished:
                            break
                    if ended:
                        break
                    if sink.complete:
                        scope.deadline = min(scope.deadline, anyio.current_time() + GRACE)
                    elif content:
                        scope.deadline = anyio.current_time() + idle
        finally:
            await _release(chunks, response, drain=sink.finished)
        if sink.complete:
            return
        if scope.cancelled_caught:
            raise StreamStalled(f"no content for {idle:g} s", model=self._model)
        if failure is not None:
            raise failure
        if not events:
            sink.plain(response.status_code, content_type, bytes(kept))
        if not sink.complete:
            raise StreamBroken("the stream ended before its terminal event", model=self._model)

    def _sdk_error(self, sdk: Any) -> type[Exception]:
        """The base class of the SDK's errors."""
        return sdk.OpenAIError if self._sdk == "openai" else sdk.AnthropicError

    def _status_error(self, response: Any) -> ModelError:
        try:
            body: object = response.text
        except Exception as e:  # an undecodable error body still has its status
            body = f"unreadable error body ({type(e).__name__})"
        error = classify(response.status_code, body, response.headers, model=self._model)
        error.message = self._redact(error.message)
        if isinstance(error, AuthFailed) and self._key_env is None and self._given is None:
            error.message += " (no key was sent: name the variable that holds one with api_key_env)"
        error.args = (error.message,)
        return error

    def _broken(self, error: Exception) -> ModelError:
        import httpx2

        if isinstance(error, httpx2.TimeoutException):
            return StreamStalled(f"the stream went silent ({self._cause(error)})", model=self._model)
        return StreamBroken(f"the connection broke in mid-stream ({self._cause(error)})", model=self._model)

    def _cause(self, error: BaseException) -> str:
        inner = error.__cause__ or error.__context__ or error
        text = str(inner)
        return self._redact(f"{type(inner).__name__}: {text}" if text else type(inner).__name__)

    def _redact(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= 8 else text

    async def _ready(self) -> Any:
        if self._given is not None:
            return self._given
        loop = anyio.lowlevel.current_token()
        if self._client is None or self._loop != loop:
            self._key = self._read_key()
            # Importing an SDK and reading the certificates take up to two seconds of CPU (facts, providers 1.1).
            client = await anyio.to_thread.run_sync(self._build, self._key, abandon_on_cancel=True)
            if self._client is not None and self._loop == loop:
                await client.close()
            else:
                self._client, self._loop = client, loop
        return self._client

    def _read_key(self) -> str:
        if self._key_env is None:
            return NO_KEY
        key = os.environ.get(self._key_env, "").strip()
        if not key:
            raise AuthFailed(
                f"the environment variable {self._key_env} is not set: it must hold the API key for {self._model}",
                model=self._model,
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            # Such a value fails inside the HTTP library, with the key in the text of its error.
            raise AuthFailed(
                f"the environment variable {self._key_env} holds characters that no API key has", model=self._model
            )
        return key

    def _build(self, key: str) -> Any:
        try:
            sdk = importlib.import_module(self._sdk)
        except ImportError as e:
            raise ConfigError(f"the package {self._sdk!r} is needed for {self._model}: pip install {self._sdk}") from e
        made: dict[str, Any] = {
            "api_key": key, "base_url": self._base_url, "max_retries": 0, "http_client": sdk.DefaultAsyncHttpxClient(verify=tls()),
        }  # fmt: skip
        if self._sdk == "anthropic":
            return sdk.AsyncAnthropic(**made)
        if urlsplit(self._base_url).hostname != "api.openai.com":
            # The SDK reads these from the environment; they are nobody else's business.
            made["default_headers"] = {"OpenAI-Organization": sdk.Omit(), "OpenAI-Project": sdk.Omit()}
        return sdk.AsyncOpenAI(**made)


def _about_rates(headers: Any) -> dict[str, str]:
    """The headers about limits. Looked for among the raw ones: most answers have none, and decoding them all takes long."""
    found: dict[str, str] = {}
    pairs: list[tuple[bytes, bytes]] = headers.raw
    if b"ratelimit" not in b" ".join([name for name, _ in pairs]).lower():
        return found
    for raw, value in pairs:
        name = raw.lower()
        if b"ratelimit" in name or name == b"date":
            found[name.decode("latin-1")] = value.decode("latin-1")
    return found


def _request_id(headers: Mapping[str, str]) -> str | None:
    return headers.get("x-request-id") or headers.get("request-id")


async def _release(chunks: AsyncGenerator[bytes, None], response: Any, *, drain: bool) -> None:
    """Ends the body and its generators: read to the end where little is left, else cancelled from the inside.

    A generator that is only dropped is closed by the garbage collector, late and with a `ResourceWarning` under trio.
    """
    import httpx2

    with anyio.CancelScope(shield=True) as scope:
        scope.deadline = anyio.current_time() + DRAIN
        if not drain:
            scope.cancel()
        try:
            async for _ in chunks:
                pass
        except (httpx2.HTTPError, httpx2.StreamError, OSError):
            # What came before was judged already; this only closes.
            pass
    with anyio.CancelScope(shield=True):
        await chunks.aclose()
        await response.aclose()
