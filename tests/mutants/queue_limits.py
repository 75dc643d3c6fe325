"""Faults of queue limits: jobs that are not counted, rates that forget starts, a rotation that does not advance."""

from __future__ import annotations

from tenure.lifecycle import queue_limits
from tenure.stores import limited_claim
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit
from tests.mutants.mutant import Mutant

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"


def permit_not_taken(edits: Edits) -> None:
    edits.python(queue_limits.Admission.admit, "self._admitted[key] += 1", "pass")


def rate_forgets_at_once(edits: Edits) -> None:
    edits.python(queue_limits.RateUsage.recent, "if began > horizon:", "if began >= _slice(rate, at):")


def turn_stands_still(edits: Edits) -> None:
    edits.python(limited_claim.Choice._usage_of, "if admission.limits.fair:", "if False:")


def postgres_without_the_queues_lock(edits: Edits) -> None:
    edits.sql(POSTGRES, "queues/lock_limited", "\n    for no key update")


def postgres_ignores_rules(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", " and tenure.has_limits(queue)", " and false")


def sqlite_counts_no_key(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/count_leased_by_partition", "select job.partition_key, count(*)", "select null, count(*)")


def sqlite_spends_nothing(edits: Edits) -> None:
    edits.sql(SQLITE, "queues/update_usage", "usage = coalesce(:usage, usage)", "usage = usage")


MUTANTS = (
    Mutant(
        "a permit is not taken",
        "a claim counts what is held, and not what it takes itself",
        Kit("test_no_more_jobs_are_leased_than_the_concurrency_limit", "sqlite"),
        r"ids\(held\) ==",
        permit_not_taken,
    ),
    Mutant(
        "a rate forgets at once",
        "only the starts of the current slice count",
        Kit("test_no_more_jobs_start_in_a_period_than_the_rate_limit", "sqlite"),
        r"a start that has ended still counts",
        rate_forgets_at_once,
    ),
    Mutant(
        "the last key is not advanced",
        "the key served last is not stored, so that the first key is always served",
        Kit("test_the_rotation_continues_after_the_key_of_the_last_claim", "sqlite"),
        r"turns ==",
        turn_stands_still,
    ),
    Mutant(
        "PostgreSQL: rules without a lock",
        "two claims may count the same permits as free",
        Kit("test_concurrent_claims_never_exceed_a_limit", "postgres"),
        r"== 7|<= 3|nine in all",
        postgres_without_the_queues_lock,
    ),
    Mutant(
        "PostgreSQL: rules are not asked for",
        "a queue with rules is claimed like any other",
        Kit("test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed", "postgres"),
        r"\[other\.id\]",
        postgres_ignores_rules,
    ),
    Mutant(
        "SQLite: permits are not counted by key",
        "what is held counts for no key",
        Kit("test_a_key_at_its_limit_does_not_block_other_keys", "sqlite"),
        r'\["b"\]',
        sqlite_counts_no_key,
    ),
    Mutant(
        "SQLite: no usage is stored",
        "what a claim spends of a rate is not written down",
        Kit("test_no_more_jobs_start_in_a_period_than_the_rate_limit", "sqlite"),
        r"len\(jobs\) == 3",
        sqlite_spends_nothing,
    ),
)
