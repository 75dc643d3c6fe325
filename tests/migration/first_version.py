"""Writes down what the first version of the schema holds: rows and events of jobs in every status, as SQL.

`python -m tests.migration.first_version` was run once for it. Later versions must go on reading what it wrote, so it
is run again only as long as that version has not been released.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import psycopg
from psycopg import sql

from tenure.stores import migrations_for
from tenure.testing.driver import Driver
from tests.support.databases import Database
from tests.support.postgres import PostgresServer
from tests.support.sample_jobs import one_of_each

FOLDER = Path(__file__).parent
TABLES = ("policies", "jobs", "events", "claims", "dead_letters", "signals", "deduplicated_requests")


async def _fill(database: Database) -> None:
    async with database.opened() as store:
        await one_of_each(Driver(store))


def _sqlite() -> str:
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/jobs.db")
        asyncio.run(_fill(database))
        with closing(sqlite3.connect(database.path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def checksum_line(url: str) -> str:
    """The first line of a fixture: the checksum of the migration that it was written with."""
    return f"-- 0001_initial {migrations_for(url)[0].checksum}\n"


def _postgres() -> str:
    """The data alone: the first migration makes the tables."""
    with PostgresServer(fsync=False) as server:
        database = Database(server.create_database())
        asyncio.run(_fill(database))
        with psycopg.connect(database.url) as connection:
            return checksum_line(database.url) + "".join(_inserts(connection, table) for table in TABLES)


def _inserts(connection: psycopg.Connection, table: str) -> str:
    rows = connection.execute(sql.SQL("select * from tenure.{}").format(sql.Identifier(table)))
    columns = [column.name for column in rows.description or ()]
    statement = sql.SQL("insert into tenure.{} ({}) overriding system value values ({});\n")
    return "".join(
        statement.format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ").join(map(sql.Literal, row)),
        ).as_string(connection)
        for row in rows
    )


if __name__ == "__main__":
    (FOLDER / "first_version.sqlite.sql").write_text(_sqlite(), encoding="utf-8")
    (FOLDER / "first_version.postgres.sql").write_text(_postgres(), encoding="utf-8")
