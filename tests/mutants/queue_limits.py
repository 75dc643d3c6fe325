"""Faults of queue limits: jobs that are not counted, rates that forget starts, a rotation that does not advance."""

from __future__ import annotations

from tenure.lifecycle import queue_limits
from tenure.stores import limited_claim
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit
from tests.mutants.mutant import Mutant

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"


def claimed_jobs_not_counted(edits: Edits) -> None:
    edits.python(queue_limits.Admission.admit, "self._admitted[key] += 1", "pass")


def rate_forgets_at_once(edits: Edits) -> None:
    edits.python(queue_limits.RateUsage.recent, "if began > horizon:", "if began >= _slice(rate, at):")


def last_key_not_stored(edits: Edits) -> None:
    edits.python(limited_claim.Choice._usage_of, "if admission.limits.fair:", "if False:")


def postgres_without_the_queues_lock(edits: Edits) -> None:
    edits.sql(POSTGRES, "queues/lock_limited", "\n    for no key update")


def postgres_ignores_limits(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", " and tenure.has_limits(queue)", " and false")


def sqlite_counts_no_key(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/count_leased_by_partition", "select job.partition_key, count(*)", "select null, count(*)")


def sqlite_stores_no_usage(edits: Edits) -> None:
    edits.sql(SQLITE, "queues/update_usage", "usage = coalesce(:usage, usage)", "usage = usage")


MUTANTS = (
    Mutant(
        "the jobs of a claim are not counted",
        "a claim counts leased jobs, and not those that it claims itself",
        Kit("test_no_more_jobs_are_leased_than_the_concurrency_limit", "sqlite"),
        r"ids\(claimed\) ==",
        claimed_jobs_not_counted,
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
        last_key_not_stored,
    ),
    Mutant(
        "PostgreSQL: limits without a lock",
        "two claims may count the same leased jobs",
        Kit("test_concurrent_claims_never_exceed_a_limit", "postgres"),
        r"== 7|<= 3|nine in all",
        postgres_without_the_queues_lock,
    ),
    Mutant(
        "PostgreSQL: limits are not read",
        "a queue with limits is claimed like any other",
        Kit("test_nothing_is_claimed_from_a_paused_queue_until_it_is_resumed", "postgres"),
        r"\[other\.id\]",
        postgres_ignores_limits,
    ),
    Mutant(
        "SQLite: leased jobs are not counted by key",
        "leased jobs count for no key",
        Kit("test_a_key_at_its_limit_does_not_block_other_keys", "sqlite"),
        r'\["b"\]',
        sqlite_counts_no_key,
    ),
    Mutant(
        "SQLite: no usage is stored",
        "the usage of a rate by a claim is not stored",
        Kit("test_no_more_jobs_start_in_a_period_than_the_rate_limit", "sqlite"),
        r"len\(jobs\) == 3",
        sqlite_stores_no_usage,
    ),
)
