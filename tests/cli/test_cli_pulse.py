"""Signs of life during a compaction, and what the lines and the bar show."""

from __future__ import annotations

import itertools

import anyio
import pytest
import trio
import trio.testing
from rich.console import Console

from pod.cli.live import State, bar
from pod.cli.progress import Lines
from pod.cli.pulse import HEARTBEAT, Pulse
from pod.events import (
    ApprovalAnsweredEvent,
    ApprovalAskedEvent,
    CallMade,
    CompactionCompleted,
    CompactionProgress,
    CompactionStarted,
    Event,
    Init,
    PermissionDeniedEvent,
    RequestStarted,
    ToolCompleted,
    ToolStarted,
    Warning_,
)


def test_b150_a_silent_compaction_of_90_s_is_told_of_at_least_every_15_s() -> None:
    told: list[tuple[float, Event]] = []

    async def main() -> None:
        pulse = Pulse()
        began = anyio.current_time()

        async def tell(event: Event) -> None:
            told.append((anyio.current_time() - began, event))

        async with anyio.create_task_group() as group:
            group.start_soon(pulse.beat, tell)
            await anyio.sleep(60)
            assert told == [], "nothing is told where nothing is compacted"
            pulse.follow(CompactionStarted(seq=7, compaction="c", trigger="hand", tokens=9, items=1))
            await anyio.sleep(30)
            pulse.follow(CompactionProgress(seq=7, compaction="c", stage="reading"))
            await anyio.sleep(60)
            pulse.follow(CompactionCompleted(seq=9, compaction="c", rung="compact", trigger="hand", before=9, after=1))
            await anyio.sleep(60)
            group.cancel_scope.cancel()

    # The clock is trio's own: it jumps to where the next task wakes.
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    times = sorted([60.0, 90.0, *(at for at, _ in told), 150.0])
    assert max(b - a for a, b in itertools.pairwise(times)) <= HEARTBEAT
    stages = [(event.stage, event.figures["elapsed"]) for _, event in told if isinstance(event, CompactionProgress)]
    assert len(stages) == len(told) >= 5
    assert stages[0][0] == "started" and stages[-1][0] == "reading" and stages[-1][1] > 60
    assert all(event.seq == 7 for _, event in told)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("tokens", "trigger"), [(0, 0), (10_000, 20_000), (23_000, 20_000), (90_000, 20_000)])
def test_the_bar_fits_its_width_and_marks_the_trigger(width: int, tokens: int, trigger: int) -> None:
    drawn = bar(tokens, trigger, 24_576, width).plain
    assert len(drawn) <= width
    assert ("┃" in drawn) == bool(trigger)
    assert bar(tokens, trigger, 24_576, width, unicode=False).plain.isascii()


@pytest.mark.parametrize("width", [80, 200])
def test_the_live_state_stays_in_its_width_and_holds_no_foreign_control_byte(width: int) -> None:
    state = State(Lines())
    state.begin(Init(pod="a" * 60, session="s", segment="g", model="m:x", window=1, window_source="table", available=9))
    state.event(RequestStarted(model="m", request=3, tokens=8, provenance="usage", ceiling=9, trigger=5))
    for text in ("x" * 500, "\x1b[2J\x9b3A", "漢字" * 100):
        state.event(_written(text))
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(state)
    shown = captured.get()
    assert "\x1b[2J" not in shown and "\x9b" not in shown
    from rich.cells import cell_len

    assert all(cell_len(line) <= width for line in shown.splitlines())


def _written(text: str) -> Event:
    from pod.events import TextDelta

    return TextDelta(text=text)


def test_lines_are_short_clean_and_name_failures() -> None:
    lines = Lines(width=80)
    line = lines.of(ToolCompleted(call_id="c", name="shell", status="error", summary="\x1b[31mboom\n" * 40, seconds=2))
    assert line is not None
    assert line.startswith("  shell [error]: \\x1b[31mboom \\x1b[31mboom") and line.endswith("(2.0 s)")
    assert len(line) <= 80 and "\n" not in line
    warned = lines.of(Warning_(code="x", message="m" * 300))
    assert warned is not None and "m" * 300 in warned


def test_a_denial_is_one_line_that_names_what_was_denied_and_by_whom() -> None:
    lines = Lines(width=80)
    denied = PermissionDeniedEvent(
        call_id="c", tool="write_file", reason="the profile 'read-only' allows nothing", summary="write_file: a.txt"
    )
    result = ToolCompleted(call_id="c", name="write_file", status="denied", summary="write_file was not run", seconds=0)
    assert lines.of(denied) == "  denied: write_file: a.txt; the profile 'read-only' allows nothing"
    assert lines.of(result) == ""
    other = lines.of(result.model_copy(update={"call_id": "of an interceptor that puts nothing on record"}))
    assert other == "  write_file [denied]: was not run"


def test_a_no_in_the_log_stands_for_the_denial_that_follows_and_a_yes_says_what_it_allows() -> None:
    lines = Lines(verbose=True, width=80)
    for label in ("no", "yes"):
        lines.of(ApprovalAskedEvent(id=label, call_id=label, tool="shell", summary=f"shell: {label}", scope="run"))
    said = lines.of(ApprovalAnsweredEvent(id="no", approved=False, by="ann", message="not now"))
    assert said == "  denied: shell: no; by ann: not now"
    assert lines.of(PermissionDeniedEvent(call_id="no", tool="shell", reason="denied by ann: not now")) == ""
    yes = ApprovalAnsweredEvent(id="yes", approved=True, by="ann")
    assert lines.of(yes) == "  approved: shell: yes; by ann (writes for the rest of the run)"
    assert lines.of(yes.model_copy(update={"scope": "once"})) == "  approved: shell: yes; by ann (this call)"


def test_a_run_that_goes_on_shows_from_where_and_which_call_runs() -> None:
    """After an approval the call's reply is of an earlier process: what began tells its name, the occupancy and the request."""
    state = State(Lines())
    made = CallMade(call_id="c", name="write_file", arguments='{"path": "new.txt"}')
    state.begin(Init(pod="p", session="s", segment="g", model="m:x", window=9_000, window_source="table", available=8_000,
                     tokens=2_345, requests=3, calls=(made,)))  # fmt: skip
    state.event(ToolStarted(call_id="c"))
    console = Console(width=120, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(state)
    shown = captured.get()
    assert "request 3" in shown and "2,345 / 8,000 tokens" in shown and "write_file" in shown and "new.txt" in shown
