"""`tenure export` and `tenure import` in processes of their own, on real databases."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tenure.stores import Store
from tenure.stores.contract import JobFilter
from tenure.testing.contract.archive import seen
from tenure.testing.driver import Driver
from tenure.testing.store_check import whole_tail
from tenure.vocabularies import VOCABULARY_NAMES, vocabulary
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.full_database import fill_database
from tests.support.postgres import Postgres
from tests.support.sample_jobs import one_of_each
from tests.support.server_process import wait_until
from tools.generated import ROOT

Line = dict[str, Any]
KINDS = {"operator", "claim", "queue", "rate_usage", "schedule", "stream", "message", "event", "job", "artifact"} | {
    "step"
}


def export(database: Database, *arguments: str | Path) -> Answer:
    return tenure("export", "--database", database.url, *map(str, arguments))


def import_(database: Database, *arguments: str | Path) -> Answer:
    return tenure("import", "--database", database.url, *map(str, arguments))


def migrate(database: Database) -> None:
    assert tenure("migrate", "--database", database.url).code == 0


def read(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def body(file: Path) -> list[bytes]:
    """All lines between header and footer."""
    return file.read_bytes().splitlines()[1:-1]


@pytest.fixture
def new_database(postgres_server: Postgres, tmp_path: Path) -> Iterator[Callable[[str], Database]]:
    """Makes databases of either kind that nothing was written to yet."""
    made: list[str] = []
    numbers = count()

    def make(kind: str) -> Database:
        if kind == "sqlite":
            return Database(f"sqlite:///{tmp_path / f'new-{next(numbers)}.db'}")
        made.append(postgres_server.create_database())
        migrate(Database(made[-1]))
        return Database(made[-1])

    yield make
    for dsn in made:
        postgres_server.drop_database(dsn)


async def contents(database: Database) -> Any:
    async with database.opened() as store:
        return await seen(store)


@pytest.fixture(scope="module")
def origin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where there is a database with something of everything, and its export."""
    folder = tmp_path_factory.mktemp("origin")
    database = Database(f"sqlite:///{folder / 'origin.db'}")

    async def live() -> None:
        async with database.opened() as store:
            await fill_database(store)

    asyncio.run(live())
    answer = export(database, folder / "export.jsonl")
    assert answer.code == 0, answer
    return folder


@pytest.fixture
def exported(origin_folder: Path, tmp_path: Path) -> Path:
    """An export of its own for the test, beside the database that it is of."""
    for name in ("origin.db", "export.jsonl"):
        shutil.copyfile(origin_folder / name, tmp_path / name)
    return tmp_path / "export.jsonl"


# The way there and back.


@pytest.mark.requirement("EH-09")
@pytest.mark.parametrize("first", ["sqlite", "postgres"])
async def test_a_database_is_unchanged_after_a_round_trip_through_the_other_store(
    first: str, new_database: Callable[[str], Database], tmp_path: Path
) -> None:
    other = "postgres" if first == "sqlite" else "sqlite"
    origin, abroad, home = new_database(first), new_database(other), new_database(first)
    async with origin.opened() as store:
        jobs = await fill_database(store)
    files = [tmp_path / f"{name}.jsonl" for name in ("origin", "abroad", "home")]
    for database, file, target in zip((origin, abroad, home), files, (abroad, home, None), strict=True):
        assert export(database, file).code == 0
        if target is not None:
            answer = import_(target, file)
            assert answer.code == 0, answer
            verified = tenure("verify", "--json", "--database", target.url)
            assert (verified.code, verified.json["problems"]) == (0, [])
            assert verified.json["jobs"] >= len(jobs)
    assert body(files[0]) == body(files[1]) == body(files[2])
    assert await contents(origin) == await contents(abroad) == await contents(home)
    kinds = {json.loads(line)["line"] for line in body(files[0])}
    assert kinds == KINDS


