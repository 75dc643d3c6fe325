"""Breaks of the outbox: leases of streams, their positions, and the order of deliveries."""

from __future__ import annotations

from simulation.model.outbox import ModelOutbox
from tenure.outbox.stream_delivery import StreamDelivery
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Simulator
from tests.mutants.mutant import Mutant

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"


def a_failed_message_is_passed_over(edits: Edits) -> None:
    edits.python(
        StreamDelivery.step,
        "self._failures, self._delay_seconds = attempt, delay_seconds\n                return False",
        "pass",
    )


def done_streams_are_removed_whatever_was_written_since(edits: Edits) -> None:
    edits.python(ModelOutbox._settle, "one.position >= row.last_sequence", "one.deliveries")


def a_released_stream_is_done(edits: Edits) -> None:
    edits.python(StreamDelivery.step, "self._delay_seconds = answer.due_seconds\n            return False", "pass")


def sqlite_claims_leased_streams(edits: Edits) -> None:
    edits.sql(SQLITE, "pending/claim", "\n        and pending.due_at <= :now")


def sqlite_settles_without_the_token(edits: Edits) -> None:
    edits.sql(SQLITE, "pending/delete_done", "\n        and pending.token = json_extract(given.value, '$.token')")


def sqlite_settles_after_the_lease(edits: Edits) -> None:
    edits.sql(SQLITE, "pending/delete_done", "\n        and pending.due_at > :now")


def postgres_claims_leased_streams(edits: Edits) -> None:
    edits.sql(POSTGRES, "pending/claim", "\n          and pending.due_at <= clock.now")


def postgres_settles_after_the_lease(edits: Edits) -> None:
    edits.sql(POSTGRES, "pending/settle", " where settled.due_at > settled.now")


def postgres_settles_without_the_token(edits: Edits) -> None:
    edits.sql(POSTGRES, "pending/settle", "\n        and pending.token = given.token")


LEASED = "test_a_leased_stream_is_claimed_by_no_other_until_its_lease_has_ended"
ENDED = "test_a_processor_whose_lease_has_ended_settles_nothing"
TAKEN = "test_a_stream_that_another_processor_has_leased_is_not_settled"
OUT_OF_ORDER = r"as the one after|were written|stayed pending"

MUTANTS = (
    Mutant(
        "a failed message is skipped",
        "the next message of the aggregate is delivered before it",
        Simulator(),
        OUT_OF_ORDER,
        a_failed_message_is_passed_over,
    ),
    Mutant(
        "a stream is done whatever was written since",
        "a message that is written while others are delivered stays behind",
        Simulator(),
        OUT_OF_ORDER,
        done_streams_are_removed_whatever_was_written_since,
    ),
    Mutant(
        "what was not sent counts as delivered",
        "a message is lost when its endpoint is paused or half of its lease has passed",
        Simulator(),
        OUT_OF_ORDER,
        a_released_stream_is_done,
    ),
    Mutant(
        "SQLite: a leased stream is claimed",
        "`pending/claim.sql` does not compare the time",
        Kit(LEASED, "sqlite"),
        "",
        sqlite_claims_leased_streams,
    ),
    Mutant(
        "SQLite: a stream is settled without the token",
        "a processor moves the position of another lease",
        Kit(TAKEN, "sqlite"),
        "",
        sqlite_settles_without_the_token,
    ),
    Mutant(
        "SQLite: a stream is settled after its lease",
        "`pending/delete_done.sql` does not compare the time",
        Kit(ENDED, "sqlite"),
        "",
        sqlite_settles_after_the_lease,
    ),
    Mutant(
        "PostgreSQL: a leased stream is claimed",
        "`pending/claim.sql` does not compare the time",
        Kit(LEASED, "postgres"),
        "",
        postgres_claims_leased_streams,
    ),
    Mutant(
        "PostgreSQL: a stream is settled after its lease",
        "`pending/settle.sql` does not compare the time",
        Kit(ENDED, "postgres"),
        "",
        postgres_settles_after_the_lease,
    ),
    Mutant(
        "PostgreSQL: a stream is settled without the token",
        "a processor moves the position of another lease",
        Kit(TAKEN, "postgres"),
        "",
        postgres_settles_without_the_token,
    ),
)
