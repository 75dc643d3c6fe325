"""The options that name the database, and opening and closing the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tenure.errors import InvalidInput, StoreUnavailable
from tenure.jobs.settings import DATABASE_DEFAULT, DATABASE_VARIABLE
from tenure.stores import store_for
from tenure.stores.database_url import without_driver

if TYPE_CHECKING:
    from tenure.stores.contract import Store

T = TypeVar("T")
SQLITE_SCHEME = "sqlite:///"

_database = click.option(
    "--database",
    metavar="URL",
    envvar=DATABASE_VARIABLE,
    default=DATABASE_DEFAULT,
    show_default=True,
    show_envvar=True,
    callback=lambda _context, _option, url: without_driver(url),
    help="sqlite:///FILE or postgresql://…",
)
_app = click.option("--app", metavar="MODULE:APP", help="Use the database of this app, unless --database is given.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def common_options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of every command: --database or --app, and --json. The command receives `database` and `as_json`."""

    @wraps(command)
    def with_database(*given: Any, app: str | None, database: str, **options: Any) -> int:
        return command(*given, database=database_of(app, database), **options)

    return _app(_database(_as_json(with_database)))


def common_options_but_app(command: Callable[..., int]) -> Callable[..., int]:
    """The same without --app, for a command whose own --app means more; it calls `database_of`."""
    return _database(_as_json(command))


def database_of(app: str | None, database: str) -> str:
    """The database of the app, unless no app or another database is given on the command line."""
    if app is None:
        return database
    from tenure.cli.app_loader import load_app

    context = click.get_current_context()
    if context.get_parameter_source("database") is not ParameterSource.COMMANDLINE:
        database = load_app(app).database
    # A subcommand of a group reads the option from here.
    context.params["database"] = database
    return database


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    """The store without `open()`, for a database whose schema may not fit; closed at the end."""
    store = store_for(url)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """The opened store: its schema fits this code."""
    _require_named(url)
    async with connected(url) as store:
        _require_file(url)
        await store.open()
        yield store


def _require_named(url: str) -> None:
    """Raise InvalidInput if no database is named, and the default file does not exist, or if it is in memory."""
    if ":memory:" in url:
        raise InvalidInput("database", "is in the memory of one process; use a file such as sqlite:///jobs.db")
    if url == DATABASE_DEFAULT and not Path(DATABASE_DEFAULT.removeprefix(SQLITE_SCHEME)).exists():
        problem = "tenure.db, the default, does not exist; name another by --app MODULE:APP, --database URL or"
        raise InvalidInput("database", f"{problem} {DATABASE_VARIABLE}, or create it by `tenure migrate`")


def _require_file(url: str) -> None:
    """Raise StoreUnavailable if the SQLite file does not exist: a wrong name must not look like a new database."""
    path = url.removeprefix(SQLITE_SCHEME)
    if path != url and not Path(path).exists():
        remedy = f"correct the database's URL, or run `tenure migrate --database '{url}'` to create it"
        raise StoreUnavailable(f"{path} does not exist; {remedy}", where=path)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    return asyncio.run(work)


def in_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, run this on it, and close it."""

    async def run_opened() -> T:
        async with opened(url) as store:
            return await work(store)

    return run(run_opened())
