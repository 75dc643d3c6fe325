"""The user's statements inside a transaction, on stores that have SQL. They can neither end it nor write the store's
tables."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from typing import ClassVar

import pytest

from tenure.errors import DeadlinePassed, GuardViolated, InvalidInput, StoreError, TenureError
from tenure.lifecycle.operations import Commit, Complete
from tenure.stores.contract import Applied
from tenure.testing.contract.commit_blocks import SHORT_SECONDS, RolledBack, at_once, until_late
from tenure.testing.contract.outbox_and_artifacts import LONG_SECONDS, artifact, message
from tenure.testing.driver import Driver

CREATE = "create table paid (id integer primary key, who text not null)"
ENDINGS = (
    *("commit", "COMMIT;", "end", "rollback", "begin", "savepoint mine", "release savepoint mine"),
    *("-- now\ncommit", "/* now */ commit", ";commit", "rollback to savepoint mine"),
)


class StatementContract:
    """`execute` and `fetch`. `sql_prefix` is the prefix of the store's tables; None: no SQL."""

    sql_prefix: ClassVar[str | None] = None

    @pytest.fixture
    def own(self) -> str:
        if self.sql_prefix is None:
            pytest.skip("this store has no SQL")
        return self.sql_prefix

    @pytest.fixture
    async def paid(self, drive: Driver, own: str) -> None:
        """A table of the user's."""
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.execute(CREATE)

    async def rows(self, drive: Driver) -> list[tuple[int, str]]:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            return [(row["id"], row["who"]) for row in await tx.fetch("select id, who from paid order by id")]

    async def test_a_store_without_sql_refuses_statements(self, drive: Driver) -> None:
        if self.sql_prefix is not None:
            pytest.skip("this store has SQL")
        with pytest.raises(StoreError, match="no SQL"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.fetch("select 1")

    @pytest.mark.requirement("EL-04")
    @pytest.mark.usefixtures("paid")
    async def test_the_users_rows_and_the_jobs_commit_take_effect_together(self, drive: Driver) -> None:
        job = await drive.running()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert await tx.execute("insert into paid (id, who) values ($1, $2)", 1, "ada") == 1
            await tx.apply(drive.request(job, Commit("1"), fresh=True))
        assert await self.rows(drive) == [(1, "ada")]
        assert (await drive.job(job.id)).committed

    @pytest.mark.requirement("EL-04")
    @pytest.mark.usefixtures("paid")
    async def test_an_error_rolls_the_users_rows_back_too(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(RolledBack):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                await tx.execute("insert into paid (id, who) values ($1, $2)", 1, "ada")
                raise RolledBack
        assert await self.rows(drive) == []
        assert not (await drive.job(job.id)).committed

    @pytest.mark.usefixtures("paid")
    async def test_parameters_are_bound_by_their_numbers(self, drive: Driver) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.execute("insert into paid (who, id) values ($2, $1)", 1, "ada")
            await tx.execute("insert into paid (id, who) values ($1, $2), ($3, $2)", 2, "bob", 3)
            found = await tx.fetch("select who, id from paid where id = $1 or (id > $2 and id < $1 + $2)", 1, 2)
            assert found == [{"who": "ada", "id": 1}]
            many = ", ".join(f"cast(${number} as integer) as n{number}" for number in range(12, 0, -1))
            [row] = await tx.fetch(f"select {many}", *range(1, 13))
            assert row == {f"n{number}": number for number in range(1, 13)}

    @pytest.mark.usefixtures("paid")
    async def test_execute_returns_the_number_of_changed_rows(self, drive: Driver) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            touched = [
                await tx.execute("insert into paid (id, who) values (1, 'ada'), (2, 'bob')"),
                await tx.execute("update paid set who = $1", "eve"),
                await tx.execute("with more as (select 3 as id) insert into paid (id, who) select id, 'dan' from more"),
                await tx.execute("delete from paid where id = $1", 7),
                await tx.execute("delete from paid where id < 3"),
            ]
        assert touched == [2, 2, 1, 0, 2]
        assert await self.rows(drive) == [(3, "dan")]

    @pytest.mark.usefixtures("paid")
    async def test_a_query_without_rows_returns_an_empty_list(self, drive: Driver) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert await tx.fetch("select * from paid") == []
            assert await tx.fetch("insert into paid (id, who) values (1, $1)", "ada") == []

    @pytest.mark.usefixtures("paid")
    @pytest.mark.parametrize(
        "wrong",
        [
            "selec 1",
            "insert into nowhere values (1)",
            "insert into paid (id, who) values (1, 'bob')",
            "insert into paid (id, who) values (9, null)",
            "select 1; insert into paid (id, who) values (9, 'eve')",
        ],
    )
    async def test_an_error_in_a_statement_is_the_drivers_and_rolls_back(self, drive: Driver, wrong: str) -> None:
        job = await drive.running()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each driver has errors of its own
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute("insert into paid (id, who) values (1, 'ada')")
                await tx.apply(drive.request(job, Commit("1"), fresh=True))
                await tx.execute(wrong)
        assert not isinstance(raised.value, TenureError)
        assert type(raised.value).__module__.partition(".")[0] not in ("tenure", "builtins")
        assert await self.rows(drive) == []
        assert (await drive.apply(job, Complete("2"))).result == "2"

    @pytest.mark.usefixtures("paid")
    async def test_invalid_parameters_are_refused_and_roll_back(self, drive: Driver) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - each driver has errors of its own
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute("insert into paid (id, who) values (1, 'ada')")
                await tx.execute("insert into paid (id, who) values ($1, $2)", 2)
        assert not isinstance(raised.value, TenureError)
        assert await self.rows(drive) == []

    @pytest.mark.usefixtures("paid")
    async def test_an_error_that_the_user_catches_still_rolls_back(self, drive: Driver) -> None:
        with pytest.raises(StoreError, match="nothing of this transaction is kept"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute("insert into paid (id, who) values (1, 'ada')")
                with pytest.raises(Exception):  # noqa: B017, PT011 - each driver has errors of its own
                    await tx.execute("insert into paid (id, who) values (1, 'ada')")
        assert await self.rows(drive) == []

    @pytest.mark.requirement("EL-04")
    @pytest.mark.usefixtures("paid")
    @pytest.mark.parametrize("how", ["execute", "fetch"])
    @pytest.mark.parametrize("ending", ENDINGS)
    async def test_a_statement_cannot_end_the_transaction(self, drive: Driver, ending: str, how: str) -> None:
        with pytest.raises(InvalidInput, match="begins and ends with its block"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute("insert into paid (id, who) values (1, 'ada')")
                await getattr(tx, how)(ending)
        assert await self.rows(drive) == []

    @pytest.mark.parametrize("sql", ["", "  ", None, 7, b"select 1", "select '\x00'"])
    async def test_text_that_is_no_statement_is_refused(self, drive: Driver, own: str, sql: object) -> None:
        with pytest.raises(InvalidInput):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute(sql)  # type: ignore[arg-type]

    @pytest.mark.requirement("LC-10")
    @pytest.mark.parametrize(
        "statement",
        [
            "update {own}events set actor = 'nobody'",
            "delete from {own}events",
            "update {own}jobs set status = 'queued', owner = null, token = null",
            "delete from {own}jobs",
            "insert into {own}claims (request_id, body, at, job_ids) select 'x', 'x', at, 'x' from {own}claims",
            "delete from {own}claims",
        ],
    )
    async def test_a_statement_cannot_write_the_stores_tables(self, drive: Driver, own: str, statement: str) -> None:
        job = await drive.running()
        before = await drive.seen(job.id)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - a type error of the driver's is a refusal too
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.enqueue([drive.enqueue()])
                await tx.attach(job, [artifact()])
                assert isinstance(await tx.apply(drive.request(job, Commit("1"), fresh=True)), Applied)
                await tx.execute(statement.format(own=own))
        assert isinstance(raised.value, GuardViolated) or "claims" in statement
        assert await drive.seen(job.id) == before

    async def test_the_stores_tables_can_be_read_beside_the_users(self, drive: Driver, own: str) -> None:
        request = drive.enqueue()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.enqueue([request])
            found = await tx.fetch(f"select status from {own}jobs")  # noqa: S608
        assert found == [{"status": "queued"}]

    @pytest.mark.usefixtures("paid")
    async def test_a_statement_after_the_deadline_is_refused_and_rolls_back(self, drive: Driver) -> None:
        with pytest.raises(DeadlinePassed):
            async with drive.store.transaction(deadline_seconds=SHORT_SECONDS) as tx:
                await tx.execute("insert into paid (id, who) values (1, 'ada')")
                await until_late(tx)
                await tx.execute("insert into paid (id, who) values (2, 'bob')")
        assert await self.rows(drive) == []

    @pytest.mark.usefixtures("paid")
    async def test_statements_of_tasks_that_share_a_transaction_run_one_after_the_other(self, drive: Driver) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            inserts = [tx.execute("insert into paid (id, who) values ($1, 'ada')", number) for number in range(8)]
            assert await at_once(*inserts) == [1] * 8
        assert len(await self.rows(drive)) == 8

    # Messages, which can only be read from their table.

    async def posted(self, drive: Driver, own: str) -> list[tuple[str, int, str]]:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            place = "row_number() over (partition by aggregate order by sequence)"
            sql = f"select aggregate, {place} as sequence, topic from {own}outbox order by aggregate, sequence"  # noqa: S608
            return [(row["aggregate"], row["sequence"], row["topic"]) for row in await tx.fetch(sql)]

    @pytest.mark.requirement("WC-07")
    async def test_messages_are_numbered_by_aggregate_in_the_order_of_their_posting(
        self, drive: Driver, own: str
    ) -> None:
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.post([message(drive, "b", topic="one"), message(drive, "a", topic="two")])
            await tx.post([message(drive, "b", topic="three")])
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.post([message(drive, "b", topic="four"), message(drive, "b", topic="five")])
        assert await self.posted(drive, own) == [
            ("a", 1, "two"),
            ("b", 1, "one"),
            ("b", 2, "three"),
            ("b", 3, "four"),
            ("b", 4, "five"),
        ]

    async def test_messages_that_were_rolled_back_are_not_there(self, drive: Driver, own: str) -> None:
        for outcome in ("kept", "dropped", "kept"):
            try:
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.post([message(drive, topic=outcome)])
                    if outcome == "dropped":
                        raise RolledBack
            except RolledBack:
                continue
        assert await self.posted(drive, own) == [("ada", 1, "kept"), ("ada", 2, "kept")]

    @pytest.mark.requirement("WC-07")
    async def test_concurrent_posts_to_the_same_aggregates_neither_deadlock_nor_collide(
        self, drive: Driver, own: str
    ) -> None:
        async def post(*aggregates: str) -> None:
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                for aggregate in aggregates:
                    await tx.post([message(drive, aggregate)])

        await at_once(*(post("x", "y") if number % 2 else post("y", "x") for number in range(8)))
        numbers = [(aggregate, sequence) for aggregate, sequence, _ in await self.posted(drive, own)]
        assert numbers == [(aggregate, number) for aggregate in "xy" for number in range(1, 9)]
