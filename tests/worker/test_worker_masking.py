"""What the gate finds: values of the environment in all their forms, keys by their shape, whole, in pieces and cut (B082, B083)."""

from __future__ import annotations

import base64
import html
import importlib
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from worker.masking import MaskedStream, Masker, as_read, marks_in, secrets_in, unmasked
from worker.shapes import SECRET, ShapedStream, shaped, shaped_cut

A = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zaB3dE6gH9jK2mN5p"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + f"MIIEpAIBAAKCAQEA{A}\n" * 3 + "Qk0=\n-----END RSA PRIVATE KEY-----"
KEYS = [
    f"ghp_{A[:36]}", f"github_pat_{A}", f"glpat-{A[:20]}", f"sk-ant-api03-{A}-_{A}", f"sk-proj-{A}", f"sk-{A}", "AKIAIOSFODNN7EXAMPLE",
    f"xoxb-123456789-{A[:24]}", f"AIza{A[:35]}", f"npm_{A[:36]}", f"pypi-AgEIcHlwaS5vcmc{A}", f"hf_{A[:34]}", f"sk_live_{A[:24]}",
    f"SG.{A[:22]}.{A[:43]}", f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{A}", f"dckr_pat_{A[:27]}", f"AGE-SECRET-KEY-1{A.upper()}",
    PEM, PEM.replace("\n", "\\n"), PEM.replace("RSA", "OPENSSH"),
]  # fmt: skip
HARMLESS = [
    "commit 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d", "550e8400-e29b-41d4-a716-446655440000", "sha256:" + "ab12" * 16,
    '"integrity": "sha512-' + "aB3d" * 20 + '=="', "data:image/png;base64," + "iVBORw0K" * 200, "password = getpass()", "token: str",
    "a task-force-of-more-than-thirty-two-characters-1", "hf_transformers_loader_of_tokenizers", "<div class='sk-fading-circle-12-dots'>",
    "gho_st_of_a_name", "npm_config_registry_of_the_whole_company_1", "-----BEGIN CERTIFICATE-----\n" + f"MIIE{A}\n" * 3,
    "-----BEGIN PRIVATE KEY----- ... -----END PRIVATE KEY-----", "BAKIAIOSFODNN7EXAMPLE", "password = hunter2", "sk-learn and sk-image",
    "eyJhbGciOiJIUzI1NiJ9 alone", "https://user:pass@example.com/x", "hooks.slack.com/services/",
]  # fmt: skip
VALUE = 'sk-live/7Zq"pX+09\\Lm=ab'
MASKER = Masker(
    {"SHOP_API_KEY": VALUE, "OTHER_TOKEN": "other-token-0123", "LONGER_TOKEN": "other-token-0123-and-more"}, shapes=True
)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40).filter(
    lambda text: not text.isalpha()
)
around = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
parts = st.sampled_from([
    *KEYS, VALUE, json.dumps(VALUE)[1:-1], "other-token-0123", "-and-more", "x", " ", "\n", "-", "-----", "sk-", "ghp_", "_", ".", "eyJ",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "-----BEGIN ", "A3T", "hooks.slack.com/services/", f"T1/B2/{A}", A, "é",
    "AccountKey=",
])  # fmt: skip
texts = st.lists(parts, max_size=8).map("".join)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_known_provider_is_gone_wherever_it_stands(key: str) -> None:
    for text in (f"so {key} it is", f'{{"key":"{key}"}}', f"KEY={key}\n", f"+{key}", f"({key})"):
        shown, count = shaped(text)
        assert key not in shown and A[:12] not in shown and shown.count(SECRET) == count == 1
        assert shaped(shown) == (shown, 0)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_a_key_stays(text: str) -> None:
    assert MASKER.mask(text) == (text, 0) and MASKER.mask_cut(text) == (text, 0)


def test_what_stands_before_a_secret_in_an_address_stays() -> None:
    text = (
        f"https://hooks.slack.com/services/T0AB/B0CD/{A[:24]} and //r/:_authToken=01234567-89ab-cdef-0123-456789abcdef"
    )
    assert shaped(text) == (f"https://hooks.slack.com/services/{SECRET} and //r/:_authToken={SECRET}", 2)


@given(values, around, around)
def test_a_value_is_found_in_every_form(value: str, before: str, after: str) -> None:
    masker = Masker({"SOME_KEY": value})
    assume(bool(masker))
    once = json.dumps(value)[1:-1]
    for form in (
        value,
        once,
        json.dumps(once)[1:-1],
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        html.escape(value),
    ):
        shown, count = masker.mask(f"{before} {form} {after}")
        assert count and f" {form} " not in shown
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert masker.mask(encode(f"{before}{value}{after}".encode()).decode())[1]