async def test_workers_run_the_jobs_of_an_imported_database(
    exported: Path, new_database: Callable[[str], Database]
) -> None:
    database = new_database("postgres")
    assert import_(database, exported).code == 0
    async with database.opened() as store:
        drive = Driver(store)
        [job] = await drive.claim(kinds=("queued",))
        assert job.rev == 3
        assert (await drive.add("twin", dedupe_key="x")).id == (await _twin(store))
        written = sum(job.rev for job in (await store.find(JobFilter(), limit=10_000)).jobs)
        position = (await whole_tail(store, expected=written))[-1].position
        added = await drive.add()
        later = await whole_tail(store, after=position, expected=1)
        assert [event.job_id for event in later] == [added.id]
    assert tenure("verify", "--database", database.url).code == 0


async def _twin(store: Store) -> object:
    [job] = (await store.find(JobFilter(kinds=("twin",)))).jobs
    return job.id


def test_an_export_has_a_header_and_a_footer_with_counts(exported: Path) -> None:
    header, *lines, footer = read(exported)
    assert (header["line"], header["format"], header["version"]) == ("header", "tenure-export", 3)
    assert (header["store"], header["covers"]) == ("sqlite", "everything")
    for kind in ("job", "event"):
        assert header[f"{kind}s"] == footer["counts"][kind] == sum(line["line"] == kind for line in lines)
    assert footer["line"] == "footer"
    assert sum(footer["counts"].values()) == len(lines)


async def test_no_secret_of_a_lease_leaves_the_database(exported: Path, tmp_path: Path) -> None:
    origin = Database(f"sqlite:///{tmp_path / 'origin.db'}")
    async with origin.opened() as store:
        [job] = await Driver(store).claim(kinds=("queued",))
    assert export(origin, tmp_path / "again.jsonl").code == 0
    text = (tmp_path / "again.jsonl").read_text()
    assert str(job.id) in text
    assert str(job.token) not in text
    assert '"token"' not in text


def test_the_log_is_exported_in_its_order(exported: Path, tmp_path: Path) -> None:
    events = tenure("events", "--json", "--database", f"sqlite:///{tmp_path / 'origin.db'}")
    log = [json.loads(line) for line in events.out.splitlines()]
    written = [line["event"] for line in read(exported) if line["line"] == "event"]
    assert [(one["job_id"], one["rev"]) for one in written] == [(one["job_id"], one["rev"]) for one in log]


# Where it goes to and comes from.


async def test_an_export_goes_to_standard_output_where_no_file_is_named(database: Database, tmp_path: Path) -> None:
    async with database.opened() as store:
        jobs = await one_of_each(Driver(store))
    answer = export(database)
    assert answer.err == f"exported {len(jobs)} jobs and {sum(job.rev for job in jobs)} events\n"
    (tmp_path / "piped.jsonl").write_text(answer.out)
    assert export(database, tmp_path / "file.jsonl").code == 0
    assert body(tmp_path / "piped.jsonl") == body(tmp_path / "file.jsonl")


async def test_a_file_that_is_called_gz_is_compressed_and_read_so(
    exported: Path, new_database: Callable[[str], Database], tmp_path: Path
) -> None:
    origin, target = Database(f"sqlite:///{tmp_path / 'origin.db'}"), new_database("sqlite")
    file = tmp_path / "export.jsonl.gz"
    answer = export(origin, file, "--json")
    assert answer.code == 0
    assert gzip.decompress(file.read_bytes()).splitlines()[1:-1] == body(exported)
    assert answer.json["counts"] == read(exported)[-1]["counts"]
    assert (answer.json["file"], answer.json["sha256"]) == (str(file), read(exported)[-1]["sha256"])
    imported = import_(target, file, "--json")
    assert (imported.code, imported.json["counts"], imported.json["from"]) == (0, answer.json["counts"], "sqlite")
    assert await contents(target) == await contents(origin)


def test_a_file_that_cannot_be_written_is_named_and_no_half_of_it_stays(exported: Path, tmp_path: Path) -> None:
    origin = Database(f"sqlite:///{tmp_path / 'origin.db'}")
    answer = export(origin, tmp_path / "nowhere" / "export.jsonl")
    assert answer.code == 1
    assert "nowhere/export.jsonl cannot be written: No such file or directory" in answer.err
    before = exported.read_bytes()
    answer = export(Database(f"sqlite:///{tmp_path / 'missing.db'}"), exported)
    assert answer.code == 3
    assert exported.read_bytes() == before
    assert not [file for file in tmp_path.iterdir() if "unfinished" in file.name]


