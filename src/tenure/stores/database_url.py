"""Database URLs: parsed in one place, and shown from the parsed parts, so that no password is ever printed.

A password with `/`, `?`, `#`, `@` or brackets that are not percent-encoded would be parsed as a part of the host, the
path or the options. Such a URL is refused, and nothing of it but its scheme is shown.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import msgspec

from tenure.errors import InvalidInput

PORT_MAX = 65_535
POSTGRES = ("postgresql", "postgres")
SQLITE = "sqlite"
SHOWN_OPTIONS = frozenset({"user", "host", "port", "dbname", "database", "sslmode", "pooler", "connect_timeout"})
SECRET_OPTIONS = frozenset({"password", "sslpassword", "passfile", "listen"})
"""Shown without their values. Options that are in neither set are not shown: they may be a part of a password."""
_HOST = r"(?:\[[0-9A-Za-z:.%]+\]|[^\s:/?#@\[\],&=]*)(?::[0-9]*)?"
_URL = re.compile(
    r"(?P<scheme>[a-z]+)://"
    r"(?:(?P<user>[^:/?#@\[\]]*)(?P<password>:[^/?#@\[\]]*)?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[^/?#@]*)?"
    r"(?:\?(?P<query>[^#]*))?"
)
_DRIVER = re.compile(r"^(postgresql|postgres|sqlite)\+[a-z0-9_]+(?=://)")
_LISTEN = re.compile(r"(?<![^&])listen=postgres(?:ql)?://[^&]*")
_FILE = re.compile(r"[\w./-]+\.(?:db|sqlite3?)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def without_driver(url: str) -> str:
    """The URL without the driver that SQLAlchemy writes into its scheme.

    >>> without_driver("postgresql+asyncpg://localhost/shop")
    'postgresql://localhost/shop'
    """
    return _DRIVER.sub(r"\1", url)


class PostgresUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL, percent-encoded as they were given. The password is left out."""

    scheme: str
    user: str | None
    has_password: bool
    hosts: str
    path: str
    query: str

    @property
    def shown(self) -> str:
        """The URL without anything secret."""
        account = "" if self.user is None else f"{self.user}{':***' if self.has_password else ''}@"
        options = []
        for part in self.query.split("&"):
            name, separator, _ = part.partition("=")
            if name.lower() in SECRET_OPTIONS:
                options.append(f"{name}{separator}***")
            elif name.lower() in SHOWN_OPTIONS:
                options.append(part)
        return f"{self.scheme}://{account}{self.hosts}{self.path}{'?' if options else ''}{'&'.join(options)}"

    @property
    def place(self) -> str:
        """Which database it is, in words."""
        return f"PostgreSQL database {self.path.lstrip('/') or 'postgres'} at {self.hosts or 'the local socket'}"


def parse_postgres_url(url: str) -> PostgresUrl:
    """The parts of a PostgreSQL URL, or InvalidInput, whose message has nothing of the URL but its scheme."""
    match = _URL.fullmatch(url)
    scheme = url.partition("://")[0]
    if match is None or match["scheme"] not in POSTGRES or _CONTROL.search(url) or not _sound(match):
        shown = f"{scheme}://…" if scheme in POSTGRES else "it"
        raise InvalidInput(
            "database",
            f"{shown} is not a URL like postgresql://user:password@host:5432/name; "
            "percent-encode special characters in user and password "
            "(/ is %2F, ? is %3F, # is %23, @ is %40, [ is %5B, ] is %5D)",
        )
    return PostgresUrl(
        scheme=match["scheme"],
        user=match["user"],
        has_password=match["password"] is not None,
        hosts=match["hosts"],
        path=match["path"] or "",
        query=match["query"] or "",
    )


def shown_url(url: str) -> str:
    """A database URL for output and logs.

    >>> shown_url("postgresql://ada:secret@db.example.org/jobs")
    'postgresql://ada:***@db.example.org/jobs'
    """
    scheme, separator, rest = url.partition("://")
    if scheme == SQLITE and (rest.startswith("/") or rest == ":memory:"):
        return url
    try:
        return parse_postgres_url(url).shown
    except InvalidInput:
        return f"{scheme}://…" if separator and scheme.isalnum() else "…"


def check_scheme(url: str) -> str:
    """The URL, if it is one of SQLite or PostgreSQL."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in (SQLITE, *POSTGRES):
        raise unknown_database(url)
    return url


def unknown_database(url: str) -> InvalidInput:
    """The refusal of a URL of no known database. It shows no text that might be a password.

    >>> str(unknown_database("shop.db"))
    'database: shop.db is neither sqlite:///… nor postgresql://…; as a URL, the file is sqlite:///shop.db'
    """
    is_file = _FILE.fullmatch(url)
    shown, remedy = (url, f"; as a URL, the file is sqlite:///{url}") if is_file else (shown_url(url), "")
    if shown == "…":
        shown = "the URL"
    return InvalidInput("database", f"{shown} is neither sqlite:///… nor postgresql://…{remedy}")


def url_options(parsed: PostgresUrl) -> dict[str, str]:
    """The options of the query, decoded."""
    return dict(parse_qsl(parsed.query, keep_blank_values=True))


def _sound(match: re.Match[str]) -> bool:
    """Whether ports are ports, and no `@` follows the host: what was parsed as host, path or options may then be a
    password. Only the URL of `listen` may have one."""
    ports = re.findall(r":([0-9]+)(?:,|$)", match["hosts"])
    return all(int(port) <= PORT_MAX for port in ports) and "@" not in _LISTEN.sub("", match["query"] or "")
