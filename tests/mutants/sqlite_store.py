"""Faults of the model and of SQLite: a missing clause, or a write outside of its transaction."""

from __future__ import annotations

from simulation.model import rows
from simulation.model.store import ModelStore
from tenure.lifecycle.operation_types import OperationType
from tenure.stores import contract
from tenure.stores.sqlite import apply, claim, enqueue
from tenure.stores.sqlite import rows as sqlite_rows
from tests.mutants.edits import Edits
from tests.mutants.layers import History, Kit, Lockstep, Simulator, StoreVerdicts, Verify
from tests.mutants.mutant import Mutant

SQLITE = "tenure.stores.sqlite"


def sqlite_without_revision(edits: Edits) -> None:
    edits.python(apply.current_jobs, "job.rev != rev or job.erased_at is not None", "job.erased_at is not None")
    edits.sql(SQLITE, "jobs/update", "\n    and tenure_jobs.rev = changed.rev_before")


def model_prunes_too_early(edits: Edits) -> None:
    edits.python(ModelStore._old_jobs, "and job.finished_at <= limit_at", "and True")


def sqlite_prunes_too_early(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_finished", "\n    and finished_at <= :before", "\n    and :before is not null")


def sqlite_prunes_live_jobs(edits: Edits) -> None:
    edits.sql(
        SQLITE,
        "jobs/select_finished",
        "from tenure_jobs indexed by tenure_jobs_finished\nwhere status = :status\n    and kind = :kind\n"
        "    and finished_at is not null\n    and finished_at <= :before",
        "from tenure_jobs\nwhere :status is not null\n    and kind = :kind\n    and created_at <= :before",
    )


def sqlite_forgets_a_claim_with_its_first_job(edits: Edits) -> None:
    edits.sql(SQLITE, "claims/delete", "and not exists (", "and 1 or not exists (")


def sqlite_signal_leaves_no_revision(edits: Edits) -> None:
    edits.python(sqlite_rows.encode_job, "job.signal_rev,", "0,")


def sqlite_recovery_too_late(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_recoverable", "leased.lease_expires_at <= :now", "leased.lease_expires_at < :now")


def sqlite_misses_the_silent(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_recoverable", "\n                or leased.heartbeat_deadline_at <= :now")


def sqlite_claims_what_is_not_due(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_due", "\n    and job.due_at <= :now", "\n    and job.due_at is not null")


def sqlite_claim_is_forgotten(edits: Edits) -> None:
    edits.python(claim.claim, "if earlier is not None:", "if False:")
    edits.python(claim.claim, "if run.claimed:", "if run.claimed and earlier is None:")


def sqlite_claim_of_another(edits: Edits) -> None:
    edits.python(claim._repeated, "body != request.body()", "False")


def sqlite_row_without_event(edits: Edits) -> None:
    edits.python(
        apply._write_each,
        "for write in writes for event",
        "for write in writes if write.after.status != 'halted' for event",
    )


def sqlite_event_without_row(edits: Edits) -> None:
    edits.python(
        apply._write_each, "[write.row for write in writes]", "[w.row for w in writes if w.after.status != 'halted']"
    )
    edits.python(apply._write, "if changed != len(writes):", "if False:")


def sqlite_complete_without_token(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/complete", "\n    and tenure_jobs.token is :token_before")


def sqlite_complete_at_expiry(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/complete", "lease_expires_at > :updated_at", "lease_expires_at >= :updated_at")


def sqlite_dead_letter_without_record(edits: Edits) -> None:
    edits.python(apply.prepare, "DeadLetter | Signal", "Signal")


def sqlite_time_goes_back(edits: Edits) -> None:
    edits.python(apply._timing, "at = effective_at(change.before, now)", "at = now")


def delayed_jobs_in_memory(edits: Edits) -> None:
    edits.python(
        enqueue.enqueue_homogeneous,
        'session.savepoint("enqueue_homogeneous")',
        "if requests[0].delay_ms: return HomogeneousResults(job, requests)\n    "
        'session.savepoint("enqueue_homogeneous")',
    )


def enqueue_acknowledged_and_forgotten(edits: Edits) -> None:
    edits.python(
        ModelStore.enqueue,
        "self._rows, self._bodies, self._deduplicated = ",
        "if len(rows) % 7 == 3: return results\n    self._rows, self._bodies, self._deduplicated = ",
    )


def model_dedupe_not_checked(edits: Edits) -> None:
    edits.python(rows.same_dedupe, "next(live, None)", "None")


def sqlite_dedupe_not_checked(edits: Edits) -> None:
    edits.python(enqueue._duplicate, "if origin.dedupe_key is None:", "if True:")


def sqlite_other_enqueue_under_a_used_id(edits: Edits) -> None:
    edits.python(enqueue._enqueued_before, "digest != origin.digest() or detail != request.detail", "False")


def secret_is_shown(edits: Edits) -> None:
    edits.python(contract.without_token, "token is None or", "True or")


MUTANTS = (
    Mutant(
        "SQLite: no revision",
        "a record is taken for the row although that has moved on",
        StoreVerdicts(OperationType.PROGRESS, "sqlite"),
        r"rev='stale'",
        sqlite_without_revision,
    ),
    Mutant(
        "SQLite: `<` for `<=` at expiry",
        "a job whose lease has just ended is not found",
        Kit("test_recoverable_lists_exactly_the_jobs_that_need_recovery", "sqlite"),
        r"recoverable\(drive\) ==",
        sqlite_recovery_too_late,
    ),
    Mutant(
        "SQLite: claim of a job that is not due",
        "the due time is not checked",
        Kit("test_a_job_is_claimed_from_its_due_time_on", "sqlite"),
        r"claim\(\) == \[\]",
        sqlite_claims_what_is_not_due,
    ),
    Mutant(
        "SQLite: claim of a job that is not due, in lockstep",
        "the due time is not checked",
        Lockstep(),
        r"SQLite and the model differ",
        sqlite_claims_what_is_not_due,
    ),
    Mutant(
        "SQLite: a job without heartbeats is not found",
        "a job whose heartbeats are missing is not listed for recovery",
        Kit("test_recoverable_lists_exactly_the_jobs_that_need_recovery", "sqlite"),
        r"recoverable\(drive\) ==",
        sqlite_misses_the_silent,
    ),
    Mutant(
        "SQLite: a claim is forgotten",
        "a repeated claim takes other jobs",
        Kit("test_a_repeated_claim_returns_its_jobs_and_claims_no_more", "sqlite"),
        r"claim\(request\) == won",
        sqlite_claim_is_forgotten,
    ),
    Mutant(
        "SQLite: a claim under a reused worker's name",
        "a claim under a request id that another has used returns the jobs of the other",
        Kit("test_a_claim_under_a_used_request_id_with_another_body_is_refused", "sqlite"),
        r"DID NOT RAISE",
        sqlite_claim_of_another,
    ),
    Mutant(
        "SQLite: complete without token",
        "`jobs/complete.sql` does not compare the token",
        Kit("test_a_first_attempt_is_completed_by_its_owner_alone_and_under_its_lease", "sqlite"),
        r"a stranger completed the job",
        sqlite_complete_without_token,
    ),
    Mutant(
        "SQLite: `>=` for `>` at expiry of a completed job",
        "a job is completed at the time at which its lease ends",
        Kit("test_a_first_attempt_is_completed_by_its_owner_alone_and_under_its_lease", "sqlite"),
        r"the job was completed after its lease",
        sqlite_complete_at_expiry,
    ),
    Mutant(
        "SQLite: row without event",
        "the event is written outside of the transaction, and lost",
        Verify(),
        r"differs|broken_log",
        sqlite_row_without_event,
    ),
    Mutant(
        "SQLite: event without row",
        "the row is written outside of the transaction, and lost",
        Verify(),
        r"differs",
        sqlite_event_without_row,
    ),
    Mutant(
        "SQLite: row without event, guards on",
        "the event is written outside of the transaction",
        Kit("test_a_halted_job_keeps_its_reason_and_its_partial_result", "sqlite"),
        r"RowPoisoned",
        sqlite_row_without_event,
    ),
    Mutant(
        "SQLite: dead letter without record",
        "a job is dead-lettered without a record of it",
        Verify(),
        r"dead-letter record is missing",
        sqlite_dead_letter_without_record,
    ),
    Mutant(
        "retention removes jobs too early",
        "a job that has just ended is removed",
        Simulator(),
        r"retention removed",
        model_prunes_too_early,
    ),
    Mutant(
        "SQLite: retention removes jobs too early",
        "a job that has just ended is removed",
        Kit("test_pruning_removes_whole_jobs_that_ended_long_enough_ago", "sqlite"),
        r"assert",
        sqlite_prunes_too_early,
    ),
    Mutant(
        "SQLite: retention removes live jobs",
        "a job that has not ended is removed with the others of its kind",
        Kit("test_pruning_removes_only_jobs_of_its_status_and_kind", "sqlite"),
        r"PrunedBatch",
        sqlite_prunes_live_jobs,
    ),
    Mutant(
        "SQLite: retention forgets a claim with its first job",
        "a repeated claim takes other jobs",
        Kit("test_a_claim_can_be_repeated_as_long_as_one_of_its_jobs_is_kept", "sqlite"),
        r"assert",
        sqlite_forgets_a_claim_with_its_first_job,
    ),
    Mutant(
        "SQLite: time goes back",
        "an event is dated before its predecessor",
        Kit("test_timestamps_never_decrease_although_the_databases_clock_does", "sqlite"),
        r"time do(es)? not go back",
        sqlite_time_goes_back,
    ),
    Mutant(
        "SQLite: delayed jobs are kept in memory",
        "an enqueue is acknowledged before it is written",
        History(),
        r"acknowledged_lost|does not exist; it was never enqueued",
        delayed_jobs_in_memory,
    ),
    Mutant(
        "an enqueue is acknowledged and not stored",
        "an enqueue returns a job that is not stored",
        Simulator(),
        r"acknowledged_lost",
        enqueue_acknowledged_and_forgotten,
    ),
    Mutant(
        "dedupe not checked",
        "a live dedupe key makes a second job",
        Kit("test_a_live_dedupe_key_returns_the_job_that_has_it"),
        r"again\.created",
        model_dedupe_not_checked,
    ),
    Mutant(
        "SQLite: dedupe not checked",
        "the job that has the key is not found",
        Kit("test_a_live_dedupe_key_returns_the_job_that_has_it", "sqlite"),
        r"there is a live job with this dedupe key",
        sqlite_dedupe_not_checked,
    ),
    Mutant(
        "SQLite: another enqueue under a used id",
        "a different job under the same request id is taken as a repetition",
        Kit("test_a_request_id_with_another_body_is_refused_and_nothing_is_written", "sqlite"),
        r"DID NOT RAISE",
        sqlite_other_enqueue_under_a_used_id,
    ),
    Mutant(
        "SQLite: a signal leaves no revision",
        "the revision of a signal is not written with it",
        Kit("test_a_wake_of_a_running_job_makes_it_due_when_it_suspends", "sqlite"),
        r"there is none that leads to this revision",
        sqlite_signal_leaves_no_revision,
    ),
    Mutant(
        "a secret is shown",
        "a read shows the token of the lease",
        Kit("test_a_conflict_shows_no_token_to_another_actor"),
        r"token is None",
        secret_is_shown,
    ),
)
