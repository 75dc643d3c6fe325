"""Chooses among due jobs by the limits of their queues, in the same way for every store.

`choose` is a generator that yields reads (`LimitRead`) and receives their results. The store executes them inside the
claim's transaction and under a lock on the queues that have limits, so that concurrent claims do not exceed a limit.
The number of reads, jobs and keys is bounded, however long the queue is.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from heapq import merge
from typing import Any
from uuid import UUID

import msgspec

from tenure.lifecycle.claim_order import batch, candidate_order
from tenure.lifecycle.queue_limits import (
    NO_LIMITS,
    NO_RATE_USAGE,
    Admission,
    Candidate,
    QueueLimits,
    Rate,
    RateUsage,
    round_robin,
)

log = logging.getLogger("tenure.stores")

DUE_JOBS_MAX = 1000
"""How many due jobs of a queue are read in claim order if limits by key may exclude some of them."""
FIRST_READ_FACTOR = 4
"""The first read is for this many times the number of jobs wanted: mostly the limits allow the first jobs."""
KEYLESS_JOBS_MAX = 200
"""How many due jobs of a fair queue are read for those that have no key."""
KEYS_PER_READ_LEAST, KEYS_PER_READ = 20, 200
KEY_READS_MAX = 10
"""How many keys one read is for, and how many such reads a claim makes. The next claim resumes after the last key."""


class LimitedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with limits as a claim finds it."""

    name: str
    limits: QueueLimits = NO_LIMITS
    paused: bool = False
    last_key: str = ""
    """The partition key that was served last; the empty text sorts before all keys."""
    usage: RateUsage = NO_RATE_USAGE


class DueJobs(msgspec.Struct, frozen=True):
    """The first due jobs of a queue. Result: candidates in claim order."""

    queue: str
    limit: int


class PartitionKeys(msgspec.Struct, frozen=True):
    """The partition keys after this one that have jobs without a lease in the queue. Result: texts in their order."""

    queue: str
    after: str
    limit: int


class DueJobsOfKeys(msgspec.Struct, frozen=True):
    """The first due jobs of each of these keys. Result: candidates, those of each key in claim order."""

    queue: str
    keys: tuple[str, ...]
    each: int


class LeasedCounts(msgspec.Struct, frozen=True):
    """How many jobs of a queue are leased. Result: counts by key."""

    queue: str


class KeyUsage(msgspec.Struct, frozen=True):
    """The rate usage of these keys. Result: by key, without keys that have none."""

    queue: str
    keys: tuple[str, ...]


def with_pinned(read: LimitRead, result: Any, pinned: Sequence[Candidate]) -> Any:
    """The result of a read, with the due jobs of its queue that are pinned to the claimer's version of the code."""
    match read:
        case DueJobs(_, limit):
            return sorted([*result, *pinned], key=candidate_order)[:limit]
        case PartitionKeys(_, after, limit):
            return sorted({*result, *(one.key for one in pinned if one.key is not None and one.key > after)})[:limit]
        case DueJobsOfKeys(_, keys, each):
            both = sorted([*result, *(one for one in pinned if one.key in keys)], key=candidate_order)
            return [one for key in keys for one in [one for one in both if one.key == key][:each]]
        case _:
            return result


LimitRead = DueJobs | PartitionKeys | DueJobsOfKeys | LeasedCounts | KeyUsage
ChoiceReads = Generator[LimitRead, Any, "Choice"]

PINNED_MAX = 1000
"""How many pinned jobs of a queue a claim reads."""

LIMIT_COLUMNS = (
    "concurrency_max",
    "key_concurrency_max",
    "rate_count",
    "rate_seconds",
    "key_rate_count",
    "key_rate_seconds",
    "fair",
)
"""The columns in which a store keeps the limits of a queue."""


def decode_limits(columns: Sequence[Any]) -> QueueLimits:
    """The limits in these columns."""
    concurrency_max, key_concurrency_max, count, seconds, key_count, key_seconds, fair = columns
    return QueueLimits(
        concurrency_max=concurrency_max,
        key_concurrency_max=key_concurrency_max,
        rate=None if count is None else Rate(count, seconds),
        key_rate=None if key_count is None else Rate(key_count, key_seconds),
        fair=bool(fair),
    )


