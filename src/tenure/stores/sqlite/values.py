"""Column values: how times, ids and JSON are encoded into SQLite's types, and decoded from them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from tenure.stores.sqlite.connect import UnreadableText

T = TypeVar("T", bound=msgspec.Struct)
Row = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOLEANS = frozenset({"prunes"})
_JSON = frozenset({"job_ids", "queues", "kinds"})
_encode = msgspec.json.encode


def json_list(values: Iterable[object]) -> str:
    """Values as the JSON text that `json_each` expands."""
    return _encode(list(values)).decode()


def text(id_: UUID) -> str:
    """An id as a column value. Four times as fast as `str`."""
    written: str = msgspec.to_builtins(id_)
    return written


def id_of(written: str) -> UUID:
    """The id of a column value. Three times as fast as `UUID`."""
    return msgspec.convert(written, UUID)


@lru_cache(maxsize=4096)
def micros(value: datetime) -> int:
    """Microseconds since 1970. Cached, since the records of a batch share most of their timestamps.

    >>> micros(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@lru_cache(maxsize=4096)
def timestamp(value: int) -> datetime:
    """The time that is so many microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=value)


def optional_micros(value: datetime | None) -> int | None:
    return None if value is None else micros(value)


def optional_timestamp(value: int | None) -> datetime | None:
    return None if value is None else timestamp(value)


def require_text(row: Row, columns: Sequence[str]) -> None:
    """ValueError: one of these columns, with which the row begins, is no UTF-8."""
    for name, value in zip(columns, row, strict=False):
        if type(value) is UnreadableText:
            raise ValueError(f"{name} is no UTF-8: {value}")


def encode_record(record: msgspec.Struct) -> dict[str, object]:
    """The columns of a record whose fields have their names."""
    return {name: encode_value(getattr(record, name)) for name in record.__struct_fields__}


def encode_value(value: object) -> object:
    match value:
        case UUID():
            return text(value)
        case datetime():
            return micros(value)
        case bool():
            return int(value)
        case str():
            return str(value)
        case tuple() | list() | dict():
            return _encode(value).decode()
    return value


def decode_records(kind: type[T], rows: sqlite3.Cursor) -> list[T]:
    """The records of rows whose columns have the names of the record's fields."""
    return [decode_record(kind, row) for row in named_rows(rows)]


def decode_record(kind: type[T], row: Mapping[str, Any], **others: object) -> T:
    """The record of a row whose columns have the names of the record's fields. `others` are fields without a column."""
    facts = {name: decode_value(name, row[name]) for name in kind.__struct_fields__ if name not in others}
    return msgspec.convert(facts | others, kind)


def named_rows(rows: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """Rows by column name."""
    names = [column[0] for column in rows.description]
    for row in rows:
        yield dict(zip(names, row, strict=True))


def decode_value(name: str, value: Any) -> Any:
    """A column's value, by the name of the column."""
    if value is not None and (name == "at" or name.endswith("_at")):
        return timestamp(value)
    if name in _BOOLEANS:
        return bool(value)
    return msgspec.json.decode(value) if name in _JSON else value
