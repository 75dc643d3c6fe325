"""Claims due jobs: one statement where no queue has limits; where one has, the jobs are chosen within them first.

A row that makes a claim fail is quarantined for a while. Legality is checked by the statements' guards, not here.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tenure.errors import RequestIdReused, RowPoisoned, StoreUnavailable
from tenure.lifecycle.durations import milliseconds
from tenure.lifecycle.event_fields import claim_detail
from tenure.lifecycle.queue_limits import Candidate, QueueLimits
from tenure.lifecycle.records import CONTRACT_VERSION, Job
from tenure.lifecycle.statuses import CLAIMED, RUNNING
from tenure.seams import Clock, Spawner
from tenure.stores.base import ClaimResult
from tenure.stores.contract import ClaimRequest, without_token
from tenure.stores.limited_claim import (
    LIMIT_COLUMNS,
    PINNED_MAX,
    Choice,
    ChoiceReads,
    DueJobs,
    DueJobsOfKeys,
    KeyUsage,
    LeasedCounts,
    LimitedQueue,
    LimitRead,
    PartitionKeys,
    QueueUsage,
    choose,
    decode_limits,
    decode_usage,
    encode_usage,
    with_pinned,
)
from tenure.stores.postgres.apply_batch import POISON, message_of
from tenure.stores.postgres.connections import Connections, Session, fetch, is_unreadable
from tenure.stores.postgres.policies import PostgresPolicies
from tenure.stores.postgres.rows import Claimed, decoded, job_from
from tenure.stores.postgres.watermarks import BOTTOM, Claimer, Scan, Watermarks, lane_parameters
from tenure.stores.quarantine import Quarantine
from tenure.stores.queue_groups import QueueRotation

PINNED_SECONDS = 1.0
"""How often a claim looks for jobs that are pinned to its version of the code although others are due."""
ROUNDS_MAX = 5
"""How often a claim within limits chooses anew when other sessions had all of the chosen jobs locked."""

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ClaimRows(msgspec.Struct, frozen=True):
    """What one claim statement returned: the rows won, and once the statistics of the claim."""

    rows: list[asyncpg.Record]
    statistics: asyncpg.Record

    @classmethod
    def of(cls, answers: list[asyncpg.Record]) -> ClaimRows:
        return cls(answers[:-1], answers[-1])

    @property
    def is_repeated(self) -> bool:
        """This request had won jobs before, and took none now."""
        return self.statistics["won_job_ids"] is not None

    def scan(self) -> Scan:
        facts = self.statistics
        lanes = zip(facts["lane_queues"] or (), facts["lane_priorities"] or (), strict=True)
        return Scan(facts["entries_read"], facts["pages_read"], facts["read_until"], list(lanes))


class LimitedClaim(msgspec.Struct, frozen=True):
    """The result of a claim within limits, with rows in the order of the choice."""

    answer: ClaimRows | None
    """None where no queue has limits."""
    limited_queues: frozenset[str] = frozenset()
    retry_after_seconds: float | None = None
    """After how many seconds a rate limit that excluded jobs allows the next one."""


class PostgresClaims:
    """The claims of one process, with its watermarks and its quarantine."""

    def __init__(
        self, connections: Connections, policies: PostgresPolicies, clock: Clock, quarantine: Quarantine
    ) -> None:
        self._connections, self._policies, self._clock = connections, policies, clock
        self._quarantine = quarantine
        self._watermarks = Watermarks()
        self._rotation = QueueRotation()
        self._next_pinned_seconds = float("-inf")

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """The jobs won, or those that this request has won before. A claim that waits too long is given up."""
        try:
            async with asyncio.timeout(request.wait_seconds_max):
                return await self._claim(request)
        except TimeoutError:
            raise StoreUnavailable(
                f"{self._connections.address.shown} did not answer a claim within {request.wait_seconds_max:.1f} s; "
                f"it is repeated with the same request id"
            ) from None

    async def _claim(self, request: ClaimRequest) -> ClaimResult:
        looked = self._clock.monotonic_seconds() >= self._next_pinned_seconds
        if looked and (jobs := await self._claim_pinned(request)):
            return ClaimResult(jobs)
        jobs = []
        waits: list[float] = []
        for queues in self._rotation.groups(request):
            if jobs := await self._claim_group(request, queues, waits):
                break
        if not jobs and not looked:
            jobs = await self._claim_pinned(request)
        limited_queues = frozenset(self._watermarks.limited_queues().intersection(request.queues))
        return ClaimResult(jobs, limited_queues, min(waits, default=None))

    async def _claim_pinned(self, request: ClaimRequest) -> list[Job]:
        """The jobs won among those that are pinned to the version of the claimer's code; none where a queue has
        limits, since there they are chosen with the others."""
        if request.code_version is None:
            return []
        self._next_pinned_seconds = self._clock.monotonic_seconds() + PINNED_SECONDS
        values = self._parameters(request, request.queues)
        due = _candidates(await self._connections.fetch("jobs/select_due_pinned", values))
        if not due:
            return []
        chosen = {**values, **lane_parameters(), "chosen": [one.id for one in due]}
        answer = ClaimRows.of(await self._connections.fetch("jobs/claim", chosen))
        return await self._won(request, answer)

    async def _claim_group(self, request: ClaimRequest, queues: tuple[str, ...], waits: list[float]) -> list[Job]:
        """The jobs won in these queues. `waits` gets the seconds after which a rate limit allows the next job."""
        return await self._won(request, await self._answer(request, queues, waits))

    async def _won(self, request: ClaimRequest, answer: ClaimRows) -> list[Job]:
        if answer.is_repeated:
            return await self._won_before(request, answer.statistics)
        if not answer.rows:
            return []
        policies = await self._policies.of(answer.rows)
        status = RUNNING if request.start else CLAIMED
        claimed = Claimed(policies, status, owner=request.worker, token=request.token)
        return self._quarantine.decoded(decoded(answer.rows, claimed.job))

    async def _won_before(self, request: ClaimRequest, previous: asyncpg.Record) -> list[Job]:
        if previous["won_body"] != request.body():
            raise RequestIdReused(request.request_id)
        won = previous["won_job_ids"]
        rows = await self._connections.fetch("jobs/select_with_token", {"ids": list(won)})
        policies = await self._policies.of(rows)
        found = decoded(rows, lambda row: job_from(row, policies, with_token=True))
        jobs = {job.id: job for job in self._quarantine.decoded(found)}
        return [without_token(jobs[job_id], request.actor) for job_id in won if job_id in jobs]

    async def _answer(self, request: ClaimRequest, queues: tuple[str, ...], waits: list[float]) -> ClaimRows:
        claimer = self._watermarks.of(queues, request.kinds)
        while True:
            values = self._parameters(request, queues)
            try:
                answer = None if claimer.limited_queues else await self._claim_in_order(values, claimer)
                if answer is None:
                    answer = await self._claim_within_limits(values, claimer, queues, waits)
            except POISON as problem:
                self._exclude(problem)
                continue
            if answer is not None:
                return answer

    async def _claim_in_order(self, values: dict[str, Any], claimer: Claimer) -> ClaimRows | None:
        """None when one of the queues has limits."""
        began = self._clock.monotonic_seconds()
        if (lane := claimer.lane(began)) is not None:
            answer = ClaimRows.of(await self._connections.fetch("jobs/claim_lane", {**values, **lane}))
            if not answer.statistics["declined"]:
                return self._learn(answer, claimer, began)
            claimer.lane_declined(began)
        answer = ClaimRows.of(
            await self._connections.fetch("jobs/claim", {**values, **claimer.lanes(began), "chosen": []})
        )
        return None if answer.statistics["declined"] else self._learn(answer, claimer, began)

    def _learn(self, answer: ClaimRows, claimer: Claimer, began: float) -> ClaimRows:
        if answer.is_repeated:
            return answer
        now = self._clock.monotonic_seconds()
        claimer.learn(answer.rows, answer.scan(), began_seconds=began, now_seconds=now)
        # The second sort keeps the order of the first among equals.
        try:
            answer.rows.sort(key=itemgetter("due_at", "id"))
        except TypeError:
            # The driver's infinite times have no time zone. `Claimed` refuses such rows.
            answer.rows.sort(key=lambda row: (row["due_at"].replace(tzinfo=UTC), row["id"]))
        answer.rows.sort(key=itemgetter("priority"), reverse=True)
        return answer

    async def _claim_within_limits(
        self, values: dict[str, Any], claimer: Claimer, queues: tuple[str, ...], waits: list[float]
    ) -> ClaimRows | None:
        """None when no queue has limits any more."""
        values = {**values, **lane_parameters(), "within_limits": True}
        found = await self._connections.write("store", lambda session: claim_within_limits(session, queues, values))
        claimer.limited_queues = found.limited_queues
        if found.retry_after_seconds is not None:
            waits.append(found.retry_after_seconds)
        return found.answer

    def _parameters(self, request: ClaimRequest, queues: tuple[str, ...]) -> dict[str, Any]:
        return {
            "request_id": request.request_id,
            "body": request.body(),
            "detail": claim_detail(request.code_version),
            "code_version": request.code_version,
            "queues": list(queues),
            "kinds": list(request.kinds),
            "worker": request.worker,
            "token": request.token,
            "actor": str(request.actor),
            "transition_count": 2 if request.start else 1,
            "version": CONTRACT_VERSION,
            "limit": request.limit,
            "excluded": self._quarantine.ids(),
            "within_limits": False,
            "wait_ms": milliseconds(request.wait_seconds_max),
        }

    def _exclude(self, problem: Exception) -> None:
        """Quarantine the row that made a claim fail; raise where no row is named, or a quarantined one again."""
        cause = problem.__cause__ or problem
        named = _ID.search(f"{getattr(cause, 'detail', None) or ''} {cause}")
        if named is None or UUID(named[0]) in self._quarantine:
            raise problem
        self._quarantine.put(RowPoisoned(UUID(named[0]), message_of(problem)))


async def claim_within_limits(session: Session, queues: tuple[str, ...], values: dict[str, Any]) -> LimitedClaim:
    """Lock the limited queues, choose jobs, claim them, and record the usage of their rates.

    All in one transaction: the next claim waits for the lock, and reads the recorded usage.
    """
    limited, now = await _lock_limited_queues(session, queues)
    if not limited:
        return LimitedClaim(None)
    excluded = list(values["excluded"])
    for rounds_left in reversed(range(ROUNDS_MAX)):
        known = {**values, "excluded": excluded}
        choice = await _choose(session, choose(queues, values["limit"], limited=limited, now=now), known)
        chosen = [one.id for one in choice.chosen]
        answer = ClaimRows.of(await fetch(session, "jobs/claim", {**known, "chosen": chosen}))
        if answer.rows or answer.is_repeated or not chosen or not rounds_left:
            answer.rows.sort(key=lambda won: chosen.index(won["id"]))
            at = max((won["updated_at"] for won in answer.rows), default=now)
            for usage in choice.usage([won["id"] for won in answer.rows], at):
                await fetch(session, "queues/update_usage", _usage_parameters(usage))
            retry = None if choice.retry_at is None else (choice.retry_at - now).total_seconds()
            return LimitedClaim(answer, frozenset(limited), retry)
        excluded += chosen
    raise AssertionError("the last round returns")


async def _lock_limited_queues(session: Session, queues: tuple[str, ...]) -> tuple[dict[str, LimitedQueue], datetime]:
    rows = await fetch(session, "queues/lock_limited", {"queues": list(queues)})
    limited = {
        row["name"]: LimitedQueue(
            name=row["name"],
            limits=limits_from(row),
            paused=row["paused_at"] is not None,
            last_key=row["last_key"],
            usage=decode_usage(row["usage"], of=f"queue {row['name']!r}"),
        )
        for row in rows
        if row["name"] is not None
    }
    return limited, rows[0]["now"]


def limits_from(row: asyncpg.Record) -> QueueLimits:
    """The limits of a row of `queues`."""
    return decode_limits([row[name] for name in LIMIT_COLUMNS])


async def _choose(session: Session, reads: ChoiceReads, values: dict[str, Any]) -> Choice:
    """The choice, with reads that the database executes."""
    try:
        read = next(reads)
        while True:
            read = reads.send(await _execute(session, read, values))
    except StopIteration as end:
        choice: Choice = end.value
        return choice


async def _execute(session: Session, read: LimitRead, values: dict[str, Any]) -> Any:
    result = await _unpinned(session, read, values)
    if values["code_version"] is None or isinstance(read, LeasedCounts | KeyUsage):
        return result
    wanted = {**values, "queues": [read.queue], "limit": PINNED_MAX}
    return with_pinned(read, result, _candidates(await fetch(session, "jobs/select_due_pinned", wanted)))


async def _unpinned(session: Session, read: LimitRead, values: dict[str, Any]) -> Any:
    asked = {**values, **msgspec.structs.asdict(read)}
    match read:
        case DueJobs():
            return _candidates(await fetch(session, "jobs/select_due_candidates", asked))
        case PartitionKeys():
            return [row["key"] for row in await fetch(session, "jobs/select_partitions", asked)]
        case DueJobsOfKeys():
            return _candidates(await fetch(session, "jobs/select_due_of_partitions", asked))
        case LeasedCounts():
            return {row["key"]: row["leased"] for row in await fetch(session, "jobs/count_leased_by_partition", asked)}
        case KeyUsage():
            rows = await fetch(session, "rate_usage/select", asked)
            return {row["key"]: decode_usage(row["usage"], of=f"partition {row['key']!r}") for row in rows}


def _candidates(rows: list[asyncpg.Record]) -> list[Candidate]:
    """The candidates of these rows, but not those whose due time cannot be represented."""
    return [Candidate(*row) for row in rows if not is_unreadable(row["due_at"])]


def _usage_parameters(queue: QueueUsage) -> dict[str, Any]:
    keys = list(queue.usage_by_key)
    return {
        "queue": queue.queue,
        "last_key": queue.last_key,
        "usage": None if queue.usage is None else encode_usage(queue.usage),
        "keys": keys,
        "usages": [encode_usage(queue.usage_by_key[key]) for key in keys],
        "untils": [queue.until[key] for key in keys],
    }


NO_TOKEN = UUID(int=0)
_CLAIM_OF_NOTHING: dict[str, Any] = {
    **lane_parameters(), "request_id": "warm-up", "body": "", "detail": None, "code_version": None, "queues": [],
    "kinds": [], "worker": "", "token": NO_TOKEN, "actor": "", "transition_count": 2, "version": CONTRACT_VERSION,
    "limit": 0, "excluded": [], "within_limits": False, "wait_ms": 60_000, "chosen": [], "queue": "", "priority": 0,
    "watermark_due_at": BOTTOM[0], "watermark_id": BOTTOM[1],
}  # fmt: skip
_COMPLETION_OF_NOTHING: dict[str, Any] = {
    **{name: [] for name in ("ids", "revs", "tokens", "actors", "requests", "results", "digests")},
    "version": CONTRACT_VERSION,
}


async def warm_up(connections: Connections, spawn: Spawner) -> None:
    """Run the statements of the hot path on two connections, with nothing to do: one claims while the other completes.

    A new connection reads catalogues, compiles guards and plans for some 50 ms, for which the first jobs would wait.
    Nothing is written. Behind a pooler nothing is kept from one transaction to the next, so that nothing is done.
    """
    if connections.address.pooled:
        return
    both = [spawn.task(_run_hot_path(connections), name="tenure-warm-up") for _ in range(2)]
    try:
        await asyncio.wait(both)
    finally:
        for task in both:
            task.cancel()
    for task in both:
        task.result()


async def _run_hot_path(connections: Connections) -> None:
    async with connections.session() as connection:
        await fetch(connection, "jobs/claim", _CLAIM_OF_NOTHING)
        await fetch(connection, "jobs/claim_lane", _CLAIM_OF_NOTHING)
        await fetch(connection, "jobs/complete", _COMPLETION_OF_NOTHING)
