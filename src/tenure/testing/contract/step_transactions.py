"""Steps that are saved in a transaction, with the SQL of the user and the messages of the step."""

# ruff: noqa: PT012 - a transaction is one thing, with everything in it

from __future__ import annotations

from typing import ClassVar

import pytest

from tenure.errors import (
    InvalidInput,
    StoreError,
)
from tenure.lifecycle.content import step_message_id
from tenure.lifecycle.operations import (
    Cancel,
)
from tenure.stores.contract import (
    Failure,
    OutboxMessage,
    StepExists,
    StepSaved,
)
from tenure.stores.contract.outbox import MessageFilter
from tenure.testing.contract.outbox_and_artifacts import LONG_SECONDS
from tenure.testing.contract.steps import save, save_request
from tenure.testing.driver import CLIENT, Driver


class StepTransactionContract:
    """`tx.save_step`."""

    sql_prefix: ClassVar[str | None] = None

    @pytest.mark.requirement("EL-04", "WC-08")
    async def test_a_step_in_a_transaction_takes_effect_with_the_rest_of_it(self, drive: Driver) -> None:
        job = await drive.running()
        added = drive.enqueue("child")
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.enqueue([added])
            outcome = await tx.save_step(save_request(job))
        assert [StepSaved(step) for step in await drive.store.steps(job.id)] == [outcome]
        assert (await drive.job(added.origin.id)).kind == "child"

    @pytest.mark.requirement("WC-07")
    async def test_messages_of_a_step_are_written_with_it_and_are_not_those_of_the_commit(self, drive: Driver) -> None:
        job = await drive.running()
        message = OutboxMessage(id=step_message_id(job.id, "main/1", 0), topic="paid", body="7")
        with pytest.raises(ZeroDivisionError):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post_with_step(job, [message])
                assert isinstance(await tx.save_step(save_request(job)), StepSaved)
                raise ZeroDivisionError
        assert await drive.store.outbox.messages(MessageFilter()) == []
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.post_with_step(job, [message])
            await tx.save_step(save_request(job))
        [stored] = await drive.store.outbox.messages(MessageFilter())
        assert (stored.id, stored.job_id, stored.correlation_id) == (message.id, job.id, job.correlation_id)
        assert (await drive.store.content([job.id]))[job.id].messages == ()

    async def test_a_message_of_a_step_has_an_id_that_is_derived_from_it(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput, match="step_message_id"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.post_with_step(job, [OutboxMessage(id=job.id, topic="paid", body="7")])

    @pytest.mark.requirement("EL-04", "WC-08")
    async def test_a_transaction_that_fails_saves_no_step(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(ZeroDivisionError):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                assert isinstance(await tx.save_step(save_request(job)), StepSaved)
                raise ZeroDivisionError
        assert await drive.store.steps(job.id) == []

    @pytest.mark.requirement("EL-04", "WC-08")
    async def test_a_transaction_whose_step_was_not_saved_is_rolled_back_however_it_is_left(
        self, drive: Driver
    ) -> None:
        job, lost = await drive.running(), await drive.running()
        await drive.apply(lost.id, Cancel(), actor=CLIENT)
        [first] = await save(drive.store, save_request(job))
        for request, expected in ((save_request(job, result="2"), StepExists), (save_request(lost), Failure)):
            added = drive.enqueue("child")
            with pytest.raises(StoreError, match="nothing of this transaction is kept"):
                async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                    await tx.enqueue([added])
                    assert isinstance(await tx.save_step(request), expected)
            assert await drive.store.read([added.origin.id]) == {}
        assert await drive.store.steps(job.id) == [first]

    @pytest.mark.requirement("EL-04", "WC-08")
    async def test_a_step_is_saved_with_the_users_rows_or_not_at_all(self, drive: Driver) -> None:
        if self.sql_prefix is None:
            pytest.skip("this store has no SQL")
        job = await drive.running()
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.execute("create table charged (id integer primary key)")
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            await tx.execute("insert into charged (id) values (1)")
            await tx.save_step(save_request(job))
        with pytest.raises(StoreError, match="nothing of this transaction is kept"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.execute("insert into charged (id) values (2)")
                assert isinstance(await tx.save_step(save_request(job)), StepExists)
        async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
            assert await tx.fetch("select id from charged") == [{"id": 1}]

    @pytest.mark.requirement("EL-04")
    async def test_an_invalid_step_ends_its_transaction(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(InvalidInput, match="key"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS) as tx:
                await tx.save_step(save_request(job, ""))

    async def test_inside_a_transaction_the_store_itself_saves_no_step(self, drive: Driver) -> None:
        job = await drive.running()
        with pytest.raises(StoreError, match="use tx instead"):
            async with drive.store.transaction(deadline_seconds=LONG_SECONDS):
                await drive.store.save_steps([save_request(job)])
