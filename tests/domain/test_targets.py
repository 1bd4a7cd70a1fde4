"""Where the site may be made to send, and where not."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import targets as rules
from corral.domain.errors import Refusal

EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))
PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "100.127.255.254",
    "fc00::1",
    "fd12:3456::1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "2001:db8::1",
    "192.0.0.8",
]
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:a00:1",
    "::127.0.0.1",
    "::8.8.8.8",
    "2002:7f00:1::",
    "2002:808:808::",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2001:0:1::1",
    "192.88.99.1",
    "localhost",
    "127.1",
    "0x7f000001",
    "2130706433",
    "8.8.8.8:80",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "172.15.255.255",
    "172.32.0.1",
    "100.128.0.1",
    "11.0.0.1",
    "2606:4700::1111",
    "2a00:1450:4001::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_reached(address: str) -> None:
    assert rules.may_reach(address, ())


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_reached_only_where_the_operator_opens_them(address: str) -> None:
    assert not rules.may_reach(address, ())
    assert not rules.may_reach(address, [ip_network("10.99.0.0/16")])
    assert rules.may_reach(address, EVERYTHING)


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_reached_whatever_is_opened(address: str) -> None:
    assert not rules.may_reach(address, ())
    assert not rules.may_reach(address, EVERYTHING)


@given(st.ip_addresses())
def test_what_is_public_here_is_so_for_the_standard_library_too(address: object) -> None:
    parsed = ip_address(str(address))
    if rules.is_public(str(address)):
        assert parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_in_any_ipv6_dress_is_never_reached(address: object) -> None:
    number = int(ip_address(str(address)))
    for prefix in ("::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::"):
        dressed = IPv6Address(int(IPv6Address(prefix)) + number)
        assert str(dressed) == "::1" or not rules.may_reach(str(dressed), EVERYTHING)
    assert not rules.may_reach(str(IPv6Address((0x2002 << 112) + (number << 80) + 1)), EVERYTHING)


def test_every_address_of_a_name_must_be_reachable() -> None:
    rules.check_addresses("https", ["8.8.8.8", "2606:4700::1111"], ())
    for addresses in ([], ["8.8.8.8", "10.0.0.1"], ["10.0.0.1"], ["8.8.8.8", "::ffff:8.8.8.8"]):
        with pytest.raises(Refusal) as refusal:
            rules.check_addresses("https", addresses, ())
        assert refusal.value.code == "INVALID_URL"


def test_a_name_that_does_not_exist_and_one_inside_are_refused_alike() -> None:
    refusals = []
    for addresses in ([], ["10.0.0.1"]):
        with pytest.raises(Refusal) as refusal:
            rules.check_addresses("https", addresses, ())
        refusals.append((refusal.value.message, refusal.value.details))
    assert refusals[0] == refusals[1]


def test_in_the_open_only_networks_that_the_operator_opened_are_told() -> None:
    opened = [ip_network("10.0.0.0/8")]
    rules.check_addresses("http", ["10.0.0.1"], opened)
    with pytest.raises(Refusal):
        rules.check_addresses("http", ["8.8.8.8"], opened)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://example.com", ("https", "example.com", 443, "/", "example.com")),
        ("https://example.com:8443/a?b=c", ("https", "example.com", 8443, "/a?b=c", "example.com:8443")),
        ("http://[2606:4700::1111]/x", ("http", "2606:4700::1111", 80, "/x", "[2606:4700::1111]")),
        ("HTTPS://Example.COM?x", ("https", "example.com", 443, "/?x", "example.com")),
    ],
)
def test_a_url_is_taken_apart(text: str, parts: tuple[str, str, int, str, str]) -> None:
    url = rules.url(text)
    assert (url.scheme, url.host, url.port, url.target, url.authority) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.com", "ftp://example.com", "https://", "https:///x", "https://user@example.com/"),
        *("https://user:pw@example.com/", "https://example.com#x", "https://example.com:0/", "https://example.com:x/"),
        *(
            "https://example.com:70000/",
            "https://exa mple.com/",
            "https://example.com/\r\nX: y",
            "https://ex\u00e4mple.com/",
        ),
        *("https://[::1", "https://example.com\\@evil/", "https://fe80::1%25eth0/", "https://e/" + "x" * 2000),
        *("file:///etc/passwd", "gopher://x/", "https://a%00b/"),
    ],
)
def test_what_is_no_https_url_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        rules.url(text)
    assert refusal.value.code == "INVALID_URL"


@given(st.text(max_size=60))
def test_no_text_breaks_the_reading_of_urls(text: str) -> None:
    for given_text in (text, f"https://{text}", f"https://h{text}/"):
        try:
            url = rules.url(given_text)
        except Refusal as refusal:
            assert refusal.code == "INVALID_URL"
        else:
            assert url.host and url.target.startswith("/") and "@" not in url.authority and url.target.isascii()


def test_networks_are_kept_once_and_sorted() -> None:
    assert [str(n) for n in rules.networks(["fd00::/8", "10.0.0.0/8", "10.0.0.0/8"])] == ["10.0.0.0/8", "fd00::/8"]
    for wrong in (["10.0.0.1/8"], ["x"], [""], ["10.0.0.0/8"] * 51):
        with pytest.raises(Refusal) as refusal:
            rules.networks(wrong)
        assert refusal.value.code == "INVALID_REQUEST"
