"""The page of the service in a real browser: every control, what lives on it, who may look, and what it never does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from service.page_rig import TOKENS, Site, gate, rig_of, served
from service.service_rig import TOKEN

from pod.importing import import_pod
from pod.log import entries as e
from pod.log.folder import PodFolder
from pod.log.inbox import waiting
from pod.log.lines import render
from pod.log.segment import entries
from pod.service.page import OWN, SHARED
from tests.page.page_browser import MISSING, Browser
from worker import records as w
from worker.items import AssistantItem

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

NUMBERS = "return [...document.querySelectorAll('#panel-events [data-row] .seq')].map((each) => Number(each.innerText.slice(1))).filter(Boolean)"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    rig, browser = rig_of(tmp_path_factory.mktemp("site")), Browser()
    try:
        with served(rig) as url:
            yield Site(rig, url, browser)
    finally:
        browser.close()


def test_whoever_has_no_token_is_asked_for_one_and_one_from_a_link_leaves_the_address(site: Site) -> None:
    site.browser.open("about:blank")
    site.browser.open(site.url)
    site.browser.run("sessionStorage.clear()")
    site.browser.open(site.url)
    site.shows("asks for a token")
    site.fill("Token", "no-token-at-all-here")
    site.click("Sign in")
    site.shows("not known here")
    site.fill("Token", TOKEN)
    site.click("Sign in")
    site.shows("New pod")
    assert site.text("#caller") == "ann (admin)"
    site.click("Sign out")
    site.shows("asks for a token")
    assert site.browser.run("return sessionStorage.length") == 0
    site.browser.log()
    site.open()
    site.shows("New pod")
    assert TOKEN not in site.browser.run("return location.href + document.documentElement.outerHTML")
    assert not [url for url in site.browser.requests() if TOKEN in url.partition("#")[0]]


def test_it_asks_nobody_but_the_service_and_its_policy_lets_it(site: Site) -> None:
    site.make("policy", "read 2")
    site.open()
    site.shows("policy")
    site.click("policy")
    for tab in ("Context", "Figures", "Events", "Record", "Transcript"):
        site.click(tab)
    site.shows("Run finished")
    asked = site.browser.requests()
    assert asked and all(url.startswith((site.url, "about:", "data:")) for url in asked)
    assert site.browser.log() == []
    with httpx2.Client(base_url=site.url, trust_env=False) as client:
        for path in ("/", *(f"/page/{name}" for name in (*OWN, *SHARED))):
            answer = client.get(path)
            policy = answer.headers["content-security-policy"]
            assert answer.status_code == 200 and "unsafe" not in policy and "default-src 'none'" in policy
            again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert again.status_code == 304 and not again.content
        for path in ("/page/", "/page/__init__.py", "/page/%2e%2e/app.py", "/page/page.html"):
            assert client.get(path).status_code == 404
    refused = site.browser.run(
        "const made = document.createElement('div'); try { made.innerHTML = '<b>x</b>'; return false } catch { return true }"
    )
    assert refused is True
    site.browser.log()


def test_pods_are_listed_with_how_they_stand_found_ordered_and_made(site: Site) -> None:
    site.make("listed/reader", "read 3")
    site.make("listed/asker", "write")
    site.open()
    site.shows("listed/asker")
    row = "[...document.querySelectorAll('.pods tbody tr')].find((each) => each.querySelector('a').innerText === arguments[0])"
    reader = site.browser.run(f"return [...{row}.children].map((each) => each.innerText)", "listed/reader")
    assert reader[1] == "finished" and reader[3] == "4" and reader[6].endswith("ago")
    label = site.browser.run(f"return {row}.querySelector('.meter').getAttribute('aria-label')", "listed/reader")
    assert "of 119,808 tokens, trigger at 12,000" in label
    names = "return [...document.querySelectorAll('.pods tbody a')].map((each) => each.innerText)"
    assert site.browser.run(names)[0] == "listed/asker"  # what waits for a human comes first
    assert site.browser.run("return document.title").startswith("(1) ")
    site.fill("Only those that hold", "reader")
    assert site.browser.run(names) == ["listed/reader"]
    site.fill("Only those that hold", "")
    site.browser.run(
        "const s = document.querySelector('[aria-label=Order]'); s.value = 'name'; s.dispatchEvent(new Event('change'))"
    )
    assert site.browser.run(names) == sorted(site.browser.run(names))
    site.click("New pod")
    site.shows("It says nothing of itself.", "dialog")
    site.fill("Name", "listed/made")
    site.fill("Task", "say It is made.")
    site.click("Make it", "dialog")
    site.shows("It is made.")
    assert site.browser.run("return location.hash") == "#/pod/listed/made"
    site.open()
    site.click("New pod")
    site.fill("Name", "listed/made")
    site.click("Make it", "dialog")
    site.shows("there is a pod", "dialog")
    site.click("Cancel", "dialog")
    site.until(lambda: site.browser.run("return !document.querySelector('dialog')"), "no dialog")
    site.ask("/v1/pods/listed/asker/approvals/" + approvals(site, "listed/asker")[0], {"approve": False})
    site.settled("listed/asker")


def approvals(site: Site, name: str) -> list[str]:
    return [each["id"] for each in site.ask(f"/v1/pods/{name}/approvals")["approvals"]]


def test_a_transcript_shows_what_was_said_and_each_call_with_its_result_as_text(site: Site) -> None:
    site.make("told", "read 2")
    site.open("told")
    site.shows("Run finished")
    assert "read 2" in site.text(".row.user")
    assert site.browser.run("return document.querySelectorAll('.row.call').length") == 2
    site.click("Show call and result of look", "#panel-transcript")
    site.shows('"what": "page 0"')
    site.shows("<img src=x onerror=document.title='PWNED'>")
    assert site.text("[aria-label=Result]").startswith("look, 2.4 kB\npage 0: ")
    assert site.browser.run("return document.querySelectorAll('#main img').length") == 0
    assert "PWNED" not in site.browser.run("return document.title")
    site.click("Hide call and result of look", "#panel-transcript")
    assert "onerror" not in site.text("#main")
    site.make("lengthy", "say " + "many words " * 1_000)
    site.open("lengthy")
    site.click("Show all 11,000 characters", "#panel-transcript .row.agent")
    assert len(site.text(".row.agent .words")) > 10_900


def test_code_headings_and_bold_words_of_an_agent_are_set_apart_and_nothing_else(site: Site) -> None:
    said = "say # Found\n\n**bold** in `a <b>.py`:\n```python\nx = '<img src=x>'\n\n# no heading\n```\n[go](http://127.0.0.1:1/)\n``` \nopen"
    site.make("formed", said)
    site.open("formed")
    site.shows("Run finished")
    kinds = (
        "return [...document.querySelectorAll('.row.agent .words *')].map((each) => [each.localName, each.innerText])"
    )
    assert site.browser.run(kinds) == [
        ["p", "Found"], ["p", "bold in a <b>.py:"], ["b", "bold"], ["code", "a <b>.py"], ["pre", "x = '<img src=x>'\n\n# no heading"],
        ["p", "[go](http://127.0.0.1:1/)"], ["pre", "open"],
    ]  # fmt: skip
    assert site.text(".row.user .words").startswith("say # Found\n\n**bold** in `a <b>.py`:")


def test_a_reply_is_seen_as_it_is_written_and_then_once(site: Site) -> None:
    gate.clear()
    site.make("dictated")
    site.open("dictated")
    site.fill("Message", "dictate this")
    site.browser.run("document.querySelector('[aria-label=Message]').focus()")
    site.browser.chord("Control", "Enter")
    site.shows("One half")
    assert "is under way" in site.text("#main")
    assert site.browser.run("return document.querySelector('[aria-label=Message]').value") == ""
    gate.set()
    site.shows("Done.")
    site.shows("Run finished")
    assert "One half" not in site.text("#main")
    assert site.browser.run("return document.querySelectorAll('.row.draft').length") == 0


def test_a_question_is_answered_with_its_difference_before_the_eyes(site: Site) -> None:
    site.make("asked/yes", "write")
    site.open("asked/yes", width=1400)
    site.shows("1 question waits for an answer")
    assert site.browser.run(
        "return [...document.querySelectorAll('.asked .more')].map((each) => each.innerText.trim())"
    ) == [
        "+new line",
        "+and one more",
    ]
    assert site.browser.run("return document.querySelector('.asked .less').innerText.trim()") == "-old line"
    site.click("Answer")
    assert site.browser.run("return document.activeElement.innerText") == "Approve"
    site.click("Approve", ".asked")
    site.shows("Run finished")
    site.shows("Approved by ann")
    assert "and one more" in (site.rig.cwd / "notes.md").read_text()

    site.make("asked/no", "mail")
    site.open("asked/no", width=1400)
    site.shows("2 questions wait")
    assert site.browser.run(
        "return [...document.querySelectorAll('.bar button')].find((b) => b.innerText === 'Go on').disabled"
    )
    site.fill("Message", "say Later.")
    site.click("Send")
    site.shows("say Later.", "[aria-label='Messages that wait']")
    site.shows("once the questions are answered", "#told")
    site.fill("Message with the answer", "not to her")
    site.click("Deny", ".asked")
    site.shows("1 question waits")
    site.click("Approve", ".asked")
    site.shows("Run finished")
    site.shows("not to her")
    shown = site.ask("/v1/pods/asked/no/history?action=search&query=not+to+her")["text"]
    assert "not to her" in shown


def test_a_run_is_stopped_and_gone_on_with(site: Site) -> None:
    gate.clear()
    site.make("stopped")
    site.open("stopped", width=1400)
    site.fill("Message", "dictate and look")
    site.click("Send")
    site.shows("One half")
    site.click("Stop", "#panel-state")
    site.shows("It was told to stop", ".doing")
    assert {"Rewind …", "Clear …", "Delete …"}.isdisjoint(
        site.browser.run(
            "return [...document.querySelectorAll('.bar button:not(:disabled)')].map((each) => each.innerText)"
        )
    )
    site.until(
        lambda: list(waiting(site.rig.folder("stopped"))) or site.ask("/v1/pods/stopped")["status"] != "running",
        "the order",
    )
    gate.set()
    site.shows("Run cancelled")
    site.click("Go on", "#panel-state")
    site.shows("Run finished")


def test_a_pod_is_forked_and_taken_away_as_a_file(site: Site, tmp_path: Path) -> None:
    site.make("first", "say Hello.")
    site.open("first", width=1400)
    site.shows("Run finished")
    site.click("Fork …", "#panel-state")
    site.fill("Name of the new pod", "first/fork")
    site.click("Fork", "dialog")
    site.until(lambda: site.browser.run("return location.hash") == "#/pod/first/fork", "the fork")
    assert "first/fork" in [row["name"] for row in site.ask("/v1/pods")["pods"]]
    site.browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    site.open("first", width=1400)
    site.click("Export", "#panel-state")
    file = tmp_path / "first.pod.tar"
    site.until(file.is_file, "the file")
    with file.open("rb") as stream:
        import_pod(stream, tmp_path / "elsewhere", name="taken")
    assert PodFolder(tmp_path / "elsewhere", "taken").exists()


def test_a_pod_is_taken_back_cleared_and_deleted_once_its_name_is_typed(site: Site) -> None:
    site.make("changed", "say First.")
    site.ask("/v1/pods/changed/messages", {"text": "say Second."})
    site.until(lambda: site.ask("/v1/pods/changed")["last_text"] == "Second.", "the second answer")
    site.settled("changed")
    first = next(
        event["seq"] for event in site.ask("/v1/pods/changed/events")["events"] if event["type"] == "run.ended"
    )
    site.open("changed", width=1400)
    site.shows("Second.")
    site.click(f"Show entry {first}", "#panel-transcript")
    site.click("Rewind to here …", "dialog")
    site.until(lambda: site.text("dialog h2") == "Rewind changed", "the form")
    site.click("Rewind", "dialog")
    site.until(
        lambda: "First." in site.text("#panel-transcript") and "Second." not in site.text("#main"),
        "the first answer alone",
    )
    site.click("Clear …", "#panel-state")
    site.click("Clear", "dialog")
    site.until(lambda: site.ask("/v1/pods/changed")["items"] == 0, "an empty context")
    site.click("Delete …", "#panel-state")
    site.fill("Its name, to be sure", "another")
    site.click("Delete", "dialog")
    site.shows("That is not its name.", "dialog")
    site.fill("Its name, to be sure", "changed")
    site.click("Delete", "dialog")
    site.until(lambda: site.browser.run("return location.hash") == "#/", "all pods")
    assert not site.rig.folder("changed").exists()


def test_the_context_is_shown_a_compaction_foretold_and_done(site: Site) -> None:
    site.make("compacted", "read 14")
    site.open("compacted")
    site.click("Context")
    site.shows("What fills the context")
    site.shows("request threshold")
    assert site.browser.run("return document.querySelectorAll('.stack .part').length") >= 4
    before = len(site.rig.told("compacted"))
    site.click("What would a compaction do?")
    site.shows("has changed nothing")
    site.shows("expected after")
    assert len(site.rig.told("compacted")) == before
    site.fill("What the summary should keep in view", "the pages")
    site.click("Compact now")
    site.until(lambda: site.ask("/v1/pods/compacted")["totals"]["compactions"] == 1, "a compaction")
    site.click("Transcript")
    site.shows("Compacted: ")


def test_the_figures_grow_as_the_pod_goes_on_and_each_point_is_reached_by_keys(site: Site) -> None:
    site.make("drawn", "read 3")
    site.open("drawn")
    site.click("Figures")
    site.shows("Occupancy")
    slider = "document.querySelector('#panel-figures [role=slider]')"
    most = f"return Number({slider}.getAttribute('aria-valuemax'))"
    assert site.browser.run(most) == 6  # a segment, four requests, the end of a run
    site.browser.run(f"{slider}.focus()")
    site.browser.press("Home", "Right")
    assert site.browser.run(f"return {slider}.getAttribute('aria-valuetext')").startswith("Request 1, entry ")
    site.browser.press("Enter")
    site.shows("reply", "dialog")
    site.browser.press("Escape")
    site.fill("Message", "say More.")
    site.click("Send")
    site.until(lambda: site.browser.run(most) == 8, "two more points")
    assert site.browser.run("return document.querySelectorAll('#panel-figures .legend li').length") >= 12


def test_the_feed_has_each_event_of_the_log_once(site: Site) -> None:
    site.make("fed", "read 4")
    site.open("fed", height=4_000)
    site.click("Events")
    site.until(lambda: len(site.browser.run(NUMBERS)) >= len(site.rig.told("fed")), "all events")
    assert site.browser.run(NUMBERS) == site.rig.told("fed")
    site.browser.run("document.querySelector('#panel-events .open').click()")
    site.shows('"type": "segment.started"')


def test_events_are_narrowed_to_words_also_as_they_come(site: Site) -> None:
    site.make("narrowed", "read 2")
    site.open("narrowed", height=4_000)
    site.click("Events")
    site.fill("Only events that hold", "TOOL.started")
    kinds = "return [...document.querySelectorAll('#panel-events [data-row] b')].map((each) => each.innerText)"
    site.until(lambda: site.browser.run(kinds) == ["tool.started"] * 2, "two calls")
    assert site.text("#panel-events .brief") == "look"
    site.ask("/v1/pods/narrowed/messages", {"text": "read 1"})
    site.until(lambda: site.browser.run(kinds) == ["tool.started"] * 3, "the third")
    site.fill("Only events that hold", "")
    site.until(lambda: site.browser.run(NUMBERS) == site.rig.told("narrowed"), "all events")


def test_the_record_is_searched(site: Site) -> None:
    site.make("searched", "say A needle lies here.")
    site.open("searched")
    site.click("Record")
    site.fill("Search the session's record", "needle")
    site.click("Search", "#panel-record")
    site.shows("A needle lies here.", ".found")
    assert site.text(".found .hit mark") == "needle"
    entry = site.text(".found .hit[aria-label^=Agent] button.seq")
    site.click("Windows", "#panel-record")
    site.shows("(fresh)", ".found")
    site.click("Items", "#panel-record")
    site.shows("say A needle", ".found")
    site.click("Show entry " + entry.removeprefix("#"), ".found")
    site.shows("A needle lies here.", "dialog pre")
    site.browser.press("Escape")


def test_tasks_of_the_agent_are_shown_as_text(site: Site) -> None:
    site.make("planned", "plan")
    site.open("planned", width=1400)
    site.shows("○ first <b>thing</b> (pending)", "[aria-label=Tasks]")


def test_processes_in_the_background_are_shown_as_the_log_last_told_of_them(site: Site) -> None:
    site.make("behind", "background")
    site.open("behind", width=1400)
    site.shows("p1: ", "[aria-label='Processes in the background']")
    site.shows("sleep 0.1", "[aria-label='Processes in the background']")
    assert re.search(
        r"^p1: (running|exited, exit code 0), pid", site.text("[aria-label='Processes in the background'] li")
    )
    words = [sys.executable, "-m", "pod", "show", "behind"]
    environment = {**os.environ, "POD_HOME": str(site.rig.home)}
    shown = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.search(r"^  p1: (running|exited, exit code 0), pid \d+: sleep 0.1$", shown, re.M), shown


def test_a_token_that_may_look_only_finds_every_control_closed(site: Site) -> None:
    site.make("looked/at", "mail")
    site.open(token=TOKENS["reader"])
    site.shows("looked/at")
    assert site.browser.run("return document.querySelector('.list button.main').disabled") is True
    site.open("looked/at", token=TOKENS["reader"], width=1400)
    site.shows("2 questions wait")
    assert site.text(".banner button") == "Look at it"
    assert site.browser.run("return document.querySelectorAll('.asked :is(input, select):not(:disabled)').length") == 0
    for panel in ("#panel-state", "#panel-context", ".composer"):
        open_ = f"return [...document.querySelectorAll('{panel} button:not(:disabled)')].map((each) => each.innerText)"
        assert site.browser.run(open_) == []
    assert site.browser.run("return document.querySelector('[aria-label=Message]').disabled") is True
    site.click("Sign out")


def test_a_pod_that_is_gone_and_a_name_that_is_none_are_told_in_words(site: Site) -> None:
    site.open()
    site.shows("New pod")
    for name in ("nobody", "no%20name", "../../etc"):
        site.open(f"{name}")
        site.until(lambda: site.text("#alarm") or "There is no such pod" in site.text("#main"), name)
    site.open("%E0%A4%A")
    site.shows("New pod")
    site.make("going", "say Hello.")
    site.open("going", width=1400)
    site.shows("Run finished")
    site.click("Delete …", "#panel-state")
    site.fill("Its name, to be sure", "going")
    site.click("Delete", "dialog")
    site.shows("New pod")
    site.shows("going was deleted.", "#told")
    site.open("going")
    site.shows("There is no such pod")
    assert site.text("#main button") == "" and site.text("#alarm") == ""
    site.browser.log()


@pytest.mark.parametrize(("width", "height", "scheme"), [(375, 700, "light"), (375, 700, "dark"), (1900, 1000, "dark")])
def test_nothing_overflows_and_everything_has_a_name_whatever_the_window(
    site: Site, width: int, height: int, scheme: str
) -> None:
    site.make(f"sized/{width}{scheme}/with-a-name-that-goes-on-and-on-{'x' * 40}", "mail")
    site.make(f"wide/{width}{scheme}", "say " + "unbroken" * 200)
    site.open(width=width, height=height, scheme=scheme)
    site.shows("sized/")
    assert_fits(site)
    for name in (f"sized/{width}{scheme}/with-a-name-that-goes-on-and-on-{'x' * 40}", f"wide/{width}{scheme}"):
        site.open(f"{name}", width=width, height=height, scheme=scheme)
        site.shows("Agent" if name.startswith("wide") else "Question")
        for tab in ("State", "Context", "Figures", "Events", "Record", "Transcript"):
            if tab != "State" or width < 1_100:
                site.click(tab)
                assert_fits(site)
    unnamed = [
        node
        for node in site.browser.devtools("Accessibility.getFullAXTree")["nodes"]
        if node.get("role", {}).get("value") in {"button", "link", "textbox", "combobox", "tab", "slider", "searchbox"}
        and not node.get("ignored")
        and not node.get("name", {}).get("value")
    ]
    assert unnamed == []


def assert_fits(site: Site) -> None:
    over = site.browser.run(
        "const most = document.documentElement.clientWidth + 1, scrolls = '.scroll, .tabs, pre, svg, .meter, .brief';"
        "return [document.documentElement.scrollWidth <= most, [...document.querySelectorAll('#main *, #top *')].filter((each) =>"
        " each.checkVisibility() && !each.closest(scrolls) && each.getBoundingClientRect().right > most).map((each) => each.outerHTML)]"
    )
    assert over == [True, []]


def test_a_click_with_the_mouse_opens_a_row_and_the_focus_stays_on_what_had_it(site: Site) -> None:
    site.make("mouse", "read 1")
    site.open("mouse")
    site.shows("Run finished")
    place = "const box = document.querySelector('#panel-transcript .row.call .open').getBoundingClientRect(); return [box.x + 5, box.y + 5]"
    focus = "return document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"
    site.browser.click(*site.browser.run(place))
    site.shows("page 0: ", "#panel-transcript .row.call pre[aria-label=Result]")
    assert site.browser.run(focus) == "Hide call and result of look"
    site.browser.press("Enter")
    site.until(lambda: not site.text("#panel-transcript .row.call pre"), "a closed row")
    assert site.browser.run(focus) == "Show call and result of look"
    # A dialog goes with the view that it belongs to.
    site.browser.run("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Fork …').click()")
    assert site.browser.run("return document.querySelectorAll('dialog').length") == 1
    site.browser.run("location.hash = '#/'")
    site.shows("mouse", ".list")
    site.until(lambda: site.browser.run("return !document.querySelector('dialog')"), "no dialog")


CONTRASTS = """
const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const parts = (text) => { const found = text.match(/[0-9.]+/g).map(Number); return found.length > 3 ? found : [...found, 1]; };
const behind = (each) => {
  for (; each; each = each.parentElement) { const c = parts(getComputedStyle(each).backgroundColor); if (c[3] === 1) return c; }
};
const ratio = (a, b) => { const [less, more] = [light(a), light(b)].sort((x, y) => x - y); return (more + 0.05) / (less + 0.05); };
const low = [], look = (what, colour, each, least) => {
  const found = ratio(parts(colour), behind(each));
  if (found < least) low.push(`${what}: ${found.toFixed(2)}`);
};
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text; (text = walk.nextNode());) {
  const each = text.parentElement;
  if (text.data.trim() && each.checkVisibility() && !each.closest(".unseen, :disabled")) look(text.data, getComputedStyle(each).color, each, 4.5);
}
for (const each of document.querySelectorAll("input, textarea, select")) {
  if (!each.checkVisibility() || each.disabled) continue;
  look("border of " + each.tagName, getComputedStyle(each).borderTopColor, each.parentElement, 3);
  if (each.placeholder) look(each.placeholder, getComputedStyle(each, "::placeholder").color, each, 4.5);
}
return low;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_and_every_field_is_seen_in_light_and_dark(site: Site, scheme: str) -> None:
    site.make(f"seen-{scheme}", "write")
    site.open(scheme=scheme)
    site.shows(f"seen-{scheme}")
    assert site.browser.run(CONTRASTS) == []
    site.click(f"seen-{scheme}")
    site.shows("question waits", ".banner")
    assert site.browser.run(CONTRASTS) == []


