"""Roles that are not the owner of the schema: what each may do, and how it is refused the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import tenure
from tenure.errors import InvalidInput, PrivilegeMissing
from tenure.outbox.sinks import Delivery
from tenure.stores.postgres.grants import KINDS, grants_sql
from tenure.stores.postgres.store import PostgresStore
from tenure.testing.contract.outbox import claim, endpoint, post, settlement
from tenure.testing.driver import OPERATOR, Driver
from tests.support.command import tenure as command
from tests.support.in_process_worker import working
from tests.support.pages import all_blocks, shell
from tests.support.postgres import Postgres, database_of

EVERY_TABLE = """
select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'tenure'
"""
Login = Callable[[str], str]


@pytest.fixture
def owned(postgres_server: Postgres) -> Iterator[str]:
    """A database that a plain role has migrated."""
    with postgres_server.owned_database() as dsn:
        assert command("migrate", "--database", dsn).code == 0
        yield dsn


@pytest.fixture
def login(postgres_server: Postgres, owned: str) -> Iterator[Login]:
    """The DSN of a new role with the grants of its kind, or with none, as the owner gives them."""
    with postgres_server.plain_role(postgres_server.dsn(database_of(owned))) as role:

        def granted(kind: str) -> str:
            if kind != "none":
                printed = command("migrate", "grants", kind, role)
                assert printed.code == 0
                with psycopg.connect(owned, autocommit=True) as owner:
                    owner.execute(printed.out.encode())
            return postgres_server.dsn(database_of(owned), role=role)

        yield granted


@pytest.fixture
async def drive(owned: str) -> AsyncIterator[Driver]:
    """The owner's store."""
    store = PostgresStore.from_url(owned)
    await store.open()
    yield Driver(store)
    await store.close()


def shop(dsn: str) -> tuple[tenure.App, Any]:
    app = tenure.App(dsn)

    @app.job()
    async def pay(ctx: tenure.Context, amount: int) -> int:
        async with ctx.commit(result=amount) as tx:
            tx.outbox("paid", {"amount": amount}, aggregate="a")
            tx.attach("receipt.txt", b"paid")
        return amount

    return app, pay


async def test_a_worker_runs_jobs_and_operates_them(login: Login) -> None:
    dsn = login("worker")
    app, pay = shop(dsn)
    async with app, working(app):
        handle = await pay.enqueue(3)
        assert await handle.result(timeout_seconds=30) == 3
    for arguments in (["stats"], ["jobs", "ls"], ["verify"], ["doctor"], ["queues", "pause", "mail"]):
        assert command(*arguments, "--database", dsn).code == 0


@pytest.mark.parametrize("table", ["migrations", "meta"])
def test_a_worker_writes_no_table_that_only_the_owner_writes(login: Login, table: str) -> None:
    with psycopg.connect(login("worker"), autocommit=True) as worker, pytest.raises(psycopg.Error, match="permission"):
        worker.execute(f"delete from tenure.{table}".encode())