@given(texts)
def test_what_was_masked_is_not_masked_again(text: str) -> None:
    shown = MASKER.mask(text)[0]
    assert MASKER.mask(shown)[0] == shown or "PRIVATE KEY" in shown


@settings(max_examples=400)
@given(texts, st.lists(st.integers(1, 60), max_size=60))
def test_a_text_in_pieces_is_masked_as_the_whole_is(text: str, sizes: list[int]) -> None:
    """Any chunking: pieces of one character, borders inside of secrets, keys that never end."""
    for stream, whole in ((ShapedStream(), shaped(text)[0]), (MaskedStream(MASKER), MASKER.mask(text)[0])):
        told, at = "", 0
        for size in [*sizes, len(text)]:
            told += stream.feed(text[at : at + size])
            at += size
        assert told + stream.end() == whole


LONG = "company-token/" + A * 3
LONG_MASKER = Masker({"COMPANY_TOKEN": LONG}, shapes=True)


def wrapped(width: int, end: str = "\n", numbered: bool = False) -> str:
    data = base64.b64encode(f"user:{LONG}\n".encode()).decode()
    lines = [data[at : at + width] for at in range(0, len(data), width)]
    return end.join(f"{number}\t{line}" if numbered else line for number, line in enumerate(lines, 1))


HIDDEN = {
    "as base64 makes lines": wrapped(76), "as PEM does": wrapped(64), "with CR LF": wrapped(76, "\r\n"), "in JSON": wrapped(76, "\\n"),
    "in JSON twice": wrapped(76, "\\\\n"), "with numbers": wrapped(76, numbered=True), "indented": wrapped(76, "\n    "),
    "escaped": "".join(f"\\u{ord(char):04x}" for char in LONG), "as bytes": "".join(f"\\x{ord(char):02x}" for char in LONG),
    "fullwidth": "".join(chr(ord(char) + 0xFEE0) for char in LONG), "with nothing between": "\u200b".join(LONG),
}  # fmt: skip


def leaks(text: str) -> bool:
    """Whether twelve characters of the value, or of its base64, stand in a text as a reader takes it."""
    shown = "".join(line.partition("\t")[2] or line.strip() for line in as_read(text).replace("\\", "").splitlines())
    data = base64.b64encode(f"user:{LONG}\n".encode()).decode()[12:-8]
    return any(form[at : at + 16] in shown for form in (LONG, data) for at in range(len(form) - 15))


@pytest.mark.parametrize("how", list(HIDDEN))
def test_b083_a_value_is_found_behind_what_a_reader_looks_through_also_in_pieces_of_any_size(how: str) -> None:
    """B083: in a text and in a stream (what is told as it comes, and a long output on the disk)."""
    text = f"it says {HIDDEN[how]} and so on"
    assert leaks(text) and not leaks(LONG_MASKER.mask(text)[0])
    for size in (1, 2, 7, 15, 16, 17, 76, 77, 500):
        stream = MaskedStream(LONG_MASKER)
        told = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.end()
        assert not leaks(told) and told.startswith("it says ") and told.endswith(" and so on"), (size, told)


def test_a_stream_holds_back_no_line_that_is_not_the_beginning_of_a_secret() -> None:
    stream = MaskedStream(MASKER)
    for piece in ("one\n", "two \u00e9 \u4e2d\n", "C:\\path and ", "x" * 100):
        assert stream.feed(piece) == piece


CUTS = ("{}...", "{}…", "say {}... and", "{}\n[… 9 characters left out …]", "...{}", "…{}", "a ...]\n{} b")


@pytest.mark.parametrize("cut", CUTS)
def test_b083_a_cut_inside_of_a_text_leaves_no_eight_characters_of_a_value(cut: str) -> None:
    """B083: a command in a headline, a summary of 400 characters, a line that a search clips."""
    for left in range(8, len(VALUE)):
        part = VALUE[:left] if cut.startswith(("{}", "say")) else VALUE[-left:]
        shown = MASKER.mask(cut.format(part))[0]
        assert part[:8] not in shown and part[-8:] not in shown and "[secret SHOP_API_KEY]" in shown
        assert MASKER.holds(cut.format(part)) and MASKER.mask(shown) == (shown, 0)


@given(around, around, st.integers(0, len(VALUE)))
def test_what_a_cut_leaves_of_a_value_is_less_than_half_of_it(before: str, after: str, at: int) -> None:
    text = f"{before} {VALUE[:at]}\n[... 900 bytes left out ...]\n{VALUE[at:]} {after}"
    shown = MASKER.mask_cut(text)[0]
    assert not any(VALUE[n : n + 12] in shown for n in range(len(VALUE) - 11))


@pytest.mark.parametrize("key", [key for key in KEYS if "PRIVATE" not in key])
def test_a_key_that_a_cut_ends_is_gone(key: str) -> None:
    for size in range(len(key) - 4, len(key)):
        assert A[:8] not in shaped_cut(f"at {key[:size]}")[0].replace("IOSFODNN", "")


