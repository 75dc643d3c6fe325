"""Input that some store could not hold, or that nobody could mean: refused by every store, alike, before it writes."""

from __future__ import annotations

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
from tenure.stores.contract import Enqueue, Request
from tenure.testing.driver import CLIENT, Driver
from tenure.testing.log_check import all_jobs

NUL, SURROGATE = "a\x00b", "a\ud800b"
LONG = "x" * 501
HUGE = '"' + "x" * (256 * 1024) + '"'
BAD_TEXTS = (NUL, SURROGATE, LONG, "", 7)
BAD_CONTENTS = ("NaN", "[Infinity]", "{", "", "1 2", f'"{NUL}"', f'"{SURROGATE}"', '"\\u0000"', '"\\ud800"', HUGE, 7)
BAD_ORIGINS: tuple[dict[str, Any], ...] = (
    *({name: text} for name in ("kind", "queue") for text in (*BAD_TEXTS, " spaced ", "line\nbreak", "x" * 201)),
    *({name: text} for name in ("dedupe_key", "request_id", "correlation_id") for text in BAD_TEXTS),
    *({name: NUL} for name in ("trace", "submitted_by", "partition_key")),
    *({"tags": tags} for tags in ({NUL: "x"}, {"x": SURROGATE}, {"": "x"}, {"x": LONG})),
    *({"payload": text} for text in BAD_CONTENTS),
    *({"priority": number} for number in (-32_769, 32_768, 1.5, True, "1")),
    *({"delay_ms": number} for number in (-1, 2**63, 0.5)),
)


def shown(value: object) -> str:
    return ascii(value)[:40]


class InputContract:
    """The same InvalidInput everywhere, and nothing written."""

    @pytest.mark.parametrize("facts", BAD_ORIGINS, ids=shown)
    async def test_a_job_that_no_store_can_hold_is_refused_with_its_whole_batch(
        self, drive: Driver, facts: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await drive.store.add([drive.enqueue(), drive.enqueue(**facts), drive.enqueue()])
        [(name, _)] = facts.items()
        assert name in refusal.value.where
        assert await all_jobs(drive.store) == []

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("role", [role for role in Role if role is not Role.CLIENT])
    async def test_only_a_client_enqueues(self, drive: Driver, role: Role) -> None:
        request = drive.enqueue()
        with pytest.raises(NotAuthorised):
            await drive.store.add([Enqueue(request.origin, Actor(role, "x"))])
        assert await all_jobs(drive.store) == []

    @pytest.mark.requirement("WC-01")
    @pytest.mark.parametrize("role", [role for role in Role if role not in (Role.POOL, Role.GATEWAY)])
    async def test_only_pools_and_gateways_claim(self, drive: Driver, role: Role) -> None:
        job = await drive.add()
        with pytest.raises(NotAuthorised):
            await drive.claim(role=role)
        assert await drive.job(job.id) == job

    @pytest.mark.requirement("WC-01")
    async def test_a_claim_does_not_hide_among_other_changes(self, drive: Driver) -> None:
        job = await drive.add()
        pool = Actor(Role.POOL, "worker-1", drive.random.token())
        await refused(drive, [drive.request(job.id, Claim(drive.random.token()), actor=pool)])
        assert await drive.job(job.id) == job

    async def test_more_operations_than_go_together_are_refused(self, drive: Driver) -> None:
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
            {"request_id": SURROGATE},
            {"request_id": LONG},
            {"queues": ("ok", NUL)},
            {"kinds": ("ok", " x")},
        ],
        ids=shown,
    )
    async def test_a_claim_that_could_not_be_meant_is_refused(self, drive: Driver, facts: dict[str, Any]) -> None:
        job = await drive.add()
        with pytest.raises(InvalidInput):
            await drive.claim(**facts)
        assert await drive.job(job.id) == job

    @pytest.mark.parametrize("content", BAD_CONTENTS, ids=shown)
    async def test_content_that_no_store_can_hold_is_refused_with_its_whole_batch(
        self, drive: Driver, content: Any
    ) -> None:
        makers: tuple[type[Operation], ...] = (Commit, Complete, Retry, Fail)
        good, bad = await drive.running(), await drive.running()
        for make in makers:
            requests = [drive.request(good, Complete("1")), drive.request(bad, make(content))]
            await refused(drive, requests)
        await refused(drive, [drive.request(bad.id, Signal("go", content), actor=CLIENT)])

    @pytest.mark.parametrize("request_id", BAD_TEXTS, ids=shown)
    async def test_a_request_without_a_sound_id_is_refused(self, drive: Driver, request_id: Any) -> None:
        job = await drive.add()
        await refused(drive, [drive.request(job.id, Cancel(), actor=CLIENT, request_id=request_id)])

    @pytest.mark.parametrize("name", BAD_TEXTS, ids=shown)
    async def test_an_actor_without_a_sound_name_is_refused(self, drive: Driver, name: Any) -> None:
        job = await drive.add()
        actor = Actor(Role.CLIENT, name)
        await refused(drive, [drive.request(job.id, Cancel(), actor=actor)])
        with pytest.raises(InvalidInput):
            await drive.store.add([Enqueue(drive.enqueue().origin, actor)])

    async def test_a_request_for_nothing_is_refused(self, drive: Driver) -> None:
        job = await drive.add()
        await refused(drive, [drive.request(job.id, actor=CLIENT)])

    @pytest.mark.parametrize(
        "payload",
        ['"\\u00e9 \\ud83d\\ude00 \\\\u0000"', '{"a":{"b":[1,2,{"c":null}]}}', '"' + "é" * 1000 + '"', "-0.0", "1e300"],
        ids=shown,
    )
    async def test_content_that_is_sound_comes_back_to_the_letter(self, drive: Driver, payload: str) -> None:
        job = await drive.running(payload=payload)
        assert (await drive.job(job.id)).origin.payload == payload
        done = await drive.apply(job, Complete(payload))
        assert (await drive.job(job.id)).result == payload == done.result

    async def test_names_that_look_like_sql_or_formats_are_only_names(self, drive: Driver) -> None:
        for name in ("'; drop table jobs; --", "%s", ":name", "$1", "{}", "naïve ∑ 😀", "x" * 200):
            job = await drive.running(kind=name, queue=name, dedupe_key=name, correlation_id=name, tags={name: name})
            assert (await drive.job(job.id)).origin == job.origin
            assert (job.kind, job.queue, job.origin.dedupe_key) == (name, name, name)


async def refused(drive: Driver, requests: list[Request]) -> None:
    """The call raises InvalidInput, and none of its jobs has changed."""
    before = [await drive.seen(request.job_id) for request in requests]
    with pytest.raises(InvalidInput):
        await drive.store.perform(requests)
    assert [await drive.seen(request.job_id) for request in requests] == before
