"""The page of a session: what stands in it is data, whatever a tool or a model wrote."""

from __future__ import annotations

import base64
import hashlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pod.log import entries as e
from pod.page import ENTRIES_MOST, ENTRY_MOST, Page, as_data, cut_at, entry_text, visible
from tests.page.page_story import HOSTILE, Markup, Story, begin, hostile_story, masker, outside, read, reply
from worker import records as w
from worker.items import AssistantItem, Image, UserItem
from worker.masking import Masker


def test_b095_hostile_text_adds_no_element_no_attribute_and_no_control() -> None:
    harmless, hostile = Story(), hostile_story()
    harmless.tell(begin())
    clean, found = Markup(harmless.html("a")), Markup(hostile.html(HOSTILE))
    assert found.tags == clean.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in clean.attributes]
    assert len(found.raw["script"]) == 2 and found.raw["script"][1] == clean.raw["script"][1]
    entries = "\n".join(found.data["steps"]["entry"])
    assert "</script><script>document.title='PWNED'</script>" in entries
    assert "\\x1b[31mred" in entries and "\\u2028\\u2029\\u202eevil \\x00" in entries
    assert not set("\x00\x1b\u2028\u2029\u202e") & set(hostile.html(HOSTILE))


@settings(max_examples=40)
@given(
    st.recursive(
        st.text() | st.none() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_holds_no_markup_and_reads_as_it_was(value: object) -> None:
    text = as_data(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


@given(st.text(st.characters(codec=None)))  # halves of characters included
def test_what_is_shown_can_always_be_encoded_and_hides_nothing(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert not any(c < " " and c not in "\t\n" for c in shown)


def test_b145_halves_of_characters_in_a_log_do_not_break_the_page() -> None:
    story = Story()
    story.tell(begin())
    story.tell_raw("input", rb'{"item":{"type":"user","id":"u","text":"half \ud800 of one"}}')
    assert "half \ufffd of one" in story.html().encode().decode()
    assert visible("half \ud83d") == "half \\ud83d"


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    html = hostile_story().html()
    markup = Markup(html)
    data, script = markup.raw["script"]
    for text in (script, markup.raw["style"][0]):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in markup.policy
    assert markup.policy.startswith("default-src 'none';") and "unsafe" not in markup.policy
    assert html.index("Content-Security-Policy") < html.index("<script")
    assert outside(html.replace(data, "").replace("http://www.w3.org/2000/svg", "")) == []


def test_b082_secrets_are_masked_before_anything_is_cut() -> None:
    secret = 'hunter"2-' + "x" * 40
    text = "y" * (ENTRY_MOST - 20) + secret
    record = w.Input(item=UserItem(text=text))
    shown = entry_text("input", record, masker(secret))
    assert "hunter" not in shown
    call = e.RunEndedEntry(run="r", status="failed", result={"arguments": json.dumps({"key": secret})})
    assert "hunter" not in entry_text("run_ended", call, Masker({"API_TOKEN": secret}))
    story = hostile_story("sk-live-0123456789")
    assert "sk-live" not in story.html() and "[secret API_TOKEN]" in story.html()


def test_opaque_payloads_images_and_the_sessions_tag_are_left_out() -> None:
    story = hostile_story()
    story.tell(w.Input(item=UserItem(text="look", images=(Image(media_type="image/png", data="QUJD" * 50),))))
    html = story.html()
    assert "sealed sealed" not in html and "QUJDQUJD" not in html and "secret-tag" not in html
    assert "[opaque, 350 characters, not shown]" in html and "[image data, 200 characters, not shown]" in html


@given(st.lists(st.integers(0, 500), max_size=30), st.integers(0, 5_000))
def test_texts_are_cut_no_more_than_the_bound_asks(sizes: list[int], most: int) -> None:
    limit = cut_at(sizes, most)
    assert sum(min(size, limit) for size in sizes) <= most
    assert limit >= max(sizes, default=0) or sum(min(size, limit + 1) for size in sizes) > most


def test_a_long_session_keeps_its_newest_steps_and_the_page_stays_small() -> None:
    story = Story(page=Page(lambda step: step["type"] * 50, most=1_000))
    story.tell(begin())
    records = read("c", "\U0001f600 long output " * 1_000)
    for _ in range(600):
        story.tell(*records)
    story.tell(reply(5_000, AssistantItem(text="the end")))
    data = Markup(story.html()).data
    assert (data["leftOut"], len(data["steps"]["seq"])) == (202, 1_000)
    assert data["requests"]["number"][0] == 102 and data["requests"]["number"][-1] == 601
    assert data["steps"]["seq"][data["requests"]["step"][-1]] == story.seq
    assert sum(len(text.encode()) for text in data["steps"]["entry"]) <= ENTRIES_MOST
    assert len(story.html().encode()) < ENTRIES_MOST + 1_000_000
    assert len(data["steps"]["cut"]) >= 499
