"""The store's SQL, read from queries/<table>/<verb>_<noun>.sql: one statement each, for one set of parameters or for
many rows at once. Only archives use generated statements: they move whole rows, whatever the columns.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain

from tenure.stores import sql_files
from tenure.stores.sqlite.values import Row

PACKAGE = "tenure.stores.sqlite"
GROUPS = (512, 64, 16, 4, 1)
"""How many rows one statement takes, the largest group that fits first."""
VALUES_MAX = 8192
"""How many values a statement may have: few enough for every SQLite, and for the cost of preparing it."""

_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PARAMETER = re.compile(r":([a-z_]+)")
_VALUES = re.compile(r"\bvalues\s*(\([^()]*\))")
_NOTHING: Mapping[str, object] = {}


@cache
def sql(name: str) -> str:
    """The statement of a file, such as "jobs/claim", which takes its parameters from a mapping."""
    return _COMMENT.sub("", sql_files.with_columns(PACKAGE, sql_files.named(PACKAGE, name))).strip()


@cache
def select_page(table: str, key: tuple[str, ...]) -> str:
    """The rows of a table that follow a key, in the order of that key."""
    columns, values = ", ".join(key), ", ".join(f":{column}" for column in key)
    return f"select * from tenure_{table} where ({columns}) > ({values}) order by {columns} limit :limit"  # noqa: S608


@cache
def select_of_jobs(table: str, columns: tuple[str, ...], key: str) -> str:
    """The rows of a table that belong to some jobs, each job's in the order of the key."""
    of_jobs = "where job_id in (select value from json_each(:ids))"
    return f"select {', '.join(columns)} from tenure_{table} {of_jobs} order by job_id, {key}"  # noqa: S608


@cache
def insert(table: str, columns: tuple[str, ...]) -> str:
    """Insert a row as it was when it was archived. Refused where its key is in use."""
    values = ", ".join(f":{column}" for column in columns)
    return f"insert into tenure_{table} ({', '.join(columns)}) values ({values})"  # noqa: S608


@cache
def parameters(name: str) -> tuple[str, ...]:
    """The parameters of a statement's one row of values, in order."""
    [row] = _VALUES.findall(sql(name))
    return tuple(_PARAMETER.findall(row))


def by_name(name: str, row: Row) -> dict[str, object]:
    """A row of values of this statement, by the names of its parameters."""
    return dict(zip(parameters(name), row, strict=True))


def write_rows(
    connection: sqlite3.Connection, name: str, rows: Sequence[Row], shared: Mapping[str, object] = _NOTHING
) -> int:
    """Run a statement whose `values` has one row for all of these rows. Returns how many rows of the table changed.

    Its other parameters are the same for all rows, and taken from `shared` by name. Many rows share one statement: each
    statement that a trigger could abort opens a journal of its own, which costs as much as the row does, and each
    releases the GIL, which a busy thread then keeps for milliseconds.
    """
    before = connection.total_changes
    common = [shared[parameter] for parameter in _shared(name)]
    groups_max = VALUES_MAX // len(parameters(name))
    first = 0
    for group in GROUPS:
        last = len(rows) - (len(rows) - first) % group
        if first < last and (group <= groups_max or group == 1):
            together = ((*common, *chain.from_iterable(rows[at : at + group])) for at in range(first, last, group))
            connection.executemany(_for_rows(name, group), together)
            first = last
    return connection.total_changes - before


@cache
def _shared(name: str) -> tuple[str, ...]:
    """The parameters of a statement outside its row of values, in the order of their first use."""
    own = parameters(name)
    return tuple(parameter for parameter in dict.fromkeys(_PARAMETER.findall(sql(name))) if parameter not in own)


@cache
def _for_rows(name: str, times: int) -> str:
    """The statement with its row of values repeated. Shared parameters have the first numbers, and are declared first,
    so that each value of a row takes the next number without naming it, which costs less to bind."""
    statement, shared = sql(name), _shared(name)
    [row] = _VALUES.findall(statement)

    def numbered(match: re.Match[str]) -> str:
        return f"?{shared.index(match[1]) + 1}"

    before, after = statement.split(row)
    rows = ", ".join([_PARAMETER.sub("?", row)] * times)
    whole = _PARAMETER.sub(numbered, before) + rows + _PARAMETER.sub(numbered, after)
    if not shared:
        return whole
    declared = f"with declared as (select ?{len(shared)})"
    return f"{declared}, {whole[4:]}" if whole.startswith("with") else f"{declared} {whole}"
