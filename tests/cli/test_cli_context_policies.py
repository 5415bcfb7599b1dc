"""What the command line says of triggers, of the circuit breaker and of a context without room: each is what then holds."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from pod import operations
from pod.cli.main import main
from pod.context.notebook import NOTES
from pod.context.policy import ASK_A_MODEL
from pod.foresight import foresee
from pod.log import entries as e
from pod.log.segment import entries
from pod.outlook import outlook
from pod.result import RunResult
from tests.pod.pod_rig import Agent, Counted, Rig, caller, compacting, manifest, summariser
from worker.models.base import Request
from worker.occupancy import Occupancy
from worker.records import Warned
from worker.testing import call, say

MODEL = {"name": "offline:surveyor", "context_window": 20_000, "max_output_tokens": 1_000}
AT = 9e9
"""A time far ahead (2255), in UTC seconds."""


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(tmp_path)
    monkeypatch.setenv("POD_HOME", str(rig.home))
    monkeypatch.chdir(rig.cwd)
    return rig


async def rested(rig: Rig, *, failures: int = 3, open_until: float | None = AT) -> None:
    made = manifest(model=MODEL, compaction=compacting(12_000, threshold=9_000))
    async with rig.open(Agent(caller(3)), made, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert {name for name, rung in pod.running.compactor.rungs.items() if rung.asks_model} == ASK_A_MODEL
        pod.running.session.put(e.Breaker(failures=failures, open_until=open_until))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tokens", "now", "happens", "said"),
    [
        (
            13_000,
            AT - 60,
            True,
            "before the next request, by checkpoint, then rollover; the rungs that ask a model failed 3",
        ),
        (13_000, AT + 1, True, "before the next request, by compact, then coarse, then checkpoint, then rollover"),
        (10_000, AT - 60, False, "threshold (9,000) is passed, but the rungs that ask a model failed 3 times in a row"),
        (10_000, AT + 1, True, "between runs, by compact, then coarse"),
    ],
)
async def test_what_is_foreseen_passes_over_rungs_that_rest(
    rig: Rig, tokens: int, now: float, happens: bool, said: str
) -> None:
    """Between runs only those are tried that ask a model."""
    await rested(rig)
    view = outlook(rig.folder())
    view = replace(view, occupancy=Occupancy(tokens=tokens, provenance="usage", overhead=500, known=tokens))
    compaction = foresee(view, view.plan(), now)[1]
    assert compaction.happens is happens and said in compaction.reason
    assert compaction.reason.endswith("by compact, then coarse") or tokens > 12_000 or not happens


@pytest.mark.anyio
async def test_pod_context_shows_an_open_breaker_with_its_time(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    await rested(rig)
    assert main(["context", "p"]) == 0
    text = capsys.readouterr().out
    assert "open until 2255-03-14 16:00:00 UTC (" in text and "3 failures in a row" in text and "9000000000" not in text
    assert main(["context", "p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["breaker"] == {"failures": 3, "open_until": "2255-03-14 16:00:00 UTC"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("failures", "open_until", "said"),
    [(1, None, "1 failure in a row"), (3, 1.0, "half open"), (3, None, "half open"), (0, None, "")],
)
async def test_pod_context_shows_what_the_breaker_counts(
    rig: Rig, capsys: pytest.CaptureFixture[str], failures: int, open_until: float | None, said: str
) -> None:
    await rested(rig, failures=failures, open_until=open_until)
    assert main(["context", "p"]) == 0
    text = capsys.readouterr().out
    assert said in text and ("breaker" in text) == bool(said) and "open until" not in text


@pytest.mark.anyio
async def test_the_origin_of_each_trigger_is_its_table_and_key(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    made = manifest(
        model=MODEL, context={"policy": "rollover"}, compaction={"request_threshold": 14_000, "retained_tokens": 2_000}
    )
    async with rig.open(Agent(caller(0)), made) as pod:
        await pod.run("go")
    assert main(["context", "p"]) == 0
    text = capsys.readouterr().out
    assert '[rollover] at = "75%"' in text and "[compaction] request_threshold = 14000" in text
    assert main(["context", "p", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trigger_origins"] == {
        "rollover.at": '[rollover] at = "75%"', "request_threshold": "[compaction] request_threshold = 14000",
    }  # fmt: skip


# -- no room under a policy that makes none ---------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("policy", ["off", "warn"])
def test_where_a_compaction_by_hand_makes_room_the_end_of_the_run_says_so_and_it_does(
    rig: Rig, capsys: pytest.CaptureFixture[str], policy: str, backend: str
) -> None:
    def play(request: Request, number: int) -> Any:
        return call("fetch", n=number) if number < 16 else say("done")

    agent = Agent(play, window=20_000)
    made = manifest(model=MODEL, context={"policy": policy}, compaction=compacting(None))
    options: dict[str, Any] = {"tools": [Counted(1_500).tool], "compact_model": summariser()}

    async def stops() -> RunResult:
        async with rig.open(agent, made, **options) as pod:
            return await pod.run("fetch")

    async def goes_on() -> RunResult:
        async with rig.open(agent, made, **options) as pod:
            assert await pod.compact()
            return await pod.resume()

    stopped = anyio.run(stops, backend=backend)
    assert stopped.error_kind == "over_budget" and stopped.details["compactable"]
    assert "A compaction by hand (`pod compact`, `Pod.compact()`) makes room here." in (stopped.error or "")
    assert main(["resume", "p"]) == 1
    assert "`pod compact p` makes room, then `pod resume p` goes on." in capsys.readouterr().err
    assert anyio.run(goes_on, backend=backend).status == "finished"


@pytest.mark.anyio
async def test_where_a_compaction_by_hand_makes_no_room_none_is_named(rig: Rig) -> None:
    made = manifest(model=MODEL, context={"policy": "warn"}, worker={"system_prompt": "do this and that " * 5_000})
    async with rig.open(Agent(caller(1), window=20_000), made) as pod:
        stopped = await pod.run("go")
    assert stopped.error_kind == "over_budget" and "pod compact" not in (stopped.error or "")
    assert "compactable" not in stopped.details


@pytest.mark.anyio
async def test_a_compaction_that_fails_where_no_run_is_under_way_says_that_the_context_stays(rig: Rig) -> None:
    broken = Agent(lambda request, number: say("no summary"), name="offline:broken")
    async with rig.open(
        Agent(caller(4)), manifest(model=MODEL, compaction=compacting(None)), tools=[Counted(1_500).tool],
        compact_model=broken,
    ) as pod:  # fmt: skip
        await pod.run("go")
        assert not await pod.compact()
    [warned] = [r for r in rig.of(Warned) if r.code == "compaction.failed"]
    assert warned.message.startswith("compaction failed, the context stays as it is: compact: ")


def test_pod_clear_says_that_the_notes_stay_and_how_to_remove_them(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where there are some."""

    async def makes() -> None:
        async with rig.open(Agent(caller(0)), manifest(model=MODEL)) as pod:
            await pod.run("go")

    anyio.run(makes)
    assert main(["clear", "p"]) == 0
    assert NOTES not in capsys.readouterr().err
    notes = rig.file(NOTES, "the port is 8443\n")
    assert main(["clear", "p"]) == 0
    assert f"To remove it: rm {shlex.quote(str(notes))}\n" in capsys.readouterr().err and notes.exists()


