"""Choosing among due jobs by the limits of their queues: the same for every store.

The choice is a conversation. It asks a store what it needs to know, one question after the other, all inside the
claim's transaction and under a lock on the queues that have limits, so that two claims never spend one permit. It never
looks at more than so many jobs and keys, however many there are.
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

WALK = 1000
"""How many due jobs of a queue are looked at in the order of claiming, where some of them may have to wait."""
GLANCE = 4
"""At first so many times as many as are wanted: mostly those in front can go."""
WALK_FAIR = 200
"""The same in a queue whose keys take turns, for the jobs that have no key."""
KEYS_LEAST, KEYS = 20, 200
KEY_ROUNDS = 10
"""How many keys are looked at and asked for at once, and how often, before the next claim goes on from there."""


class LimitedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue with limits as a claim finds it."""

    name: str
    limits: QueueLimits = NO_LIMITS
    paused: bool = False
    last_key: str = ""
    """The partition key that was served last; the empty text sorts before all keys."""
    usage: RateUsage = NO_RATE_USAGE


class InOrder(msgspec.Struct, frozen=True):
    """The first due jobs of a queue, in the order of claiming. Answer: candidates."""

    queue: str
    limit: int


class Keys(msgspec.Struct, frozen=True):
    """The keys after this one under which jobs of a queue wait, in the order of keys. Answer: texts."""

    queue: str
    after: str
    limit: int


class OfKeys(msgspec.Struct, frozen=True):
    """The first due jobs of each of these keys. Answer: candidates, those of each key in the order of claiming."""

    queue: str
    keys: tuple[str, ...]
    each: int


class LeasedByKey(msgspec.Struct, frozen=True):
    """How many jobs of a queue are claimed or running. Answer: counts by key."""

    queue: str


class UsageByKey(msgspec.Struct, frozen=True):
    """The rate usage of these keys. Answer: by key, without keys that have none."""

    queue: str
    keys: tuple[str, ...]


def with_pinned(question: Question, answer: Any, pinned: Sequence[Candidate]) -> Any:
    """The answer with the due jobs of the question's queue that are pinned to the claimer's version of the code."""
    match question:
        case InOrder(_, limit):
            return sorted([*answer, *pinned], key=candidate_order)[:limit]
        case Keys(_, after, limit):
            return sorted({*answer, *(one.key for one in pinned if one.key is not None and one.key > after)})[:limit]
        case OfKeys(_, keys, each):
            both = sorted([*answer, *(one for one in pinned if one.key in keys)], key=candidate_order)
            return [one for key in keys for one in [one for one in both if one.key == key][:each]]
        case _:
            return answer


Question = InOrder | Keys | OfKeys | LeasedByKey | UsageByKey
Asking = Generator[Question, Any, "Choice"]