def test_all_of_it_is_reached_by_keys(site: Site) -> None:
    site.make("keyed", "read 12")
    site.open("keyed")
    site.shows("Run finished")
    site.browser.run("document.querySelector('#tab-transcript').focus()")
    tabs = []
    for _ in range(6):
        site.browser.press("Right")
        tabs.append(site.browser.run("return document.activeElement.innerText"))
    assert tabs == ["Context", "Figures", "Events", "Record", "Transcript", "Context"]  # the state stands beside them
    here = "return [document.activeElement.dataset.row, document.activeElement.getAttribute('aria-posinset')]"
    site.browser.press("Left")
    site.browser.run("document.querySelector('#panel-transcript [data-row][tabindex=\"0\"]').focus()")
    site.browser.press("Home")
    assert site.browser.run(here) == ["0", "1"]
    site.browser.press("Down")
    site.browser.press("Down")
    assert site.browser.run(here)[0] == "2"
    site.browser.press("End")
    row, place = site.browser.run(here)
    size = site.browser.run("return document.activeElement.getAttribute('aria-setsize')")
    assert place == size == str(int(row) + 1) and int(size) > 12
    assert (
        site.browser.run("return document.querySelectorAll('#panel-transcript [data-row][tabindex=\"0\"]').length") == 1
    )


