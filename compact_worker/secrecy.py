"""Secrets that only their shape or their name tells, taken out of text. Pure.

A filter of text is no wall: what has neither a known shape nor a name that speaks of a secret beside it stays (a bare
password in prose, one in another encoding, one that is cut in two).
"""

from __future__ import annotations

import base64
import binascii
import re

from worker.masking import as_read
from worker.shapes import SECRET, shaped

__all__ = ["SECRET", "without_secrets"]

_KEYS = re.compile(
    r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}.*?"
    r"(?:-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}|\Z)"
    r"|PuTTY-User-Key-File-\d.*?(?:Private-MAC:[^\n]*|\Z)",
    re.DOTALL,
)

_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"[sS][kK]-(?=[\w-]{0,200}\d)[\w-]{16,}|[srp]k_(?:live|test)_\w{10,}|whsec_\w{16,}|sess-\w{20,}"
    r"|(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[0-9A-Z]{16}"
    r"|gh[pousr]_\w{20,}|github_pat_\w{20,}|gl[a-z]{2,6}-[\w-]{16,}|GR1348941[\w-]{16,}"
    r"|(?i:xox[a-z])-(?:\d+-)+\w+|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|xkeysib-[\w-]{16,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}"
    r"|dckr_[op]at_[\w-]{20,}|sbp_[0-9a-f]{40}|npm_\w{20,}|pypi-[\w-]{20,}|hf_\w{20,}|gsk_\w{20,}|xai-\w{20,}|pplx-\w{20,}|tvly-[\w-]{20,}|r8_\w{20,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|sq0[a-z]{3}-[\w\\-]{22,}|shp[a-z]{2}_\w{20,}|do[opr]_v1_\w{20,}|dp\.[a-z]{2}\.\w{20,}"
    r"|hv[sb]\.[\w-]{20,}|dapi[0-9a-f]{32}|lin_api_\w{20,}|ntn_\w{20,}|figd_[\w-]{20,}|PMAK-[\w-]{20,}|NRAK-\w{20,}"
    r"|ATATT3[\w=-]{20,}|pscale_\w{2,8}_[\w.-]{20,}|sntry[su]_[\w=+/-]{20,}|AGE-SECRET-KEY-1\w{20,}"
    r"|key-[0-9a-f]{32}|[0-9a-z]{32}-us\d{1,2}|(?:AC|SK)[a-z0-9]{32}|\d{8,10}:[\w-]{35}"
    r"|[MNO][A-Za-z\d_-]{23,25}\.[\w-]{6}\.[\w-]{27,38}"
    r"|AKC(?=\w{0,80}\d)[A-Za-z0-9]{10,}|AP(?=\w{0,80}\d)[\dA-F][A-Za-z0-9]{8,}(?=[\s\"]|$)"
    r"|eyJ[\w=-]{8,2000}+\.[\w=-]{8,4000}+(?:\.[\w.+/=-]{0,4000}+)?"
    r"|MII[A-Za-z0-9+/]{24,}={0,2}"
    r")"
    r"|(?i:(?<=/services/)T\w+/B\w+/\w+)|(?<=:_authToken=)(?!\$)\S+|(?<=/api/webhooks/)\d+/[\w-]{20,}|(?<=AccountKey=)[A-Za-z0-9+/=]{40,}"
    r"|(?<=[?&]sig=)[A-Za-z0-9+/%_-]{24,}={0,2}"
    r"|(?<=api\.softlayer\.com/soap/v3/)\w{64}|(?<=api\.softlayer\.com/soap/v3\.1/)\w{64}",
    re.ASCII,
)

_HEADERS = re.compile(
    r"(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:basic|bearer|token|negotiate|api-?key|aws4-hmac-sha256)\s+)"
    r"(?!\[secret|[%${<])[^\s\"'\\][^\n\"'\\]{2,}"
    r"|(\bauthorization\s*:\s*digest\s+)(?=\w+=)[^\n]+"
    r"|(\bauthorization\\?[\"']?\s*:\s*\\?[\"']?)(?!\[secret)(?=\S*\d)[^\s\"'\\]{16,}"
    r"|(\b(?:set-)?cookie\s*:\s*)(?=[^\n]*=)[^\n\"'\\]{8,}"
    r"|(\bbearer\s+)(?!\[secret)(?=\S{0,200}[\d.~+/]|\S{20})[\w.~+/-]{12,}=*",
    re.IGNORECASE,
)
_BASIC = re.compile(r"(\bbasic\s+)([A-Za-z0-9+/]{6,}={0,2})", re.IGNORECASE)

_URLS = re.compile(r"(?<=://)(?:[^\s/:@]{0,200}:[^\s/]{1,400}|(?=[^\s@]{0,200}\d)[\w.~%-]{16,200}+)(?=@)")

_VALUE = r"(?:\\?\"[^\"\n]+\"|\\?'[^'\n]+'|[^\s\"'`,;&|)]+)"
_FLAGS = re.compile(
    r"(?<![\w-])((?:-u|-U|--user|--proxy-user)(?:[ =]\s*|(?=\w+:))[\"']?)(?!\d+:\d+\b|\[secret)[^\s:\"'/]+:[^\s\"'/][^\s\"']*"
    r"|(?<![\w-])(--?(?:\w{1,20}-){0,4}(?:password|passwd|passphrase|pwd|pass|secret|token|api-?key|access-?key)[ =]\s*)"
    rf"(?!\[secret|[-<{{$%])(?=\S{{4}}){_VALUE}"
    r"|(\bpass(?:word|phrase|wd) (?:is|was) (?:now |set to )?[\"'`]?)(?=[^\s\"'`]{0,80}\d)(?=[^\s\"'`]{0,80}[A-Za-z])(?!\[secret)[^\s\"'`,;()]{6,80}"
    rf"|(\b(?:mysql\w*|mariadb\S*|sshpass)\b[^\n|;]{{0,200}}?\s-p\s?)(?!\[secret|[-<{{$%])(?=\S{{4}}){_VALUE}"
    rf"|(\blogin\s+\S+\s+password\s+|\bidentified\s+by\s+(?=[\"']))(?!\[secret){_VALUE}",
    re.IGNORECASE,
)

