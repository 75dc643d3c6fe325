"""`tenure verify` in a process of its own, on real databases: sound ones, and manipulated ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from uuid import UUID

import pytest

from tenure.lifecycle.operations import Commit, Complete, Fail, Heartbeat, Retry, Signal
from tenure.stores import Store
from tenure.testing.driver import CLIENT, ERROR, OPERATOR, Driver, blank_verbose, prune_finished
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.sample_jobs import DEAD_LETTER, one_of_each


def verify(database: Database, *options: str) -> Answer:
    return tenure("verify", "--database", database.url, *options)


def found(answer: Answer) -> set[tuple[str | None, str, int | None]]:
    return {(problem["job_id"], problem["type"], problem["rev"]) for problem in answer.json["problems"]}


async def finished(driver: Driver) -> UUID:
    running = await driver.running(kind="finished", payload='{"to":"ada"}')
    return (await driver.apply(running, Commit('"sent"'), Complete('"sent"'))).id


@pytest.mark.requirement("EL-02")
async def test_a_sound_database_is_found_sound(database: Database) -> None:
    async with database.opened() as store:
        jobs = await one_of_each(Driver(store))
    answer = verify(database, "--json")
    assert answer.code == 0, answer
    assert answer.json["problems"] == []
    assert (answer.json["ok"], answer.json["complete"], answer.json["jobs"]) == (True, True, len(jobs))
    assert answer.json["events"] == sum(job.rev for job in jobs)
    in_words = verify(database)
    assert in_words.code == 0
    assert (
        in_words.out
        == f"{len(jobs)} jobs and {answer.json['events']} events verified: every record matches its events\n"
    )


async def test_what_was_erased_pruned_and_blanked_is_still_sound(database: Database) -> None:
    async with database.opened() as store:
        jobs = await one_of_each(Driver(store))
        ended = [job for job in jobs if not job.live]
        for job in ended[:-1]:
            await store.erase(job.id, reason="asked", actor=OPERATOR)
        await blank_verbose(store, older_than_seconds=0)
        assert await prune_finished(store, older_than_seconds=0, limit=2) == 2
    answer = verify(database, "--json")
    assert (answer.code, answer.json["problems"]) == (0, [])
    assert answer.json["jobs"] == len(jobs) - 2


@pytest.mark.requirement("EL-02")
async def test_each_thing_that_was_tampered_with_is_named_and_nothing_else(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        await one_of_each(driver)
        ids = [await finished(driver) for _ in range(10)]
        failed = (await driver.apply(await driver.running(), Fail(ERROR))).id
        retried = (await driver.apply(await driver.running(), Retry(ERROR, delay_seconds=3600))).id
        committed = (await driver.apply(await driver.running(), Commit("1"))).id
        buried = (await driver.apply(await driver.running(), DEAD_LETTER)).id
        signalled = (await driver.apply(await driver.add("late"), Signal("go", "7"), actor=CLIENT)).id
    assert verify(database).code == 0
    database.tamper(
        f"update {{jobs}} set attempt = 7 where id = '{ids[0]}'",
        f"update {{jobs}} set result = '\"forged\"' where id = '{ids[1]}'",
        f"update {{jobs}} set payload = '{{\"to\":\"mallory\"}}' where id = '{ids[2]}'",
        f"delete from {{events}} where job_id = '{ids[3]}' and rev = 3",
        f"delete from {{events}} where job_id = '{ids[4]}'",
        f"delete from {{jobs}} where id = '{ids[5]}'",
        f"update {{events}} set attempt = 2 where job_id = '{ids[6]}' and rev = 4",
        f"update {{events}} set to_status = 'failed' where job_id = '{ids[7]}' and rev = 5",
        f"update {{jobs}} set owner = 'mallory' where id = '{ids[8]}'",
        f"update {{events}} set digest = 'feed' where job_id = '{ids[9]}' and rev = 1",
        f"update {{jobs}} set error = '\"forged\"' where id = '{failed}'",
        f"update {{jobs}} set last_error = null where id = '{retried}'",
        f"update {{jobs}} set committed_result = '2' where id = '{committed}'",
        f"delete from {{dead_letters}} where job_id = '{buried}'",
        f"update {{signals}} set payload = '8' where job_id = '{signalled}'",
    )
    answer = verify(database, "--json")
    assert answer.code == 1
    assert found(answer) == {
        (str(ids[0]), "differs", None),
        (str(ids[1]), "content", 5),
        (str(ids[2]), "origin", 1),
        (str(ids[3]), "broken_log", 4),
        (str(ids[4]), "no_events", None),
        (str(ids[5]), "no_job", None),
        (str(ids[6]), "broken_log", 4),
        (str(ids[7]), "broken_log", 5),
        (str(ids[8]), "differs", None),
        (str(ids[8]), "invariant", None),
        (str(ids[9]), "origin", 1),
        (str(failed), "content", 4),
        (str(retried), "content", 4),
        (str(committed), "content", 4),
        (str(buried), "dead_letter", None),
        (str(signalled), "signal", 2),
    }
    in_words = verify(database)
    assert in_words.code == 1
    assert f"job {ids[0]}: differs: attempt is 7 in the record, 1 by the log\n" in in_words.out
    assert f"job {ids[5]}: no_job: the log has 5 events of this job, which does not exist\n" in in_words.out


async def test_a_policy_that_was_changed_by_hand_is_noticed_in_every_job_that_has_it(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        strict = await driver.add(policy={"max_attempts": 3})
        await driver.add()
    database.tamper("update {policies} set body = replace(body, '\"max_attempts\":3', '\"max_attempts\":300')")
    answer = verify(database, "--json")
    assert (answer.code, found(answer)) == (1, {(str(strict.id), "origin", 1)})


async def test_an_event_that_cannot_be_read_is_named_and_hides_nothing_else(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        ids = [await finished(driver) for _ in range(5)]
    database.tamper(
        f"update {{events}} set to_status = 'bogus' where job_id = '{ids[1]}' and rev = 3",
        f"update {{jobs}} set attempt = 7 where id = '{ids[4]}'",
    )
    answer = verify(database, "--json")
    assert answer.code == 1
    named = found(answer)
    assert {(str(ids[1]), "unreadable", None), (str(ids[4]), "differs", None)} <= named
    assert {job_id for job_id, _, _ in named} == {str(ids[1]), str(ids[4])}


async def test_a_record_that_cannot_be_read_is_named(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        ids = [await finished(driver) for _ in range(3)]
    database.tamper(f"update {{jobs}} set status = 'bogus' where id = '{ids[1]}'")
    answer = verify(database, "--json")
    assert answer.code == 1
    assert (found(answer), answer.json["jobs"]) == ({(str(ids[1]), "unreadable", None)}, 2)


async def test_it_stops_at_the_most_problems_that_it_may_list(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        for _ in range(5):
            await finished(driver)
    database.tamper("update {jobs} set attempt = 7")
    answer = verify(database, "--json", "--max-problems", "3")
    assert (answer.code, len(answer.json["problems"]), answer.json["complete"]) == (1, 3, False)
    in_words = verify(database, "--max-problems", "3")
    assert in_words.out.count("differs") == 3
    assert "raise --max-problems for more" in in_words.out
    assert verify(database, "--max-problems", "0").code == 2


async def test_answers_have_no_colours_in_a_pipe(database: Database) -> None:
    async with database.opened() as store:
        await finished(Driver(store))
    database.tamper("update {jobs} set attempt = 7")
    for env in ({}, {"NO_COLOR": "1"}):
        answer = tenure("verify", "--database", database.url, env=env)
        assert "\x1b" not in answer.out + answer.err


async def keep_busy(driver: Driver, until: asyncio.Task[Answer]) -> int:
    """Move jobs along, batch after batch, and prune some, for as long as the other is under way."""
    moved = 0
    while not until.done():
        await driver.store.enqueue([driver.enqueue() for _ in range(20)])
        for job in await driver.claim(limit=20):
            job = await driver.apply(job, Heartbeat())
            moved += (await driver.apply(job, Commit("1"), Complete("1"))).rev
        await prune_finished(driver.store, older_than_seconds=0.2, limit=10)
    return moved


async def test_a_database_that_is_at_work_while_it_is_read_is_found_sound(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        await complete_many(driver, store, 1_000)
        reading = asyncio.create_task(asyncio.to_thread(verify, database, "--json"))
        moved = await keep_busy(driver, reading)
        answer = await reading
    assert moved > 0
    assert (answer.code, answer.json["problems"]) == (0, []), answer
    assert answer.json["jobs"] > 0


MEASURED = """
import sys, tracemalloc
from tenure.cli.main import run_command
tracemalloc.start()
code = run_command(sys.argv[1:])
print(tracemalloc.get_traced_memory()[1], file=sys.stderr)
sys.exit(code)
"""
"""The command, and then the most memory that Python's objects took at any time, in bytes."""


async def complete_many(driver: Driver, store: Store, count: int) -> None:
    payload = f'"{"x" * 200}"'
    for _ in range(count // 500):
        await store.enqueue([driver.enqueue(payload=payload) for _ in range(500)])
        jobs = await driver.claim(limit=500)
        await store.apply([driver.request(job, Complete(payload)) for job in jobs])


def memory_bytes(database: Database, jobs: int) -> int:
    command = [sys.executable, "-c", MEASURED, "verify", "--database", database.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.startswith(f"{jobs:,} jobs and {4 * jobs:,} events verified: every record"), done.stdout
    return int(done.stderr.split()[-1])


@pytest.mark.deep
async def test_memory_does_not_grow_with_the_database(database: Database) -> None:
    async with database.opened() as store:
        driver = Driver(store)
        await complete_many(driver, store, 1_000)
        few = memory_bytes(database, 1_000)
        await complete_many(driver, store, 6_000)
        many = memory_bytes(database, 7_000)
    # 6,000 jobs and 24,000 events more, of which the ids alone would take more than this.
    assert many - few < 2**20, f"{few} bytes for 1,000 jobs, {many} for 7,000"
