"""Faults of the lifecycle: the table, the verdicts, the effects of events on a record."""

from __future__ import annotations

import msgspec

from tenure.lifecycle import backoff, claim_order, decide, evolve, transitions
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LIVE, SUCCEEDED
from tenure.stores import contract
from tests.lifecycle import test_backoff as backoffs
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Simulator, Unit, Verdicts
from tests.mutants.mutant import Mutant


def complete_by_id_alone(edits: Edits) -> None:
    edits.python(decide._require_lease, "actor.token is None or", "False and")
    edits.python(decide._require_lease, "job.status not in LEASED or", "")
    edits.python(decide.decide_at, "job.lease_expires_at is None or job.lease_expires_at <= at", "False")


def no_revision(edits: Edits) -> None:
    edits.python(decide.decide_at, "expected_rev is not None and expected_rev != job.rev", "False")


def no_guard(edits: Edits) -> None:
    complete_by_id_alone(edits)
    no_revision(edits)
    edits.python(decide.decide_at, "if not clock_allows(job, change.guard, at)", "if False")


def no_revision_for_recovery(edits: Edits) -> None:
    edits.python(decide.decide_at, "expected_rev != job.rev", "expected_rev != job.rev and actor.role != 'recovery'")


def expired_is_still_live(edits: Edits) -> None:
    edits.python(decide.decide_at, "job.lease_expires_at <= at", "job.lease_expires_at < at")


def live_is_already_expired(edits: Edits) -> None:
    # The owner's last valid time and recovery's first must not overlap.
    edits.python(decide._after, "deadline > at", "deadline >= at")


def heartbeat_revives(edits: Edits) -> None:
    edits.python(
        decide.decide_at,
        "job.lease_expires_at <= at",
        "(job.lease_expires_at <= at and operations[0].type != 'heartbeat')",
    )
    edits.python(decide.decide_at, "if not clock_allows", "if operations[0].type != 'heartbeat' and not clock_allows")


def claim_of_a_committed_job(edits: Edits) -> None:
    transition = msgspec.structs.replace(transitions.TRANSITION_OF[OperationType.CLAIM], after_commit=True)
    edits.item(transitions.TRANSITION_OF, OperationType.CLAIM, transition)


def committed_stays_due(edits: Edits) -> None:
    edits.python(evolve._stalled, "not job.committed and stalled.recovery_action()", "stalled.recovery_action()")


def failure_counted_on_release(edits: Edits) -> None:
    edits.python(evolve._released, '"lost": False,', '"lost": False, "failures": job.failures + _counts(event),')


def seen_rev_ignored(edits: Edits) -> None:
    edits.python(evolve._suspended, 'unseen = job.signal_rev > detail.get("seen_rev", 0)', "unseen = False")


def signal_leaves_no_revision(edits: Edits) -> None:
    edits.python(evolve._woken, "event.rev,", "job.signal_rev if event.type is EventType.SIGNALLED else event.rev,")


def wake_leaves_no_revision(edits: Edits) -> None:
    edits.python(evolve._woken, "event.rev,", "job.signal_rev if event.type is EventType.WOKEN else event.rev,")


def loss_not_counted(edits: Edits) -> None:
    edits.python(evolve._stalled, "0 if job.committed or job.compensated else _counts(event)", "0")


def commit_counted_as_loss(edits: Edits) -> None:
    edits.python(evolve._stalled, "0 if job.committed or job.compensated else _counts(event)", "_counts(event)")


def cancel_keeps_the_lease(edits: Edits) -> None:
    edits.python(evolve._cancelled, "**_end(event)", '"finished_at": event.at, "waiting_for": None')


def retry_without_end(edits: Edits) -> None:
    transition = msgspec.structs.replace(transitions.TRANSITION_OF[OperationType.RETRY], when=None)
    edits.item(transitions.TRANSITION_OF, OperationType.RETRY, transition)


