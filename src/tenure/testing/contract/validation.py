"""Invalid input: every store refuses it with the same error before it writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.errors import InvalidInput, NotAuthorised
from tenure.lifecycle.operations import (
    Cancel,
    Claim,
    Commit,
    Complete,
    Fail,
    Operation,
    Progress,
    Retry,
    Signal,
)
from tenure.lifecycle.records import Actor, Role
from tenure.lifecycle.size_limits import STORED_BYTES_MAX
from tenure.lifecycle.statuses import FAILED
from tenure.stores.contract import EnqueueRequest, EventFilter, FinishedJobs, JobFilter, Request, VerboseEvents
from tenure.testing.driver import CLIENT, Driver
from tenure.testing.store_check import all_jobs

NUL, SURROGATE = "a\x00b", "a\ud800b"
LONG = "x" * 501
HUGE = f'"{"x" * (STORED_BYTES_MAX - 1)}"'
BAD_TEXTS = (NUL, SURROGATE, LONG, "", 7)
BAD_CONTENTS = ("NaN", "[Infinity]", "{", "", "1 2", f'"{NUL}"', f'"{SURROGATE}"', '"\\u0000"', '"\\ud800"', HUGE, 7)
STRICTLY = (
    '{"a":1,"a":2}',
    '[{"b":{"a":1,"a":1}}]',
    "9007199254740993",
    "[-123456789012345678901234567890]",
    "1e999",
    "[" * 65 + "]" * 65,
    "[" * 1000 + "]" * 1000,
    "[" * 100_000 + "]" * 100_000,
)
"""JSON that other parsers would change or refuse."""

WIDE = "\U00020000"
"""Four bytes of UTF-8: a text may be short and still too large for an index."""

KEYS = ("dedupe_key", "request_id", "correlation_id", "trace", "submitted_by", "partition_key")
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the fault is the point
BAD_ORIGINS: tuple[dict[str, Any], ...] = (
    *({name: text} for name in ("kind", "queue") for text in (*BAD_TEXTS, " spaced ", "line\nbreak", "x" * 201)),
    *({name: text} for name in ("dedupe_key", "request_id", "correlation_id") for text in BAD_TEXTS),
    *({name: NUL} for name in ("trace", "submitted_by", "partition_key")),
    *({"tags": tags} for tags in ({NUL: "x"}, {"x": SURROGATE}, {"": "x"}, {"x": LONG})),
    *({"payload": text} for text in BAD_CONTENTS),
    *({"payload": text} for text in STRICTLY),
    *({name: WIDE * 251} for name in KEYS),
    *({name: WIDE * 101} for name in ("kind", "queue")),
    *({name: value} for name in ("id", "parent_id", "redrive_of") for value in ("abc", 7, b"x" * 16)),
    {"id": None},
    {"id": "01890a5d-ac96-774b-bcce-b302099a8057"},
    *({"tags": tags} for tags in ({"a": 1}, {"a": None}, {1: "a"}, [("a", "b")], "ab", 7, {"a": {"b": "c"}})),
    *({"priority": number} for number in (-32_769, 32_768, 1.5, True, "1")),
    *({"delay_ms": number} for number in (-1, 2**63, 0.5)),
    *({"due_at": at} for at in (NAIVE, "2030-01-01T00:00:00Z", 7, datetime(3001, 1, 1, tzinfo=UTC))),
)
BAD_JOB_FILTERS: tuple[dict[str, Any], ...] = (
    *({name: NAIVE} for name in ("created_from", "created_until")),
    *({name: "2030-01-01T00:00:00Z"} for name in ("created_from", "created_until")),
    *({name: text} for name in ("correlation_id", "dedupe_key", "submitted_by") for text in (NUL, SURROGATE, 7)),
    *({name: ("ok", text)} for name in ("queues", "kinds") for text in (NUL, SURROGATE, 7)),
    *({"tags": tags} for tags in ({NUL: "x"}, {"x": NUL}, {SURROGATE: "x"}, {"x": SURROGATE}, {"x": 1})),
)
BAD_EVENT_FILTERS: tuple[dict[str, Any], ...] = (
    *({name: NAIVE} for name in ("since", "until")),
    *({name: "2030-01-01T00:00:00Z"} for name in ("since", "until")),
    *({"correlation_id": text} for text in (NUL, SURROGATE, 7)),
)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
BAD_POSITIONS: tuple[Any, ...] = (
    "x",
    NUL,
    SURROGATE,
    "-5",
    "1.5",
    " ",
    "\u0661\u0662",
    "9" * 40,
    "9" * 5000,
    f"{2**70}/{ID}/0",
    f"-5/{ID}/0",
    f"1/{ID}/{2**40}",
    f"1/{ID}/-1",
    f"1/{NUL}/0",
    f"1/{ID}/0/0",
    f"2020-01-01/{ID}/{2**40}",
    f"2020-01-01T00:00:00+00:00/{ID}/{2**40}",
    f"2020-01-01T00:00:00+00:00/{ID}/x",
    7,
    b"1",
)
"""No store returns any of these positions."""

BAD_LIMITS = (0, -1, 100_001, True, 1.5, "1", None)


def shown(value: object) -> str:
    return ascii(value)[:40]


class InputContract:
    """InvalidInput, and nothing written."""

    @pytest.mark.parametrize("facts", BAD_ORIGINS, ids=shown)
    async def test_an_invalid_job_is_refused_with_its_whole_batch(self, drive: Driver, facts: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await drive.store.enqueue([drive.enqueue(), drive.enqueue(**facts), drive.enqueue()])
        [(name, _)] = facts.items()
        assert name in refusal.value.where
        assert await all_jobs(drive.store) == []

    @pytest.mark.parametrize("facts", BAD_JOB_FILTERS, ids=shown)
    async def test_an_invalid_filter_of_jobs_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        await drive.add()
        with pytest.raises(InvalidInput):
            await drive.store.find(JobFilter(**facts))

    @pytest.mark.parametrize("facts", BAD_EVENT_FILTERS, ids=shown)
    async def test_an_invalid_filter_of_events_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        await drive.add()
        with pytest.raises(InvalidInput):
            await drive.store.events(EventFilter(**facts))

    @pytest.mark.parametrize("position", BAD_POSITIONS, ids=shown)
    async def test_a_position_that_no_page_returned_is_refused(self, drive: Driver, position: Any) -> None:
        await drive.add()
        with pytest.raises(InvalidInput):
            await drive.store.tail(after=position)
        with pytest.raises(InvalidInput):
            await drive.store.events(EventFilter(), after=position)

    async def test_a_position_that_was_tampered_with_is_refused(self, drive: Driver) -> None:
        job = await drive.add()
        events = await drive.store.events(EventFilter(job_id=job.id))
        for change in ("-{}", "{}x", "{}/1", "x{}"):
            with pytest.raises(InvalidInput):
                await drive.store.events(EventFilter(), after=change.format(events.position))
        await drive.store.events(EventFilter(), after=events.position)

    @pytest.mark.parametrize("after", ["x", "", 7, ID], ids=shown)
    async def test_a_list_of_jobs_continues_only_after_an_id(self, drive: Driver, after: Any) -> None:
        await drive.add()
        with pytest.raises(InvalidInput):
            await drive.store.find(JobFilter(), after=after)
        with pytest.raises(InvalidInput):
            await drive.store.recoverable(limit=1, after=after)

    @pytest.mark.parametrize("limit", BAD_LIMITS, ids=shown)
    async def test_an_invalid_page_size_is_refused(self, drive: Driver, limit: Any) -> None:
        store = drive.store
        job = await drive.add()
        asked: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: store.find(JobFilter(), limit=limit),
            lambda: store.events(EventFilter(), limit=limit),
            lambda: store.tail(limit=limit),
            lambda: store.recoverable(limit=limit),
            lambda: store.prune(FinishedJobs(status=FAILED, kind="mail", older_than_seconds=0), limit=limit),
            lambda: store.prune(VerboseEvents(older_than_seconds=0), limit=limit),
        )
        for ask in asked:
            with pytest.raises(InvalidInput):
                await ask()
        assert await drive.job(job.id) == job

    async def test_texts_of_the_maximum_size_are_stored(self, drive: Driver) -> None:
        # Characters that an index cannot compress, since an index has its own limit.
        scattered = [chr(0x20000 + number * 7919 % 0xA000) for number in range(250)]
        name, key = "".join(scattered[:100]), "".join(scattered)
        facts = {**dict.fromkeys(KEYS, key), "queue": name, "tags": {key: key}}
        job = await drive.running(kind=name, **facts)
        assert (await drive.job(job.id)).origin == job.origin
        assert (job.kind, job.queue, job.origin.dedupe_key, job.origin.request_id) == (name, name, key, key)
        [again] = await drive.store.enqueue([drive.enqueue(name, dedupe_key=key)])
        assert (again.job.id, again.created) == (job.id, False)

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("role", [role for role in Role if role is not Role.CLIENT])
    async def test_only_a_client_enqueues(self, drive: Driver, role: Role) -> None:
        request = drive.enqueue()
        with pytest.raises(NotAuthorised):
            await drive.store.enqueue([EnqueueRequest(request.origin, Actor(role, "x"))])
        assert await all_jobs(drive.store) == []

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("role", [role for role in Role if role not in (Role.POOL, Role.GATEWAY)])
    async def test_only_pools_and_gateways_claim(self, drive: Driver, role: Role) -> None:
        job = await drive.add()
        with pytest.raises(NotAuthorised):
            await drive.claim(role=role)
        assert await drive.job(job.id) == job

    @pytest.mark.requirement("WC-01")
    async def test_a_claim_cannot_be_combined_with_other_operations(self, drive: Driver) -> None:
        job = await drive.add()
        pool = Actor(Role.POOL, "worker-1", drive.random.token())
        await refused(drive, [drive.request(job.id, Claim(drive.random.token()), actor=pool)])
        assert await drive.job(job.id) == job

    async def test_operations_that_cannot_be_combined_are_refused(self, drive: Driver) -> None:
        job = await drive.running()
        await refused(drive, [drive.request(job, *(Progress(percent) for percent in range(5)))])

    @pytest.mark.parametrize(
        "facts",
        [
            {"limit": 0},
            {"limit": 10_001},
            {"limit": True},
            {"worker": NUL},
            {"worker": ""},
            {"worker": "x" * 201},
            {"worker": WIDE * 101},
            {"request_id": WIDE * 251},
            {"request_id": SURROGATE},
            {"request_id": LONG},
            {"queues": ("ok", NUL)},
            {"kinds": ("ok", " x")},
        ],
        ids=shown,
    )
    async def test_an_invalid_claim_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        job = await drive.add()
        with pytest.raises(InvalidInput):
            await drive.claim(**facts)
        assert await drive.job(job.id) == job

    @pytest.mark.parametrize("content", BAD_CONTENTS, ids=shown)
    async def test_invalid_content_is_refused_with_its_whole_batch(self, drive: Driver, content: Any) -> None:
        makers: tuple[type[Operation], ...] = (Commit, Complete, Retry, Fail)
        good, bad = await drive.running(), await drive.running()
        for make in makers:
            requests = [drive.request(good, Complete("1")), drive.request(bad, make(content))]
            await refused(drive, requests)
        await refused(drive, [drive.request(bad.id, Signal("go", content), actor=CLIENT)])

    @pytest.mark.parametrize("request_id", BAD_TEXTS, ids=shown)
    async def test_an_invalid_request_id_is_refused(self, drive: Driver, request_id: Any) -> None:
        job = await drive.add()
        await refused(drive, [drive.request(job.id, Cancel(), actor=CLIENT, request_id=request_id)])

    @pytest.mark.parametrize("name", BAD_TEXTS, ids=shown)
    async def test_an_invalid_actor_name_is_refused(self, drive: Driver, name: Any) -> None:
        job = await drive.add()
        actor = Actor(Role.CLIENT, name)
        await refused(drive, [drive.request(job.id, Cancel(), actor=actor)])
        with pytest.raises(InvalidInput):
            await drive.store.enqueue([EnqueueRequest(drive.enqueue().origin, actor)])

    async def test_a_request_without_operations_is_refused(self, drive: Driver) -> None:
        job = await drive.add()
        await refused(drive, [drive.request(job.id, actor=CLIENT)])

    @pytest.mark.parametrize(
        "payload",
        [
            '"\\u00e9 \\ud83d\\ude00 \\\\u0000"',
            "[" * 64 + "]" * 64,
            "[9007199254740992,-9007199254740992]",
            '{"a":{"b":[1,2,{"c":null}]}}',
            '"' + "é" * 1000 + '"',
            "-0.0",
            "1e300",
        ],
        ids=shown,
    )
    async def test_valid_content_is_read_back_unchanged(self, drive: Driver, payload: str) -> None:
        job = await drive.running(payload=payload)
        assert (await drive.job(job.id)).origin.payload == payload
        done = await drive.apply(job, Complete(payload))
        assert (await drive.job(job.id)).result == payload == done.result

    async def test_names_that_look_like_sql_or_formats_are_stored_as_they_are(self, drive: Driver) -> None:
        for name in ("'; drop table jobs; --", "%s", ":name", "$1", "{}", "naïve ∑ 😀", "x" * 200):
            job = await drive.running(kind=name, queue=name, dedupe_key=name, correlation_id=name, tags={name: name})
            assert (await drive.job(job.id)).origin == job.origin
            assert (job.kind, job.queue, job.origin.dedupe_key) == (name, name, name)


async def refused(drive: Driver, requests: list[Request]) -> None:
    """The call raises InvalidInput, and none of its jobs has changed."""
    before = [await drive.seen(request.job_id) for request in requests]
    with pytest.raises(InvalidInput):
        await drive.store.apply(requests)
    assert [await drive.seen(request.job_id) for request in requests] == before