def test_a_reader_further_up_is_not_moved_by_what_comes_and_finds_the_end_again(site: Site) -> None:
    site.make("upwards", "read 14")
    site.open("upwards", height=600)
    site.shows("Run finished")
    view = "document.querySelector('#panel-transcript .view')"
    site.browser.run(f"{view}.scrollTop = 300")
    site.until(lambda: site.browser.run("return !document.querySelector('.toend').hidden"), "the way to the end")
    top = (
        "const v = document.querySelector('#panel-transcript .view').getBoundingClientRect().top + 5;"
        "return [...document.querySelectorAll('#panel-transcript [data-row]')].filter((e) => e.getBoundingClientRect().bottom > v)"
        ".map((e) => [Number(e.dataset.row), Math.round(e.getBoundingClientRect().top)]).sort((a, b) => a[0] - b[0])[0]"
    )
    before = site.browser.run(top)
    site.ask("/v1/pods/upwards/messages", {"text": "say News from elsewhere."})
    site.settled("upwards")
    site.until(lambda: site.ask("/v1/pods/upwards")["totals"]["requests"] == 16, "the reply")
    site.until(
        lambda: (
            int(
                site.browser.run(
                    "return document.querySelector('#panel-transcript [data-row]').getAttribute('aria-setsize')"
                )
            )
            > 18
        ),
        "it came",
    )
    assert site.browser.run(top) == before
    site.click("Go to the end")
    site.shows("News from elsewhere.")
    assert site.browser.run("return document.querySelector('.toend').hidden") is True