PINNED_MAX = 1000
"""How many pinned jobs of a queue a claim looks at."""

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
    """The jobs to be claimed, in order, and what is to be noted once they are."""

    def __init__(
        self, chosen: list[Candidate], admissions: Mapping[str, Admission], walked_to: Mapping[str, str]
    ) -> None:
        self.chosen, self._admissions, self._walked_to = chosen, admissions, walked_to

    @property
    def again_at(self) -> datetime | None:
        """When it is worth asking again, if a rate kept jobs back."""
        return min((one.retry_at for one in self._admissions.values() if one.retry_at is not None), default=None)

    def notes(self, taken: Iterable[UUID], at: datetime) -> list[Note]:
        """What the claim must record of each queue, if these of the chosen jobs were taken at that time."""
        ids = set(taken)
        notes = [self._note(queue, admission, ids, at) for queue, admission in self._admissions.items()]
        return [note for note in notes if note is not None]

    def _note(self, queue: str, admission: Admission, ids: set[UUID], at: datetime) -> Note | None:
        started = [one for one in self.chosen if one.queue == queue and one.id in ids]
        last_key = self._walked_to.get(queue)
        if admission.limits.fair:
            last_key = next((one.key for one in reversed(started) if one.key is not None), last_key)
        usage, by_key = admission.usage_after(started, at), admission.key_usage_after(started, at)
        if last_key is None and usage is None and not by_key:
            return None
        rate = admission.limits.key_rate
        until = {key: over_at for key, one in by_key.items() if rate and (over_at := one.over_at(rate)) is not None}
        return Note(queue=queue, last_key=last_key, usage=usage, usage_by_key=by_key, until=until)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim leaves for the next one to know. None leaves what is there."""

    queue: str
    last_key: str | None
    usage: RateUsage | None
    usage_by_key: dict[str, RateUsage]
    until: dict[str, datetime]
    """When the usage of a key no longer counts."""


def answered(asking: Asking, answer: Callable[[Question], Any]) -> Choice:
    """The choice, once every question of it is answered here and now."""
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question))
    except StopIteration as end:
        choice: Choice = end.value
        return choice


def choose(queues: Sequence[str], limit: int, *, limited: Mapping[str, LimitedQueue], now: datetime) -> Asking:
    """Choose up to `limit` due jobs of these queues, by priority and age except where a queue's own limits say
    otherwise."""
    admissions: dict[str, Admission] = {}
    walked_to: dict[str, str] = {}
    offers: list[Iterable[Candidate]] = []
    for queue in dict.fromkeys(queues):
        here = limited.get(queue)
        if here is None:
            offers.append((yield InOrder(queue, limit)))
        elif not here.paused:
            admission = admissions[queue] = yield from _admission(here, now)
            offers.append((yield from _offers(here, admission, limit, walked_to)))
    chosen = batch(merge(*offers, key=candidate_order), limit, admits=lambda one: _admitted(one, admissions))
    return Choice(chosen, admissions, walked_to)


def _admitted(one: Candidate, admissions: Mapping[str, Admission]) -> bool:
    admission = admissions.get(one.queue)
    return admission is None or admission.admit(one.key)


def _admission(here: LimitedQueue, now: datetime) -> Generator[Question, Any, Admission]:
    held = (yield LeasedByKey(here.name)) if here.limits.counts_leased else {}
    return Admission(here.limits, now, leased=held, usage=here.usage)


def _offers(
    here: LimitedQueue, admission: Admission, limit: int, walked_to: dict[str, str]
) -> Generator[Question, Any, Iterable[Candidate]]:
    if admission.room == 0:
        return []
    first: list[Candidate]
    if not here.limits.by_key:
        first = yield InOrder(here.name, limit)
        return first
    if here.limits.fair:
        keyless = [one for one in (yield InOrder(here.name, WALK_FAIR)) if one.key is None]
        keys, candidates = yield from _round(here, admission, limit, walked_to)
        return round_robin([*candidates, *keyless[:limit]], keys)
    wanted = limit if admission.room is None else min(limit, admission.room)
    for many in (min(WALK, GLANCE * wanted), WALK):
        first = yield InOrder(here.name, many)
        yield from _learn_spent(here, admission, [one.key for one in first if one.key is not None])
        if len(first) < many or admission.could_admit(wanted, (one.key for one in first)):
            return first
    # So many jobs of keys that may not go stand in front that those of others are looked for by their keys.
    _, more = yield from _round(here, admission, limit, walked_to)
    known = {one.id for one in first}
    return sorted([*first, *(one for one in more if one.id not in known)], key=candidate_order)


def _round(
    here: LimitedQueue, admission: Admission, limit: int, walked_to: dict[str, str]
) -> Generator[Question, Any, tuple[list[str], list[Candidate]]]:
    """The keys that may go next, after the one that was served last, and the first jobs of each.

    Jobs may wait under a key of which none is due, or none of our kinds: so it goes on until enough are found.
    """
    looked = _Looked(here.name, admission, limit)
    after, wrapped = here.last_key, not here.last_key
    for _ in range(KEY_ROUNDS):
        found: list[str] = yield Keys(here.name, after, KEYS)
        yield from _learn_spent(here, admission, found)
        yield from looked.at(found)
        if looked.enough:
            break
        if len(found) == KEYS:
            after = walked_to[here.name] = found[-1]
        elif wrapped:
            break
        else:
            after, wrapped = "", True
    yield from looked.deeper()
    return list(looked.keys), looked.candidates


class _Looked:
    """The first jobs of keys that may go, as far as they were looked at."""

    def __init__(self, queue: str, admission: Admission, limit: int) -> None:
        self._queue, self._admission, self._limit = queue, admission, limit
        self._wanted = limit if admission.room is None else min(limit, admission.room)
        self._deep: list[str] = []
        self.keys: dict[str, None] = {}
        self.candidates: list[Candidate] = []

    @property
    def enough(self) -> bool:
        return self._admission.could_admit(self._wanted, (one.key for one in self.candidates))

    def at(self, found: Sequence[str]) -> Generator[Question, Any, None]:
        """Look at these keys, a few at a time, until there is enough."""
        fresh = [key for key in found if key not in self.keys and self._admission.admits_key(key)]
        for start in range(0, len(fresh), max(self._limit, KEYS_LEAST)):
            if self.enough:
                return
            some = fresh[start : start + max(self._limit, KEYS_LEAST)]
            each = self._limit // len(some) + 1
            offered: list[Candidate] = yield OfKeys(self._queue, tuple(some), each)
            counts = Counter(one.key for one in offered)
            self.keys |= dict.fromkeys(some)
            self.candidates += offered
            self._deep += [key for key in some if counts[key] == each]

    def deeper(self) -> Generator[Question, Any, None]:
        """Where the others leave room, look for more under those keys that had as many as were asked for."""
        if self._deep and not self.enough:
            others = [one for one in self.candidates if one.key not in self._deep]
            self.candidates = [*others, *(yield OfKeys(self._queue, tuple(self._deep), self._limit))]


def _learn_spent(here: LimitedQueue, admission: Admission, keys: Iterable[str]) -> Generator[Question, Any, None]:
    if here.limits.key_rate is not None and (asked := tuple(dict.fromkeys(keys))):
        admission.add_key_usage((yield UsageByKey(here.name, asked)))
