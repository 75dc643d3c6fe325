"""The outbox on SQLite: leases streams to processors, and records deliveries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from tenure.lifecycle.json_text import check_name, check_seconds, check_text
from tenure.lifecycle.records import Actor, Role
from tenure.stores.contract import Resolution, UnreadableRow
from tenure.stores.contract.outbox import (
    ClaimDeliveries,
    DeliveryAttempt,
    DeliveryRecord,
    EndpointDepth,
    EndpointRecord,
    EndpointSource,
    LeasedStream,
    MessageFilter,
    OutboxDepth,
    PendingRecord,
    Settlement,
    StoredMessage,
    SubscriptionRecord,
)
from tenure.stores.outbox_rows import MESSAGE, stored_message
from tenure.stores.outbox_validation import validate_claim_deliveries, validate_endpoint, validate_settlements
from tenure.stores.quarantine import decode_each
from tenure.stores.sqlite.connections import SqliteConnections
from tenure.stores.sqlite.session import Session
from tenure.stores.sqlite.values import (
    Row,
    decode_record,
    decode_records,
    decode_value,
    id_of,
    json_list,
    micros,
    named_rows,
    optional_timestamp,
    text,
    timestamp,
)
from tenure.stores.validation import validate_page


class SqliteOutbox:
    """The outbox of one file, for processors and operators."""

    def __init__(self, connections: SqliteConnections) -> None:
        self._write, self._read = connections.write, connections.read

    # The processor's part.

    async def endpoints(self) -> list[EndpointRecord]:
        return await self._read(list_endpoints)

    async def claim(self, request: ClaimDeliveries) -> list[LeasedStream]:
        validate_claim_deliveries(request)
        return await self._write(_claim, request) if request.limits else []

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        validate_settlements(settlements)
        return await self._write(_settle, settlements) if settlements else []

    async def mark_seen(self, endpoints: Sequence[str]) -> None:
        await self._write(_update, "endpoints/mark_seen", {"names": json_list(endpoints)})

    async def mark_failing(self, endpoint: str, *, failing: bool) -> None:
        await self._write(_update, "endpoints/mark_failing", {"name": endpoint, "failing": failing})

    async def throttle(self, endpoint: str, *, seconds: float) -> None:
        check_seconds(seconds, "seconds")
        await self._write(_throttle, endpoint, seconds)

    async def warn(
        self, endpoint: str, *, failing_since: datetime, every_seconds: float, because: str, actor: Actor
    ) -> bool:
        check_text(because, "because")
        check_seconds(every_seconds, "every_seconds")
        return await self._write(_warn, endpoint, failing_since, every_seconds, because, actor)

    async def disable(
        self, endpoint: str, *, because: str, actor: Actor, failing_since: datetime | None = None
    ) -> bool:
        check_text(because, "because")
        guard = {"because": because, "failing_since": None if failing_since is None else micros(failing_since)}
        return await self._write(_change, "disable", endpoint, actor, {"because": because}, guard)

    # The operator's part.

    async def enable(self, endpoint: str, *, actor: Actor) -> bool:
        return await self._write(_change, "enable", endpoint, actor)

    async def put_endpoint(
        self,
        name: str,
        *,
        kind: str,
        config: str | None = None,
        source: EndpointSource = "operator",
        subscriptions: Sequence[SubscriptionRecord],
        actor: Actor,
    ) -> EndpointRecord:
        validate_endpoint(name, kind=kind, config=config, subscriptions=subscriptions)
        endpoint = {"name": name, "kind": kind, "config": config, "source": source}
        return await self._write(_put_endpoint, endpoint, subscriptions, actor)

    async def delete_endpoint(self, name: str, *, actor: Actor) -> bool:
        return await self._write(_delete_endpoint, name, actor)

    async def depth(self) -> OutboxDepth:
        return await self._read(_depth)

    async def messages(self, wanted: MessageFilter, *, after: int = 0, limit: int = 100) -> list[StoredMessage]:
        validate_page(limit)
        return await self._read(_messages, wanted, after, limit)

    async def message(self, message_id: UUID) -> StoredMessage | None:
        found = await self._read(_select_messages, "outbox/select", {"id": str(message_id)})
        return found[0] if found else None

    async def deliveries(self, sequence: int) -> list[DeliveryRecord]:
        return await self._read(_select, DeliveryRecord, "deliveries/select_of_message", {"sequence": sequence})

    async def pending(self, sequence: int) -> list[PendingRecord]:
        return await self._read(_select, PendingRecord, "pending/select_of_message", {"sequence": sequence})

    async def resolve(
        self, endpoint: str, *, how: Resolution, sequences: Sequence[int] | None = None, actor: Actor
    ) -> int:
        return await self._write(_resolve, endpoint, how, sequences, actor)

    async def replay(self, endpoint: str, *, since: datetime, actor: Actor) -> int:
        return await self._write(_replay, endpoint, since, actor)


def _select(session: Session, kind: Any, statement: str, parameters: dict[str, Any]) -> list[Any]:
    return decode_records(kind, session.execute(statement, parameters))


def _update(session: Session, statement: str, parameters: dict[str, Any]) -> int:
    return session.execute(statement, {**parameters, "now": micros(session.now)}).rowcount


def list_endpoints(
    session: Session, name: str | None = None, unreadable: list[UnreadableRow] | None = None
) -> list[EndpointRecord]:
    """The endpoints with their subscriptions; or the one of this name."""
    by_endpoint: defaultdict[str, list[SubscriptionRecord]] = defaultdict(list)
    subscriptions = decode_each(
        named_rows(session.execute("subscriptions/select")),
        lambda row: decode_record(SubscriptionRecord, row),
        lambda row: f"subscription of endpoint {row['endpoint']!r} to {row['topic']!r}",
        unreadable,
    )
    for one in subscriptions:
        by_endpoint[one.endpoint].append(one)

    def read(row: dict[str, Any]) -> EndpointRecord:
        failing_seconds = _seconds_since(session, decode_value("failing_since_at", row["failing_since_at"]))
        subscriptions = tuple(by_endpoint[row["name"]])
        return decode_record(EndpointRecord, row, failing_seconds=failing_seconds, subscriptions=subscriptions)

    rows = named_rows(session.execute("endpoints/select", {"name": name}))
    return decode_each(rows, read, lambda row: f"endpoint {row['name']!r}", unreadable)


def _seconds_since(session: Session, at: datetime | None) -> float | None:
    return None if at is None else (session.now - at).total_seconds()


def _claim(session: Session, request: ClaimDeliveries) -> list[LeasedStream]:
    until_at = micros(session.now + timedelta(seconds=request.lease_seconds))
    lease = {"owner": request.owner, "token": text(request.token), "until_at": until_at}
    streams = []
    for endpoint in sorted(request.limits):
        due = {"endpoint": endpoint, "now": micros(session.now), "limit": request.limits[endpoint]}
        rows = session.execute("pending/claim", {**due, **lease}).fetchall()
        streams += _leased(session, request, endpoint, sorted(rows, key=lambda row: row[:2]))
    return streams


def _leased(session: Session, request: ClaimDeliveries, endpoint: str, rows: Sequence[Row]) -> list[LeasedStream]:
    """The leased streams of an endpoint with their next messages: two statements, however many streams."""
    if not rows:
        return []
    wanted = json_list((aggregate, position, last, only) for aggregate, only, position, last, *_ in rows)
    messages = _messages_of(session, wanted, request.messages_max)
    firsts = [(at, of[0].aggregate, of[0].sequence) for at, of in messages.items() if of[0].aggregate is not None]
    before = {"endpoint": endpoint, "streams": json_list(first[1:] for first in firsts)}
    found = session.execute("deliveries/select_previous", before)
    previous = {at: sequence for (at, *_), (sequence,) in zip(firsts, found, strict=True)}
    return [
        LeasedStream(
            endpoint=endpoint,
            aggregate=aggregate,
            only_sequence=only_sequence,
            token=request.token,
            position=position,
            last_sequence=last_sequence,
            attempts=attempts,
            blocked_seconds=_seconds_since(session, optional_timestamp(head_at)) or 0.0,
            previous=previous.get(at),
            messages=tuple(messages.get(at, ())),
        )
        for at, (aggregate, only_sequence, position, last_sequence, attempts, head_at) in enumerate(rows)
    ]


def _messages_of(session: Session, streams: str, limit: int) -> dict[int, list[StoredMessage]]:
    """The next messages of leased streams, by the place of their stream."""
    found: defaultdict[int, list[StoredMessage]] = defaultdict(list)
    for row in session.execute("outbox/select_of_streams", {"streams": streams, "limit": limit}):
        place, *values = row
        found[place].append(_message(values))
    return found


def _select_messages(session: Session, statement: str, parameters: dict[str, Any]) -> list[StoredMessage]:
    return [_message(row) for row in session.execute(statement, parameters)]


def _message(values: Sequence[Any]) -> StoredMessage:
    row = dict(zip(MESSAGE, values, strict=True))
    job_id = None if row["job_id"] is None else id_of(row["job_id"])
    return stored_message({**row, "id": id_of(row["id"]), "job_id": job_id, "at": _readable(row["at"])})


def _readable(at: Any) -> datetime | None:
    try:
        return timestamp(at)
    except (OverflowError, TypeError):
        return None


def _settle(session: Session, settlements: Sequence[Settlement]) -> list[bool]:
    given = {"now": micros(session.now), "settlements": json_list(_settled(session, one) for one in settlements)}
    written = set(session.execute("pending/delete_done", given).fetchall())
    if len(written) < len(settlements):
        written |= set(session.execute("pending/settle", given).fetchall())
    held = [(one.endpoint, one.aggregate, one.only_sequence) in written for one in settlements]
    settled = [one for one, is_held in zip(settlements, held, strict=True) if is_held]
    session.write_rows("deliveries/insert", [row for one in settled for row in _delivery_rows(one, given["now"])])
    for one in settled:
        for made in one.deliveries:
            if made.outcome == "dead":
                _log_dead_letter(session, one, made)
    return held


def _settled(session: Session, one: Settlement) -> dict[str, Any]:
    seconds = one.due_seconds if one.lease_seconds is None else one.lease_seconds
    return {
        "endpoint": one.endpoint,
        "aggregate": one.aggregate,
        "only_sequence": one.only_sequence,
        "token": text(one.token),
        "position": one.position,
        "attempts": one.attempts,
        "keep": one.lease_seconds is not None,
        "due_at": micros(session.now + timedelta(seconds=seconds)),
    }


def _delivery_rows(one: Settlement, now: Any) -> list[Row]:
    return [
        (
            *(one.endpoint, made.aggregate or "", made.sequence, made.attempt, now),
            *(made.outcome, made.status, made.duration_ms, made.error),
        )
        for made in one.deliveries
    ]


def _log_dead_letter(session: Session, one: Settlement, made: DeliveryAttempt) -> None:
    found = _select_messages(session, "outbox/select_by_sequence", {"sequence": made.sequence})
    facts = {
        "endpoint": one.endpoint,
        "sequence": made.sequence,
        "message": str(found[0].id) if found else None,
        "topic": found[0].topic if found else None,
        "attempt": made.attempt,
        "error": made.error,
    }
    session.log_operator("dead_letter_message", Actor(Role.OUTBOX, one.owner), facts)


def _throttle(session: Session, endpoint: str, seconds: float) -> None:
    until_at = micros(session.now + timedelta(seconds=seconds))
    session.execute("endpoints/throttle", {"name": endpoint, "until_at": until_at})


def _warn(
    session: Session, name: str, failing_since: datetime, every_seconds: float, because: str, actor: Actor
) -> bool:
    before = micros(session.now - timedelta(seconds=every_seconds))
    guard = {"failing_since": micros(failing_since), "before": before}
    return _change(session, "warn", name, actor, {"because": because}, guard)


def _change(
    session: Session,
    action: str,
    name: str,
    actor: Actor,
    facts: dict[str, Any] | None = None,
    guard: dict[str, Any] | None = None,
) -> bool:
    check_name(name, "endpoint")
    if not _update(session, f"endpoints/{action}", {"name": name, **(guard or {})}):
        return False
    session.log_operator(f"{action}_endpoint", actor, {"endpoint": name, **(facts or {})})
    return True


def _put_endpoint(
    session: Session, endpoint: dict[str, Any], subscriptions: Sequence[SubscriptionRecord], actor: Actor
) -> EndpointRecord:
    name, topics = endpoint["name"], [one.topic for one in subscriptions]
    if _update(session, "endpoints/put", endpoint):
        session.log_operator("put_endpoint", actor, {"endpoint": name, "kind": endpoint["kind"], "topics": topics})
    session.execute("subscriptions/delete_others", {"endpoint": name, "topics": json_list(topics)})
    for one in subscriptions:
        _update(session, "subscriptions/put", msgspec.structs.asdict(one))
    [record] = list_endpoints(session, name)
    return record


def _delete_endpoint(session: Session, name: str, actor: Actor) -> bool:
    check_name(name, "endpoint")
    session.execute("subscriptions/delete_others", {"endpoint": name, "topics": "[]"})
    session.execute("pending/delete_of_endpoint", {"endpoint": name})
    deleted = session.execute("endpoints/delete", {"name": name}).rowcount > 0
    if deleted:
        session.log_operator("delete_endpoint", actor, {"endpoint": name})
    return deleted


def _depth(session: Session) -> OutboxDepth:
    [unserved] = session.execute("outbox/count_unserved").fetchone()
    endpoints = decode_records(EndpointDepth, session.execute("outbox/count_depth"))
    return OutboxDepth(at=session.now, endpoints=tuple(endpoints), unserved=unserved)


def _messages(session: Session, wanted: MessageFilter, after: int, limit: int) -> list[StoredMessage]:
    values = msgspec.structs.asdict(wanted)
    values["job_id"] = None if wanted.job_id is None else text(wanted.job_id)
    return _select_messages(session, "outbox/select_page", {**values, "after": after, "limit": limit})


def _resolve(session: Session, endpoint: str, how: Resolution, sequences: Sequence[int] | None, actor: Actor) -> int:
    check_name(endpoint, "endpoint")
    wanted = {"endpoint": endpoint, "sequences": None if sequences is None else json_list(sequences)}
    dead = session.execute("deliveries/select_dead", wanted).fetchall()
    if dead:
        numbers = json_list(number for number, _ in dead)
        _update(session, "deliveries/resolve", {"numbers": numbers, "how": how})
        if how == "redriven":
            again = json_list(sequence for _, sequence in dead)
            _update(session, "pending/put_single", {"endpoint": endpoint, "sequences": again})
        action = "redrive" if how == "redriven" else "discard"
        session.log_operator(f"{action}_outbox", actor, {"endpoint": endpoint})
    return len(dead)


def _replay(session: Session, endpoint: str, since: datetime, actor: Actor) -> int:
    check_name(endpoint, "endpoint")
    wanted = {"endpoint": endpoint, "since": micros(since)}
    [count] = session.execute("outbox/count_replayable", wanted).fetchone()
    _update(session, "pending/replay", wanted)
    session.execute("outbox/mark_replayed", wanted)
    session.log_operator("replay_outbox", actor, {"endpoint": endpoint, "since": since.isoformat()})
    return int(count)
