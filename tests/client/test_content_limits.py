"""The largest payload and result are settings of the app."""

from __future__ import annotations

import pytest

import tenure
from tenure.errors import InvalidInput
from tests.support.databases import Database
from tests.support.in_process_worker import working

LARGE = "x" * 1_000_000


def declared(url: str, limits: tenure.ContentLimits | None = None) -> tenure.JobFunction[[str], str]:
    app = tenure.App(url, limits=limits)

    @app.job(max_attempts=1, on_exhausted="fail")
    async def echo(text: str) -> str:
        return text

    return echo


async def test_an_app_that_allows_it_has_large_payloads_and_results(database: Database) -> None:
    echo = declared(database.url, tenure.ContentLimits(payload_bytes_max=1_100_000, result_bytes_max=1_100_000))
    await echo.app.migrate()
    async with echo.app, working(echo.app):
        handle = await echo.enqueue(LARGE)
        assert await handle.result(timeout_seconds=60) == LARGE
        [from_json] = await echo.app.enqueue_many([echo.request_from_json(f'{{"text":"{LARGE}"}}')])
        assert await from_json.result(timeout_seconds=60) == LARGE


async def test_beyond_its_limits_an_app_refuses_payloads_and_results() -> None:
    with pytest.raises(InvalidInput, match="at most 262144 are allowed"):
        declared("sqlite:///never.db").request(LARGE)
    echo = declared("sqlite:///never.db", tenure.ContentLimits(payload_bytes_max=2_000_000, result_bytes_max=1000))
    async with echo.app.testing() as harness:
        handle = await echo.enqueue(LARGE)
        await harness.drain()
        with pytest.raises(tenure.JobFailed, match="result of echo: is 1000002 bytes of JSON, and at most 1000"):
            await handle.result()


async def test_the_largest_result_of_a_step_is_a_setting_of_the_app(database: Database) -> None:
    def grow(size: int) -> str:
        return "x" * size

    def declared(limits: tenure.ContentLimits | None) -> tenure.JobFunction[[int], int]:
        app = tenure.App(database.url, limits=limits)

        @app.workflow(max_attempts=1, on_exhausted="fail")
        async def growing(run: tenure.Run, size: int) -> int:
            return len(await run.step(grow, size))

        return growing

    larger, default = declared(tenure.ContentLimits(step_bytes_max=3_000_000)), declared(None)
    await larger.app.migrate()
    async with larger.app, working(larger.app):
        assert await (await larger.enqueue(2_500_000)).result(timeout_seconds=60) == 2_500_000
        with pytest.raises(tenure.JobFailed, match="step grow: is 3500002 bytes of JSON, and at most 3000000"):
            await (await larger.enqueue(3_500_000)).result(timeout_seconds=60)
    async with default.app, working(default.app):
        with pytest.raises(tenure.JobFailed, match="step grow: is 2500002 bytes of JSON, and at most 2097152"):
            await (await default.enqueue(2_500_000)).result(timeout_seconds=60)


@pytest.mark.parametrize("wrong", [0, 2 * 1024 * 1024 + 1, True])
def test_a_limit_that_no_store_can_keep_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidInput, match="payload_bytes_max"):
        tenure.ContentLimits(payload_bytes_max=wrong)