def test_a_pod_that_takes_the_name_of_one_that_is_looked_at_is_shown_from_its_beginning(site: Site) -> None:
    site.make("again", "say The first one.")
    site.open("again")
    site.shows("The first one.")
    with httpx2.Client(base_url=site.url, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
        site.until(lambda: client.delete("/v1/pods/again").is_success, "its end")
    site.make("again", "say The second one.")
    site.shows("The second one.")
    assert "The first one." not in site.text("#panel-transcript")


def test_what_can_be_no_token_is_refused_like_any_other(site: Site) -> None:
    site.browser.open("about:blank")
    site.browser.open(site.url)
    site.browser.run("sessionStorage.clear()")
    site.browser.open("about:blank")
    site.browser.open(site.url + "#token=%")
    site.shows("asks for a token")
    assert "token" not in site.browser.run("return location.hash")
    site.fill("Token", "пароль – не токен")
    site.click("Sign in")
    site.shows("not known here")


def test_where_there_is_room_all_pods_stand_beside_one_and_the_way_back_works(site: Site) -> None:
    site.make("room/one", "say First.")
    site.make("room/two", "say Second.")
    site.open("room/one", width=1900, height=1000)
    site.shows("First.")
    site.click("room/two", ".rail")
    site.shows("Second.")
    chosen = "return document.querySelector('.rail [aria-current] a')?.innerText"
    site.until(lambda: site.browser.run(chosen) == "room/two", "the pod marked in the list")
    site.browser("/back")
    site.shows("First.")
    site.click("Pods", "#top")
    site.shows("New pod", ".list")


def test_ten_thousand_entries_are_as_few_elements_as_a_hundred_and_scroll_as_smoothly(site: Site) -> None:
    def steps(name: str, last: int) -> float:
        """Milliseconds that a screen further takes, the middle of thirty."""
        site.open(f"{name}")
        site.shows(f"Reply {last} ")
        site.browser.run("document.querySelector('#panel-transcript .view').scrollTop = 0")
        return site.browser(
            "/execute/async",
            {
                "script": "const done = arguments[0], view = document.querySelector('#panel-transcript .view'), took = [];"
                "const step = () => { const began = performance.now(); view.scrollTop = (view.scrollTop + 650) % (view.scrollHeight - 700);"
                " requestAnimationFrame(() => requestAnimationFrame(() => { took.push(performance.now() - began);"
                " if (took.length < 30) step(); else done(took.sort((a, b) => a - b)[15]); })); }; step()",
                "args": [],
            },
        )

    for name, many in (("short", 100), ("long", 10_000)):
        site.make(name, "say Hello.")
        site.until(lambda: not site.rig.folder(name).is_busy(), "nobody writes to it")  # noqa: B023
        lengthen(site.rig.folder(name), many)
    few, many = steps("short", 99), steps("long", 9_999)
    rows = site.browser.run("return document.querySelectorAll('#panel-transcript [data-row]').length")
    size = int(
        site.browser.run("return document.querySelector('#panel-transcript [data-row]').getAttribute('aria-setsize')")
    )
    assert size >= 10_000 and rows < 80
    assert many < 2 * few, (few, many)


def lengthen(folder: PodFolder, many: int) -> None:
    """Gives a log so many replies of some length."""
    path = folder.segment_path(folder.pointer().segment)
    last = max(line.seq for line in entries(path))
    with path.open("ab") as file:
        for number in range(many):
            record = w.ReplyRecord(items=(AssistantItem(text=f"Reply {number} " + "with some words " * (number % 7)),))
            _, data = render(last + 1 + number, record.kind, e.body_of(record), "2026-01-31T12:00:00.000000Z")
            file.write(data)


def test_a_service_that_is_started_anew_is_gone_on_with_and_each_event_shown_once(site: Site, tmp_path: Path) -> None:
    """B155, in the page itself."""
    rig = rig_of(tmp_path)
    with served(rig) as url:
        here = Site(rig, url, site.browser)
        here.make("kept", "read 2")
        here.open()
        here.shows("kept")
        here.open("kept", height=4_000)
        here.click("Events")
        here.until(lambda: site.browser.run(NUMBERS) == rig.told("kept"), "all events")
    here.shows("no connection: trying again")
    with served(rig, port=int(url.rpartition(":")[2].strip("/"))):
        here.shows("live")
        here.fill("Message", "say And on.")
        here.click("Send")
        here.until(
            lambda: len(rig.told("kept")) > 14 and site.browser.run(NUMBERS) == rig.told("kept"), "each event once"
        )
        here.click("Transcript")
        here.shows("And on.")
    site.browser.log()
