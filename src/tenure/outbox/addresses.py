"""Which addresses a webhook may connect to: the guard against server-side request forgery.

A URL comes from outside and could name a service of the sender's own network. The host is resolved once per attempt,
every address is checked, and the connection is made to one of the checked addresses and to no other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from tenure.errors import AddressRefused, InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

URL_LENGTH_MAX = 2048
_PORTS = {"https": 443, "http": 80}

_REFUSED_IPV4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of Alibaba
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # metadata of Azure, an address that looks public
        "169.254.0.0/16",  # link-local; metadata of AWS, Google and others
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
    )
)
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All IPv6 addresses that are routed. Loopback, private, link-local and multicast ones lie outside."""
_REFUSED_IPV6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo, which embeds another address
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


class Target(NamedTuple):
    """Where a URL leads: the parts of it that a request is made of."""

    scheme: str
    host: str
    port: int
    path_and_query: str


def parse_url(url: str) -> Target:
    """The target of a URL that a webhook accepts. The error does not repeat the URL, which may contain a secret."""
    if not isinstance(url, str) or not url.isascii() or not 0 < len(url) <= URL_LENGTH_MAX:
        raise InvalidInput("url", f"must be ASCII text of at most {URL_LENGTH_MAX} characters; encode other characters")
    if any(character <= " " or character in '\\"<>^`{|}\x7f' for character in url):
        raise InvalidInput("url", "contains a space, a control character, or one that a URL must encode")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidInput("url", f"cannot be parsed: {error}") from None
    if parts.scheme not in _PORTS:
        raise InvalidInput("url", "must begin with https:// or, for an allowed network, http://")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url", "must not contain a user name or password before the host")
    if parts.fragment:
        raise InvalidInput("url", "must not contain a fragment")
    if port == 0:
        raise InvalidInput("url", "must not name port 0")
    query = f"?{parts.query}" if parts.query else ""
    return Target(parts.scheme, _checked_host(host), port or _PORTS[parts.scheme], (parts.path or "/") + query)


def parse_networks(networks: Iterable[str | Network]) -> tuple[Network, ...]:
    """The networks of a setting.

    >>> parse_networks(["10.1.0.0/16", "::1"])
    (IPv4Network('10.1.0.0/16'), IPv6Network('::1/128'))
    """
    try:
        return tuple(ip_network(network) for network in networks)
    except ValueError as error:
        raise InvalidInput("allowed_networks", f"{error}; write networks like 10.1.0.0/16") from None


def is_allowed(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether a webhook may connect to the address: it is public, or in one of the allowed networks.

    >>> [is_allowed(ip_address(one)) for one in ("127.0.0.1", "::ffff:10.0.0.1", "1.1.1.1")]
    [False, False, True]
    """
    embedded = _embedded(address)
    if _is_within(address, allowed) or (embedded is not None and _is_within(embedded, allowed)):
        return True
    if embedded is not None:
        return is_allowed(embedded)
    if isinstance(address, IPv4Address):
        return not _is_within(address, _REFUSED_IPV4)
    return address in _GLOBAL_IPV6 and address.scope_id is None and not _is_within(address, _REFUSED_IPV6)


class AddressGuard:
    """Resolves hosts to addresses that a webhook may connect to."""

    def __init__(self, allowed_networks: Iterable[str | Network] = (), *, resolve: Resolve | None = None) -> None:
        self._allowed = parse_networks(allowed_networks)
        self._resolve = resolve or resolve_host
        self._literals: dict[Target, tuple[str, ...]] = {}

    async def addresses(self, target: Target) -> tuple[str, ...]:
        """All addresses of the target's host, if every one is allowed. One refused address refuses the host.

        A name is resolved in every attempt. An address stays what it is, and is checked once."""
        if (checked := self._literals.get(target)) is not None:
            return checked
        literal = _literal(target.host)
        if literal is not None:
            self._check(literal, target)
            self._literals[target] = (str(literal),)
            return self._literals[target]
        found = await self._resolve(target.host, target.port)
        addresses = [ip_address(one) for one in dict.fromkeys(found)]
        if not addresses:
            raise AddressRefused(f"host {target.host} has no address")
        for address in addresses:
            self._check(address, target)
        return tuple(str(address) for address in addresses)

    def _check(self, address: Address, target: Target) -> None:
        if not is_allowed(address, self._allowed):
            raise AddressRefused(
                f"host {target.host} has the address {address}, which is not public; "
                "add its network to TENURE_WEBHOOK_NETWORKS if webhooks may connect to it"
            )
        if target.scheme == "http" and not _is_within(_embedded(address) or address, self._allowed):
            raise AddressRefused(f"host {target.host} is in no allowed network, so use https instead of http")


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, by the system's resolver."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"host {host} cannot be resolved: {error}") from error
    return [str(address[0]) for *_, address in found]


def _checked_host(host: str) -> str:
    """The host without a trailing dot. An address must have its usual spelling: resolvers read 0177.1 as 127.0.0.1."""
    host = host.removesuffix(".")
    if not host:
        raise InvalidInput("url", "has no host")
    if "%" in host:
        raise InvalidInput("url", "must not contain an encoded character or a zone in its host")
    last = host.rpartition(".")[2]
    if _literal(host) is None and (":" in host or last.isdigit() or last.startswith("0x")):
        raise InvalidInput("url", "has an address in an unusual spelling; write it like 192.0.2.1 or [2001:db8::1]")
    return host


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that packets to this IPv6 address reach: IPv4-mapped, 6to4, NAT64."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)
