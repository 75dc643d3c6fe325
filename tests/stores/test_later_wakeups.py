"""A process is woken when a job becomes due that it has scheduled for later, on both stores."""

from __future__ import annotations

from collections.abc import Set

import pytest

import tenure
from tenure.stores import later_wakeups
from tenure.stores.later_wakeups import LaterWakeups
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

NEVER_SECONDS = 3600.0
PLENTY_SECONDS = 30.0


@pytest.fixture
def woken() -> list[Set[str]]:
    return []


@pytest.mark.requirement("WC-02")
async def test_a_worker_claims_its_retry_when_it_is_due_and_not_at_the_next_poll(database: Database) -> None:
    async with database.opened():
        pass
    app = tenure.App(database.url, environment={})
    attempts: list[int] = []

    @app.job(backoff=tenure.Backoff(base_seconds=0.1, factor=1))
    async def fetch(ctx: tenure.Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("no answer")

    async with app, working(app, poll_seconds=NEVER_SECONDS, scan_seconds=NEVER_SECONDS):
        handle = await fetch.enqueue()
        await handle.result(timeout_seconds=PLENTY_SECONDS)
    assert attempts == [1, 2, 3]


async def test_queues_that_become_due_at_the_same_time_share_a_wakeup(woken: list[Set[str]]) -> None:
    later = LaterWakeups(woken.append)
    for queue in ("mail", "images", "mail"):
        later.add({queue}, later_wakeups.STEP_SECONDS)
    await eventually(lambda: len(set().union(*woken)) == 2)
    assert len(woken) <= 2


async def test_a_time_far_ahead_is_left_to_polling(woken: list[Set[str]]) -> None:
    later = LaterWakeups(woken.append)
    later.add({"mail"}, later_wakeups.SECONDS_MAX + 1)
    later.add({"mail"}, 0)
    await eventually(lambda: bool(woken))
    assert woken == [{"mail"}]