def ended_job_is_changed(edits: Edits) -> None:
    transition = msgspec.structs.replace(
        transitions.TRANSITION_OF[OperationType.CANCEL], sources=LIVE | {SUCCEEDED}, after_commit=True
    )
    edits.item(transitions.TRANSITION_OF, OperationType.CANCEL, transition)


def two_commits(edits: Edits) -> None:
    transition = msgspec.structs.replace(transitions.TRANSITION_OF[OperationType.COMMIT], after_commit=True)
    edits.item(transitions.TRANSITION_OF, OperationType.COMMIT, transition)


def another_body_is_accepted(edits: Edits) -> None:
    edits.python(contract.decide_request, "if same_request(request.operations, logged):", "if True:")


def repetition_is_done_again(edits: Edits) -> None:
    edits.python(contract.decide_request, "if logged:", "if False:")


def unseeded_jitter(edits: Edits) -> None:
    edits.python(backoff.retry_delay_ms, "seed = int", "seed = __import__('secrets').randbits(32) or int")


def queued_timeout_not_started(edits: Edits) -> None:
    edits.python(evolve.evolve, "if event.to_status in READY:", "if event.to_status in READY and job.status in LEASED:")


def ack_starts_no_timeout(edits: Edits) -> None:
    edits.python(evolve._acked, "after_ms(event.at, job.policy.claimed_ms)", "job.timeout_at")


def timeout_counted_as_loss(edits: Edits) -> None:
    edits.python(evolve._stalled, "lost = event.cause != TIMEOUT", "lost = True")


def timed_out_job_runs_again(edits: Edits) -> None:
    edits.python(Job.recovery_action, 'if timed_out and self.policy.on_timeout != "retry":', "if False:")


def lost_job_in_company(edits: Edits) -> None:
    edits.python(claim_order.batch, " or (job.losses and taken)", "")
    edits.python(claim_order.batch, "if job.losses:", "if False:")


