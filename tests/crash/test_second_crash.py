"""A worker dies with jobs in its hands, and the recovery that comes after it dies too, at each of its statements. A
third process finishes what both have left."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Event, EventType
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.seams import SYSTEM
from tenure.stores import Store, store_for
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tenure.workers.maintenance.recovery import RecoveryWorker
from tests.crash.acts import job_id, wait_until_seen
from tests.crash.acts_of_recovery import DYING, FATES
from tests.crash.afterwards import Plan, crossed, lasting_store, prepare
from tests.crash.mortals import Mortals
from tests.crash.places import Place
from tests.crash.watching import Crossing

HOLD, RECOVER = DYING
JOBS = [job_id(number) for number in FATES]


async def leave_orphans(place: Place, mortals: Mortals) -> None:
    """A real process takes jobs, commits one, and dies before it could say so. The place remembers that."""
    held = await prepare(HOLD, place)
    last = len(crossed(held, mortals)) - 1
    place.put_back()
    assert mortals.send(held.order(dies_at=last)).signal == signal.SIGKILL
    place.settled()
    store = store_for(place.url)
    await store.open()
    for orphan in JOBS:
        await wait_until_seen(Driver(store), orphan)
    await store.close()
    place.settled()
    place.keep()


async def histories(store: Store) -> dict[UUID, list[Event]]:
    return await store.history(JOBS)


def stalls(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type is EventType.STALLED]


async def check_finished(store: Store) -> None:
    """Each job is where its policy says, was lost once, and the committed one kept its result."""
    jobs = await store.read(JOBS)
    assert {number: jobs[job_id(number)].status for number in FATES} == {n: fate for n, (_, fate) in FATES.items()}
    for events in (await histories(store)).values():
        assert len(stalls(events)) == 1, "a loss was recorded more than once"
        assert len({(event.attempt, event.rev) for event in events}) == len(events)
    assert jobs[job_id(5)].result == '"paid"'
    assert sum(event.commits for event in (await histories(store))[job_id(5)]) == 1
    await check_store(store)


@pytest.mark.requirement("EL-06", "SM-04", "WC-11")
async def test_a_recovery_that_dies_at_any_statement_is_finished_by_another(place: Place, mortals: Mortals) -> None:
    await leave_orphans(place, mortals)
    second = await prepare(RECOVER, place, keeps=False)
    places = crossed(second, mortals)
    done_before: dict[bytes | int, int] = {}
    async with lasting_store(second):
        for number, crossing in enumerate(places):
            place.put_back()
            death = mortals.send(second.order(dies_at=number))
            assert death.signal == signal.SIGKILL, f"it did not die at {crossing}: {death}"
            place.settled()
            # Where it has left the very bytes that an earlier one left, what was found then holds now.
            left = place.left() or number
            if left not in done_before:
                async with third_process(second) as store:
                    done_before[left] = await finish_as_third(store, place, crossing)
    amounts = set(done_before.values())
    assert {0, len(JOBS)} < amounts, f"no recovery died in the middle of its work: {amounts}"
    print(f"{place.kind}: recovery: {len(places)} places")


@asynccontextmanager
async def third_process(second: Plan) -> AsyncIterator[Store]:
    store = second.lasting or store_for(second.place.url)
    await store.open()
    try:
        yield store
    finally:
        if store is not second.lasting:
            await store.close()


async def finish_as_third(store: Store, place: Place, crossing: Crossing) -> int:
    """How many jobs the one that died had seen to, after all of them are seen to."""
    await check_store(store)
    seen_to = sum(bool(stalls(events)) for events in (await histories(store)).values())
    third = RecoveryWorker(store, SYSTEM, name="third")
    assert await third.scan() == len(JOBS) - seen_to, f"died at {crossing}: others were changed than were left"
    await check_finished(store)
    left = place.state()
    assert await third.scan() == 0
    assert place.state() == left, "a scan that found nothing has changed something"
    drive = Driver(store)
    [again] = await drive.claim(worker="worker-2")
    assert again.id == JOBS[0]
    assert again.attempt == 2
    assert (await drive.apply(again, Complete("2"))).status is SUCCEEDED
    return seen_to
