"""What clients saw: each request, the answer that came to it if one came, and the effects that the caller's code had.

A history is only written down here. It knows nothing of stores, and nothing in it is judged: see `history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import count
from uuid import UUID

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.operations import OperationType
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
    """It was done, now or before. What is None was not told: a repeated request is answered without revision."""

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
    """No answer came: it was done, or not, or will be."""

    process: str
    number: int


class Effect(msgspec.Struct, frozen=True, tag="effect"):
    """The caller's own code had its effect, for this job and (where that is known) in this attempt."""

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
    """A request that waits for its answer. It gets one at most; without any, its outcome is unknown."""

    __slots__ = ("_answered", "_history", "_number")

    def __init__(self, history: History, number: int) -> None:
        self._history, self._number, self._answered = history, number, False

    def ok(
        self, *job_ids: UUID, created: bool | None = None, rev: int | None = None, status: Status | None = None
    ) -> None:
        """Done. A claim names all jobs that it won; everything else the one job that it was about."""
        self._answer(Ok(self._history.process, self._number, job_ids, created, rev, status))

    def failed(self, refusal: str) -> None:
        """Refused, by an error of this name."""
        self._answer(Failed(self._history.process, self._number, refusal))

    def unknown(self) -> None:
        """Nobody can say."""
        self._answer(Unknown(self._history.process, self._number))

    def _answer(self, answer: Answer) -> None:
        if self._answered:
            raise InvalidInput("answer", f"call {self._number} was answered before; a repeated request is a new call")
        self._answered = True
        self._history.note(answer)


class Asked(msgspec.Struct, frozen=True):
    """A request with its answer, and the places of both among the records of their process."""

    invoked: Invoked
    invoked_place: int
    answer: Answer | None = None
    answer_place: int | None = None

    @property
    def verbs(self) -> tuple[OperationType, ...]:
        return tuple(OperationType(name) for name in self.invoked.op.split("+"))

    @property
    def open(self) -> bool:
        """Whether nobody knows what became of it."""
        return self.answer is None or isinstance(self.answer, Unknown)


class History:
    """What one process saw, in its order; or what several did, one process after the other.

    `process` must be a name that no other process of the run has. With `write`, each record also goes there at once, as
    a line of JSON, so that it outlives a process that is killed.
    """

    def __init__(self, process: str = "main", *, write: Callable[[bytes], object] | None = None) -> None:
        self.process = process
        self.records: list[Record] = []
        self._write = write
        self._numbers = count(1)

    def invoke(self, op: str, request_id: str, job_id: UUID | None, at: datetime) -> Call:
        """A request sets out. Write it down before it is sent: what was sent and is not here cannot be checked."""
        number = next(self._numbers)
        self.note(_checked(Invoked(self.process, number, op, request_id, job_id, at)))
        return Call(self, number)

    def effect(self, job_id: UUID, attempt: int | None, at: datetime) -> None:
        """The caller's own code had its effect: a row in the caller's table, a payment, a mail."""
        self.note(Effect(self.process, job_id, attempt, at))

    def note(self, record: Record) -> None:
        self.records.append(record)
        if self._write is not None:
            self._write(_encode(record) + b"\n")

    def to_lines(self) -> bytes:
        """All of it as JSON Lines."""
        return b"".join(_encode(record) + b"\n" for record in self.records)

    def asked(self) -> list[Asked]:
        """Every request with its answer. An answer without its request, or a second one, is InvalidInput."""
        found: dict[tuple[str, int], Asked] = {}
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
        """A history of these records, once they are known to fit together."""
        history = cls("several")
        history.records = list(records)
        history.asked()
        return history

    @classmethod
    def from_lines(cls, *texts: bytes) -> History:
        """What `to_lines` or `write` has left, of one process or several. A last line without its end is left out:
        whoever wrote it was killed meanwhile."""
        return cls.of(record for text in texts for record in _read(text))

    @classmethod
    def merged(cls, histories: Iterable[History]) -> History:
        """Several into one. Each keeps its own order; nothing is said about the order between them."""
        return cls.of(record for history in histories for record in history.records)


def _checked(invoked: Invoked) -> Invoked:
    verbs = invoked.op.split("+")
    if strange := [verb for verb in verbs if verb not in _KNOWN]:
        raise InvalidInput("op", f"{strange[0]!r} is no operation; it must be one of {', '.join(sorted(_KNOWN))}")
    if invoked.job_id is None and verbs[0] not in (OperationType.ENQUEUE, OperationType.CLAIM):
        raise InvalidInput("job_id", f"is missing; {invoked.op} is asked of one job")
    return invoked


def _joined(before: Asked | None, record: Invoked | Answer, place: int) -> Asked:
    where = f"call {record.number} of process {record.process!r}"
    if isinstance(record, Invoked):
        if before is not None:
            raise InvalidInput("history", f"{where} is there twice; give each process a name of its own")
        return Asked(_checked(record), place)
    if before is None:
        raise InvalidInput("history", f"{where} has an answer and was never invoked; a part of it is missing")
    if before.answer is not None:
        raise InvalidInput("history", f"{where} has two answers; give each process a name of its own")
    return Asked(before.invoked, before.invoked_place, record, place)


def _read(text: bytes) -> Iterator[Record]:
    *lines, _unfinished = text.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _decode(line)
            except msgspec.MsgspecError as problem:
                raise InvalidInput("history", f"line {number} is no record of a history: {problem}") from problem
