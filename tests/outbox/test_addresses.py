"""The guard against server-side request forgery: what URLs, hosts and addresses it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from tenure.errors import AddressRefused, InvalidInput
from tenure.outbox.addresses import URL_LENGTH_MAX, AddressGuard, is_allowed, parse_networks, parse_url

REFUSED = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254"),
    *("168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1"),
    *("100::1", "2001::1", "2001:db8::1", "3fff::1", "64:ff9b:1::1", "2606:4700::1%eth0"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1"),
]
PUBLIC = [
    "1.1.1.1",
    "100.63.255.255",
    "172.32.0.1",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "2002:101:101::1",
    "64:ff9b::1.1.1.1",
]


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_allowed(ip_address(address))


def test_an_allowed_network_allows_its_own_addresses_only() -> None:
    allowed = parse_networks(["10.1.0.0/16", "fd00::/8"])
    assert is_allowed(ip_address("10.1.2.3"), allowed)
    assert is_allowed(ip_address("::ffff:10.1.2.3"), allowed)
    assert is_allowed(ip_address("fd12::1"), allowed)
    assert not is_allowed(ip_address("10.2.0.1"), allowed)
    assert not is_allowed(ip_address("127.0.0.1"), allowed)


@pytest.mark.parametrize("network", ["10.1.0.1/16", "ten", "10.0.0.0/99", ""])
def test_a_network_that_is_none_is_refused(network: str) -> None:
    with pytest.raises(InvalidInput, match="allowed_networks"):
        parse_networks([network])


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "017700000001", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.1", "127.0.0.01"),
        *("1.1.1.0x1", "0x", "127.0.0.1.1", "999.1.1.1", "[::1%25lo]", "[::ffff:0x7f.1]", "[1.1.1.1]", "%31.1.1.1"),
    ],
)
def test_an_address_in_an_unusual_spelling_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="url"):
        parse_url(f"https://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "example.org",
            "ftp://example.org/",
            "file:///etc/passwd",
            "gopher://example.org",
            "https://",
            "https:///x",
        ),
        *(
            "https://user@example.org/",
            "https://user:secret@example.org/",
            "https://example.org@127.0.0.1/",
            "https://@a.org",
        ),
        *(
            "https://example.org/#part",
            "https://example.org:0/",
            "https://example.org:99999/",
            "https://example.org:x/",
        ),
        *(
            "https://exa mple.org/",
            "https://example.org/\r\nHost: x",
            "https://example.org\\@127.0.0.1/",
            "https://[::1/",
        ),
        *(
            "https://ex\u00e4mple.org/",
            "https://127\u30020.0.1/",
            "https://./",
            "https://a.org/" + "x" * URL_LENGTH_MAX,
        ),
    ],
)
def test_a_url_that_a_webhook_does_not_accept_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="url") as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_the_parts_of_a_url_are_those_of_the_request() -> None:
    assert parse_url("https://Example.org./a%20b?c=d&e") == ("https", "example.org", 443, "/a%20b?c=d&e")
    assert parse_url("http://[2001:DB8::1]:81") == ("http", "2001:db8::1", 81, "/")


class Resolver:
    """Answers with one list of addresses after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


async def test_a_host_is_resolved_once_and_all_its_addresses_are_returned() -> None:
    resolver = Resolver(["1.1.1.1", "2606:4700::1111", "1.1.1.1"])
    guard = AddressGuard(resolve=resolver)
    assert await guard.addresses(parse_url("https://example.org/")) == ("1.1.1.1", "2606:4700::1111")
    assert resolver.asked == [("example.org", 443)]


async def test_one_refused_address_among_several_refuses_the_host() -> None:
    guard = AddressGuard(resolve=Resolver(["1.1.1.1", "169.254.169.254"]))
    with pytest.raises(AddressRefused, match=r"example\.org has the address 169\.254\.169\.254"):
        await guard.addresses(parse_url("https://example.org/"))


async def test_a_host_is_checked_again_in_every_attempt() -> None:
    guard = AddressGuard(resolve=Resolver(["1.1.1.1"], ["127.0.0.1"]))
    assert await guard.addresses(parse_url("https://example.org/")) == ("1.1.1.1",)
    with pytest.raises(AddressRefused):
        await guard.addresses(parse_url("https://example.org/"))


async def test_a_literal_address_is_checked_without_a_resolver() -> None:
    guard = AddressGuard(resolve=Resolver())
    assert await guard.addresses(parse_url("https://1.1.1.1/")) == ("1.1.1.1",)
    for url in ("https://127.0.0.1/", "https://127.0.0.1./", "https://[::1]/", "https://[::ffff:127.0.0.1]/"):
        with pytest.raises(AddressRefused):
            await guard.addresses(parse_url(url))


@pytest.mark.parametrize("host", ["localhost", "localhost.", "LOCALHOST"])
async def test_localhost_is_refused_by_the_address_that_the_system_resolves(host: str) -> None:
    with pytest.raises(AddressRefused, match="not public"):
        await AddressGuard().addresses(parse_url(f"https://{host}/"))


async def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(AddressRefused, match="no address"):
        await AddressGuard(resolve=Resolver([])).addresses(parse_url("https://example.org/"))
    with pytest.raises(AddressRefused, match="cannot be resolved"):
        await AddressGuard().addresses(parse_url(f"https://{'a' * 64}.invalid/"))


async def test_plain_http_is_accepted_in_allowed_networks_only() -> None:
    with pytest.raises(AddressRefused, match="https"):
        await AddressGuard(resolve=Resolver(["1.1.1.1"])).addresses(parse_url("http://example.org/"))
    guard = AddressGuard(["127.0.0.0/8"])
    assert await guard.addresses(parse_url("http://127.0.0.1:8080/")) == ("127.0.0.1",)