# -- pod manifest check -----------------------------------------------------------------------------------------

ROLLING = '[model]\nname = "offline:surveyor"\n[context]\npolicy = "rollover"\n'
UNKNOWN = '[model]\nname = "openai-chat:nobody-knows"\n[context]\npolicy = "rollover"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (UNKNOWN + '[rollover]\nwarn = 30000\nat = "50%"\n', "NOT below 12,288"),
        (UNKNOWN + '[rollover]\nwarn = "90%"\nat = 12000\n', "NOT below 12,000"),
        (
            UNKNOWN + '[rollover]\nwarn = "90%"\nat = "95%"\n[compaction]\nrequest_threshold = 20000\n',
            "NOT below 20,000",
        ),
    ],
)
def test_a_warning_that_would_come_too_late_is_found_also_where_the_window_is_not_known(
    rig: Rig, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    rig.file("m.toml", text)
    assert main(["manifest", "check", "m.toml"]) == 2
    err = capsys.readouterr().err
    assert "warning rollover.warn; the window's end" in err and said in err and "Lower [rollover] warn" in err


@pytest.mark.parametrize("more", ["", "[rollover]\nat = 20000\n", '[compaction]\nrequest_threshold = "40%"\n'])
def test_a_warning_that_nobody_chose_gives_way_to_an_earlier_end(
    rig: Rig, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    rig.file("m.toml", ROLLING + more)
    assert main(["manifest", "check", "m.toml"]) == 0
    out = capsys.readouterr().out
    assert "trigger rollover.at" in out and ("trigger request_threshold" in out) == ("request_threshold" in more)


# -- triggers that start nothing ----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("policy", ["off", "warn"])
async def test_a_trigger_that_starts_nothing_is_no_trigger_of_the_run_and_shown_as_inert(
    rig: Rig, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    made = manifest(model=MODEL, context={"policy": policy}, compaction=compacting(12_000, threshold=9_000))
    async with rig.open(Agent(caller(1)), made, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
        assert pod.init_event().triggers == {}
    assert main(["context", "p"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "threshold" in line]
    assert len(shown) == 2 and all(f"starts nothing under '{policy}'" in line for line in shown)


@pytest.mark.anyio
async def test_the_way_out_that_a_warning_of_the_ceiling_names_is_one(rig: Rig) -> None:
    """Under a written `warn` a trigger changes nothing: the warning names the policy, and with that the run goes on."""
    made = manifest(model=MODEL, context={"policy": "warn"}, compaction=compacting(12_000))
    async with rig.open(Agent(caller(30), window=20_000), made, tools=[Counted(1_000).tool]) as pod:
        assert (await pod.run("go")).error_kind == "over_budget"
    (warned,) = [w for w in rig.of(Warned) if w.code == "context_high"]
    assert "Set a [context] policy that acts (compact, checkpoint, rollover)" in warned.message
    assert "[compaction]" not in warned.message
    for policy in ("compact", "checkpoint", "rollover"):
        acts = manifest(model=MODEL, context={"policy": policy})
        async with rig.open(Agent(caller(30), window=20_000), acts, name=policy, tools=[Counted(1_000).tool]) as pod:
            assert (await pod.run("go")).status == "finished", policy


@pytest.mark.anyio
async def test_the_doctor_finds_a_pod_fine_after_a_compaction_and_a_rewind_and_no_stray_log(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    made = manifest(model=MODEL, context={"policy": "checkpoint"}, compaction=compacting(8_000))
    async with rig.open(Agent(caller(14)), made, tools=[Counted(1_000).tool]) as pod:
        await pod.run("go")
    assert len(rig.segments()) > 1
    first_run = next(line.seq for line in entries(rig.segments()[0]) if line.kind == "tool_result")
    await operations.rewind(rig.home, "p", first_run)
    capsys.readouterr()
    assert main(["doctor", "p"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("p: fine: ") and "left by a rewind" in out and "no pointer" not in out
    stray = rig.folder().path / "f0000000-stray.jsonl"
    shutil.copy(rig.segments()[0], stray)
    assert main(["doctor", "p"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("p: can be opened: ") and f"{stray}: no pointer or lineage" in out