def test_a_worker_creates_and_drops_nothing_in_the_schema(login: Login) -> None:
    with psycopg.connect(login("worker"), autocommit=True) as worker:
        for statement in ("drop trigger jobs_step on tenure.jobs", "create table tenure.x ()", "truncate tenure.jobs"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(statement.encode())


async def test_an_enqueuer_enqueues_and_reads_results(login: Login, owned: str) -> None:
    dsn = login("enqueuer")
    worker_app, _ = shop(owned)
    app, pay = shop(dsn)
    async with worker_app, app, working(worker_app):
        first = await pay.options(dedupe_key="k").enqueue(1)
        assert await first.result(timeout_seconds=30) == 1
        many = await app.enqueue_many([pay.request(1), pay.request(2)])
        assert [await one.result(timeout_seconds=30) for one in many] == [1, 2]
        async with await psycopg.AsyncConnection.connect(dsn) as user:
            inside = await pay.options(request_id="r").within(user).enqueue(3)
            again = await pay.options(request_id="r").within(user).enqueue(3)
            assert (again.id, again.created) == (inside.id, False)
            await user.commit()
        assert await inside.result(timeout_seconds=30) == 3


async def test_an_enqueuer_is_refused_to_cancel_claim_and_operate(login: Login, drive: Driver) -> None:
    dsn = login("enqueuer")
    queued = await drive.add()
    cancelled = command("jobs", "cancel", str(queued.id), "--database", dsn)
    assert cancelled.code == 3
    assert "permission denied" in cancelled.err
    assert "`tenure migrate grants worker r_" in cancelled.err
    store = PostgresStore.from_url(dsn)
    await store.open()
    with pytest.raises(PrivilegeMissing) as refused:
        await Driver(store).claim()
    assert (refused.value.needs, refused.value.role) == ("worker", store._address.role)
    await store.close()
    assert (await drive.job(queued.id)).status == "queued"


@pytest.mark.parametrize("kind", ["enqueuer", "reader"])
async def test_lease_tokens_are_read_by_workers_and_the_owner_only(login: Login, drive: Driver, kind: str) -> None:
    job = await drive.running()
    with psycopg.connect(login(kind), autocommit=True) as reader:
        visible = reader.execute("select * from tenure.job_records").fetchall()
        for secret in ("token from tenure.jobs", "* from tenure.jobs", "token from tenure.pending"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"select {secret}".encode())
        # Nothing else that may be read has it either.
        texts = [str(visible)]
        for (table,) in reader.execute(EVERY_TABLE).fetchall():
            if table not in ("tenure.jobs", "tenure.pending", "tenure.log_cursors"):
                texts.append(str(reader.execute(f"select * from {table}".encode()).fetchall()))
    assert job.token is not None
    assert not any(form in text for text in texts for form in (str(job.token), job.token.hex))
    with psycopg.connect(login("worker"), autocommit=True) as worker:
        assert worker.execute("select token from tenure.jobs").fetchall() == [(job.token,)]


async def test_a_reader_reads_with_every_command_that_reads(login: Login, drive: Driver) -> None:
    dsn = login("reader")
    job = await drive.running()
    for arguments in (
        ["jobs", "ls"],
        ["jobs", "show", str(job.id), "--events"],
        ["jobs", "ls", "--kind", "mail"],
        ["events"],
        ["replay", str(job.id), "--rev", "1"],
        ["dlq", "ls"],
        ["queues", "ls"],
        ["schedules", "ls"],
        ["stats"],
        ["verify"],
        ["doctor"],
    ):
        answer = command(*arguments, "--database", dsn)
        assert answer.code == 0, (arguments, answer)


async def test_a_reader_is_refused_every_write(login: Login, drive: Driver) -> None:
    dsn = login("reader")
    job = await drive.add()
    for arguments in (["jobs", "cancel", str(job.id)], ["queues", "pause", "mail"]):
        answer = command(*arguments, "--database", dsn)
        assert answer.code == 3
        assert "permission denied" in answer.err
        assert "`tenure migrate grants worker r_" in answer.err
    app, pay = shop(dsn)
    async with app:
        with pytest.raises(PrivilegeMissing, match=r"permission denied for table .*tenure migrate grants enqueuer"):
            await pay.enqueue(1)
    async with await psycopg.AsyncConnection.connect(dsn) as user:
        with pytest.raises(PrivilegeMissing, match="tenure migrate grants enqueuer"):
            await pay.within(user).enqueue(1)


def test_a_role_without_grants_is_refused_with_what_it_lacks(login: Login) -> None:
    dsn = login("none")
    for arguments in (["jobs", "ls"], ["doctor"], ["migrate"]):
        answer = command(*arguments, "--database", dsn)
        assert answer.code == 3
        assert "permission denied for schema tenure; `tenure migrate grants reader r_" in answer.err
        assert "role r_" in answer.err


def test_a_role_that_may_not_create_a_schema_is_refused_to_migrate(
    postgres_server: Postgres, postgres_dsn: str
) -> None:
    with postgres_server.plain_role(postgres_dsn) as role:
        answer = command("migrate", "--database", postgres_server.dsn(database_of(postgres_dsn), role=role))
    assert answer.code == 3
    assert f"role {role} lacks a privilege: permission denied for database" in answer.err
    assert "owner" in answer.err


async def test_grants_of_another_kind_take_the_place_of_those_before(login: Login, drive: Driver) -> None:
    await drive.add()
    with psycopg.connect(login("worker"), autocommit=True) as role:
        role.execute("delete from tenure.workers")
        login("reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            role.execute("delete from tenure.workers")
        assert role.execute("select count(*) from tenure.job_records").fetchall() == [(1,)]


def test_the_commands_of_the_page_create_roles_that_can_be_used(postgres_server: Postgres, tmp_path: Path) -> None:
    written, refused = [code for _, code in all_blocks("database_roles.md")]
    names = {name: f"{name}_{uuid4().hex[:8]}" for name in ("shop_worker", "shop_web", "shop_dashboard")}
    for name, own in names.items():
        written = written.replace(name, own)
        refused = refused.replace(name, own)
    with postgres_server.owned_database() as owner:
        shell(written, folder=tmp_path, ADMIN_URL=postgres_server.dsn(), OWNER_URL=owner)
        for own in names.values():
            as_role = postgres_server.dsn(database_of(owner), role=own)
            assert command("jobs", "ls", "--database", as_role).code == 0, own
        as_web = postgres_server.dsn(database_of(owner), role=names["shop_web"])
        with psycopg.connect(owner, autocommit=True) as connection:
            [(job,)] = connection.execute("select tenure.enqueue('mail')").fetchall()
        answer = command("jobs", "cancel", str(job), "--database", as_web)
        assert answer.code == 3
        assert answer.err.startswith(refused.rstrip().removesuffix("…")), answer.err
    for own in names.values():
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as admin:
            admin.execute(sql.SQL("drop role {}").format(sql.Identifier(own)))


def test_the_name_of_a_role_is_quoted_or_refused() -> None:
    assert 'to "web-1@shop.iam";' in grants_sql("worker", "web-1@shop.iam")
    for name in ("", 'a"b', "a b", "$$", "a;b", "x" * 64):
        for kind in KINDS:
            with pytest.raises(InvalidInput):
                grants_sql(kind, name)
    assert command("migrate", "grants", "worker", "a b").code == 2
    assert command("migrate", "grants", "king", "ada").code == 2


@pytest.mark.requirement("WC-07")
async def test_a_program_with_the_role_of_the_processor_registers_its_endpoints_and_delivers(
    login: Login, drive: Driver
) -> None:
    app, received = tenure.App(login("outbox")), list[str]()

    @app.endpoint("crm", topics=["paid"])
    async def receive(delivery: Delivery) -> None:
        received.append(delivery.topic)

    role: Any = app.outbox_role()
    async with app, role(await app.store(), "p") as processor:
        await post(drive, ("paid", "ada"), ("other", "ada"))
        await processor.drain()
    assert received == ["paid"]


@pytest.mark.requirement("WC-07")
async def test_the_role_of_the_processor_delivers_and_neither_reads_a_job_nor_writes_a_message(
    login: Login, drive: Driver
) -> None:
    dsn = login("outbox")
    await drive.add()
    await endpoint(drive.store)
    await post(drive, ("paid", "ada"))
    store = PostgresStore.from_url(dsn)
    await store.open()
    try:
        await endpoint(store)
        await store.outbox.mark_seen(["crm"])
        await store.outbox.mark_failing("crm", failing=True)
        [stream] = await claim(store)
        assert await store.outbox.settle([settlement(stream)]) == [True]
        assert await store.outbox.disable("crm", because="gone", actor=OPERATOR)
    finally:
        await store.close()
    forbidden = (
        "select id from tenure.jobs",
        "update tenure.jobs set priority = 1",
        "insert into tenure.outbox (id, topic, body, correlation_id, at) values (gen_random_uuid(), '', '', '', now())",
        "update tenure.outbox set endpoint_count = 2",
        "delete from tenure.outbox",
        "delete from tenure.deliveries",
        "insert into tenure.events select * from tenure.events",
        "select token from tenure.jobs",
    )
    with psycopg.connect(dsn, autocommit=True) as processor:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                processor.execute(statement.encode())
