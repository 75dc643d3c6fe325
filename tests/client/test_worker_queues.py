"""Which queues a worker serves: all that its app declares, unless its own are named."""

from __future__ import annotations

import pytest

import tenure
from tenure.errors import InvalidInput
from tests.support.databases import Database
from tests.support.in_process_worker import working


@pytest.fixture
async def app(database: Database) -> tenure.App:
    async with database.opened():
        pass
    return tenure.App(database.url)


async def test_a_job_in_a_queue_of_its_own_runs_without_naming_the_queue_twice(app: tenure.App) -> None:
    @app.job(queue="mail")
    async def send(to: str) -> str:
        return to

    @app.job()
    async def count(number: int) -> int:
        return number

    async with app, working(app) as worker:
        assert worker.queues == ("default", "mail")
        assert await (await send.enqueue("ada")).result(60) == "ada"
        assert await (await count.enqueue(1)).result(60) == 1


async def test_named_queues_replace_the_declared_ones_and_a_star_stands_for_those(app: tenure.App) -> None:
    @app.job(queue="mail")
    async def send(to: str) -> str:
        return to

    app.schedule(send.options(queue="nights").request("ada"), "0 3 * * *")
    assert app.worker().queues == ("mail", "nights")
    assert app.worker(queues=["mail"]).queues == ("mail",)
    async with app, working(app, queues=["*", "urgent", "mail"]) as worker:
        assert worker.queues == ("mail", "nights", "urgent")
        assert await (await send.options(queue="urgent").enqueue("bob")).result(60) == "bob"


def test_no_queue_at_all_is_refused() -> None:
    app = tenure.App("sqlite:///never.db")
    with pytest.raises(InvalidInput, match="declares no jobs"):
        app.worker()

    @app.job(queue="mail")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidInput, match="at least one queue"):
        app.worker(queues=[])
