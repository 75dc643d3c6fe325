"""Reads a store's SQL from its files: one statement each, with named parameters, and numbered migrations.

A line `-- each … column: <template>` becomes the template once for each column of that list in `COLUMNS` of the store's
`rows` module, so that a list of columns stands once. In the template `{}` is the column, and `{type}` its type.

`…/select_newest_page` is not a file: it is `…/select_page` in the opposite order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from tenure.stores.contract import MigrationRecord

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_MIGRATION = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_MIN_CODE = re.compile(r"^-- min_code_version: (\d+)$", re.MULTILINE)
_PART = re.compile(r"^ *-- part: (\w+)$", re.MULTILINE)
_EACH = re.compile(r"^( *)-- each ([a-z ]+) column: (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)
_ORDER = re.compile(r"^order by \S+$", re.MULTILINE)


class Statement(msgspec.Struct, frozen=True):
    """A statement with numbered parameters, and the names that they stand for, in order."""

    name: str
    sql: str
    parameters: tuple[str, ...]


@cache
def named(package: str, name: str) -> str:
    """A statement as it stands in its file, with `:name` parameters, for drivers that take them so. What statements
    have in common stands in a file of its own, and is named by a line `-- part: …`."""
    folder = _folder(package, "queries")

    def part(match: re.Match[str]) -> str:
        return (folder / "parts" / f"{match[1]}.sql").read_text(encoding="utf-8").rstrip()

    text = (folder / f"{name.replace('/select_newest_', '/select_')}.sql").read_text(encoding="utf-8")
    if "/select_newest_" in name:
        text = _ORDER.sub(r"\g<0> desc", text.replace(" > :after", " < :after"))
    return _PART.sub(part, text)


def with_columns(package: str, sql: str) -> str:
    """The statement with its lists of columns written out."""

    def each(match: re.Match[str]) -> str:
        columns = import_module(f"{package}.rows").COLUMNS[match[2]]
        types = columns if isinstance(columns, Mapping) else {}
        each = (match[3].replace("{}", column).replace("{type}", types.get(column, "")) for column in columns)
        return match[1] + ", ".join(each)

    return _EACH.sub(each, sql)


@cache
def numbered(package: str, name: str) -> Statement:
    """The same statement with `$1`, `$2`, … in the order in which the names first appear."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    sql = _PARAMETER.sub(number, _COMMENT.sub("", with_columns(package, named(package, name))))
    return Statement(name, sql, tuple(names))


@cache
def migrations(package: str) -> tuple[MigrationRecord, ...]:
    """The migrations that this code brings, in order. Each names the oldest code that it admits."""
    found = []
    for entry in _folder(package, "migrations").iterdir():
        if match := _MIGRATION.fullmatch(entry.name):
            sql = entry.read_text(encoding="utf-8")
            least = _MIN_CODE.search(sql)
            checksum = sha256(sql.encode()).hexdigest()[:16]
            found.append(MigrationRecord(int(match[1]), match[2], checksum, sql, int(least[1]) if least else 1))
    return tuple(sorted(found, key=lambda migration: migration.number))


def script(package: str, migration: MigrationRecord) -> str:
    """The whole of a migration, its own record included: run by hand it leaves what `migrate` would."""
    facts = {
        "number": str(migration.number),
        "name": _literal(migration.name),
        "checksum": _literal(migration.checksum),
        "min_code_version": _literal(str(migration.min_code_version)),
    }
    record = (_folder(package, "migrations") / "record.sql").read_text(encoding="utf-8")
    return f"{migration.sql.rstrip()}\n\n{_PARAMETER.sub(lambda match: facts[match[1]], record)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _folder(package: str, name: str) -> Traversable:
    return files(package) / name