def test_an_empty_database_is_exported_and_imported_too(database: Database, tmp_path: Path) -> None:
    migrate(database)
    assert export(database, tmp_path / "empty.jsonl").code == 0
    assert [line["line"] for line in read(tmp_path / "empty.jsonl")] == ["header", "footer"]
    answer = import_(database, tmp_path / "empty.jsonl")
    assert (answer.code, answer.out) == (0, "imported 0 jobs and 0 events\n")


# What is refused.


async def test_only_an_empty_database_is_imported_into(exported: Path, database: Database) -> None:
    async with database.opened() as store:
        await Driver(store).add()
    before = await contents(database)
    answer = import_(database, exported)
    assert answer.code == 3
    assert "is not empty (it has jobs, events), and only an empty database can be imported into" in answer.err
    assert await contents(database) == before


def test_postgres_must_be_migrated_first(exported: Path, postgres_dsn: str) -> None:
    answer = import_(Database(postgres_dsn), exported)
    assert answer.code == 3
    assert "run `tenure migrate --database '" in answer.err


def test_a_changed_file_is_refused_with_its_line_number_and_imports_nothing(exported: Path, database: Database) -> None:
    migrate(database)
    lines = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(b"".join([*lines[:20], lines[20].replace(b"a", b"e", 1), *lines[21:]]))
    answer = import_(database, exported)
    assert answer.code == 1
    assert answer.err.startswith("tenure: line ")
    assert answer.err.endswith("; nothing was imported\n")
    assert tenure("verify", "--json", "--database", database.url).json["jobs"] == 0


def test_a_compressed_file_that_was_cut_off_is_refused(exported: Path, new_database: Callable[[str], Database]) -> None:
    file = exported.with_suffix(".jsonl.gz")
    file.write_bytes(gzip.compress(exported.read_bytes())[:-2000])
    answer = import_(new_database("sqlite"), file)
    assert answer.code == 1
    assert "the compressed file is damaged or truncated" in answer.err


# In other words.


