"""`tenure migrate`: apply pending migrations, or show their SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import click

from tenure.cli.database import common_options, connected, run
from tenure.cli.groups import CommandGroup
from tenure.cli.output import Exit, counted, print_json, print_line
from tenure.stores import migrations_for, script_for
from tenure.stores.database_url import shown_url
from tenure.stores.postgres.grants import KINDS, grants_sql
from tenure.stores.schema import require_fit

if TYPE_CHECKING:
    from tenure.stores.contract import MigrationRecord, SchemaState

T = TypeVar("T")


@runtime_checkable
class RebasableStore(Protocol):
    """A store whose positions depend on the server that the database is on."""

    async def rebase_log(self) -> int: ...


@click.group(cls=CommandGroup, invoke_without_command=True)
@common_options
@click.option("--dry-run", is_flag=True, help="Show what would be applied; apply nothing.")
@click.pass_context
def migrate(context: click.Context, *, database: str, as_json: bool, dry_run: bool) -> int:
    """Apply the pending migrations of a database."""
    if context.invoked_subcommand is not None:
        return Exit.OK
    migrations = run(_pending(database)) if dry_run else run(_apply(database))
    _report(migrations, database, as_json=as_json, dry_run=dry_run)
    return Exit.OK


@migrate.command()
@common_options
@click.option("--all", "every", is_flag=True, help="All migrations of this version; needs no database.")
@click.pass_context
def sql(context: click.Context, *, database: str, as_json: bool, every: bool) -> int:
    """Print the SQL of the pending migrations."""
    database = _inherited(context, "database", database)
    as_json = _inherited(context, "as_json", as_json)
    migrations = list(migrations_for(database)) if every else run(_pending(database))
    if as_json:
        print_json(
            {"migrations": [{**_fields(migration), "sql": script_for(database, migration)} for migration in migrations]}
        )
        return Exit.OK
    for migration in migrations:
        print_line(
            f"-- {_title(migration)}, checksum {migration.checksum}\n{script_for(database, migration).rstrip()}\n"
        )
    if not migrations:
        print_line("-- no pending migrations")
    return Exit.OK


@migrate.command()
@common_options
@click.pass_context
def rebase(context: click.Context, *, database: str, as_json: bool) -> int:
    """Give a log that was restored from a dump of another cluster new positions.

    The order of events stays. Readers begin at the start of the log, or read events again. As the owner of the schema;
    workers may run, and wait until it ends.
    """
    database = _inherited(context, "database", database)
    as_json = _inherited(context, "as_json", as_json)
    events = run(_rebase(database))
    if as_json:
        print_json({"database": shown_url(database), "events": events})
    elif events:
        print_line(f"rebased {counted(events, 'event')}")
    else:
        print_line(f"{shown_url(database)} has no positions of another cluster")
    return Exit.OK


@migrate.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("role")
def grants(*, kind: str, role: str) -> int:
    """Print the SQL that gives a role of PostgreSQL its privileges.

    A caller may only call tenure.enqueue and tenure.signal. A reader reads everything but tokens. An enqueuer also
    enqueues. A worker runs and operates jobs. Run the SQL as the role that ran `tenure migrate`, and again after each
    migration.
    """
    print_line(grants_sql(kind, role).rstrip())
    return Exit.OK


async def _pending(database: str) -> list[MigrationRecord]:
    async with connected(database) as store:
        state: SchemaState = await store.schema()
        return state.pending


async def _rebase(database: str) -> int:
    async with connected(database) as store:
        require_fit(await store.schema(), where=shown_url(database), url=shown_url(database))
        # Only PostgreSQL has positions that depend on the cluster.
        return await store.rebase_log() if isinstance(store, RebasableStore) else 0


async def _apply(database: str) -> list[MigrationRecord]:
    async with connected(database) as store:
        return await store.migrate()


def _report(migrations: Sequence[MigrationRecord], database: str, *, as_json: bool, dry_run: bool) -> None:
    shown = shown_url(database)
    if as_json:
        listed = [_fields(migration) for migration in migrations]
        print_json({"database": shown, "dry_run": dry_run, "pending" if dry_run else "applied": listed})
        return
    for migration in migrations:
        print_line(f"{'would apply' if dry_run else 'applied'} {_title(migration)} to {shown}")
    if not migrations:
        print_line(f"{shown} is up to date")


def _title(migration: MigrationRecord) -> str:
    return f"{migration.number:04d}_{migration.name}"


def _fields(migration: MigrationRecord) -> dict[str, object]:
    return {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "min_code_version": migration.min_code_version,
    }


def _inherited(context: click.Context, name: str, value: T) -> T:
    """An option given before `sql` applies unless it is repeated after it."""
    source = context.get_parameter_source(name)
    given_here = source is click.core.ParameterSource.COMMANDLINE or (name == "database" and context.params.get("app"))
    return value if given_here or context.parent is None else context.parent.params[name]