MUTANTS = (
    Mutant(
        "complete by id alone",
        "an owner's operation checks neither token nor lease",
        Verdicts(),
        r"instead of LeaseLost",
        complete_by_id_alone,
    ),
    Mutant(
        "no guard at all",
        "neither lease nor revision nor the time is checked",
        Simulator(first=8),
        r"its lease ended|lease_ended|too_early|result_wrong|committed twice",
        no_guard,
    ),
    Mutant(
        "no revision in the verdict",
        "a change decided upon an older record is written",
        Verdicts(),
        r"instead of RevisionConflict",
        no_revision,
    ),
    Mutant(
        "recovery without compare-and-set",
        "recovery does not compare the revision that it read",
        Kit("test_recovery_too_needs_the_current_revision"),
        r"not refused",
        no_revision_for_recovery,
    ),
    Mutant(
        "`<` for `<=` at expiry",
        "a lease is still valid at the time at which it ends",
        Verdicts(),
        r"expired.*instead of LeaseLost",
        expired_is_still_live,
    ),
    Mutant(
        "`>=` for `>` at expiry",
        "recovery skips a job at the time at which its lease ends",
        Verdicts(),
        r"not applied: Failure\(error=NotYet",
        live_is_already_expired,
    ),
    Mutant(
        "a heartbeat revives an expired lease",
        "a heartbeat is accepted although the lease is over",
        Kit("test_an_expired_lease_is_lost_before_recovery_stalls_the_job"),
        r"not refused",
        heartbeat_revives,
    ),
    Mutant(
        "claim of a committed job",
        "the table lets a committed job be claimed again",
        Verdicts(),
        r"claim.*instead of AlreadyCommitted",
        claim_of_a_committed_job,
    ),
    Mutant(
        "a committed job stays due",
        "a committed job whose worker vanished keeps its place in the queue",
        Kit("test_a_crash_after_the_commit_is_reconciled_with_the_committed_result"),
        r"stalled\.due_at",
        committed_stays_due,
    ),
    Mutant(
        "failure counted on release",
        "a release counts a failure",
        Kit("test_a_released_job_is_queued_without_a_failure"),
        r"released\.failures",
        failure_counted_on_release,
    ),
    Mutant(
        "seen_rev is ignored",
        "a job that suspends waits for a signal that has arrived",
        Simulator(),
        r"waits until .*: it has seen revision \d+, and revision \d+ woke it",
        seen_rev_ignored,
    ),
    Mutant(
        "a signal leaves no revision",
        "a signal that meets a running job is lost when the job suspends",
        Kit("test_a_wake_of_a_running_job_makes_it_due_when_it_suspends"),
        r"met\.signal_rev",
        signal_leaves_no_revision,
    ),
    Mutant(
        "a wake leaves no revision",
        "the end of a child that meets a running job is lost when the job suspends",
        Simulator(),
        r"waits until .*: it has seen revision \d+, and revision \d+ woke it",
        wake_leaves_no_revision,
    ),
    Mutant(
        "failure not counted on loss",
        "a job that kills its workers is run for ever",
        Kit("test_a_loss_while_running_is_a_failure_and_one_while_claimed_is_none"),
        r"job\.failures, job\.losses",
        loss_not_counted,
    ),
    Mutant(
        "a loss after the commit is a failure",
        "a job whose effect was applied is counted as failed",
        Kit("test_a_crash_after_the_commit_is_reconciled_with_the_committed_result"),
        r"stalled\.failures",
        commit_counted_as_loss,
    ),
    Mutant(
        "cancel keeps the lease",
        "a cancelled job still has its owner",
        Verdicts(),
        r"job\.token is not None",
        cancel_keeps_the_lease,
    ),
    Mutant(
        "retry ignores max_attempts",
        "a job may be tried again however often it has failed",
        Verdicts(),
        r"retry.*Applied instead of IllegalTransition",
        retry_without_end,
    ),
    Mutant(
        "an ended job is changed",
        "a job that succeeded can be cancelled",
        Verdicts(),
        r"cancel.*instead of AlreadyCommitted",
        ended_job_is_changed,
    ),
    Mutant(
        "a second commit",
        "a committed job can be committed again",
        Verdicts(),
        r"commit.*instead of AlreadyCommitted",
        two_commits,
    ),
    Mutant(
        "another body under a used request id",
        "a request id that was used for something else is taken as a repetition",
        Verdicts(),
        r"Repeated instead of RequestIdReused",
        another_body_is_accepted,
    ),
    Mutant(
        "a repeated request is done again",
        "the log is not checked for an earlier application of a request",
        Kit("test_a_repeated_request_is_a_success_that_changes_nothing"),
        r"not recognised as repeated",
        repetition_is_done_again,
    ),
    Mutant(
        "unseeded jitter",
        "the delay of a retry cannot be computed again",
        Unit(backoffs.test_the_delay_is_the_same_on_every_machine),
        r"assert delays ==",
        unseeded_jitter,
    ),
    Mutant(
        "a lost job is claimed in company",
        "a job that killed its worker may end the attempts of others again",
        Kit("test_a_job_that_was_lost_while_it_ran_is_claimed_alone", "sqlite"),
        r"ids\(await drive\.claim",
        lost_job_in_company,
    ),
    Mutant(
        "the queued timeout does not start",
        "a waiting job that becomes due never times out",
        Kit("test_the_queued_timeout_starts_when_the_job_is_made_due"),
        r"timeout_at",
        queued_timeout_not_started,
    ),
    Mutant(
        "an ack starts no timeout",
        "an engine has the rest of the first timeout to start what it acknowledged",
        Kit("test_an_ack_restarts_the_claimed_timeout"),
        r"timeout_at",
        ack_starts_no_timeout,
    ),
    Mutant(
        "a timeout counts as a lost worker",
        "what follows a timeout depends on on_lost",
        Verdicts(),
        r"timed out",
        timeout_counted_as_loss,
    ),
    Mutant(
        "a job that timed out for good runs again",
        "recovery requeues a job whose on_timeout is to fail",
        Verdicts(),
        r"on_timeout fail",
        timed_out_job_runs_again,
    ),
)
