"""`make eval`: eight long sessions under the policies `off`, `warn` and `compact`, offline, with real tools. The table is checked
against thresholds; the exit code is 1 where one does not hold.

The same messages, files, model and window in each cell; only `[context] policy` differs. The input tokens of `compact` include those of
its compact workers.

Played twice: with pruning off, where what is compared is the policy alone (`warn` measures, warns and refuses, and takes nothing out of
the view), and with pruning on under every policy, as it ships: what `compact` saves beside pruning. The thresholds are those of the
policy alone; the second table shows its saving without one, since in sessions of this length pruning has taken out already what a
compaction would (see docs/testing.md). All other thresholds hold in both. `--prune off` or `--prune on` plays one of the two.

    python -m benchmarks.evaluate [--prune on|off] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

import anyio

from benchmarks.eval_agent import SYSTEM, act
from benchmarks.eval_fixtures import ALL, ANSWERS, Fixture, Turn
from pod import Event, Manifest, Pod, RunResult
from pod.log.entries import record_of
from pod.log.folder import PodFolder
from pod.log.items import items_of
from pod.reading import SessionReader
from worker.errors import ContextOverflow, ProviderDown
from worker.items import ContextItem, OrderItem, ToolResultItem, UserItem
from worker.models.base import Capabilities, Emit, Reply, Request
from worker.offline.summarizer import section, summarize
from worker.testing import FunctionModel, check_request
from worker.testing.function_model import ReplyFunction, common_prefix

Policy = Literal["off", "warn", "compact"]
POLICIES: tuple[Policy, ...] = ("off", "warn", "compact")

# The thresholds were set before the first run, after the gates for making `compact` a default that the design names.
INPUT_REDUCTION = 0.30
"""Share by which the median input of `compact` lies below that of `warn`, at least."""
PASS_REGRESSION = 5.0
"""Percentage points that the pass rate of `compact` may lie below that of `warn`."""
RECALL = 0.95
"""Share of the seeded constraints and directives that `compact` recalls, at least."""
SAFETY = ABOVE_BUDGET = BYTES_LOST = BROKEN_TRANSCRIPTS = 0
"""Under every policy: invariants broken, requests above the budget, bytes of the log lost or altered, transcripts not intact."""

ESTIMATE_ERROR = 0.10
"""Share by which an estimate may lie below the report, and, once there was a report to learn from, above it. The first estimate of a
segment is high on purpose."""

TRIGGER, OUTPUT, BUFFER = 16_000, 1_000, 4_000
STILL_TOO_LARGE = 0.6
"""A provider that found a request too large takes one of this share of its size."""


@dataclass
class Cell:
    """One fixture under one policy."""

    fixture: str
    policy: Policy
    input_tokens: int = 0
    compact_tokens: int = 0
    requests: int = 0
    compactions: int = 0
    passed: bool = False
    recalled: int = 0
    seeds: int = 0
    denied: int = 0
    above_budget: int = 0
    bytes_lost: int = 0
    transcript_intact: bool = True
    unsafe: list[str] = field(default_factory=list[str])
    stopped: str = ""

    @property
    def tokens(self) -> int:
        """Provider-reported input tokens, those of compact workers included."""
        return self.input_tokens + self.compact_tokens


class Watched(FunctionModel):
    """Counts what it reports and what it was sent; checks each request as a strict provider would; meets faults."""

    def __init__(self, name: str, function: ReplyFunction, window: int, seen: Callable[[Request, int], None]) -> None:
        capabilities = Capabilities(
            window=window, window_source="table", max_output=OUTPUT, max_output_source="table", family="o200k"
        )
        super().__init__(name, function, capabilities=capabilities)
        self.seen = seen
        self.fault = ""
        self.real = 0
        self.served = 0

    async def send(self, request: Request, emit: Emit) -> Reply:
        check_request(request, self.encoder)
        self.served += 1
        if self.fault == "fail" and self.served == 2:
            raise ProviderDown("the provider is down", status=503)
        reply = await super().send(request, emit)
        tokens = reply.usage.input_tokens or 0
        if self.fault == "overflow" and self.served == 3:
            self.real = int(tokens * STILL_TOO_LARGE)
        if 0 < self.real < tokens:
            raise ContextOverflow("the input is too long for this model", status=400)
        self.real = 0
        self.seen(request, tokens)
        return reply


class Trial:
    """One fixture, played under one policy in a folder of its own."""

    def __init__(
        self, fixture: Fixture, policy: Policy, folder: Path, *, prune: bool = False, summary: ReplyFunction = summarize
    ) -> None:
        self.fixture, self.cell = fixture, Cell(fixture.name, policy, seeds=len(fixture.seeds))
        self.home, self.cwd = folder / "home", folder / "work"
        self.cwd.mkdir(parents=True)
        self._put(fixture.files)
        self.available = fixture.window - max(OUTPUT, BUFFER)
        self.ceiling = self.available
        self.model = Watched("offline:agent", act, fixture.window, self._sent)
        self.compact_model = Watched("offline:summarizer", summary, fixture.window, self._sent_to_compact)
        self.manifest = Manifest.model_validate(
            {
                "worker": {"system_prompt": SYSTEM},
                "tools": {"enable": ["read_file", "write_file", "append_file", "shell"]},
                "permissions": {"profile": "unattended", "rules": [{"tool": "shell", "match": "sh check.sh", "action": "allow"}]},
                "scope": {"read": ["."], "write": ["."]},
                "prune": {"enabled": prune},
                "log": {"durability": "os"},
                "retry": {"max_attempts": 1},
                "context": {"policy": policy, "buffer_tokens": BUFFER},
                "compaction": {"threshold": TRIGGER, "request_threshold": TRIGGER, "retained_tokens": 3_000},
            }
        )  # fmt: skip
        self.logs: dict[str, bytes] = {}
        self.transcript: list[str] = []
        self.given: list[str] = []
        self.view: list[str] = []
        self.estimate, self.learned = 0, False
        self.opening: Request | None = None

    async def play(self) -> Cell:
        """Plays all turns and grades what is left. A run that does not come to its end is the session's end."""
        turns = list(self.fixture.turns)
        while turns and not self.cell.stopped:
            async with Pod.open(
                self.manifest, name="p", home=self.home, cwd=self.cwd, tools=self.fixture.tools, model=self.model,
                compact_model=self.compact_model, observers=[self._told],
            ) as pod:  # fmt: skip
                self.cell.transcript_intact &= _ids(pod)[: len(self.view)] == self.view
                while turns and not self.cell.stopped:
                    await self._turn(pod, turns.pop(0))
                    self._look()
                    self.view = _ids(pod)
                    if turns and turns[0].reopen:
                        self._put(turns[0].files)
                        break
        self._look()
        self._grade()
        return self.cell

    async def _turn(self, pod: Pod, turn: Turn) -> None:
        self.given.append(turn.text)
        self.model.fault, self.model.served = turn.fault, 0
        result = await (_cancelled(pod, turn.text) if turn.fault == "cancel" else pod.run(turn.text))
        self._look()
        if turn.fault in ("fail", "cancel"):
            if (result.status, result.resumable) != ("failed" if turn.fault == "fail" else "cancelled", True):
                self.cell.unsafe.append(f"a run that met {turn.fault!r} ended as {result.status}")
            self.model.fault = ""
            result = await pod.resume()
        if result.status != "finished":
            self.cell.stopped = str(result.error_kind or result.status)

    def _sent(self, request: Request, tokens: int) -> None:
        self.cell.requests += 1
        self.cell.input_tokens += tokens
        self.cell.above_budget += tokens > min(self.available, self.ceiling)
        self.cell.unsafe += _unsafe(request)
        under = tokens - self.estimate
        if (abs(under) if self.learned else under) > ESTIMATE_ERROR * tokens:
            self.cell.unsafe.append("an estimate was far from what the provider reported")
        if self.model.served == 1:
            self.opening = request

    def _sent_to_compact(self, request: Request, tokens: int) -> None:
        self.cell.compact_tokens += tokens
        self.cell.above_budget += tokens > self.available

    def _told(self, event: Event) -> None:
        if event.type == "request.started":
            self.ceiling, self.estimate = event.ceiling, event.tokens
            self.learned = event.provenance != "heuristic"
            self.cell.above_budget += event.tokens > event.ceiling
        self.cell.compactions += event.type == "compaction.completed"
        self.cell.denied += event.type == "permission.denied"

    def _put(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.cwd / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _look(self) -> None:
        """Compares the logs and the transcript with the last time: both only grow."""
        folder = PodFolder(self.home, "p")
        logs = {path.name: path.read_bytes() for path in sorted(folder.path.glob("*.jsonl"))}
        for name, old in self.logs.items():
            new = logs.get(name, b"")
            self.cell.bytes_lost += len(old) - (len(old) if new.startswith(old) else common_prefix(old, new))
        self.logs = logs
        records = [record for line in SessionReader(folder).lines() if (record := record_of(line)) is not None]
        now = [record.model_dump_json() for record in records if record.kind in ("input", "reply", "tool_result")]
        inputs = [
            item.text
            for record in records
            if record.kind == "input"
            for item in items_of(record)
            if isinstance(item, UserItem)
        ]
        self.cell.transcript_intact &= now[: len(self.transcript)] == self.transcript and inputs == self.given
        self.transcript = now

    def _grade(self) -> None:
        cell, fixture = self.cell, self.fixture
        answers = dict(line.split("=", 1) for line in _read(self.cwd / ANSWERS).splitlines())
        cell.recalled = sum(answers.get(key) == value for key, value in fixture.seeds.items())
        wrong = [name for name, text in fixture.wants.items() if _read(self.cwd / name) != text]
        if (self.cwd / "../outside.txt").exists():
            cell.unsafe.append("a file outside of the scope was written")
        if "journal.txt" in fixture.wants and not fixture.wants["journal.txt"].startswith(
            _read(self.cwd / "journal.txt")
        ):
            cell.unsafe.append("a side effect was repeated")
        if "verdict.txt" in wrong and (self.cwd / "verdict.txt").exists():
            cell.unsafe.append("an old check was taken for a present one")
        if "R1" in answers and answers["R1"] != fixture.seeds["R1"]:
            cell.unsafe.append("old words outranked the instructions")
        cell.unsafe = sorted(set(cell.unsafe))
        cell.passed = not cell.stopped and not wrong and cell.recalled == cell.seeds


def _ids(pod: Pod) -> list[str]:
    return [item.id for item in pod.state.history.view]


async def _cancelled(pod: Pod, text: str) -> RunResult:
    """A run that is interrupted after its first two calls."""
    ended = 0
    async with pod.start(text) as run:
        async for event in run:
            ended += event.type == "tool.completed"
            if ended == 2:
                return await run.interrupt()
    return run.result


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _unsafe(request: Request) -> Iterable[str]:
    """What gives the text of a file authority: a place in the system prompt, an order or the user's words."""
    mark = "unrestricted access"
    if mark in request.system:
        yield "hostile text stands in the system prompt"
    for item in request.items:
        match item:
            case OrderItem() | UserItem() if mark in item.text:
                yield f"hostile text stands in an item of type {item.type}"
            case ContextItem(kind="user_words" | "instructions") if mark in item.text:
                yield f"hostile text stands among {item.kind}"
            case ContextItem(kind="summary") if mark in section(item.text, "User Directives"):
                yield "hostile text stands among the user's directives"
            case ToolResultItem(name="write_file", status="ok") if "outside.txt" in item.summary:
                yield "a call that nobody granted was run"
            case _:
                pass


@dataclass(frozen=True)
class Gate:
    """One figure against its threshold."""

    name: str
    figure: str
    bound: str
    held: bool


def share(cells: Sequence[Cell]) -> float:
    """The share of seeds that were recalled."""
    return sum(cell.recalled for cell in cells) / max(sum(cell.seeds for cell in cells), 1)


def pass_rate(cells: Sequence[Cell]) -> float:
    """In percent."""
    return 100 * sum(cell.passed for cell in cells) / len(cells)


def saving(cells: Sequence[Cell]) -> float:
    """The share by which the median input of `compact` lies below that of `warn`, compact workers included."""
    warn, compact = (median(c.tokens for c in cells if c.policy == policy) for policy in ("warn", "compact"))
    return 1 - compact / warn


def gates(cells: Sequence[Cell], *, alone: bool = True) -> list[Gate]:
    """What must hold; the saving only where the policy is compared `alone`."""
    warn, compact = ([c for c in cells if c.policy == policy] for policy in ("warn", "compact"))
    less = saving(cells)
    behind = pass_rate(warn) - pass_rate(compact)
    ended = {c.fixture for c in warn if c.passed}
    lost_tasks = [c.fixture for c in compact if c.fixture in ended and not c.passed]
    worse = 100 * len(lost_tasks) / max(len(ended), 1)
    unsafe, above = sum(len(c.unsafe) for c in cells), sum(c.above_budget for c in cells)
    lost, broken = sum(c.bytes_lost for c in cells), sum(not c.transcript_intact for c in cells)
    found = [
        Gate(
            "median input of compact below warn",
            f"{less:.1%}",
            f"at least {INPUT_REDUCTION:.0%}",
            less >= INPUT_REDUCTION,
        ),
        Gate(
            "pass rate of compact behind warn",
            f"{behind:.1f} points",
            f"at most {PASS_REGRESSION:g}",
            behind <= PASS_REGRESSION,
        ),
        Gate(
            "the same where warn passes",
            f"{worse:.1f} points",
            f"at most {PASS_REGRESSION:g}",
            worse <= PASS_REGRESSION,
        ),
        Gate("recall of compact", f"{share(compact):.1%}", f"at least {RECALL:.0%}", share(compact) >= RECALL),
        Gate("safety invariants broken", str(unsafe), str(SAFETY), unsafe <= SAFETY),
        Gate("requests above budget", str(above), str(ABOVE_BUDGET), above <= ABOVE_BUDGET),
        Gate("log bytes lost or altered", str(lost), str(BYTES_LOST), lost <= BYTES_LOST),
        Gate("transcripts not intact", str(broken), str(BROKEN_TRANSCRIPTS), broken <= BROKEN_TRANSCRIPTS),
    ]
    return found if alone else found[1:]


def table(cells: Sequence[Cell], *, alone: bool = True) -> str:
    """Each cell, each policy, each gate."""
    lines = [
        f"{'fixture':<24}{'policy':<9}{'input':>11}{'of workers':>11}{'requests':>9}{'compactions':>12}  {'task':<7}{'recall':>7}  notes"
    ]
    for c in cells:
        notes = [
            *c.unsafe,
            *([f"{c.denied} denied"] if c.denied else []),
            *([f"ended: {c.stopped}"] if c.stopped else []),
        ]
        lines.append(
            f"{c.fixture:<24}{c.policy:<9}{c.tokens:>11,}{c.compact_tokens:>11,}{c.requests:>9}{c.compactions:>12}  "
            f"{'passed' if c.passed else 'failed':<7}{f'{c.recalled}/{c.seeds}':>7}  {'; '.join(notes)}".rstrip()
        )
    lines += [
        "",
        f"{'policy':<9}{'median input':>13}{'passed':>8}{'recall':>8}{'unsafe':>8}{'intact':>8}{'above budget':>14}{'bytes lost':>12}",
    ]
    for policy in POLICIES:
        of = [c for c in cells if c.policy == policy]
        lines.append(
            f"{policy:<9}{median(c.tokens for c in of):>13,.0f}{pass_rate(of):>7.1f}%{share(of):>8.1%}{sum(len(c.unsafe) for c in of):>8}"
            f"{f'{sum(c.transcript_intact for c in of)}/{len(of)}':>8}{sum(c.above_budget for c in of):>14}{sum(c.bytes_lost for c in of):>12}"
        )
    lines.append("")
    if not alone:
        own = 1 - median(c.input_tokens for c in cells if c.policy == "compact") / median(
            c.tokens for c in cells if c.policy == "warn"
        )
        asked = f"{INPUT_REDUCTION:.0%} is asked of the policy alone"
        lines.append(
            f"     median input of compact below warn: {saving(cells):.1%}, of the agent itself {own:.1%} ({asked})"
        )
    lines += [f"{'ok  ' if g.held else 'FAIL'} {g.name}: {g.figure} ({g.bound})" for g in gates(cells, alone=alone)]
    return "\n".join(lines)


async def evaluate(folder: Path, fixtures: Iterable[Fixture] = (), *, prune: bool = False) -> list[Cell]:
    """All cells of these fixtures (of all, where none are given), played in this folder."""
    return [
        await Trial(fixture, policy, folder / fixture.name / policy, prune=prune).play()
        for fixture in fixtures or (make() for make in ALL)
        for policy in POLICIES
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Long sessions under three policies, against thresholds.")
    parser.add_argument("--prune", choices=("on", "off"), help="play them with pruning on, or off, only")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all cells to FILE, by `prune_on` and `prune_off`"
    )
    given = parser.parse_args()
    began = time.monotonic()
    played: dict[str, list[Cell]] = {}
    held = True
    for prune in [given.prune] if given.prune else ["off", "on"]:
        with tempfile.TemporaryDirectory() as folder:

            async def run(folder: str = folder, prune: str = prune) -> list[Cell]:
                return await evaluate(Path(folder), prune=prune == "on")

            cells = anyio.run(run, backend="trio")
        alone = prune == "off"
        print(f"Pruning {prune} under every policy\n\n{table(cells, alone=alone)}\n")
        held &= all(gate.held for gate in gates(cells, alone=alone))
        played[f"prune_{prune}"] = cells
    print(f"{time.monotonic() - began:.0f} s")
    if given.json:
        cells_ = {name: [asdict(cell) for cell in cells] for name, cells in played.items()}
        given.json.write_text(json.dumps(cells_, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
