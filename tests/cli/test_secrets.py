"""`secret=` of a declaration: commands hide these fields without the app, since the names are stored with the job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypedDict

import pytest

import tenure
from tenure.errors import InvalidInput
from tenure.lifecycle.records import Job, Policy
from tenure.stores.contract.outbox import MessageFilter
from tests.support.command import tenure as command
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

SSN, DIAGNOSIS = "078-05-1120", "measles"
OPEN = "ada lovelace"
SECRETS = (SSN, DIAGNOSIS)


class Patient(TypedDict):
    name: str
    diagnosis: str


async def ended(handle: tenure.Handle[Any]) -> Job:
    async def is_over() -> bool:
        return not (await handle.refresh()).live

    await eventually(is_over, seconds=60)
    return await handle.refresh()


@pytest.fixture
async def app(database: Database) -> AsyncIterator[tenure.App]:
    async with database.opened():
        pass
    app = tenure.App(database.url)
    yield app
    await app.close()


def declared(app: tenure.App) -> tuple[Any, Any]:
    """A run that succeeds, and one that fails with an error that quotes what is secret."""

    def look_up(ssn: str) -> Patient:
        return {"name": OPEN, "diagnosis": DIAGNOSIS}

    @app.workflow(secret=["ssn", "diagnosis"])
    async def treat(run: tenure.Run, ssn: str) -> Patient:
        patient = await run.step(look_up, ssn)
        await run.state({"diagnosis": patient["diagnosis"], "note": f"has {patient['diagnosis']}"})
        await run.outbox("treated", {"name": OPEN, "diagnosis": DIAGNOSIS})
        return patient

    @app.job(secret=["ssn"], max_attempts=1)
    def bill(ssn: str) -> None:
        raise ValueError(f"{OPEN} with number {ssn} is not insured")

    return treat, bill


def shown(database: Database, *arguments: str) -> str:
    result = command(*arguments, "--database", database.url)
    assert result.code == 0, result.err
    return result.out


def variants(job_id: object, *commands: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Each command about this job, in words and as JSON."""
    for words in commands:
        named = [word for word in words if not word.startswith("--")]
        options = words[len(named) :]
        yield (*named, str(job_id), *options)
        yield (*named, str(job_id), *options, "--json")


async def test_commands_hide_the_secret_fields_of_a_run(app: tenure.App, database: Database) -> None:
    treat, _ = declared(app)
    async with app, working(app):
        handle = await treat.enqueue(SSN)
        assert await handle.result(timeout_seconds=60) == {"name": OPEN, "diagnosis": DIAGNOSIS}
        assert (await handle.refresh()).policy.secret == ("diagnosis", "ssn")
        [message] = await (await app.store()).outbox.messages(MessageFilter())
    commands = [
        ("jobs", "show"),
        ("jobs", "show", "--provenance", "--events"),
        ("runs", "show"),
        ("replay", "--events"),
    ]
    for arguments in variants(handle.id, *commands):
        hidden, revealed = shown(database, *arguments), shown(database, *arguments, "--reveal")
        assert not any(secret in hidden for secret in SECRETS), arguments
        assert "[redacted]" in hidden, arguments
        assert SSN in revealed, arguments
    for options in ((), ("--json",)):
        body = shown(database, "outbox", "show", str(message.id), "--body", *options)
        assert OPEN in body
        assert DIAGNOSIS not in body
        assert DIAGNOSIS in shown(database, "outbox", "show", str(message.id), "--body", "--reveal", *options)


async def test_commands_and_logs_hide_a_secret_that_an_error_quotes(
    app: tenure.App, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    _, bill = declared(app)
    async with app, working(app):
        handle = await bill.enqueue(SSN)
        job = await ended(handle)
    assert SSN in (job.last_error or ""), "what is stored does not change"
    commands = [
        ("jobs", "show"),
        ("jobs", "show", "--provenance", "--events"),
        ("runs", "show"),
        ("dlq", "show"),
        ("replay", "--events"),
    ]
    for arguments in variants(handle.id, *commands):
        hidden = shown(database, *arguments)
        assert SSN not in hidden, arguments
        assert OPEN in hidden, arguments
        assert SSN in shown(database, *arguments, "--reveal"), arguments
    for words in (("jobs", "ls"), ("dlq", "ls"), ("dlq", "ls", "--json"), ("jobs", "ls", "--json")):
        assert SSN not in shown(database, *words), words
    assert "is not insured" in caplog.text
    assert SSN not in caplog.text
    assert not any(SSN in str(record.__dict__) for record in caplog.records)


async def test_a_reader_names_further_fields(app: tenure.App, database: Database) -> None:
    @app.job()
    def greet(name: str, password: str) -> None: ...

    async with app:
        handle = await greet.enqueue(OPEN, "hunter2")
    usual = shown(database, "jobs", "show", str(handle.id))
    assert OPEN in usual
    assert "hunter2" not in usual
    assert OPEN not in shown(database, "jobs", "show", str(handle.id), "--secret", "name")


@pytest.mark.parametrize("names", ["ssn", [""], ["a b"], [1], 7, [f"n{number}" for number in range(51)]])
def test_secret_is_a_list_of_names_of_fields(app: tenure.App, names: Any) -> None:
    with pytest.raises(InvalidInput, match="secret"):

        @app.job(secret=names)
        def job() -> None: ...


def test_an_empty_list_is_none(app: tenure.App) -> None:
    @app.job(secret=[])
    def job() -> None: ...

    assert job.request().enqueue.origin.policy == Policy()
