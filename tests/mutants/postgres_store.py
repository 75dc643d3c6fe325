"""Faults of the PostgreSQL store: mostly a missing clause of a statement."""

from __future__ import annotations

from tenure.lifecycle.operation_types import OperationType
from tenure.stores.postgres import apply_batch
from tests.mutants.checks import batches_skip_locked_rows
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, OnPostgres, StoreVerdicts
from tests.mutants.mutant import Mutant
from tests.stores.postgres.test_contention import test_a_repetition_waits_for_the_claim_that_is_under_way
from tests.stores.postgres.test_interleavings import (
    test_a_job_enqueued_while_a_claim_waited_for_limits_is_dated_before_its_claim,
)
from tests.stores.postgres.test_log import test_the_tail_waits_for_a_transaction_that_commits_late
from tests.stores.postgres.test_signals import (
    test_a_request_id_of_the_log_is_not_used_again,
    test_a_signal_makes_a_run_due,
    test_the_limit_of_a_suspended_run_holds_for_senders_at_the_same_time,
)

POSTGRES = "tenure.stores.postgres"


def postgres_apply_without_revision(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/apply", "where locked.rev = change.rev", "where true")


def postgres_signal_leaves_no_revision(edits: Edits) -> None:
    edits.python(
        apply_batch._column, "getattr(after, name)", "getattr(change.before if name == 'signal_rev' else after, name)"
    )


def postgres_signal_makes_every_job_due(edits: Edits) -> None:
    edits.python(apply_batch._column, "any(makes_due_now(step.type, step.from_status)", "any(step.type == 'signalled'")


def postgres_signal_is_sent_twice(edits: Edits) -> None:
    edits.sql(
        POSTGRES, "jobs/signal", "event.request_id = :request_id::text", "event.request_id = :request_id::text || ' '"
    )


def postgres_signal_beyond_the_limit(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/signal", "> (select count(*)", "> 0 * (select count(*)")


def postgres_signal_leaves_the_due_time(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/signal", "least(job.due_at, accepted.at)", "job.due_at")


def postgres_claimed_job_still_waits(edits: Edits) -> None:
    for statement in ("jobs/claim", "jobs/claim_lane"):
        edits.sql(POSTGRES, statement, "\n        waiting_for = null,")


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
        "tenure.won_before(:request_id, :wait_ms) before",
        "tenure.claims before where request_id = :request_id",
    )


def postgres_claim_before_the_enqueue(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/claim", ":within_limits::boolean or moved.rev", "moved.rev")


def postgres_revived_by_the_clock(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/complete", "greatest(clock.now, locked.updated_at)\n),", "clock.now\n),")


def postgres_tail_by_position(edits: Edits) -> None:
    edits.sql(POSTGRES, "events/select_tail", "\n      and event.tx < pg_snapshot_xmin(pg_current_snapshot())")


def postgres_row_without_event(edits: Edits) -> None:
    last = "case when accepted.attempt > 1 then tenure.steps_digest(accepted.id) end\n    from accepted"
    edits.sql(POSTGRES, "jobs/complete", last, f"{last} where false")


def postgres_dead_letter_without_record(edits: Edits) -> None:
    edits.python(apply_batch.apply_parameters, "letters.append((event.job_id, operation.stage))", "pass")


def postgres_waits_for_locked_rows(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/apply", "for no key update skip locked", "for no key update")


MUTANTS = (
    Mutant(
        "PostgreSQL: a signal is sent twice",
        "`jobs/signal.sql` does not check whether the log has the request id",
        OnPostgres(test_a_request_id_of_the_log_is_not_used_again),
        r"the signal was sent twice",
        postgres_signal_is_sent_twice,
    ),
    Mutant(
        "PostgreSQL: a signal beyond the limit",
        "`jobs/signal.sql` does not count the signals of the run",
        OnPostgres(test_the_limit_of_a_suspended_run_holds_for_senders_at_the_same_time),
        r"the limit did not hold",
        postgres_signal_beyond_the_limit,
    ),
    Mutant(
        "PostgreSQL: a signal does not make the run due",
        "the run still waits after `jobs/signal.sql`",
        OnPostgres(test_a_signal_makes_a_run_due),
        r"is not due",
        postgres_signal_leaves_the_due_time,
    ),
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
        "`apply.sql` does not compare the token",
        StoreVerdicts(OperationType.PROGRESS, "postgres"),
        r"holder='(former|stranger)'",
        postgres_apply_without_token,
    ),
    Mutant(
        "PostgreSQL: complete without token",
        "`complete.sql` does not compare the token",
        StoreVerdicts(OperationType.COMPLETE, "postgres"),
        r"holder='(former|stranger)'",
        postgres_complete_without_token,
    ),
    Mutant(
        "PostgreSQL: heartbeat without token",
        "`renew_leases.sql` does not compare the token",
        StoreVerdicts(OperationType.HEARTBEAT, "postgres"),
        r"holder='(former|stranger)'",
        postgres_heartbeat_without_token,
    ),
    Mutant(
        "PostgreSQL: a heartbeat revives an expired lease",
        "`renew_leases.sql` does not compare the end of the lease",
        StoreVerdicts(OperationType.HEARTBEAT, "postgres"),
        r"expired.*holder='owner'.*Applied",
        postgres_heartbeat_revives,
    ),
    Mutant(
        "PostgreSQL: `>=` for `>` at expiry",
        "a job is completed at the time at which its lease ends",
        StoreVerdicts(OperationType.COMPLETE, "postgres"),
        r"expired.*holder='owner'.*Applied",
        postgres_complete_at_expiry,
    ),
    Mutant(
        "PostgreSQL: `<` for `<=` at expiry",
        "a job is not recovered at the time at which its lease ends",
        StoreVerdicts(OperationType.STALL, "postgres"),
        r"expired|changed 20 times",
        postgres_stall_too_late,
    ),
    Mutant(
        "PostgreSQL: a stall of a living lease",
        "the end of the lease is not compared with the database's clock",
        StoreVerdicts(OperationType.STALL, "postgres"),
        r"(live|unwinding).*Applied",
        postgres_stall_of_the_living,
    ),
    Mutant(
        "PostgreSQL: claim of a job that is not due",
        "the due time is not checked",
        Kit("test_a_job_is_claimed_from_its_due_time_on", "postgres"),
        r"claim\(\) == \[\]",
        postgres_claims_what_is_not_due,
    ),
    Mutant(
        "PostgreSQL: claim of a job that is not due, from one lane",
        "the due time is not checked",
        Kit("test_a_job_is_claimed_from_its_due_time_on", "postgres"),
        r"claim\(\) == \[\]",
        postgres_lane_claims_what_is_not_due,
    ),
    Mutant(
        "PostgreSQL: a higher priority is not looked for",
        "a claimer keeps to the lane in which it found something",
        Kit("test_a_priority_that_earlier_claims_did_not_see_is_claimed_in_order", "postgres"),
        r"ids\(await drive\.claim",
        postgres_lane_sees_no_other,
    ),
    Mutant(
        "PostgreSQL: a lost job is claimed in company",
        "a job that killed its worker may end the attempts of others again",
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
        "what a claim within limits writes has the number that its transaction got before the job was there",
        OnPostgres(test_a_job_enqueued_while_a_claim_waited_for_limits_is_dated_before_its_claim),
        r"revisions\(await whole_tail",
        postgres_claim_before_the_enqueue,
    ),
    Mutant(
        "PostgreSQL: a clock that goes back revives a lease",
        "`complete.sql` compares the lease with the clock, though the log has gone further",
        Kit("test_an_expired_lease_stays_expired_when_the_clock_is_set_back", "postgres"),
        r"LeaseLost|did not raise|Applied",
        postgres_revived_by_the_clock,
    ),
    Mutant(
        "PostgreSQL: tail by position only",
        "an event that commits late is skipped",
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
        "a job is dead-lettered without a record of it",
        Kit("test_a_dead_letter_has_its_whole_record", "postgres"),
        r"RowPoisoned",
        postgres_dead_letter_without_record,
    ),
    Mutant(
        "PostgreSQL: a signal leaves no revision",
        "the revision of a signal is not written with it",
        Kit("test_a_wake_of_a_running_job_makes_it_due_when_it_suspends", "postgres"),
        r"the revision of its last signal or wake is another one",
        postgres_signal_leaves_no_revision,
    ),
    Mutant(
        "PostgreSQL: a signal makes every job due now",
        "a signal makes a job due that waits for its retry",
        Kit("test_a_wake_is_accepted_in_every_live_status_and_makes_only_a_waiting_job_due", "postgres"),
        r"due_at",
        postgres_signal_makes_every_job_due,
    ),
    Mutant(
        "PostgreSQL: a claimed job still waits",
        "a claim leaves what the job waited for",
        Kit("test_a_waiting_job_shows_what_it_waits_for_until_it_is_claimed", "postgres"),
        r"for job in claimed\] ==",
        postgres_claimed_job_still_waits,
    ),
    Mutant(
        "PostgreSQL: a batch waits for locked rows",
        "one row that another session has locked delays all others of its batch",
        OnPostgres(batches_skip_locked_rows),
        r"a batch waited for a row",
        postgres_waits_for_locked_rows,
    ),
)
