"""The key of a run: used again it returns that run, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.errors import KeyUsed, RequestIdReused
from tests.support.in_process_worker import working


def declared(app: tenure.App) -> Any:
    @app.workflow()
    async def order(run: tenure.Run, number: int) -> int:
        return number

    return order


@pytest.mark.requirement("WF-14")
async def test_a_used_key_returns_its_run_live_or_ended(app: tenure.App) -> None:
    order = declared(app)
    async with app:
        first = await order.options(key="7").enqueue(7)
        again = await order.options(key="7").enqueue(7)
        assert (first.created, again.created, again.id) == (True, False, first.id)
        assert (await first.refresh()).origin.request_id == "order:7"
        async with working(app):
            await first.result(timeout_seconds=60)
        ended = await order.options(key="7").enqueue(7)
    assert (ended.id, ended.created) == (first.id, False)


@pytest.mark.requirement("WF-14")
async def test_a_used_key_is_refused_by_option_and_with_another_payload(app: tenure.App) -> None:
    order = declared(app)
    async with app:
        strict = order.options(key="7", if_used="refuse")
        first = await strict.enqueue(7)
        with pytest.raises(KeyUsed, match=str(first.id)) as refusal:
            await strict.enqueue(7)
        assert refusal.value.key == "7"
        assert refusal.value.current == await first.refresh()
        with pytest.raises(RequestIdReused):
            await order.options(key="7").enqueue(8)
        assert [job.id for job in (await app.find(tenure.JobFilter())).jobs] == [first.id]


@pytest.mark.requirement("WF-14")
async def test_a_dedupe_key_starts_anew_after_the_end(app: tenure.App) -> None:
    order = declared(app)
    async with app, working(app):
        first = await order.options(dedupe_key="7").enqueue(7)
        await first.result(timeout_seconds=60)
        assert (await order.options(dedupe_key="7").enqueue(7)).created


@pytest.mark.parametrize(
    "options",
    [{"key": "7", "request_id": "r"}, {"if_used": "refuse"}, {"key": "7", "if_used": "ignore"}, {"key": ""}],
    ids=str,
)
async def test_options_of_a_key_that_contradict_are_refused(app: tenure.App, options: dict[str, Any]) -> None:
    order = declared(app)
    async with app:
        with pytest.raises(tenure.InvalidInput):
            await order.options(**options).enqueue(7)
        assert (await app.find(tenure.JobFilter())).jobs == []
