"""The `--database` option, and opening and closing the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import click

from tenure.errors import InvalidInput
from tenure.jobs.settings import DATABASE_DEFAULT, DATABASE_VARIABLE
from tenure.stores import store_for

if TYPE_CHECKING:
    from tenure.stores.contract import Store

_SECRET_OPTION = re.compile(r"((?:password|listen)=)[^&]*", re.IGNORECASE)
"""URL options that are a password, or another URL that may contain one."""

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_database = click.option(
    "--database",
    metavar="URL",
    envvar=DATABASE_VARIABLE,
    default=DATABASE_DEFAULT,
    show_default=True,
    show_envvar=True,
    help="sqlite:///FILE or postgresql://…",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def common_options(command: Command) -> Command:
    """The options of every command: --database and --json."""
    return _database(_as_json(command))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    """The store without `open()`, for a database whose schema may not fit; closed at the end."""
    store = store_for(_checked(url))
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """The opened store: its schema fits this code."""
    async with connected(url) as store:
        await store.open()
        yield store


def _checked(url: str) -> str:
    """Refuse a URL with an invalid port, which a driver would report unclearly."""
    try:
        _ = urlsplit(url).port
    except ValueError as problem:
        raise InvalidInput("database", f"{without_password(url)} is not a URL: {problem}") from None
    return url


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    return asyncio.run(work)


def without_password(url: str) -> str:
    """The URL for output and logs.

    >>> without_password("postgresql://ada:secret@db.example.org/jobs")
    'postgresql://ada:***@db.example.org/jobs'
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("://")[0] + "://…"
    account, at, address = parts.netloc.rpartition("@")
    name, colon, _ = account.partition(":")
    netloc = f"{name}:***{at}{address}" if colon else parts.netloc
    query = _SECRET_OPTION.sub(r"\1***", parts.query)
    return (
        url
        if (netloc, query) == (parts.netloc, parts.query)
        else urlunsplit((parts.scheme, netloc, parts.path, query, ""))
    )
