"""Which file a statement comes from, and which files write. Both are derived from the code and the databases, so that a
new file is found."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg

from tenure.stores import postgres, sql_files, sqlite, user_connections
from tenure.stores.sqlite.statements import _VALUES, GROUPS, _for_rows
from tenure.stores.sqlite.statements import sql as sqlite_sql

FOLDERS = {
    "sqlite": [Path(sqlite.__path__[0])],
    "postgres": [Path(postgres.__path__[0]), Path(user_connections.__path__[0])],
}
"""The statements of user connections are for PostgreSQL; on SQLite user connections execute the store's own."""

_WRITES = re.compile(r"\b(?:insert\s+into|(?<!for )(?<!key )update\s+[\w.]+|delete\s+from)\b", re.IGNORECASE)
_CALLS = re.compile(r"\btenure\.(\w+)\s*\(")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


def files_of(store: str) -> dict[str, str]:
    """All statements of a store by the names of their files, with the folder if it is not the store's own."""
    found: dict[str, str] = {}
    for folder in FOLDERS[store]:
        queries = folder / "queries"
        for file in sorted(queries.rglob("*.sql")):
            stem = str(file.relative_to(queries).with_suffix(""))
            if stem.startswith("parts/"):
                continue
            if folder.name == "sqlite":
                found[stem] = sqlite_sql(stem)
            else:
                name = stem if folder.name == store else f"{folder.name}/{stem}"
                found[name] = sql_files.named(f"tenure.stores.{folder.name}", stem)
    return found


@cache
def _names(store: str) -> dict[str, str]:
    """The file of each statement by its text."""
    names: dict[str, str] = {}
    for name, text in files_of(store).items():
        if store == "sqlite":
            names[text.strip()] = name
            if takes_rows(name):
                names.update({_for_rows(name, group).strip(): name for group in GROUPS})
        else:
            package, stem = f"tenure.stores.{store}", name
            if name.startswith("user_connections/"):
                package, stem = "tenure.stores.user_connections", name.removeprefix("user_connections/")
            names[sql_files.numbered(package, stem).sql.strip()] = name
    return names


def takes_rows(name: str) -> bool:
    """Whether a statement has one row of values that can be repeated: no parameter of it is used elsewhere."""
    text = sqlite_sql(name)
    rows = _VALUES.findall(text)
    return len(rows) == 1 and not {*_PARAMETER.findall(rows[0])} & {*_PARAMETER.findall(text.replace(rows[0], ""))}


def name_of(store: str, sql: str) -> str | None:
    """The file that a statement comes from; None if the code builds it."""
    return _names(store).get(sql.strip())


def writing_in_sqlite(path: Path) -> set[str]:
    """The files that write according to SQLite: their programs begin a write transaction."""
    with closing(sqlite3.connect(path)) as connection:
        return {name for name, sql in files_of("sqlite").items() if _begins_writing(connection, sql)}


def _begins_writing(connection: sqlite3.Connection, sql: str) -> bool:
    values = dict.fromkeys(_PARAMETER.findall(sql))
    program = connection.execute(f"explain {sql}", values).fetchall()
    return any(opcode == "Transaction" and writes for _, opcode, _, writes, *_ in program)


def writing_in_postgres(dsn: str) -> set[str]:
    """The files that write: by a keyword in them or in a function of the schema that they call, directly or not."""
    with psycopg.connect(dsn) as connection:
        query = "select proname, prosrc from pg_proc where pronamespace = 'tenure'::regnamespace"
        functions: dict[str, str] = dict(connection.execute(query).fetchall())
    return {name for name, sql in files_of("postgres").items() if _writes(_without_comments(sql), functions, set())}


def _writes(sql: str, functions: dict[str, str], seen: set[str]) -> bool:
    if _WRITES.search(sql):
        return True
    called = [name for name in _CALLS.findall(sql) if name in functions and name not in seen]
    seen.update(called)
    return any(_writes(functions[name], functions, seen) for name in called)


def _without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql)


def files_among(store: str, sqls: Iterable[str]) -> set[str]:
    """The files that these statements come from."""
    return {name for sql in sqls if (name := name_of(store, sql)) is not None}
