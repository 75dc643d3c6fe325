"""Breaks of queues' rules: permits that are not taken or not counted, rates that forget, turns that stand still."""

from __future__ import annotations

from tenure.lifecycle import limits
from tenure.stores import limits as limited_claims
from tests.mutants.editing import Edits
from tests.mutants.layers import Kit
from tests.mutants.mutant import Mutant

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"


def permit_not_taken(edits: Edits) -> None:
    edits.python(limits.Admission.admit, "self._admitted[key] += 1", "pass")


def rate_forgets_at_once(edits: Edits) -> None:
    edits.python(limits.RateUsage.recent, "if began > horizon:", "if began >= _slice(rate, at):")


def turn_stands_still(edits: Edits) -> None:
    edits.python(limited_claims.Choice._note, "if admission.limits.fair:", "if False:")


def postgres_without_the_queues_lock(edits: Edits) -> None:
    edits.sql(POSTGRES, "queues/lock_limited", "\n    for no key update")


def postgres_ignores_rules(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", " and tenure.has_limits(queue)", " and false")


def sqlite_counts_no_key(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/count_leased_by_partition", "select job.partition_key, count(*)", "select null, count(*)")


def sqlite_spends_nothing(edits: Edits) -> None:
    edits.sql(SQLITE, "queues/update_usage", "spent = coalesce(:spent, spent)", "spent = spent")


MUTANTS = (
    Mutant(
        "a permit is not taken",
        "a claim counts what is held, and not what it takes itself",
        Kit("test_no_more_are_held_at_once_than_the_queue_allows", "sqlite"),
        r"ids\(held\) ==",
        permit_not_taken,
    ),
    Mutant(
        "a rate forgets at once",
        "only the starts of the current slice count",
        Kit("test_no_more_start_in_a_time_than_the_rate_allows", "sqlite"),
        r"a start that has ended still counts",
        rate_forgets_at_once,
    ),
    Mutant(
        "a turn stands still",
        "whose turn was last is not noted, so that the first key is served for ever",
        Kit("test_a_turn_goes_on_where_the_last_claim_ended", "sqlite"),
        r"turns ==",
        turn_stands_still,
    ),
    Mutant(
        "PostgreSQL: rules without a lock",
        "two claims may count the same permits as free",
        Kit("test_concurrent_claims_never_spend_one_permit_twice", "postgres"),
        r"== 7|<= 3|nine in all",
        postgres_without_the_queues_lock,
    ),
    Mutant(
        "PostgreSQL: rules are not asked for",
        "a queue with rules is claimed like any other",
        Kit("test_nothing_is_claimed_from_a_paused_queue_until_it_goes_on", "postgres"),
        r"\[other\.id\]",
        postgres_ignores_rules,
    ),
    Mutant(
        "SQLite: permits are not counted by key",
        "what is held counts for no key",
        Kit("test_no_more_of_a_key_are_held_than_allowed_and_others_go_past_it", "sqlite"),
        r'\["b"\]',
        sqlite_counts_no_key,
    ),
    Mutant(
        "SQLite: nothing is spent",
        "what a claim spends of a rate is not written down",
        Kit("test_no_more_start_in_a_time_than_the_rate_allows", "sqlite"),
        r"len\(jobs\) == 3",
        sqlite_spends_nothing,
    ),
)
