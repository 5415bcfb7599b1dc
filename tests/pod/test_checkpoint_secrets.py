"""Secrets that only their shape or name tells: none of the known kinds gets into a checkpoint, and code stays as it is."""

from __future__ import annotations

import importlib
import re
import sysconfig
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compact_worker.secrecy import SECRET, without_secrets

KINDS = [
    ("sk_live_51H8abcdefghijklmnop failed", "51H8abcdefghijklmnop"),
    ("npm_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456789"),
    ("curl -u admin:s3cretpass http://x", "s3cretpass"),
    ("curl -uadmin:s3cretpass http://x", "s3cretpass"),
    ("curl --user 'admin:s3cret pass'", "s3cret"),
    ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("-H 'Authorization: Bearer abcdefgh'", "abcdefgh"),
    ('"Authorization": "token abcdef.123"', "abcdef.123"),
    ('Authorization: Digest username="u", response="6629fae49393a053"', "6629fae49393a053"),
    ("sent basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("Cookie: session=abcdef0123456789; theme=dark", "abcdef0123456789"),
    ("PASSWORD: 'correct horse battery'", "correct horse battery"),
    ('{"db_password": "hunter two"}', "hunter two"),
    (r"{\"password\": \"hunter22\"}", "hunter22"),
    ("dbPassword = `swordfish`", "swordfish"),
    ("pwd=abcdef123456", "abcdef123456"),
    ("password: swordfishes", "swordfishes"),
    ("export API_TOKEN=abcdefghijkl", "abcdefghijkl"),
    ("SECRET_KEY='django-insecure-abc$%^&*'", "django-insecure"),
    ("private_key: MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
    ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("GET /x?access_token=ab12cd34ef&page=2", "ab12cd34ef"),
    ("x-api-key: 0123abcd4567", "0123abcd4567"),
    ("tool --password hunter2222 --fast", "hunter2222"),
    ("mysql -u root -phunter22 db", "hunter22"),
    ("machine h login u password swordfish", "swordfish"),
    ("ALTER USER x IDENTIFIED BY 'sword fish'", "sword fish"),
    ("postgres://me:p%40ss@h/db and redis://:hunter2@h", "hunter2"),
    ("https://ghp0123456789abcdef0@github.com/x", "ghp0123456789abcdef0"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----", "abc"),
    ("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nabc", "abc"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc", "abc"),
    ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefghij", "eyJhbGciOiJIUzI1NiJ9"),
]

A = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7z"
KINDS += [
    (f"dckr_pat_{A}", A), (f"blob?sv=1&sig={A}%3D", A), ("the password is hunter22", "hunter22"),
    (f"ｇｈｐ_{A}", A), (f"gh\u200bp_{A}", A), (f"\\u0067hp_{A}", A), ("PGPASSWORD=hunter2 psql", "hunter2"),
    ("Server=h;User Id=sa;Password=hunter2;", "hunter2"), (f"https://hooks.slack.com/services/T0/B0/{A}", A),
]  # fmt: skip

PLAIN = [
    "tokens = tokenize(text)", "password: str", "self.token = token", "max_tokens = 32000", "password = getpass.getpass()",
    'secret = os.environ["SECRET"]', "docker run -u 1000:1000 image", "basic authentication scheme",
    "Bearer authentication is used", "git push -u origin main", "token: Token | None", "auth = Authenticator(self)",
    "password_hash = hash_password(password)", "see https://example.com:8080/path", 'token_type = "access"',
    "commit 1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d", "password = models.CharField(max_length=128)",
    "tokens: 12k read, 3k written", "password = ${DB_PASSWORD}", "password: {{ vault_password }}", "passwd='', acct=''",
    "token=<your token>", "login(user, password=user_password)", "objects identified by a persistent id",
    "550e8400-e29b-41d4-a716-446655440000", "sha256:" + "ab12" * 16, '"integrity": "sha512-' + "aB3d" * 20 + '=="',
    "data:image/png;base64," + "iVBORw0K" * 20, "the password is wrong", "a password was set", "the cache’s key is stable",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KINDS)
def test_each_kind_of_secret_is_gone(text: str, value: str) -> None:
    shown, count = without_secrets(f"so {text}")
    assert value not in shown and SECRET in shown and count >= 1 and shown.startswith("so ")
    assert without_secrets(shown) == (shown, 0), "what was taken out is not taken for a secret"


@pytest.mark.parametrize("text", PLAIN)
def test_code_and_prose_stay(text: str) -> None:
    assert without_secrets(text) == (text, 0)


def library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not {"site-packages", "test", "tests", "idlelib", "pydoc_data", "encodings"} & set(name.parts):
            for line in path.read_text(errors="replace").splitlines():
                yield name.as_posix(), line


@pytest.mark.slow
def test_the_standard_librarys_source_stays_but_for_a_handful_of_lines() -> None:
    """Of Python 3.11, nine lines of 300,000: seven cookies and a password in examples (`http.cookies`, `urllib.request`), and
    the comment `token = 1*tchar`."""
    count = cache(lambda line: without_secrets(line)[1])  # each third line is one that came before
    touched = [(name, line) for name, line in library() if count(line)]
    assert len(touched) <= 12, touched


HOSTILE = (
    "a", "0", "sk-", "eyJ", "-----", "-----BEGIN PRIVATE KEY-----", "://", "://a:b", "password=", "password='a", "password\\",
    "token ", "authorization: ", "cookie: ", "basic ", "bearer ", "mysql ", " -u a", "--a-", "login a password ", "a_", "a.",
    "key", "key'", "gla", "MII", " ",
)  # fmt: skip


@pytest.mark.parametrize("part", HOSTILE)
def test_no_text_takes_long(part: str) -> None:
    """Linear enough: what is looked at has 6,000 characters."""
    began = time.process_time()
    without_secrets((part * 6_000)[:6_000])
    assert time.process_time() - began < 1.0


# -- an oracle -----------------------------------------------------------------------------------------------------

ELSEWHERE = {"Public IP (ipv4)", "Private Key", "JSON Web Token"}
"""Addresses are no secrets; the oracle takes the header of a key alone, and only valid tokens: both have their cases above."""

SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much)

LOOSE = {
    ("AWS Access Key", 1), ("Cloudant Credentials", 0), ("Cloudant Credentials", 1), ("IBM Cloud IAM Key", 0),
    ("IBM COS HMAC Credentials", 0), ("SoftLayer Credentials", 0), ("SoftLayer Credentials", 1),
}  # fmt: skip
"""Patterns for an assignment in any notation, broken ones too: the well-formed ones are held by `NAMED`."""

NAMED = [
    'cloudant_apikey="{64}"', "softlayer_api_key: {64}", "ibm_cloud_iam_api_key = '{44}'", 'aws_secret_key="{40}"',
    "cos_hmac_secret_access_key => {48}", '"sl_token": "{64}"', "http://api.softlayer.com/soap/v3.1/{64}",
]  # fmt: skip


def detectors() -> list[Any]:
    base = importlib.import_module("detect_secrets.plugins.base")
    found = importlib.import_module("detect_secrets.core.plugins.util").get_mapping_from_secret_type_to_class()
    kinds = [kind for name, kind in sorted(found.items()) if name not in ELSEWHERE]
    return [kind() for kind in kinds if issubclass(kind, base.RegexBasedDetector)]


def holds(detector: Any, line: str) -> int:
    """How many values the oracle finds in a line; none of them may stay. One without a digit is no key."""
    values = [value for value in detector.analyze_string(line) if any(c.isdigit() for c in value)]
    shown = without_secrets(line)[0]
    assert not [value for value in values if value in shown], line
    return len(values)


def samples_hold(detector: Any, pattern: re.Pattern[str]) -> int:
    """How many values the oracle found in samples of one of its patterns."""
    found = 0

    @settings(max_examples=25, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
    @given(st.from_regex(pattern, fullmatch=True, alphabet=st.characters(min_codepoint=33, max_codepoint=126)))
    def each(sample: str) -> None:
        nonlocal found
        found += holds(detector, f"at {sample} end")

    each()
    return found


def test_what_detect_secrets_knows_by_its_shape_is_gone() -> None:
    """The patterns of a well-kept library make the samples; what it finds in them must not stay."""
    pytest.importorskip("detect_secrets")
    found = sum(
        samples_hold(detector, pattern)
        for detector in detectors()
        for at, pattern in enumerate(detector.denylist)
        if (detector.secret_type, at) not in LOOSE
    )
    assert found > 400


@pytest.mark.parametrize("shape", NAMED)
def test_what_detect_secrets_knows_by_its_name_is_gone(shape: str) -> None:
    pytest.importorskip("detect_secrets")
    begin, _, rest = shape.partition("{")
    size, _, end = rest.partition("}")
    line = begin + ("0a1b2c3d4e5f" * 6)[: int(size)] + end
    assert sum(holds(detector, line) for detector in detectors()) > 0
