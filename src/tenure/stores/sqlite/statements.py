"""The store's SQL, read from its files: one statement each, for one set of parameters or for many rows at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from tenure.stores import sql_files

PACKAGE = "tenure.stores.sqlite"
GROUPS = (512, 64, 16, 4, 1)
"""How many rows one statement takes, the largest group that fits first."""
VALUES_MAX = 8192
"""How many values a statement may have: few enough for every SQLite, and for what it costs to prepare one."""

_NUMBER = re.compile(r"\$(\d+)")
_VALUES = re.compile(r"\bvalues\s*(\([^()]*\))")
_NOTHING: Mapping[str, object] = {}

Row = tuple[Any, ...]


def sql(name: str) -> str:
    """The statement of a file, which takes its parameters from a dict."""
    return sql_files.named(PACKAGE, name)


def takes_rows(name: str) -> bool:
    """Whether a statement has one row of values that can be repeated, since nothing of it is named elsewhere."""
    whole = sql_files.numbered(PACKAGE, name).sql
    rows = _VALUES.findall(whole)
    return len(rows) == 1 and not {*_NUMBER.findall(rows[0])} & {*_NUMBER.findall(whole.replace(rows[0], ""))}


@cache
def parameters(name: str) -> tuple[str, ...]:
    """The parameters of a statement's one row of values, in the order in which a row has them."""
    statement = sql_files.numbered(PACKAGE, name)
    [row] = _VALUES.findall(statement.sql)
    return tuple(statement.parameters[int(number) - 1] for number in _NUMBER.findall(row))


def by_name(name: str, row: Row) -> dict[str, object]:
    """A row of this statement, by the names of its parameters."""
    return dict(zip(parameters(name), row, strict=True))


def write_rows(
    connection: sqlite3.Connection, name: str, rows: Sequence[Row], shared: Mapping[str, object] = _NOTHING
) -> int:
    """Run a statement whose `values` has one row for all of these rows. How many rows of the table it changed.

    Its other parameters are the same for all rows, and taken from `shared` by their names. Many rows go into one
    statement: each statement that a trigger could abort opens a journal of its own, which costs as much as the row
    does, and each lets go of Python's lock, which a busy thread then keeps for milliseconds.
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
    """The parameters of a statement that are not in its row of values."""
    own = parameters(name)
    return tuple(parameter for parameter in sql_files.numbered(PACKAGE, name).parameters if parameter not in own)


@cache
def _for_rows(name: str, times: int) -> str:
    """The statement with its one row of values as often as asked for. What is shared has the first numbers: they are
    named ahead, so that a value without a number, which costs less to bind, has the next one."""
    statement, shared = sql_files.numbered(PACKAGE, name), _shared(name)
    [row] = _VALUES.findall(statement.sql)

    def place(match: re.Match[str]) -> str:
        return f"?{shared.index(statement.parameters[int(match[1]) - 1]) + 1}"

    before, after = statement.sql.strip().split(row)
    rows = ", ".join([_NUMBER.sub("?", row)] * times)
    whole = _NUMBER.sub(place, before) + rows + _NUMBER.sub(place, after)
    if not shared:
        return whole
    ahead = f"with ahead as (select ?{len(shared)})"
    return f"{ahead}, {whole[4:]}" if whole.startswith("with") else f"{ahead} {whole}"
