"""`pod context` and `pod inspect --html` on a real session: a survey through several segments, with prunes and compactions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pod.cli.main import main
from pod.foresight import Next, foresee
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.segment import entries
from pod.outlook import Outlook, outlook
from pod.reading import SessionReader
from pod.state import PodState, seconds
from tests.page.page_browser import MISSING, Browser
from tests.page.page_story import Markup
from worker import records as w
from worker.occupancy import Occupancy

TRIGGERS = "--set=compaction.threshold=18000", "--set=compaction.request_threshold=60%"


@dataclass(frozen=True)
class Survey:
    """A pod named `a` that surveyed a folder, run once for all tests here."""

    root: Path
    folder: PodFolder


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    root = tmp_path_factory.mktemp("survey")
    (root / "src").mkdir()
    for n in range(16):
        body = "".join(
            f"def f{n}_{i}() -> int:\n    # {'a remark that says little ' * 8}\n    return {i}\n\n" for i in range(60)
        )
        (root / "src" / f"m{n}.py").write_text(f'"""Module {n}."""\n\n{body}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POD_HOME", str(root / "home"))
        patch.chdir(root)
        task = "Survey the Python files in src. Write the report to SURVEY.md."
        assert main(["run", "offline-survey", task, "--name", "a", "-q", *TRIGGERS]) == 0
        yield Survey(root, PodFolder(root / "home", "a"))


def test_context_says_what_fills_it_where_its_limits_come_from_and_what_goes_next(
    survey: Survey, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "a"]) == 0
    text = capsys.readouterr().out
    for said in (
        "[compaction] threshold = 18000", '[compaction] request_threshold = "60%"', "(60 % of the ceiling)",
        "tool results", "that no compaction can lower", "by compact worker", "pod show a --summary", "calibration",
        "what would go next:", "below threshold (18,000)", "it must save more than", "a compaction would summarise",
    ):  # fmt: skip
        assert said in text, said
    assert main(["context", "a", "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert facts["trigger_origins"]["request_threshold"] == '[compaction] request_threshold = "60%"'
    assert facts["triggers"]["request_threshold"] == facts["available"] * 6 // 10
    assert facts["summary_made"]["rung"] == "compact" and facts["summary_made"]["tokens"] > 0
    assert facts["summary_made"]["figures"]["model"] == "offline:summarizer"
    assert [one["rule"] for one in facts["next"]] == ["prune", "compaction", "ceiling"]
    assert facts["next"][1]["tokens"] == min(facts["triggers"].values()) - facts["occupancy"]


def test_what_is_foreseen_is_what_then_happened(survey: Survey) -> None:
    """At every request of the session: the prune by its tokens, the compaction by its moment, and neither where none came."""
    view = outlook(survey.folder)
    seen = {"prune": 0, "compaction": 0, "nothing": 0}
    for segment in SessionReader(survey.folder).chain().segments:
        state: PodState | None = None
        last: w.Record | None = None
        for line in entries(segment.path):
            record = e.record_of(line)
            assert record is not None
            if state is not None:
                if isinstance(record, w.Pruned):
                    prune, _, _ = _foreseen(view, state, line.at)
                    assert (prune.happens, prune.tokens) == (True, record.tokens_saved)
                    seen["prune"] += 1
                elif isinstance(record, e.YieldedEntry) and record.reason == "compact":
                    assert _foreseen(view, state, line.at)[1].happens
                    seen["compaction"] += 1
                elif isinstance(record, w.ReplyRecord) and not isinstance(last, w.Pruned):
                    prune, compaction, ceiling = _foreseen(view, state, line.at)
                    assert not prune.happens and not ceiling.happens
                    assert not (compaction.happens and "request_threshold" in compaction.reason)
                    seen["nothing"] += 1
                state.apply(record, line.at, line.seq)
                state.history.apply(record)
            elif isinstance(record, e.SegmentStarted):
                state = PodState.begin(record, view.model.capabilities.family)
            last = record
    assert min(seen.values()) >= 2, seen


def test_what_is_foreseen_has_the_margin_at_the_ceiling_and_reports_alone_where_estimates_are_barred(
    survey: Survey,
) -> None:
    view = outlook(survey.folder)
    prune = view.manifest.prune.model_copy(update={"enabled": False})
    view = replace(view, manifest=view.manifest.model_copy(update={"prune": prune}))
    available, trigger = view.budget.available, min(view.triggers.values())
    full = Occupancy(tokens=available, provenance="usage", overhead=0, known=trigger)
    for barred in (False, True):
        occupancy = full.model_copy(update={"barred": barred})
        _, compaction, ceiling = foresee(replace(view, occupancy=occupancy), view.plan(), 0.0)
        assert (ceiling.happens, ceiling.tokens) == (True, full.margin) and full.margin > 0
        assert ("is passed" in compaction.reason, "barred" in compaction.reason) == (not barred, barred)


def _foreseen(view: Outlook, state: PodState, at: str) -> tuple[Next, ...]:
    occupancy = state.history.occupancy(view.model.name, view.overhead, 0)
    then = replace(view, state=state, occupancy=occupancy)
    return foresee(then, then.plan(), seconds(at))


def test_a_page_is_written_whole_for_its_owner_alone(survey: Survey, capsys: pytest.CaptureFixture[str]) -> None:
    path = survey.root / "a.html"
    path.write_text("before")
    before = {p: p.read_bytes() for p in survey.folder.path.rglob("*") if p.is_file()}
    assert main(["inspect", "a", "--html", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and f"{path}: " in err and "requests" in err
    assert path.stat().st_mode & 0o777 == 0o600 and len(list(survey.root.glob("*.html"))) == 1
    assert not list(survey.root.glob(".*.tmp"))
    assert {p: p.read_bytes() for p in survey.folder.path.rglob("*") if p.is_file()} == before
    assert main(["inspect", "a", "--html", "-"]) == 0
    text = capsys.readouterr().out
    assert Markup(text).data["steps"] == Markup(path.read_text(encoding="utf-8")).data["steps"]
    for target in (survey.root / "none" / "a.html", survey.root / "src"):
        assert main(["inspect", "a", "--html", str(target)]) != 0
        err = capsys.readouterr().err
        assert f"--html: {target} can't be written: " in err
    assert main(["inspect", "a", "--html", "x", "--json"]) == 2


def test_the_page_has_the_figures_of_the_timeline(survey: Survey, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "a", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert main(["inspect", "a", "--html", "-"]) == 0
    html = capsys.readouterr().out
    data = Markup(html).data
    requests = [step for step in told["timeline"] if step["type"] == "request.completed"]
    assert data["requests"]["input"] == [step["input"] for step in requests]
    assert data["requests"]["available"] == [step["available"] for step in requests]
    assert all(sum(step["categories"].values()) == step["input"] for step in requests)
    assert len(data["steps"]["seq"]) == len(told["timeline"]) and data["leftOut"] == 0
    marks = {mark for _, mark in data["kinds"]}
    assert {"prune", "compaction", "segment", "run end"} <= marks
    assert dict(data["facts"])["requests"] == str(len(requests))


def test_secrets_of_this_environment_are_not_in_the_page(
    survey: Survey, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_TOKEN", "Survey the Python files")
    assert main(["inspect", "a", "--html", "-"]) == 0
    html = capsys.readouterr().out
    assert "Survey the Python files" not in html and "[secret PAGE_TOKEN]" in html


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_real_page_loads_in_a_browser_without_a_word_or_a_request(
    survey: Survey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.html"
    assert main(["inspect", "a", "--html", str(path)]) == 0
    browser = Browser()
    try:
        browser.open(path)
        browser.run("document.getElementById('points').focus()")
        browser.press("Home", "Enter")
        assert browser.run("return document.getElementById('entry-title').textContent") == "Entry 1: segment.started"
        assert (browser.log(), browser.requests()) == ([], [path.as_uri()])
    finally:
        browser.close()