_PASSWORD = r"passwords?|passwd|passphrase|pwd|contrase(?:ñ|n)a"
_NAME = (
    rf"(?:{_PASSWORD}|secrets?|tokens?|credentials?|auth"
    r"|(?:api|auth|access|account|service|database|db|priv|private|client|secret|signing|encryption|master|shared|session"
    r"|storage|deploy)[_ -]?(?:key|pass)s?)"
)
_ASSIGNED = re.compile(
    rf"(?<![\w.-])((?:[\w.-]{{0,80}}[_.-])?(?:{_NAME}(?:[_-]\w{{1,20}}|\d{{1,2}})?|[a-z0-9]{{1,30}}(?:api_?key|password|passwd|token|secret)))"
    r"(\\?[\"'`\]]{0,2}\s*(?::=|=>|={1,3}|!=|:)\s*[@fbru]?)"
    r"(?!\\?[\"'`]?\[secret)"
    r"(?:(?P<mark>\\?[\"'`])(?!(?P=mark))(?P<quoted>[^\n]{4,400}?)(?P=mark)|(?P<bare>[^\s\"'`,;&<>]{6,}))",
    re.IGNORECASE,
)
_SPEAKS = re.compile(_PASSWORD + "|secret|credential|contrase", re.IGNORECASE)
_PLACE = re.compile(r"^[\s$%{<*.\[(]|[{}<>]|%\(|%[sdr]|\.\.\.|^\W+$|\\[nrtx]?$")
_CODE = re.compile(
    r"[(\[{]|^[A-Za-z_]\w*(?:\.\w+)+$|^(?:0x)?[\d._]+\W*$|^[A-Za-z]\w*_\w*$|^/|^\w+/\w|^[a-z]+[A-Z][a-z]+\w*$"
)
_NAMED = re.compile(
    r"((?:key|pwd|pw|pass(?:word)?|token|secret|key[_-]id)[\"'\]]{0,2}\s*(?:[:=>]{1,3}|,|\(|(?=[\"']))\s*[\"'(]{0,2})"
    r"(?=[^\s]{0,200}\d)[A-Za-z0-9+/=_-]{24,}(?![\w.(])",
    re.IGNORECASE,
)
_ENCODED = re.compile(r"[A-Za-z0-9+/=_-]+")
_TYPES = frozenset({"bytearray", "callable", "frozenset", "memoryview", "Callable", "Optional", "SecretStr"})


def without_secrets(text: str) -> tuple[str, int]:
    """The text with what looks like a secret replaced, and how many were.

    A line in which only fullwidth or invisible characters, or escapes, hide one is given as a reader takes it.
    """
    text, count = _without(text)
    if text.isascii() and "\\" not in text:
        return text, count
    lines = text.split("\n")
    for at, line in enumerate(lines):
        read = as_read(line)
        if read != line:
            shown, more = _without(read)
            if more > _without(line)[1]:
                lines[at], count = shown, count + more
    return "\n".join(lines), count


def _without(text: str) -> tuple[str, int]:
    text, count = shaped(text)
    for pattern in (_KEYS, _TOKENS, _URLS):
        text, more = pattern.subn(SECRET, text)
        count += more
    for pattern in (_HEADERS, _FLAGS, _NAMED):
        text, more = pattern.subn(_behind_its_name, text)
        count += more
    before = text.count(SECRET)
    text = _ASSIGNED.sub(_assigned, _BASIC.sub(_basic, text))
    return text, count + text.count(SECRET) - before


def _behind_its_name(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None) + SECRET


def _basic(found: re.Match[str]) -> str:
    """User and password in base64 are told by the colon between them."""
    try:
        plain = base64.b64decode(found[2] + "=" * (-len(found[2]) % 4), validate=True)
    except binascii.Error:
        return found[0]
    return found[1] + SECRET if b":" in plain and plain.isascii() else found[0]


def _assigned(found: re.Match[str]) -> str:
    name, between, mark = found[1], found[2], found["mark"] or ""
    value = found["quoted"] or found["bare"]
    ends = found.end() == len(found.string) or found.string[found.end()] in "\n&"
    telling = _quoted(name, value) if found["quoted"] else _bare(name, between, value, ends)
    return f"{name}{between}{mark}{SECRET}{mark}" if telling else found[0]


def _quoted(name: str, value: str) -> bool:
    """Under the name of a password nearly all is one; a token or key has digits among its letters."""
    if _PLACE.search(value):
        return False
    if _SPEAKS.search(name):
        return len(value) >= 6
    return len(value) >= 8 and " " not in value and _mixed(value)


def _bare(name: str, between: str, value: str, ends: bool) -> bool:
    """Without quotes most of what is assigned is code; a word alone is a secret in a settings file (`ends`: nothing comes
    right behind it)."""
    if len(value) >= 32 and _ENCODED.fullmatch(value) and _mixed(value):
        return True
    if _PLACE.search(value) or _CODE.search(value):
        return False
    if _mixed(value):
        return True
    if len(value) < 8 or not ends or value.isupper():
        return False
    set_so = between.strip("\"'` ") in {"=", ":"} and between[:1] not in {" ", "\t"}
    return set_so and (
        name.isupper()
        or (bool(_SPEAKS.search(name)) and value not in _TYPES and ("=" not in between or between == "="))
    )


def _mixed(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
