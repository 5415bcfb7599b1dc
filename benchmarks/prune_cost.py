"""`make bench-prune`: what pruning costs and brings in money, with the real interceptor against a simulated prefix cache.

The simulation of the facts file (providers 6.3): a system prompt of 12 k, turns of 2.5 k tool output and 0.5 k reply. Each
row is a scenario; the figures are input costs as ratios to the same session without pruning (compactions included). The
exit code is 1 where `auto` costs more than not pruning.

No rule knows when a session ends. One that ends just behind a prune has paid for requests that never came: the last
line says at how many of 200 lengths of a first run that is so, and how much at worst.

    python benchmarks/prune_cost.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio

from interceptors.prune import Prune, PruneSettings
from worker.budget import budget_of
from worker.history import History
from worker.interceptor import Edit, RequestContext
from worker.items import AssistantItem, ContextItem, FileRange, Item, ToolResultItem, UserItem, make_call
from worker.ledger import Ledger
from worker.models.base import Capabilities, Price, Reply, Usage
from worker.records import Admitted, Input, MemoryJournal, Pruned, ReplyRecord, ToolResult

OVERHEAD = 12_000
MEMORY = 10_000
"""Tokens of a new segment beside the system prompt: summary, user's words, retained tail."""

ORDER, SUMMARY = 1_000, 2_000
"""Tokens of the order to compact, and of the summary that is written."""

LOOK_BACK = 20
"""Items before its end in which a provider with markers finds a changed prefix again."""

Setting = Literal["off", "auto"] | int
SETTINGS: tuple[Setting, ...] = ("off", "auto", 8_000, 20_000)

CLAUDE = (0.10, 1.25)
PRICES: dict[str, tuple[float, float]] = {
    "0.10/1.25": CLAUDE, "0.05/1.25": (0.05, 1.25), "0.025/1.25": (0.025, 1.25),
    "0.10/2.0": (0.10, 2.0), "0.10/1.0": (0.10, 1.0), "0.50/1.0": (0.50, 1.0),
}  # fmt: skip
"""Prices of reading and writing the cache to that of uncached input (facts, providers 6.1)."""


@dataclass(frozen=True)
class Scenario:
    """A session. `runs` are the turns of each run, `idle` the seconds between runs; `trigger` is a compaction's, in
    tokens; `output` the tokens of each result in turn.
    """

    name: str
    runs: tuple[int, ...]
    trigger: int | None = None
    prices: tuple[float, float] = CLAUDE
    output: tuple[int, ...] = (2_500,)
    idle: float = 30.0
    markers: bool = False
    switch_at: int | None = None
    reread: bool = False


def scenarios() -> list[Scenario]:
    """All of them: long and short tasks, with and without compaction, at each price, and chats."""
    dice = random.Random(7)
    mixed = tuple(dice.choice((60, 300, 1_200, 2_500, 9_000)) for _ in range(200))
    chat = tuple(dice.randint(1, 12) for _ in range(40))
    found = [
        Scenario("10 turns", (10,)),
        Scenario("60 turns", (60,)),
        Scenario("300 turns", (300,)),
        Scenario("60 turns, compact at 150 k", (60,), 150_000),
        Scenario("300 turns, compact at 40 k", (300,), 40_000),
        Scenario("300 turns, compact at 24 k", (300,), 24_000),
        Scenario("150 turns, other model at 75", (150,), 150_000, switch_at=75),
        Scenario("150 turns, cache by markers", (150,), markers=True),
        Scenario("150 turns, mixed outputs", (150,), output=mixed),
        Scenario("300 turns, mixed, compact at 150 k", (300,), 150_000, output=mixed),
        Scenario("150 turns, one file again and again", (150,), 150_000, reread=True),
        Scenario("150 turns, small outputs", (150,), output=(400,)),
        Scenario("40 short runs, warm", chat),
        Scenario("40 short runs, cold", chat, idle=3_600.0),
        Scenario("40 short runs, cold, compact at 150 k", chat, 150_000, idle=3_600.0),
        Scenario("10 runs of 20, compact at 100 k", (20,) * 10, 100_000),
        Scenario("runs of 1 and 50", (1, 1, 50, 1, 1, 50, 1, 1)),
    ]
    found += [Scenario(f"300 turns, compact at 150 k, {name}", (300,), 150_000, p) for name, p in PRICES.items()]
    found += [Scenario(f"100 turns, {name}", (100,), None, p) for name, p in PRICES.items()]
    return found


