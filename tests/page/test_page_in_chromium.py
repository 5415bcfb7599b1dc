"""The page in a real browser: nothing of a log runs, nothing is asked for, every point can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pod.log import entries as e
from tests.page.page_browser import MISSING, Browser
from tests.page.page_story import HOSTILE, Story, begin, hostile_story, read, reply
from worker import records as w
from worker.items import AssistantItem

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


def written(story: Story, folder: Path, name: str = "a") -> Path:
    path = folder / "page.html"
    path.write_text(story.html(name), encoding="utf-8")
    return path


def long_story(requests: int) -> Story:
    story = Story()
    story.tell(begin(), e.RunStarted(run="r"))
    for number in range(requests):
        story.tell(*read(f"c{number}", "content"))
        if number % 50 == 49:
            story.tell(w.Pruned(items=(), tokens_saved=9, tokens_before=99, reason="trigger"))
    story.tell(reply(5_000, AssistantItem(text="done")), e.RunEndedEntry(run="r", status="finished"))
    return story


def text_of(browser: Browser, selector: str) -> str:
    return browser.run("return document.querySelector(arguments[0]).textContent", selector)


def point(browser: Browser) -> dict[str, str]:
    return browser.run(
        "const s = document.getElementById('points');"
        "return {now: s.getAttribute('aria-valuenow'), max: s.getAttribute('aria-valuemax'),"
        " said: s.getAttribute('aria-valuetext'), shown: document.getElementById('readout').textContent}"
    )


def focus(browser: Browser) -> None:
    browser.run("document.getElementById('points').focus()")


def test_hostile_entries_are_shown_as_text_and_nothing_of_them_runs(browser: Browser, tmp_path: Path) -> None:
    story = hostile_story()
    path = written(story, tmp_path, HOSTILE)
    browser.open(path)
    title = browser.run("return document.title")
    assert title.startswith("Pod </script><script>document.title='PWNED'")
    for seq in [step["seq"] for step in story.steps]:
        browser.run(
            "[...document.querySelectorAll('#steps button')].find((b) => b.textContent === arguments[0]).click()",
            str(seq),
        )
        assert text_of(browser, "#entry-title").startswith(f"Entry {seq}: ")
        if story.steps[-1]["seq"] == seq:
            assert "<img src=x onerror=" in text_of(browser, "#entry pre")
    assert browser.run("return document.querySelectorAll('img, iframe, a[href^=javascript], body script').length") == 2
    assert browser.run("return document.title") == title
    assert browser.log() == []
    assert browser.requests() == [path.as_uri()]


def test_the_policy_stops_what_would_have_run_anyway(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(hostile_story(), tmp_path))
    browser.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:9/x\" onerror=\"document.title=1\">');"
        "const s = document.createElement('script'); s.textContent = 'document.title = 2'; document.body.append(s);"
    )
    assert browser.run("return document.title") == "Pod a"
    assert len([message for message in browser.log() if "Content Security Policy" in message]) >= 2


def test_each_point_is_reached_by_arrow_keys_and_enter_shows_its_entry(browser: Browser, tmp_path: Path) -> None:
    story = long_story(5)
    browser.open(written(story, tmp_path))
    focus(browser)
    browser.press("Home")
    said: list[str] = []
    for number in range(1, 9):
        found = point(browser)
        assert (found["now"], found["max"], found["said"]) == (str(number), "8", found["shown"])
        said.append(found["said"])
        browser.press("Right")
    assert said[0].startswith("Entry 1, segment.started") and said[-1].startswith("Entry 14, run.ended")
    assert [text.split(",")[0] for text in said[1:-1]] == [f"Request {n}" for n in range(1, 7)]
    assert point(browser)["now"] == "8"
    browser.press("Left", "Enter")
    assert text_of(browser, "#entry-title") == "Entry 13: request.completed"
    assert "text: done" in text_of(browser, "#entry pre")
    assert browser.run("return document.activeElement.id") == "entry"
    assert text_of(browser, "#requests tr[aria-current] th") == "13"


def test_a_click_on_a_request_and_on_a_mark_shows_that_entry(browser: Browser, tmp_path: Path) -> None:
    story = long_story(60)
    browser.open(written(story, tmp_path), width=1400)
    box: dict[str, Any] = browser.run("return document.getElementById('points').getBoundingClientRect().toJSON()")
    browser.click(box["x"] + box["width"] - 10, box["y"] + 150)
    assert text_of(browser, "#entry-title") == f"Entry {story.requests[-1]['seq']}: request.completed"
    browser.click(box["x"] + box["width"] / 2, box["y"] + 6)  # the row of prunes has one mark, wherever one clicks
    pruned = next(step for step in story.steps if step["type"] == "context.pruned")
    assert text_of(browser, "#entry-title") == f"Entry {pruned['seq']}: context.pruned"


@pytest.mark.parametrize("width", [375, 1900])
def test_the_page_fits_the_window_in_light_and_dark(browser: Browser, tmp_path: Path, width: int) -> None:
    path = written(long_story(60), tmp_path, "a-name-without-a-place-to-break-" * 5)
    colours: list[str] = []
    for scheme in ("light", "dark"):
        browser.open(path, width, scheme=scheme)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("return [...document.querySelectorAll('.plot > svg')].every((s) => s.clientWidth > 200)")
        colours.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(15, 19, 23)"]


def test_thousands_of_requests_are_drawn_with_few_elements(browser: Browser, tmp_path: Path) -> None:
    story = long_story(2_000)
    browser.open(written(story, tmp_path))
    assert browser.run("return document.querySelectorAll('*').length") < 3_000
    longest = browser.run(
        "return Math.max(...[...document.querySelectorAll('path')].map((p) => p.getAttribute('d').length))"
    )
    assert longest < 100_000
    focus(browser)
    browser.press("+", "+", "Left", "Home", "Right", "Enter")
    assert point(browser)["now"] == "2"
    assert text_of(browser, "#requests [role=status]") == "1 to 25 of 2,001"
    assert browser.log() == []


def test_a_session_without_requests_is_a_page_too(browser: Browser, tmp_path: Path) -> None:
    story = Story()
    browser.open(written(story, tmp_path))
    focus(browser)
    browser.press("Left", "Enter", "+")
    assert text_of(browser, "#readout") == "Nothing was asked of a model yet."
    story.tell(begin())
    browser.open(written(story, tmp_path))
    assert text_of(browser, "#readout").startswith("Entry 1, segment.started")
    assert browser.log() == []
