"""One pace for all that ask the same account, over real sockets, on both backends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from worker.errors import Overloaded, RateLimited
from worker.models.base import ModelSettings
from worker.models.registry import create_model
from worker.pacing import Paces, PaceView, paces, use_paces
from worker.results import Failed, Finished
from worker.retry import RetryPolicy
from worker.simple import make_worker
from worker.testing.provider_server import Answer, Http, ProviderServer, RecordedRequest, Step

pytestmark = pytest.mark.anyio
LIMIT, WINDOW = 10, 0.25
Speaks = Callable[[int, float], dict[str, str]]


def openai(remaining: int, reset: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": str(LIMIT),
        "x-ratelimit-remaining-requests": str(remaining),
        "x-ratelimit-reset-requests": f"{int(reset * 1_000) + 1}ms",
    }


def anthropic(remaining: int, reset: float) -> dict[str, str]:
    at = datetime.fromtimestamp(time.time() + reset + 0.001, UTC)
    return {
        "anthropic-ratelimit-requests-limit": str(LIMIT),
        "anthropic-ratelimit-requests-remaining": str(remaining),
        "anthropic-ratelimit-requests-reset": at.isoformat(),
    }


def mute(remaining: int, reset: float) -> dict[str, str]:
    return {}


class Windows:
    """A provider with a limit of requests for each window of time. `speaks` makes the headers that tell it.

    The first window lasts until `burst` requests came, however slow the machine is.
    """

    def __init__(self, speaks: Speaks, *, refusal: int = 429, retry_after: bool = True, burst: int = 0) -> None:
        self.speaks = speaks
        self.refusal = refusal
        self.retry_after = retry_after
        self.refused = 0
        self.windows: dict[int, int] = {}
        self._burst = burst
        self._came = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, request: RecordedRequest) -> Step:
        with self._lock:
            self._came += 1
            if self._came <= self._burst:
                self._began = time.monotonic()
            now = time.monotonic() - self._began
            number = int(now // WINDOW)
            reset = (number + 1) * WINDOW - now
            seen = self.windows.get(number, 0)
            if seen < LIMIT:
                self.windows[number] = seen + 1
                return Answer("ok", headers=self.speaks(LIMIT - seen - 1, reset))
            self.refused += 1
            headers = self.speaks(0, reset)
            if self.retry_after:
                headers["retry-after-ms"] = str(int(reset * 1_000) + 1)
            return Http(self.refusal, {"error": {"message": "slow down", "type": "any"}}, headers)


async def crowd(server: ProviderServer, wire: str, *, workers: int = 20, asks: int = 2, **policy: Any) -> None:
    """So many workers ask at once, each so often; all get their answers."""
    settings = ModelSettings(base_url=server.url, api_key_env="PACE_TEST_KEY")
    models = [create_model(f"{wire}:m", settings) for _ in range(2)]

    async def one(number: int) -> None:
        worker = make_worker(models[number % 2], retry=RetryPolicy(**policy))
        for _ in range(asks):
            assert await worker.ask("hi") == Finished("ok")

    async with anyio.create_task_group() as group:
        for number in range(workers):
            group.start_soon(one, number)
    for model in models:
        await model.aclose()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE_TEST_KEY", "sk-of-the-pace-tests")


@pytest.mark.parametrize(
    ("wire", "speaks"),
    [("openai-chat", openai), ("openai", openai), ("anthropic", anthropic)],
    ids=lambda x: str(x)[:9],
)
async def test_twenty_workers_share_a_limit_and_nobody_is_refused_beyond_the_first_burst(
    wire: Any, speaks: Speaks
) -> None:
    provider = Windows(speaks)
    with ProviderServer(provider, wire=wire) as server:
        await crowd(server, wire)
    assert sum(provider.windows.values()) == 40
    assert provider.refused <= 20 - LIMIT
    (view,) = paces().view()
    assert (view.in_flight, view.waiting, view.limits[0].limit) == (0, 0, LIMIT)


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limited"), (529, "overloaded")])
async def test_a_provider_that_refuses_without_a_word_is_asked_by_fewer_at_a_time_and_all_get_through(
    status: int, kind: str
) -> None:
    """B104, B105."""
    provider = Windows(mute, refusal=status, retry_after=False, burst=20)
    with ProviderServer(provider, wire="openai-chat") as server:
        await crowd(server, "openai-chat", asks=1, max_attempts=30, base=0.05, cap=0.2)
    (view,) = paces().view()
    assert view.most is not None and view.most < 20
    assert sum(provider.windows.values()) == 20


async def test_each_error_of_a_refusal_holds_the_account_under_its_own_name() -> None:
    """B105."""
    for status, error in ((429, RateLimited), (529, Overloaded)):
        with use_paces(Paces()) as shared, ProviderServer([Http(status, {}, {"retry-after": "60"})]) as server:
            model = create_model("openai-chat:m", ModelSettings(base_url=server.url))
            worker = make_worker(model, retry=RetryPolicy(max_attempts=1))
            outcome = await worker.ask("hi")
            await model.aclose()
            assert isinstance(outcome, Failed) and outcome.kind == error.kind
            assert outcome.details["status"] == status and outcome.details["request_id"]
            (view,) = shared.view()
            assert 0 < view.held <= 60.0


@pytest.mark.parametrize(
    "reset", ["NaN", "-5s", "1e99s", "9999-12-31T23:59:59Z", "100000h", "0001-01-01T00:00:00Z", ""]
)
async def test_nonsense_in_headers_stalls_nobody(reset: str) -> None:
    headers = {
        "x-ratelimit-limit-requests": "0",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": reset,
        "x-ratelimit-remaining-tokens": "-1",
        "x-ratelimit-limit-tokens": "1e400",
        "date": "Mon, 99 Foo 99999",
    }
    with ProviderServer(lambda _: Answer("ok", headers=headers), wire="openai-chat") as server:
        with anyio.fail_after(20):
            await crowd(server, "openai-chat", workers=3, asks=3)


async def test_another_key_another_model_and_another_address_have_paces_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACE_OTHER_KEY", "sk-of-somebody-else")
    with ProviderServer([]) as one, ProviderServer([]) as two:

        def account(server: ProviderServer = one, key: str = "PACE_TEST_KEY", name: str = "m", **more: Any) -> Any:
            settings = ModelSettings(base_url=server.url, api_key_env=key, **more)
            model: Any = create_model(f"openai-chat:{name}", settings)
            return model.account

        assert account() == account() == account(extra_headers={"x-trace": "1"})
        project = account(extra_headers={"OpenAI-Project": "p"})
        others = [account(), account(two), account(key="PACE_OTHER_KEY"), account(name="n"), project]
        assert len(set(others)) == 5
        assert not any("sk-" in f"{each!r} {each.key}" for each in others)


async def test_a_request_that_breaks_or_is_cancelled_in_mid_stream_leaves_nothing_reserved() -> None:
    steps = [Answer("cut", fault="cut"), Answer("ok"), Answer("hang", fault="silence")]
    with ProviderServer(steps, wire="openai-chat") as server:
        model = create_model("openai-chat:m", ModelSettings(base_url=server.url))
        worker = make_worker(model, retry=RetryPolicy(chance=lambda: 0.0))
        assert await worker.ask("hi") == Finished("ok")
        with anyio.move_on_after(0.3) as scope:
            await worker.ask("hi")
        assert scope.cancelled_caught
        assert paces().view() == (PaceView("openai-chat:m", server.url, in_flight=0, waiting=0),)
        await model.aclose()


@pytest.mark.parametrize(
    ("wire", "name", "speaks"),
    [("openai", "openai:gpt-6-sol", openai), ("anthropic", "anthropic:claude-opus-5-5", anthropic)],
)
async def test_a_compaction_by_the_provider_takes_its_turn_and_hears_of_limits(
    wire: Any, name: str, speaks: Speaks
) -> None:
    refusal = Http(429, {"error": {"message": "slow down", "type": "rate_limit_error"}}, speaks(3, 60.0))
    with ProviderServer([Answer("ok")], wire=wire, compacts=lambda _: refusal) as server:
        model = create_model(name, ModelSettings(base_url=server.url, api_key_env="PACE_TEST_KEY"))
        worker = make_worker(model, retry=RetryPolicy(max_attempts=1))
        assert await worker.ask("hi") == Finished("ok")
        assert paces().view()[0].limits == ()
        with pytest.raises(RateLimited):
            await worker.sender.compact(model, len(worker.history.view))
        await model.aclose()
    (view,) = paces().view()
    assert (view.in_flight, [limit.remaining for limit in view.limits]) == (0, [3])
