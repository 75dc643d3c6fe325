"""The store's SQL, read from its files: one statement each, for one set of parameters or for many rows at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from tenure.stores import sql_files

PACKAGE = "tenure.stores.sqlite"
GROUPS = (64, 16, 4, 1)
"""How many rows one statement takes, the largest group that fits first."""

_NUMBER = re.compile(r"\$\d+")
_VALUES = re.compile(r"\bvalues\s*(\([^()]*\))")

Row = tuple[Any, ...]


def sql(name: str) -> str:
    """The statement of a file, which takes its parameters from a dict."""
    return sql_files.named(PACKAGE, name)


def parameters(name: str) -> tuple[str, ...]:
    """The parameters of a statement for rows, in the order in which a row has them."""
    return sql_files.numbered(PACKAGE, name).parameters


def write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Row]) -> int:
    """Run a statement whose `values` has one row for all of these rows. How many rows of the table it changed.

    Many rows go into one statement: each statement that a trigger could abort opens a journal of its own, which costs
    as much as the row does, and each lets go of Python's lock, which a busy thread then keeps for milliseconds.
    """
    before = connection.total_changes
    first = 0
    for group in GROUPS:
        last = len(rows) - (len(rows) - first) % group
        if first < last:
            together = (tuple(chain.from_iterable(rows[at : at + group])) for at in range(first, last, group))
            connection.executemany(_for_rows(name, group), together)
            first = last
    return connection.total_changes - before


@cache
def _for_rows(name: str, times: int) -> str:
    """The statement with its one row of values as often as asked for."""
    statement = _NUMBER.sub("?", sql_files.numbered(PACKAGE, name).sql)
    return _VALUES.sub(lambda match: "values " + ", ".join([match[1]] * times), statement.strip())
