"""Breaks of the store on PostgreSQL: mostly a clause that is gone from a statement."""

from __future__ import annotations

from tenure.lifecycle.operations import OperationType
from tenure.stores.postgres import apply_batch
from tests.mutants.checks import batches_lock_in_the_order_of_ids
from tests.mutants.editing import Edits
from tests.mutants.layers import Kit, OnPostgres, StoreVerdicts
from tests.mutants.mutant import Mutant
from tests.stores.postgres.test_contention import test_a_repetition_waits_for_the_claim_that_is_under_way
from tests.stores.postgres.test_interleavings import (
    test_a_job_that_came_while_a_claim_waited_for_its_rules_begins_before_it_is_claimed,
)
from tests.stores.postgres.test_log import test_the_tail_waits_for_a_transaction_that_commits_late

POSTGRES = "tenure.stores.postgres"


def postgres_apply_without_revision(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/apply", "where locked.rev = change.rev", "where true")


def postgres_complete_without_revision(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/complete", "where locked.rev = change.rev", "where true")


def postgres_heartbeat_without_revision(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/renew_leases", "where locked.rev = renewal.rev", "where true")


def postgres_apply_without_token(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/apply", "\n      and (change.token is null or locked.token = change.token)")


def postgres_complete_without_token(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/complete", "\n      and locked.token = change.token")


def postgres_heartbeat_without_token(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/renew_leases", "\n      and locked.token = renewal.token")


def postgres_heartbeat_revives(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/renew_leases", "\n      and locked.lease_expires_at > written.at")


def postgres_complete_at_expiry(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/complete", "locked.lease_expires_at > greatest", "locked.lease_expires_at >= greatest")


def postgres_stall_too_late(edits: Edits) -> None:
    edits.sql(
        POSTGRES, "jobs/apply", "locked.lease_expires_at <= written.at or", "locked.lease_expires_at < written.at or"
    )


def postgres_stall_of_the_living(edits: Edits) -> None:
    whole = "when 'orphaned' then locked.lease_expires_at <= written.at or locked.heartbeat_deadline_at <= written.at"
    edits.sql(POSTGRES, "jobs/apply", whole, "when 'orphaned' then true")


def postgres_claims_what_is_not_due(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", "\n              and job.due_at <= clock.now", times=4)


def postgres_lane_claims_what_is_not_due(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim_lane", "\n              and job.due_at <= clock.now")


def postgres_lane_sees_no_other(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim_lane", "job.queue = :queue and job.priority > :priority::smallint", "false")


def postgres_lost_job_in_company(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", "ranked.suspects = 0 and ")


def postgres_repetition_goes_ahead(edits: Edits) -> None:
    edits.sql(
        POSTGRES,
        "jobs/claim",
        "tenure.won_before(:request_id) before",
        "tenure.claims before where request_id = :request_id",
    )


def postgres_claim_before_the_enqueue(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", ":within_limits::boolean or moved.rev", "moved.rev")


def postgres_revived_by_the_clock(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/complete", "greatest(clock.now, locked.updated_at)\n),", "clock.now\n),")


def postgres_tail_by_position(edits: Edits) -> None:
    edits.sql(POSTGRES, "events/select_tail", "\n      and event.tx < pg_snapshot_xmin(pg_current_snapshot())")


def postgres_row_without_event(edits: Edits) -> None:
    last = "'running', 'succeeded', accepted.actor, accepted.request_id, accepted.digest\n    from accepted"
    edits.sql(POSTGRES, "jobs/complete", last, f"{last} where false")


def postgres_dead_letter_without_record(edits: Edits) -> None:
    edits.python(apply_batch.apply_parameters, "letters.append((event.job_id, operation.stage))", "pass")


def postgres_locks_in_the_callers_order(edits: Edits) -> None:
    edits.sql(
        POSTGRES,
        "jobs/apply",
        "order by job.id\n    for no key update",
        "order by array_position(:ids::uuid[], job.id)\n    for no key update",
    )


MUTANTS = (
    Mutant(
        "PostgreSQL: apply without revision",
        "`apply.sql` does not compare the revision",
        StoreVerdicts(OperationType.PROGRESS, "postgres"),
        r"rev='(stale|future)'",
        postgres_apply_without_revision,
    ),
    Mutant(
        "PostgreSQL: complete without revision",
        "`complete.sql` does not compare the revision",
        StoreVerdicts(OperationType.COMPLETE, "postgres"),
        r"rev='(stale|future)'",
        postgres_complete_without_revision,
    ),
    Mutant(
        "PostgreSQL: heartbeat without revision",
        "`renew_leases.sql` does not compare the revision",
        StoreVerdicts(OperationType.HEARTBEAT, "postgres"),
        r"rev='(stale|future)'",
        postgres_heartbeat_without_revision,
    ),
    Mutant(
        "PostgreSQL: apply without token",
        "`apply.sql` does not ask whose lease it is",
        StoreVerdicts(OperationType.PROGRESS, "postgres"),
        r"holder='(former|stranger)'",
        postgres_apply_without_token,
    ),
    Mutant(
        "PostgreSQL: complete without token",
        "`complete.sql` does not ask whose lease it is",
        StoreVerdicts(OperationType.COMPLETE, "postgres"),
        r"holder='(former|stranger)'",
        postgres_complete_without_token,
    ),
    Mutant(
        "PostgreSQL: heartbeat without token",
        "`renew_leases.sql` does not ask whose lease it is",
        StoreVerdicts(OperationType.HEARTBEAT, "postgres"),
        r"holder='(former|stranger)'",
        postgres_heartbeat_without_token,
    ),
    Mutant(
        "PostgreSQL: a heartbeat revives an expired lease",
        "`renew_leases.sql` does not ask whether the lease still runs",
        StoreVerdicts(OperationType.HEARTBEAT, "postgres"),
        r"expired.*holder='owner'.*Applied",
        postgres_heartbeat_revives,
    ),
    Mutant(
        "PostgreSQL: `>=` for `>` at expiry",
        "a job is completed at the moment at which its lease ends",
        StoreVerdicts(OperationType.COMPLETE, "postgres"),
        r"expired.*holder='owner'.*Applied",
        postgres_complete_at_expiry,
    ),
    Mutant(
        "PostgreSQL: `<` for `<=` at expiry",
        "a job is not taken back at the moment at which its lease ends",
        StoreVerdicts(OperationType.STALL, "postgres"),
        r"expired",
        postgres_stall_too_late,
    ),
    Mutant(
        "PostgreSQL: a stall of a living lease",
        "the database's clock is not asked before a job is taken back",
        StoreVerdicts(OperationType.STALL, "postgres"),
        r"live.*Applied",
        postgres_stall_of_the_living,
    ),
    Mutant(
        "PostgreSQL: claim of a job that is not due",
        "the due time is not asked for",
        Kit("test_a_job_is_claimed_from_the_moment_at_which_it_is_due", "postgres"),
        r"claim\(\) == \[\]",
        postgres_claims_what_is_not_due,
    ),
    Mutant(
        "PostgreSQL: claim of a job that is not due, from one lane",
        "the due time is not asked for",
        Kit("test_a_job_is_claimed_from_the_moment_at_which_it_is_due", "postgres"),
        r"claim\(\) == \[\]",
        postgres_lane_claims_what_is_not_due,
    ),
    Mutant(
        "PostgreSQL: a higher priority is not looked for",
        "a claimer keeps to the lane in which it found something",
        Kit("test_another_priority_than_that_of_earlier_claims_has_its_place", "postgres"),
        r"ids\(await drive\.claim",
        postgres_lane_sees_no_other,
    ),
    Mutant(
        "PostgreSQL: a lost job is claimed in company",
        "a job that killed its worker takes others with it again",
        Kit("test_a_job_that_was_lost_while_it_ran_is_claimed_alone", "postgres"),
        r"ids\(await drive\.claim",
        postgres_lost_job_in_company,
    ),
    Mutant(
        "PostgreSQL: a claim is repeated beside itself",
        "a claim does not wait for the same one that is under way, and passes over the jobs that it holds",
        OnPostgres(test_a_repetition_waits_for_the_claim_that_is_under_way),
        r"won == ",
        postgres_repetition_goes_ahead,
    ),
    Mutant(
        "PostgreSQL: a claim before the enqueue",
        "what a claim by rules writes has the number that its transaction got before the job was there",
        OnPostgres(test_a_job_that_came_while_a_claim_waited_for_its_rules_begins_before_it_is_claimed),
        r"revisions\(await whole_tail",
        postgres_claim_before_the_enqueue,
    ),
    Mutant(
        "PostgreSQL: a clock that goes back revives a lease",
        "`complete.sql` compares the lease with the clock, though the log has gone further",
        Kit("test_a_lease_that_has_ended_by_the_log_does_not_run_again_when_the_clock_goes_back", "postgres"),
        r"LeaseLost|did not raise|Applied",
        postgres_revived_by_the_clock,
    ),
    Mutant(
        "PostgreSQL: tail by position only",
        "an event that commits late is passed over",
        OnPostgres(test_the_tail_waits_for_a_transaction_that_commits_late),
        r"while one before it was still open",
        postgres_tail_by_position,
    ),
    Mutant(
        "PostgreSQL: row without event, guards on",
        "the event is written outside of the statement",
        Kit("test_without_a_commit_before_it_the_completion_is_the_commit", "postgres"),
        r"RowPoisoned",
        postgres_row_without_event,
    ),
    Mutant(
        "PostgreSQL: dead letter without record",
        "a job is buried, and nobody can find its grave",
        Kit("test_a_dead_letter_leaves_its_whole_record", "postgres"),
        r"RowPoisoned",
        postgres_dead_letter_without_record,
    ),
    Mutant(
        "PostgreSQL: locks in the caller's order",
        "batches lock their rows in the order in which they were asked",
        OnPostgres(batches_lock_in_the_order_of_ids),
        r"in the order in which they were asked for",
        postgres_locks_in_the_callers_order,
    ),
)
