"""What clients saw: each request, its result if there was one, and the effects of the user's code.

This module only records. It knows nothing of stores and checks nothing: see `history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import count
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.statuses import Status


class Invoked(msgspec.Struct, frozen=True, tag="invoked"):
    """A request was sent. `op` is one verb, or several with `+` between them; `number` counts within its process."""

    process: str
    number: int
    op: str
    request_id: str
    job_id: UUID | None
    at: datetime


class Ok(msgspec.Struct, frozen=True, tag="ok"):
    """It was applied, now or before. None means unknown: a repeated request returns no revision."""

    process: str
    number: int
    job_ids: tuple[UUID, ...] = ()
    created: bool | None = None
    rev: int | None = None
    status: Status | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It was refused, so nothing was written. `refusal` is the name of the error."""

    process: str
    number: int
    refusal: str


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """No result: it was applied, or not, or will be."""

    process: str
    number: int


class Effect(msgspec.Struct, frozen=True, tag="effect"):
    """The user's code had its effect for this job and, if known, in this attempt."""

    process: str
    job_id: UUID
    attempt: int | None
    at: datetime


Answer = Ok | Failed | Unknown
Record = Invoked | Ok | Failed | Unknown | Effect

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode
_KNOWN = frozenset(OperationType)


class Call:
    """A request without a result yet. It gets at most one; without any, its outcome is unknown."""

    __slots__ = ("_answered", "_history", "_number")

    def __init__(self, history: History, number: int) -> None:
        self._history, self._number, self._answered = history, number, False

    def ok(
        self, *job_ids: UUID, created: bool | None = None, rev: int | None = None, status: Status | None = None
    ) -> None:
        """Applied. A claim names all its jobs; everything else names one job."""
        self._answer(Ok(self._history.process, self._number, job_ids, created, rev, status))

    def failed(self, refusal: str) -> None:
        """Refused, by an error of this name."""
        self._answer(Failed(self._history.process, self._number, refusal))

    def unknown(self) -> None:
        """The outcome is unknown."""
        self._answer(Unknown(self._history.process, self._number))

    def _answer(self, answer: Answer) -> None:
        if self._answered:
            raise InvalidInput("answer", f"call {self._number} was answered before; a repeated request is a new call")
        self._answered = True
        self._history.note(answer)


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request with its result, and the positions of both among the records of their process."""

    invoked: Invoked
    invoked_place: int
    answer: Answer | None = None
    answer_place: int | None = None

    @property
    def verbs(self) -> tuple[OperationType, ...]:
        return tuple(OperationType(name) for name in self.invoked.op.split("+"))

    @property
    def open(self) -> bool:
        """Whether its outcome is unknown."""
        return self.answer is None or isinstance(self.answer, Unknown)


class History:
    """What one process saw, in its order; or what several did, one process after the other.

    `process` must be a name that no other process of the run has. With `write`, each record is also written there at
    once, as a line of JSON, so that it survives a kill of the process.
    """

    def __init__(self, process: str = "main", *, write: Callable[[bytes], object] | None = None) -> None:
        self.process = process
        self.records: list[Record] = []
        self._write = write
        self._numbers = count(1)

    def invoke(self, op: str, request_id: str, job_id: UUID | None, at: datetime) -> Call:
        """A request is sent. Record it before sending: a request that is not recorded cannot be checked."""
        number = next(self._numbers)
        self.note(_checked(Invoked(self.process, number, op, request_id, job_id, at)))
        return Call(self, number)

    def effect(self, job_id: UUID, attempt: int | None, at: datetime) -> None:
        """The user's code had its effect: a row in the user's table, a payment, a mail."""
        self.note(Effect(self.process, job_id, attempt, at))

    def note(self, record: Record) -> None:
        self.records.append(record)
        if self._write is not None:
            self._write(_encode(record) + b"\n")

    def to_lines(self) -> bytes:
        """All of it as JSON Lines."""
        return b"".join(_encode(record) + b"\n" for record in self.records)

    def requests(self) -> list[RecordedRequest]:
        """Every request with its result. InvalidInput: a result without its request, or a second one."""
        found: dict[tuple[str, int], RecordedRequest] = {}
        for place, record in enumerate(self.records):
            if isinstance(record, Effect):
                continue
            key = (record.process, record.number)
            found[key] = _joined(found.get(key), record, place)
        return list(found.values())

    def effects(self) -> list[Effect]:
        return [record for record in self.records if isinstance(record, Effect)]

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """A history of these records, after checking that they fit together."""
        history = cls("several")
        history.records = list(records)
        history.requests()
        return history

    @classmethod
    def from_lines(cls, *texts: bytes) -> History:
        """Read the lines of `to_lines` or `write`, of one process or several. An incomplete last line is ignored: its
        process was killed while it wrote."""
        return cls.of(record for text in texts for record in _read(text))

    @classmethod
    def merged(cls, histories: Iterable[History]) -> History:
        """Merge several histories. Each keeps its own order; the order between them is unknown."""
        return cls.of(record for history in histories for record in history.records)


def _checked(invoked: Invoked) -> Invoked:
    verbs = invoked.op.split("+")
    if strange := [verb for verb in verbs if verb not in _KNOWN]:
        raise InvalidInput("op", f"{strange[0]!r} is no operation; it must be one of {', '.join(sorted(_KNOWN))}")
    if invoked.job_id is None and verbs[0] not in (OperationType.ENQUEUE, OperationType.CLAIM):
        raise InvalidInput("job_id", f"is missing; {invoked.op} is a request for one job")
    return invoked


def _joined(before: RecordedRequest | None, record: Invoked | Answer, place: int) -> RecordedRequest:
    where = f"call {record.number} of process {record.process!r}"
    if isinstance(record, Invoked):
        if before is not None:
            raise InvalidInput("history", f"{where} is there twice; give each process a name of its own")
        return RecordedRequest(_checked(record), place)
    if before is None:
        raise InvalidInput("history", f"{where} has an answer and was never invoked; a part of it is missing")
    if before.answer is not None:
        raise InvalidInput("history", f"{where} has two answers; give each process a name of its own")
    return RecordedRequest(before.invoked, before.invoked_place, record, place)


def _read(text: bytes) -> Iterator[Record]:
    *lines, _unfinished = text.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _decode(line)
            except msgspec.MsgspecError as problem:
                raise InvalidInput("history", f"line {number} is no record of a history: {problem}") from problem