@pytest.mark.requirement("EH-08", "EH-10")
@pytest.mark.parametrize("names", [*((name,) for name in VOCABULARY_NAMES), ("engine", "engine-old")], ids="+".join)
async def test_jobs_and_events_are_exported_in_the_requested_vocabulary(names: tuple[str, ...], tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        jobs = await one_of_each(Driver(store))
        logs = await store.history([job.id for job in jobs])
        rows = await store.read([job.id for job in jobs])
    file = tmp_path / "translated.jsonl"
    answer = export(database, file, *(part for name in names for part in ("--vocabulary", name)))
    assert answer.code == 0, answer
    header, *lines, footer = read(file)
    assert (header["format"], header["vocabularies"]) == ("tenure-translated", list(names))
    assert sum(footer["counts"].values()) == len(lines)
    for name in names:
        words = vocabulary(name)
        exported_jobs = [line["job"] for line in lines if line["line"] == "job" and line["vocabulary"] == name]
        expected = [words.job(rows[job.id], logs[job.id]) for job in sorted(jobs, key=lambda job: job.id)]
        assert exported_jobs == json.loads(msgspec.json.encode(expected))
        translated = [line for line in lines if line["line"] == "event" and line["vocabulary"] == name]
        in_order = sorted(jobs, key=lambda job: job.id)
        reported = [one.as_fields() for job in in_order for one in words.translate_log(job.origin, logs[job.id])]
        events = [{field: line[field] for field in ("name", "transition", "event")} for line in translated]
        assert events == json.loads(msgspec.json.encode(reported))
    refused = import_(Database(f"sqlite:///{tmp_path / 'new.db'}"), file)
    assert refused.code == 1
    assert f"line 1: an export in another vocabulary ({', '.join(names)})" in refused.err


def test_three_vocabularies_at_once_are_refused(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    migrate(database)
    words = ("--vocabulary", "engine", "--vocabulary", "engine-old", "--vocabulary", "worker")
    assert export(database, *words).code == 2


# While others write.


async def test_what_is_committed_while_it_is_read_is_not_in_it(database: Database, tmp_path: Path) -> None:
    """The reader of the pipe waits, with more behind it than a pipe holds, until others have written."""
    async with database.opened() as store:
        drive = Driver(store)
        jobs = [await drive.add(payload='"' + "x" * 20_000 + '"') for _ in range(40)]
        command = ["-m", "tenure", "export", "--database", database.url]
        with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            header = process.stdout.readline()
            [running] = await drive.claim()
            await drive.add("later")
            rest = process.stdout.read()
            assert process.wait(timeout=60) == 0
    lines = [json.loads(line) for line in (header + rest).splitlines()]
    assert [line["job"]["status"] for line in lines if line["line"] == "job"] == ["queued"] * len(jobs)
    assert lines[-1]["counts"] == {"event": len(jobs), "job": len(jobs)}
    (tmp_path / "export.jsonl").write_bytes(header + rest)
    target = Database(f"sqlite:///{tmp_path / 'target.db'}")
    assert import_(target, tmp_path / "export.jsonl").code == 0
    assert running.id in {job.id for job in jobs}


async def test_other_writers_of_postgres_wait_during_an_import(
    exported: Path, new_database: Callable[[str], Database]
) -> None:
    """An import waits for an open transaction of another session, and is refused for the rows that it has written."""
    database = new_database("postgres")
    with psycopg.connect(database.url) as connection:
        connection.execute("set local tenure.writer = 'store'")
        connection.execute("insert into tenure.operator_log (actor, action) values ('client:eve', 'something')")
        command = ["-m", "tenure", "import", "--database", database.url, str(exported)]
        with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
            _wait_for_lock(connection)
            connection.commit()
            assert process.stderr is not None
            errors = process.stderr.read()
            assert process.wait(timeout=60) == 3
    assert "it has operator log" in errors
    assert (await contents(database))["jobs"] == []


def _wait_for_lock(connection: psycopg.Connection[Any]) -> None:
    waiting = "select 1 from pg_locks where not granted and relation = 'tenure.operator_log'::regclass"
    with psycopg.connect(connection.info.dsn, autocommit=True) as other:
        assert wait_until(lambda: other.execute(waiting).fetchone() is not None, seconds=30)


# The page in docs/.

PAGE = (ROOT / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
SHELL = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(*command: str, folder: Path, **env: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    whole = {**os.environ, "PATH": path, **env}
    done = subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_commands_of_the_page_on_exports_work(exported: Path, postgres_dsn: str) -> None:
    folder = exported.parent
    (folder / "origin.db").rename(folder / "jobs.db")
    moving, telling = SHELL
    [counting] = PYTHON
    printed = run("bash", "-ec", moving, folder=folder, NEW_DATABASE=postgres_dsn)
    assert printed.endswith("every record matches its events\n")
    assert await contents(Database(postgres_dsn)) == await contents(Database(f"sqlite:///{folder / 'jobs.db'}"))
    statuses = [line["job"]["status"] for line in read(exported) if line["line"] == "job"]
    assert run(sys.executable, "-c", counting, folder=folder) == f"{dict(Counter(statuses))}\n"
    run("bash", "-ec", telling, folder=folder)
    assert read(folder / "translated.jsonl")[0]["vocabularies"] == ["engine", "engine-old"]


def test_the_page_on_exports_names_every_field_that_a_file_can_have(exported: Path) -> None:
    for line in read(exported):
        kind = line.pop("line")
        for name in (*names_in(line.pop(kind, {})), *names_in(line)):
            assert f"`{name}`" in PAGE, f"docs/guides/export.md does not have {name} of {kind} lines"


OPAQUE = {"limits", "usage", "policy", "tags", "counts", "schedule"}
"""Fields whose content is described elsewhere."""


def names_in(facts: Line) -> Iterator[str]:
    for name, value in facts.items():
        yield name
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and name not in OPAQUE:
                yield from names_in(item)


def test_a_broken_file_makes_no_database(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("rubbish\n")
    answer = tenure("import", "bad.jsonl", "--database", "sqlite:///new.db", cwd=tmp_path)
    assert answer.code == 1, answer
    assert "line 1" in answer.err
    assert not (tmp_path / "new.db").exists()