@dataclass(frozen=True)
class Outcome:
    """What a session cost, in uncached input tokens, and what was done to its context."""

    cost: float
    prunes: int
    compactions: int


@dataclass
class Simulation:
    """One session with the real interceptor. The provider's cache holds what the request before held."""

    scenario: Scenario
    setting: Setting
    cost: float = 0.0
    prunes: int = 0
    compactions: int = 0
    wall: float = 1_000_000.0
    model: str = "sim:one"
    ended: tuple[int, int] = (0, 0)
    turns: int = 0
    so_far: list[float] = field(default_factory=list[float])
    sent: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    sent_at: float = 0.0
    sent_to: str = ""

    def __post_init__(self) -> None:
        read, write = self.scenario.prices
        self.price = Price(1.0, 5.0, read, write, "simulation")
        self.capabilities = Capabilities(
            window=2_000_000, max_output=8_000, price=self.price, cache_markers=self.scenario.markers
        )
        self.segment(())

    def segment(self, items: Sequence[Item]) -> None:
        """A new segment that begins with these items."""
        counters = self.history.counters if self.turns else None
        self.history = History()
        self.history.begin_run(counters)
        self.history.extend(items)
        settings = PruneSettings(enabled=self.setting != "off")
        if self.setting not in ("off", "auto"):
            settings = PruneSettings(min_savings=self.setting)
        trigger = self.scenario.trigger
        self.prune = Prune(
            settings, trigger=(lambda _: trigger) if trigger else None, last_reply=lambda: self.sent_at,
            runs=lambda: self.ended,
        )  # fmt: skip
        self.ledger = Ledger(MemoryJournal(), self.history, [self.prune])

    async def play(self) -> Outcome:
        """All runs."""
        for turns in self.scenario.runs:
            self.history.begin_run()
            item = UserItem(text="Go on with the next part of the work, please.")
            self.ledger.put(Input(item=item))
            self.ledger.put(Admitted(ids=(item.id,)))
            for _ in range(turns):
                await self.turn()
            self.ended = (self.ended[0] + 1, self.ended[1] + self.history.counters.requests)
            self.wall += self.scenario.idle
        return Outcome(self.cost / 1_000_000, self.prunes, self.compactions)

    async def turn(self) -> None:
        """One request, its reply and the result of its call."""
        if self.turns == self.scenario.switch_at:
            self.model = "sim:other"
        await self.consult()
        usage = self.send()
        scenario = self.scenario
        call = make_call(f"call_{self.turns}", "fetch", "{}")
        text = AssistantItem(text=filler(500, f"thought {self.turns}"))
        self.ledger.put(ReplyRecord(items=(text, call), usage=usage, model=self.model))
        await self.prune.after_request(self.context(), Reply(items=(), usage=usage, stop="tool_calls"))
        size = scenario.output[self.turns % len(scenario.output)]
        self.ledger.put(ToolResult(item=self.result(call.call_id, size)))
        self.turns += 1
        self.so_far.append(self.cost)
        self.wall += 10.0

    def result(self, call_id: str, size: int) -> ToolResultItem:
        """Tool output of this size; always of the same file where the scenario says so."""
        reads = FileRange(path="a.py", first=1, last=200, sha256="a") if self.scenario.reread else None
        return ToolResultItem(
            call_id=call_id, name="fetch", status="ok", summary=f"fetch {self.turns}",
            content=filler(size, f"page {self.turns}"), reads=reads,
        )  # fmt: skip

    async def consult(self) -> None:
        """Asks the interceptor; where the trigger is passed all the same, compacts."""
        decision = await self.prune.before_request(self.context())
        if isinstance(decision, Edit):
            assert isinstance(decision.record, Pruned)
            self.ledger.put(decision.record)
            self.prunes += 1
        if self.scenario.trigger and self.context().occupancy.tokens > self.scenario.trigger:
            self.compact()

    def compact(self) -> None:
        """The summary is asked for in the same prefix; a new segment begins with its memory."""
        view = OVERHEAD + self.history.total
        read = self.cached()
        self.cost += read * self.price.cache_read + (view - read + ORDER) * self.price.cache_write
        self.cost += SUMMARY * self.price.output
        self.compactions += 1
        self.segment([ContextItem(kind="summary", text=filler(MEMORY, "memory"))])
        self.sent = []

    def context(self) -> RequestContext:
        """What the interceptor sees."""
        return RequestContext(
            history=self.history, occupancy=self.history.occupancy(self.model, OVERHEAD),
            budget=budget_of(self.capabilities), model=self.model, capabilities=self.capabilities, tag="", first=False,
            now=0.0, wall=self.wall,
        )  # fmt: skip

    # -- the provider -------------------------------------------------------------------------------------------

    def cached(self) -> int:
        """Tokens of the next request that the cache holds."""
        if self.sent_to != self.model or self.wall - self.sent_at > self.capabilities.cache_ttl:
            return 0
        same = 0
        view = self.history.view
        for (key, tokens), item, now in zip(self.sent, view, self.history.tokens, strict=False):
            if key != item.id or tokens != now:
                break
            same += 1
        if self.scenario.markers and same < len(self.sent) - LOOK_BACK:
            same = 0
        return OVERHEAD + sum(self.history.tokens[:same])

    def send(self) -> Usage:
        """The price of one request, and what the provider reports of it."""
        total, read = OVERHEAD + self.history.total, self.cached()
        usage = Usage(input_tokens=total, cached_tokens=read, cache_write_tokens=total - read)
        self.cost += self.price.cost(usage) * 1_000_000
        self.sent = [(item.id, tokens) for item, tokens in zip(self.history.view, self.history.tokens, strict=True)]
        self.sent_at, self.sent_to = self.wall, self.model
        return usage


