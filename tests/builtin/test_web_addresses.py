"""Spellings of hosts, lists of hosts, and the addresses that are never asked: pure."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.addresses import HostEntry, address_of, canonical_host, unfit_host
from worker.builtin.web_address import kept_from
from worker.builtin.web_request import target_of
from worker.tools import ToolFault

LOOPBACK = [
    "2130706433",
    "0x7f000001",
    "017700000001",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0177.0.0.1",
    "127.0.0.1.",
    "１２７。０。０。１",
]


@pytest.mark.parametrize("spelling", LOOPBACK)
def test_every_spelling_of_an_address_is_that_address(spelling: str) -> None:
    assert canonical_host(spelling) == "127.0.0.1"
    assert target_of(f"https://{spelling}/").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("spelling", "host"),
    [
        ("DOCS.Python.ORG.", "docs.python.org"), ("ｄｏｃｓ.python.org", "docs.python.org"), ("docs。python．org", "docs.python.org"),
        ("bücher.example", "xn--bcher-kva.example"), ("XN--BCHER-KVA.example", "xn--bcher-kva.example"), ("[::1]", "::1"),
        ("[0:0:0:0:0:ffff:7f00:1]", str(ipaddress.IPv6Address("::ffff:127.0.0.1"))),
    ],
)  # fmt: skip
def test_a_name_has_one_spelling(spelling: str, host: str) -> None:
    assert canonical_host(spelling) == host


@pytest.mark.parametrize(
    "name",
    ["", ".", "a..b", "256.1.1.1", "1.2.3.4.5", "0x1ffffffff", "a b", "-a.b", "a/b", "a.b.09", "[::1%eth0]", "x" * 300],
)
def test_what_is_no_host_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        canonical_host(name)


@given(st.integers(0, 2**32 - 1))
def test_a_number_is_the_address_that_it_stands_for(value: int) -> None:
    wanted = str(ipaddress.IPv4Address(value))
    first, rest = value >> 24, value & 0xFFFFFF
    for spelling in (str(value), hex(value), f"{first}.{rest}", f"0{first:o}.{hex(rest)}", wanted):
        assert canonical_host(spelling) == wanted


@given(st.text(max_size=40))
def test_a_spelling_is_canonical_or_no_host(text: str) -> None:
    try:
        host = canonical_host(text)
    except ValueError:
        return
    assert host.isascii() and canonical_host(host) == host


def test_rules_see_the_host_that_is_asked_whatever_the_spelling() -> None:
    for spelling in (
        "https://ＤＯＣＳ.python.org:443/a%62",
        "https://docs.python.org./ab",
        "HTTPS://docs.python.org/ab",
    ):
        found = address_of({"url": spelling})
        assert found is not None and (found.host, found.url) == ("docs.python.org", "https://docs.python.org/ab")
    found = address_of({"url": "http://2130706433:80/"})
    assert found is not None and found.url == "http://127.0.0.1/"


NEVER = [
    "169.254.169.254", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "0.1.2.3", "::", "255.255.255.255", "240.0.0.1",
    "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2001:0:4136:e378::1", "fec0::1",
    "100.100.100.200", "fd00:ec2::254", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "203.0.113.9", "2001:db8::1",
    "fe80::1%eth0", "name",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1",
    "127.255.0.9",
    "::1",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "fd12::1",
    "fc00::1",
    "100.64.0.1",
]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_asked(address: str) -> None:
    assert kept_from(address) and kept_from(address, private=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_asked_only_where_they_were_allowed(address: str) -> None:
    assert kept_from(address) and kept_from(address, private=True) is None


@given(st.ip_addresses())
def test_no_address_that_is_not_global_is_asked(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if kept_from(str(address)) is None:
        assert address.is_global and not address.is_multicast and not address.is_loopback and not address.is_private


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_addresses_are_asked(address: str) -> None:
    assert kept_from(address) is None


@pytest.mark.parametrize(
    ("entry", "scheme", "host", "port", "covered"),
    [
        ("docs.python.org", "https", "docs.python.org", 443, True), ("docs.python.org", "http", "docs.python.org", 80, False),
        ("docs.python.org", "https", "docs.python.org", 8443, False), ("docs.python.org", "https", "evil.docs.python.org", 443, False),
        ("*.readthedocs.io", "https", "a.readthedocs.io", 443, True), ("*.readthedocs.io", "https", "readthedocs.io", 443, False),
        ("*.readthedocs.io", "https", "readthedocs.io.evil.test", 443, False), ("https://a.test", "https", "a.test", 443, True),
        ("http://a.test", "http", "a.test", 80, True), ("http://a.test", "https", "a.test", 443, True),
        ("a.test:8443", "https", "a.test", 8443, True), ("a.test:8443", "https", "a.test", 443, False),
        ("http://[::1]:8080", "http", "::1", 8080, True), ("BÜCHER.example", "https", "xn--bcher-kva.example", 443, True),
        ("http://0x7f000001", "http", "127.0.0.1", 80, True),
    ],
)  # fmt: skip
def test_an_entry_covers_what_it_names(entry: str, scheme: str, host: str, port: int, covered: bool) -> None:
    assert HostEntry.of(entry).covers(scheme, host, port) is covered


@pytest.mark.parametrize(
    "entry",
    ["", "ftp://a.test", "https://a.test/docs", "user@a.test", "a.test:0", "a.test:99999", "a b", "*..x", "a?c"],
)
def test_an_entry_that_is_no_host_is_named(entry: str) -> None:
    assert unfit_host(entry)


@pytest.mark.parametrize(
    "url",
    [
        "https://user@docs.test/", "https://user:secret@docs.test/", "https://docs.test@evil.test/", "ftp://docs.test/", "file:///etc/passwd",
        "gopher://docs.test", "https://", "docs.test", "https://docs.test\\@evil.test/", "https://docs.test/\nHost: evil", "https://docs.test:99999/",
        "https://docs .test/", "https://docs.test/" + "x" * 9_000, "https://[::1%25eth0]/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_url_that_can_be_read_in_two_ways_or_is_none_is_refused(url: str) -> None:
    with pytest.raises(ToolFault):
        target_of(url)
