"""The page of a session that holds everything hostile: it runs nothing, loads nothing, and shows what it holds (B095)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page.page_browser import MISSING, Browser
from tests.page.page_story import Markup, Story, ask, begin, read, reply
from tests.security.hostile import ALL, followed
from tests.security.hostile_history import HISTORY
from worker import records as w
from worker.items import AssistantItem
from worker.text import clean, visible

PWNED = "document.title='PWNED'"
MARKUP = (
    f"</script><script>{PWNED}</script>", f"<img src=x onerror={PWNED}>", f"\" onmouseover=\"{PWNED}", f"<svg/onload={PWNED}>",
    f"<!--<script>{PWNED}", f"]]><script>{PWNED}</script>", f"</SCRIPT\t><SCRIPT>{PWNED}</SCRIPT>", f"</style><script>{PWNED}</script>",
    f"<a href=\"javascript:{PWNED}\">x</a>", "<iframe src=http://127.0.0.1:9/x></iframe>", "<link rel=stylesheet href=//127.0.0.1:9/x>",
    "<meta http-equiv=refresh content=\"0;url=http://127.0.0.1:9/\">", "<base href=http://127.0.0.1:9/>", "<object data=http://127.0.0.1:9/>",
    "{{script}}{{data}}", f"'-{PWNED}-'", f"${{{PWNED}}}", f"&lt;script&gt;{PWNED}", "\u2028</script>\u2029",
    f"<math><mtext></script><script>{PWNED}",
    f"<form action=http://127.0.0.1:9/><input autofocus onfocus={PWNED}>", "<template shadowrootmode=open><style>@import '//127.0.0.1:9/x'",
)  # fmt: skip
"""What has run or loaded something where a log was shown."""

TEXTS = tuple(map(clean, (*HISTORY, ALL, *MARKUP)))


def story() -> Story:
    """Each text as the user's words, a call, its result, an answer, a reason and an error."""
    made = Story()
    made.tell(begin())
    for n, text in enumerate(TEXTS):
        made.tell(
            *ask(text),
            *read(f"c{n} {text}", text, text),
            w.Pruned(items=(), tokens_saved=1, tokens_before=9, reason=text),
        )
        made.tell(reply(1_000, AssistantItem(text=text)))
    return made


def test_no_text_adds_an_element_an_attribute_or_an_address() -> None:
    plain = Story()
    plain.tell(begin())
    html = story().html("".join(MARKUP))
    found, clean = Markup(html), Markup(plain.html())
    assert found.tags == clean.tags and [name for name, _ in found.attributes] == [name for name, _ in clean.attributes]
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert html.lower().count("<script") == 2 == html.lower().count("</script")
    assert not followed(html)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if MISSING:
        pytest.skip(MISSING)
    made = Browser()
    yield made
    made.close()


def test_b095_nothing_runs_and_nothing_is_asked_for_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """Each of the last entries is opened, the pointer goes over each part, and what is shown is what stands in the log."""
    made = story()
    page = tmp_path / "page.html"
    page.write_text(made.html("".join(MARKUP)), encoding="utf-8")
    browser.open(page)
    title = browser.run("return document.title")
    assert title.startswith("Pod </script><script>")
    shown = browser.run(
        "const seen = [];"
        "const buttons = () => [...document.querySelectorAll('#steps button')].filter((b) => /^[0-9]+$/.test(b.textContent));"
        "const earlier = () => [...document.querySelectorAll('#steps button')].find((b) => b.textContent === 'Earlier' && !b.disabled);"
        "for (let more = 6; more > 0; more--) {"
        "  for (const b of buttons()) { b.click(); seen.push(document.querySelector('#entry pre')?.textContent ?? ''); }"
        "  if (!earlier()) break; earlier().click(); }"
        "for (const e of document.querySelectorAll('#entry *, #steps *, #facts *')) {"
        "  e.dispatchEvent(new Event('mouseover')); e.dispatchEvent(new Event('focus')); }"
        "return seen.join('\\n')"
    )
    assert not followed(shown) and not [text for text in MARKUP if visible(text) not in shown]
    assert (
        browser.run(
            "return document.querySelectorAll('img, iframe, object, embed, form, link, base, svg[onload], [href^=javascript]').length"
        )
        == 0
    )
    assert (
        browser.run(
            "return [...document.querySelectorAll('*')].flatMap((e) => [...e.attributes]).filter((a) => /^on/.test(a.name)).length"
        )
        == 0
    )
    assert browser.run("return document.title") == title and browser.log() == []
    assert browser.requests() == [page.as_uri()]


def test_the_control_the_same_browser_sees_what_would_run(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "raw.html"
    page.write_text(f"<title>x</title>{MARKUP[0]}", encoding="utf-8")
    browser.open(page)
    assert browser.run("return document.title") == "PWNED"


def test_the_policy_of_the_page_forbids_all_but_its_own() -> None:
    policy = Markup(story().html()).policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy and "*" not in policy
    assert re.findall(r"(\S+-src|\S+-uri|form-action) ", policy) == [
        "default-src",
        "script-src",
        "style-src",
        "base-uri",
        "form-action",
    ]