LINE = "says that nothing of note happened here at all, and so it goes on"


def filler(tokens: int, mark: str) -> str:
    """Text of about this many tokens."""
    return "\n".join(f"{mark} line {n} {LINE}" for n in range(max(tokens // 31, 1)))


async def play(scenario: Scenario, setting: Setting) -> Outcome:
    """Plays one session."""
    return await Simulation(scenario, setting).play()


async def ends() -> tuple[int, int, float]:
    """Of how many lengths of a first run, at how many `auto` has cost more than not pruning, and the worst ratio."""
    costs: list[list[float]] = []
    for setting in SETTINGS[:2]:
        session = Simulation(Scenario("", (200,)), setting)
        await session.play()
        costs.append(session.so_far)
    ratios = [auto / off for off, auto in zip(*costs, strict=True)]
    return len(ratios), sum(ratio > 1 for ratio in ratios), max(ratios)


def main() -> int:
    """Plays and prints; 1 where `auto` costs more than not pruning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the fixed settings")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = SETTINGS[:2] if options.quick else SETTINGS
    print(f"{'cost to that without pruning (prunes+compactions)':<50}" + "".join(f"{s!s:>18}" for s in settings[1:]))
    rows: list[dict[str, object]] = []
    for scenario in scenarios():
        found = {setting: anyio.run(play, scenario, setting) for setting in settings}
        base = found["off"]
        cells = "".join(
            f"{o.cost / base.cost:>10.3f} ({o.prunes:>2}+{o.compactions:>2})" for s, o in found.items() if s != "off"
        )
        held = found["auto"].cost <= base.cost
        print(f"{scenario.name:<50}{cells}{'' if held else '  ABOVE ITS BOUND'}", flush=True)
        rows.append({"name": scenario.name, "held": held, **{str(s): o.cost / base.cost for s, o in found.items()}})
    lengths, above, worst = anyio.run(ends)
    print(f"ends just behind a prune: {above} of {lengths} lengths cost more, at most {worst:.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["held"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