def limit_columns(limits: QueueLimits) -> dict[str, Any]:
    """The columns of these limits, by name."""
    rates = [(None, None) if rate is None else (rate.count, rate.seconds) for rate in (limits.rate, limits.key_rate)]
    values = (limits.concurrency_max, limits.key_concurrency_max, *rates[0], *rates[1], limits.fair)
    return dict(zip(LIMIT_COLUMNS, values, strict=True))


_decode_usage = msgspec.json.Decoder(RateUsage).decode


def decode_usage(text: str | None, *, of: str) -> RateUsage:
    """The rate usage in this column; none, if it cannot be decoded: then starts are counted anew, and claims go on."""
    if text is None:
        return NO_RATE_USAGE
    try:
        return _decode_usage(text)
    except (msgspec.MsgspecError, TypeError) as problem:
        log.error("rate usage of %s cannot be decoded, counting anew: %s", of, problem)
        return NO_RATE_USAGE


def encode_usage(usage: RateUsage) -> str:
    """The stored form of a rate usage; `decode_usage` is the inverse."""
    return msgspec.json.encode(usage).decode()


class Choice:
    """The jobs to claim, in order, and the usage to record once they are claimed."""

    def __init__(
        self, chosen: list[Candidate], admissions: Mapping[str, Admission], last_keys_read: Mapping[str, str]
    ) -> None:
        self.chosen, self._admissions, self._last_keys_read = chosen, admissions, last_keys_read

    @property
    def retry_at(self) -> datetime | None:
        """When a rate limit that excluded jobs allows the next one."""
        return min((one.retry_at for one in self._admissions.values() if one.retry_at is not None), default=None)

    def usage(self, claimed: Iterable[UUID], at: datetime) -> list[QueueUsage]:
        """What the claim must record of each queue, if it claimed these of the chosen jobs at that time."""
        ids = set(claimed)
        found = [self._usage_of(queue, admission, ids, at) for queue, admission in self._admissions.items()]
        return [usage for usage in found if usage is not None]

    def _usage_of(self, queue: str, admission: Admission, ids: set[UUID], at: datetime) -> QueueUsage | None:
        started = [one for one in self.chosen if one.queue == queue and one.id in ids]
        last_key = self._last_keys_read.get(queue)
        if admission.limits.fair:
            last_key = next((one.key for one in reversed(started) if one.key is not None), last_key)
        usage, by_key = admission.usage_after(started, at), admission.key_usage_after(started, at)
        if last_key is None and usage is None and not by_key:
            return None
        rate = admission.limits.key_rate
        until = {key: over_at for key, one in by_key.items() if rate and (over_at := one.over_at(rate)) is not None}
        return QueueUsage(queue=queue, last_key=last_key, usage=usage, usage_by_key=by_key, until=until)


class QueueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim records of a queue for the next claim. None: unchanged."""

    queue: str
    last_key: str | None
    usage: RateUsage | None
    usage_by_key: dict[str, RateUsage]
    until: dict[str, datetime]
    """When the usage of a key no longer counts."""


def run_choice(reads: ChoiceReads, execute: Callable[[LimitRead], Any]) -> Choice:
    """The choice, with reads that are executed by this function."""
    try:
        read = next(reads)
        while True:
            read = reads.send(execute(read))
    except StopIteration as end:
        choice: Choice = end.value
        return choice


def choose(queues: Sequence[str], limit: int, *, limited: Mapping[str, LimitedQueue], now: datetime) -> ChoiceReads:
    """Choose up to `limit` due jobs of these queues, in claim order as far as their limits allow it."""
    admissions: dict[str, Admission] = {}
    last_keys_read: dict[str, str] = {}
    offers: list[Iterable[Candidate]] = []
    for queue in dict.fromkeys(queues):
        here = limited.get(queue)
        if here is None:
            offers.append((yield DueJobs(queue, limit)))
        elif not here.paused:
            admission = admissions[queue] = yield from _admission(here, now)
            offers.append((yield from _offers(here, admission, limit, last_keys_read)))
    chosen = batch(merge(*offers, key=candidate_order), limit, admits=lambda one: _admitted(one, admissions))
    return Choice(chosen, admissions, last_keys_read)


def _admitted(one: Candidate, admissions: Mapping[str, Admission]) -> bool:
    admission = admissions.get(one.queue)
    return admission is None or admission.admit(one.key)


def _admission(here: LimitedQueue, now: datetime) -> Generator[LimitRead, Any, Admission]:
    leased = (yield LeasedCounts(here.name)) if here.limits.counts_leased else {}
    return Admission(here.limits, now, leased=leased, usage=here.usage)


def _offers(
    here: LimitedQueue, admission: Admission, limit: int, last_keys_read: dict[str, str]
) -> Generator[LimitRead, Any, Iterable[Candidate]]:
    if admission.room == 0:
        return []
    first: list[Candidate]
    if not here.limits.by_key:
        first = yield DueJobs(here.name, limit)
        return first
    if here.limits.fair:
        keyless = [one for one in (yield DueJobs(here.name, KEYLESS_JOBS_MAX)) if one.key is None]
        keys, candidates = yield from _next_keys(here, admission, limit, last_keys_read)
        return round_robin([*candidates, *keyless[:limit]], keys)
    wanted = limit if admission.room is None else min(limit, admission.room)
    for many in (min(DUE_JOBS_MAX, FIRST_READ_FACTOR * wanted), DUE_JOBS_MAX):
        first = yield DueJobs(here.name, many)
        yield from _read_key_usage(here, admission, [one.key for one in first if one.key is not None])
        if len(first) < many or admission.could_admit(wanted, (one.key for one in first)):
            return first
    # The limits exclude so many of the first jobs that jobs of other keys are read by their keys.
    _, more = yield from _next_keys(here, admission, limit, last_keys_read)
    known = {one.id for one in first}
    return sorted([*first, *(one for one in more if one.id not in known)], key=candidate_order)


def _next_keys(
    here: LimitedQueue, admission: Admission, limit: int, last_keys_read: dict[str, str]
) -> Generator[LimitRead, Any, tuple[list[str], list[Candidate]]]:
    """The next keys that the limits allow, after the one that was served last, and the first jobs of each.

    A key may have no due job of the claimer's kinds, so keys are read until there are enough jobs.
    """
    candidates_by_key = _KeyCandidates(here.name, admission, limit)
    after, wrapped = here.last_key, not here.last_key
    for _ in range(KEY_READS_MAX):
        found: list[str] = yield PartitionKeys(here.name, after, KEYS_PER_READ)
        yield from _read_key_usage(here, admission, found)
        yield from candidates_by_key.read(found)
        if candidates_by_key.enough:
            break
        if len(found) == KEYS_PER_READ:
            after = last_keys_read[here.name] = found[-1]
        elif wrapped:
            break
        else:
            after, wrapped = "", True
    yield from candidates_by_key.read_more()
    return list(candidates_by_key.keys), candidates_by_key.candidates


class _KeyCandidates:
    """The first jobs of the keys that the limits allow."""

    def __init__(self, queue: str, admission: Admission, limit: int) -> None:
        self._queue, self._admission, self._limit = queue, admission, limit
        self._wanted = limit if admission.room is None else min(limit, admission.room)
        self._full_keys: list[str] = []
        self.keys: dict[str, None] = {}
        self.candidates: list[Candidate] = []

    @property
    def enough(self) -> bool:
        return self._admission.could_admit(self._wanted, (one.key for one in self.candidates))

    def read(self, found: Sequence[str]) -> Generator[LimitRead, Any, None]:
        """Read jobs of these keys, a few keys at a time, until there are enough."""
        fresh = [key for key in found if key not in self.keys and self._admission.admits_key(key)]
        for start in range(0, len(fresh), max(self._limit, KEYS_PER_READ_LEAST)):
            if self.enough:
                return
            some = fresh[start : start + max(self._limit, KEYS_PER_READ_LEAST)]
            each = self._limit // len(some) + 1
            offered: list[Candidate] = yield DueJobsOfKeys(self._queue, tuple(some), each)
            counts = Counter(one.key for one in offered)
            self.keys |= dict.fromkeys(some)
            self.candidates += offered
            self._full_keys += [key for key in some if counts[key] == each]

    def read_more(self) -> Generator[LimitRead, Any, None]:
        """If there are not enough, read more jobs of the keys that had as many as their read was for."""
        if self._full_keys and not self.enough:
            others = [one for one in self.candidates if one.key not in self._full_keys]
            self.candidates = [*others, *(yield DueJobsOfKeys(self._queue, tuple(self._full_keys), self._limit))]


def _read_key_usage(here: LimitedQueue, admission: Admission, keys: Iterable[str]) -> Generator[LimitRead, Any, None]:
    if here.limits.key_rate is not None and (unread := tuple(dict.fromkeys(keys))):
        admission.add_key_usage((yield KeyUsage(here.name, unread)))
