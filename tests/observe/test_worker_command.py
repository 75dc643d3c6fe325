"""`tenure worker --metrics` with real processes and real scrapes: all are seen, and no counter goes back."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenure.lifecycle.json_text import encode
from tenure.stores import Store
from tenure.testing.driver import Driver
from tests.support.command import tenure
from tests.support.databases import Database
from tests.support.running_command import Started, started, until
from tests.support.server_process import free_port

SHOP = """
import asyncio
import logging

import tenure

app = tenure.App()


@app.job(lease_seconds=30, backoff=tenure.Backoff(base_seconds=0.01), max_attempts=2, on_exhausted="fail")
async def nap(ctx: tenure.Context, seconds: float) -> None:
    logging.getLogger("shop").info("napping for %s s", seconds)
    await asyncio.sleep(seconds)
    if seconds == 0.0:
        raise OSError("cannot sleep")
"""
QUICK = ("--poll-seconds", "0.1", "--scan-seconds", "0.3")

Series = Mapping[tuple[str, ...], float]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def arguments(database: Database, *options: str) -> tuple[str, ...]:
    return ("worker", "shop:app", "--database", database.url, *QUICK, "--metrics", "0", *options)


def address(worker: Started) -> str:
    worker.wait_for_log(r"serving metrics at http://127\.0\.0\.1:\d+/metrics")
    [found] = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", worker.log)
    return str(found)


def scraped(url: str) -> Series:
    """Every sample by its name and its labels' values, in the order of the labels' names."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


async def queue(store: Store, *seconds: float) -> None:
    drive = Driver(store)
    policy = {"lease_seconds": 30.0, "max_attempts": 2, "on_exhausted": "fail"}
    await store.enqueue([drive.enqueue(kind="nap", payload=encode({"seconds": one}), policy=policy) for one in seconds])


def only_grows(before: Series, now: Series) -> bool:
    growing = ("_total", "_count", "_bucket")
    return all(now.get(key, 0) >= value for key, value in before.items() if key[0].endswith(growing))


@pytest.mark.requirement("SM-15")
async def test_a_scrape_shows_what_the_worker_did_and_how_full_the_database_is(
    database: Database, folder: Path
) -> None:
    async with database.opened() as store:
        await queue(store, 0.05, 0.05, 0.0)
        with started(*arguments(database), folder=folder) as worker:
            url = address(worker)

            async def done() -> bool:
                seen = scraped(url)
                return seen["tenure_attempts_total", "nap", "failed"] == 1 and seen[
                    "tenure_attempts_total", "nap", "succeeded"
                ] == 2  # fmt: skip

            await until(done)
            seen = scraped(url)
            assert seen["tenure_claims_total", "nap"] == 4
            assert seen["tenure_retries_total", "nap"] == 1
            assert seen["tenure_failures_total", "nap"] == 1
            assert seen["tenure_run_seconds_count", "nap"] == 4
            assert seen["tenure_worker_processes",] == 1
            assert seen["tenure_database_up",] == 1

            async def settled() -> bool:
                seen = scraped(url)
                return seen.get(("tenure_jobs", "default", "succeeded")) == 2

            await until(settled)
            assert scraped(url)["tenure_workers",] == 1
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log


@pytest.mark.requirement("SM-15")
async def test_all_processes_are_seen_and_no_counter_goes_back_when_one_is_killed(
    database: Database, folder: Path
) -> None:
    async with database.opened() as store:
        options = ("--processes", "2", "--concurrency", "2")
        with started(*arguments(database, *options), folder=folder) as workers:
            url = address(workers)
            workers.wait_for_log(r"worker \d is up", times=2)
            await queue(store, *[0.2] * 12)

            async def claimed(least: int) -> bool:
                return scraped(url)["tenure_claims_total", "nap"] >= least

            await until(lambda: claimed(12))
            seen = scraped(url)
            assert seen["tenure_worker_processes",] == 2
            os.kill(workers.workers[0], signal.SIGKILL)
            workers.wait_for_log(r"worker \d is up", times=3)
            now = scraped(url)
            assert only_grows(seen, now)
            await queue(store, *[0.05] * 6)
            await until(lambda: claimed(18))
            assert only_grows(now, scraped(url))
            assert scraped(url)["tenure_worker_restarts_total",] == 1
            workers.signal(signal.SIGTERM)
            assert workers.ended() == 0, workers.log


async def test_a_database_that_is_away_is_shown_and_the_worker_is_still_seen(folder: Path) -> None:
    away = Database(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    with started(*arguments(away, "--wait-for-database"), folder=folder) as worker:
        url = address(worker)
        seen = scraped(url)
        assert (seen["tenure_database_up",], seen["tenure_worker_processes",]) == (0, 1)
        assert ("tenure_workers",) not in seen
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.log


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken_is_refused_before_anything_is_started(folder: Path, processes: str) -> None:
    database = Database(f"sqlite:///{folder / 'jobs.db'}")
    with started(*arguments(database), folder=folder) as worker:
        taken = re.sub(r"^http://|/metrics$", "", address(worker))
        answer = tenure(
            *("worker", "shop:app", "--database", database.url, "--metrics", taken, "--processes", processes),
            cwd=folder,
        )
    assert answer.code == 2
    assert f"metrics: cannot be served at {taken}: Address already in use; choose another address" in answer.err
    assert "started" not in answer.err


@pytest.mark.parametrize("given", ["nine", "70000", "::1:9100"])
def test_an_address_that_makes_no_sense_is_refused(folder: Path, given: str) -> None:
    answer = tenure("worker", "shop:app", "--metrics", given, cwd=folder)
    assert answer.code == 2
    assert "is not an address" in answer.err


def test_without_the_package_the_command_names_what_to_install(folder: Path) -> None:
    (folder / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')\n")
    answer = tenure("worker", "shop:app", "--metrics", "0", cwd=folder)
    assert answer.code == 2
    assert "pip install 'tenure[metrics]'" in answer.err


@pytest.mark.requirement("SM-16", "EH-06")
async def test_json_log_lines_of_a_worker_have_the_job_id(folder: Path) -> None:
    database = Database(f"sqlite:///{folder / 'jobs.db'}")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with database.opened() as store:
        drive = Driver(store)
        enqueued = [
            drive.enqueue(kind="nap", payload=encode({"seconds": seconds}), correlation_id=f"c-{seconds}", trace=trace)
            for seconds in (0.0, 0.01)
        ]
        jobs = {str(one.job.id): one.job for one in await store.enqueue(enqueued)}
        with started(*arguments(database, "--json"), folder=folder) as worker:
            worker.wait_for_log(r"attempt \d+ failed")
            worker.wait_for_log("napping for 0.01 s")
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0, worker.log
        lines = [json.loads(line) for line in worker.log.splitlines()]
    own = [line for line in lines if line["logger"] == "shop"]
    assert {line["job_id"] for line in own} == set(jobs)
    for line in [*own, *(line for line in lines if " at attempt " in line["message"])]:
        job = jobs[line["job_id"]]
        assert (line["job_kind"], line["correlation_id"]) == ("nap", job.origin.correlation_id)
        assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
        assert line["job_attempt"] in (1, 2)
    assert not any("job_id" in line for line in lines if line["message"].startswith(("worker ", "stop")))