def test_a_page_in_the_middle_of_a_private_key_shows_nothing_of_it() -> None:
    lines = PEM.split("\n")
    for at in range(1, len(lines) - 1):
        first, second = "\n".join(lines[:at]), "\n".join([*lines[at:], "and more"])
        assert A not in shaped_cut(first)[0]
        assert A not in shaped_cut(second)[0] and shaped_cut(second)[0].endswith("and more")


def test_marks_lead_back_to_values_only_where_the_variable_is_set() -> None:
    kept = {"url": "https://[secret SHOP_API_KEY]/v1", "rest": ["[secret]", "[secret NOBODY_KEY]"]}
    assert unmasked(kept, {"SHOP_API_KEY": "v"}) == {"url": "https://v/v1", "rest": ["[secret]", "[secret NOBODY_KEY]"]}
    assert marks_in("a [secret] b [secret X_KEY] c [secret]") == ["[secret]", "[secret X_KEY]"]


HOSTILE = (
    "a", " ", "0", "sk-", "sk-a", "sk-0", "eyJ", "eyJ.", "eyJaaaaaaaa.", "-----", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n12\n", f"-----BEGIN PRIVATE KEY-----{A}", "ghp_-", "hooks.slack.com/services/T/B/", "xoxb-", "A3T", "SG.-",
    "AAAAAAAAAAAAAAAA\n", "AAAAAAAAAAAAAAAA\\n1\t", "other-token-...", "...", "…[", "\\", "\\u00", "0123-and-more…", "\\u0073",
    "other-token-", "\u200b", "[... a ...]\n", "ｇ",
)  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
def test_a_megabyte_of_anything_takes_no_longer_than_its_length_asks(part: str) -> None:
    def spent(size: int) -> float:
        text = (part * (size // len(part) + 1))[:size]
        began = time.process_time()
        MASKER.mask_cut(text)
        stream = MaskedStream(MASKER)
        for at in range(0, size, 65_536):
            stream.feed(text[at : at + 65_536])
        stream.end()
        return time.process_time() - began

    assert spent(1_000_000) < 8


ORACLE = {
    "AWS Access Key": 0, "GitHub Token": 0, "OpenAI Token": 0, "SendGrid API Key": 0, "Stripe Access Key": 0, "PyPI Token": 0,
    "PyPI upload token": 0, "JSON Web Token": 0,  "GitLab Token": 0,
}  # fmt: skip
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much)


def found_by(name: str, detector: Any) -> int:
    """How many values the oracle finds in samples of its own pattern; none of them may stay."""
    found = 0
    printable = st.characters(min_codepoint=33, max_codepoint=126)

    @settings(max_examples=15, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
    @given(st.from_regex(detector.denylist[ORACLE[name]], fullmatch=True, alphabet=printable))
    def each(sample: str) -> None:
        nonlocal found
        line = f"at {sample} end"
        for value in detector.analyze_string(line):
            if any(c.isdigit() for c in value):
                found += 1
                assert value not in shaped(line)[0], line

    each()
    return found


def test_b082_what_detect_secrets_takes_for_a_key_of_a_provider_is_gone() -> None:
    """A well-kept library makes the samples and says what it finds in them."""
    pytest.importorskip("detect_secrets")
    known = importlib.import_module("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    counts = {name: found_by(name, known[name]()) for name in sorted(ORACLE.keys() & known.keys())}
    assert len(counts) >= 6 and sum(counts.values()) > 60, counts


BASIC = "Basic " + base64.b64encode(b"user:pass-word-of-mine").decode()


@pytest.mark.parametrize(
    ("value", "part"), [("Bearer key-0123456789", "key-0123456789"), (BASIC, BASIC[6:]), (BASIC, "pass-word-of-mine")]
)
def test_b083_of_a_header_its_credentials_are_a_secret_by_themselves(value: str, part: str) -> None:
    """B083: a server that is sent `Bearer ...` speaks of what stands behind it."""
    masker = Masker({"SITE_AUTH": value})
    for text in (value, part):
        assert masker.mask(f"your {text}!") == ("your [secret SITE_AUTH]!", 1)
    assert masker.mask("a Bearer of news, Basic as it is") == ("a Bearer of news, Basic as it is", 0)


@pytest.mark.parametrize("name", ["NPM_AUTH", "AUTH", "SITE_COOKIE", "SESSION_COOKIES"])
def test_b083_a_variable_for_logging_in_is_named_like_a_secret(name: str) -> None:
    """B083."""
    assert secrets_in({name: "0123456789"}) and not secrets_in(
        {f"{name}_TYPE": "0123456789", "GIT_AUTHOR": "0123456789"}
    )
