"""Faults of the workers' roles: pool, lease renewer, completer, commit block, recovery, runner."""

from __future__ import annotations

from simulation.random_streams import RandomStream
from tenure.seams import SystemRandom
from tenure.workers.commit.commit import Committer
from tenure.workers.completer import Completer
from tenure.workers.execution import outcomes
from tenure.workers.maintenance import recovery
from tenure.workers.maintenance.lease_renewer import LeaseRenewer
from tenure.workers.maintenance.recovery import RecoveryWorker
from tenure.workers.pool import WorkerPool
from tests.mutants.checks import (
    a_block_whose_mark_is_refused_leaves_nothing_behind,
    recovery_goes_by_the_clock_of_the_database,
)
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Roles, Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.project import test_seams as seams
from tests.workers.execution import test_outcomes as outcome_tests
from tests.workers.maintenance import test_recovery_policy as remedies


def one_token_for_all(edits: Edits) -> None:
    constant = "__import__('uuid').UUID(int=7, version=4)"
    edits.python(SystemRandom.token, "UUID(bytes=secrets.token_bytes(16), version=4)", constant)
    edits.python(RandomStream.token, "UUID(int=self._random.getrandbits(128), version=4)", constant)


def claim_under_a_new_id(edits: Edits) -> None:
    edits.python(
        WorkerPool._send,
        "await self._back_off(error)",
        "await self._back_off(error); self._claims += 1; request = __import__('msgspec').structs.replace("
        "request, request_id=f'{self._worker}.{self._claims}')",
    )


def record_under_a_new_id(edits: Edits) -> None:
    edits.python(
        Completer._apply,
        "while requests:",
        "tries = 0\n    while requests:\n        tries += 1\n        if tries > 1: requests = ["
        "__import__('msgspec').structs.replace(one, request_id=one.request_id + '.again') for one in requests]",
    )


def deadline_from_reply(edits: Edits) -> None:
    edits.python(
        LeaseRenewer._renewed,
        "lease.renewal_sent(sent_at_seconds, renewed=renewed)",
        "lease.renewal_sent(self._seams.clock.monotonic_seconds(), renewed=renewed)",
    )


def never_expires_locally(edits: Edits) -> None:
    edits.python(LeaseRenewer.expire_locally, "lease.local_deadline_seconds <= now", "False")


def starts_what_came_late(edits: Edits) -> None:
    edits.python(
        WorkerPool._in_time, "passed_seconds * 1000 <= job.origin.policy.lease_ms * (1 - REMAINING_SHARE_MIN)", "True"
    )


def mark_is_skipped(edits: Edits) -> None:
    edits.python(
        Committer.write,
        'return (await self.mark(inner.apply, Commit(result), self._lease.request_id("commit"))).job',
        "return self._lease.job",
    )


def refused_mark_is_committed(edits: Edits) -> None:
    edits.python(Committer.mark, "raise refusal", "return Repeated(lease.job)")


def effect_before_the_mark(edits: Edits) -> None:
    edits.python(
        Committer.write,
        "await inner.enqueue(content.enqueues)",
        "await (await self._store()).enqueue(content.enqueues)",
    )


def recovery_requeues_committed(edits: Edits) -> None:
    edits.python(recovery._after_stall, "if job.committed:", "if False:")


def recovery_goes_by_its_own_clock(edits: Edits) -> None:
    edits.python(RecoveryWorker.recover, "await self._store.now()", "self._seams.clock.now()")


def never_times_out(edits: Edits) -> None:
    edits.python(LeaseRenewer.expire_locally, "not lease.lost and lease.overdue_at_seconds <= now", "False")


def timeout_is_a_release(edits: Edits) -> None:
    edits.python(
        outcomes.operation_for, "return _after_timeout(job, at_deadline=at_deadline)", "return Release('shutdown')"
    )


def recovery_ignores_on_timeout(edits: Edits) -> None:
    edits.python(recovery._after_timeout, "on_timeout = job.policy.on_timeout", "on_timeout = 'fail'")


def records_what_it_lost(edits: Edits) -> None:
    edits.python(outcomes.operation_for, "return None", "return Release('shutdown')")


def retries_for_ever(edits: Edits) -> None:
    edits.python(outcomes._after_error, "job.failures + 1 < job.policy.max_attempts", "True")


MUTANTS = (
    Mutant(
        "one token for all leases",
        "every lease has the same secret",
        Kit("test_a_paused_worker_cannot_change_a_job_that_was_reclaimed"),
        r"isinstance\(refusal, LeaseLost\)",
        one_token_for_all,
    ),
    Mutant(
        "tokens repeat",
        "the source of tokens gives the same one again",
        Unit(seams.test_tokens_and_names_do_not_repeat),
        r"token",
        one_token_for_all,
    ),
    Mutant(
        "a claim asked again under a new id",
        "jobs that were claimed by an answer that got lost are forgotten",
        Roles("test_a_claim_whose_answer_was_lost_is_asked_again_and_starts_each_job_once"),
        r"claim\(\) == 3",
        claim_under_a_new_id,
    ),
    Mutant(
        "an outcome sent again under a new id",
        "an outcome whose answer got lost is taken as refused",
        Roles("test_an_outcome_whose_answer_was_lost_is_recorded_once"),
        r"LeaseLost",
        record_under_a_new_id,
    ),
    Mutant(
        "local deadline counted from the reply",
        "a slow reply prolongs the time for which a worker relies on its lease",
        Roles("test_trust_is_counted_from_when_the_heartbeat_was_sent"),
        r"local_deadline_seconds ==",
        deadline_from_reply,
    ),
    Mutant(
        "a lease that never expires locally",
        "work goes on although no heartbeat succeeded for a whole lease",
        Roles("test_an_owner_without_a_renewal_for_a_whole_lease_stops"),
        r"lease\.lost",
        never_expires_locally,
    ),
    Mutant(
        "a late claim is started",
        "a job is started although its lease may be over by then",
        Roles("test_a_job_whose_claim_was_answered_late_in_its_lease_is_released"),
        r"claim\(\) == 0",
        starts_what_came_late,
    ),
    Mutant(
        "the mark of a commit block is skipped",
        "the effect is written and the job does not know",
        Simulator(),
        r"its effect was applied",
        mark_is_skipped,
    ),
    Mutant(
        "a commit block without its mark",
        "the effect is kept although the mark was refused",
        Unit(a_block_whose_mark_is_refused_leaves_nothing_behind),
        r"DID NOT RAISE|kept without its mark",
        refused_mark_is_committed,
    ),
    Mutant(
        "the effect outside of the commit",
        "what belongs to the commit is written on its own",
        Simulator(first=3),
        r"its effect was applied",
        effect_before_the_mark,
    ),
    Mutant(
        "recovery requeues a committed job",
        "recovery asks for another run of what was applied",
        Unit(remedies.test_a_committed_job_is_finished_and_never_run_again),
        r"Reconcile",
        recovery_requeues_committed,
    ),
    Mutant(
        "recovery requeues a committed job, under faults",
        "a committed job whose worker died is never finished",
        Simulator(),
        r"did not come to an end",
        recovery_requeues_committed,
    ),
    Mutant(
        "expiry by the worker's clock",
        "recovery judges leases by the time of its own machine",
        Unit(recovery_goes_by_the_clock_of_the_database),
        r".",
        recovery_goes_by_its_own_clock,
    ),
    Mutant(
        "a runner records what it lost",
        "something is recorded for an attempt whose lease is gone",
        Unit(outcome_tests.test_a_lost_lease_leaves_nothing_to_record),
        r"is None",
        records_what_it_lost,
    ),
    Mutant(
        "a runner retries for ever",
        "the runner retries whatever the policy is",
        Unit(outcome_tests.test_every_operation_of_every_outcome_is_legal_for_every_running_job),
        r"IllegalTransition",
        retries_for_ever,
    ),
    Mutant(
        "a worker does not end what timed out",
        "a hung job holds its slot until recovery scans",
        Roles("test_a_job_that_hangs_is_ended_by_its_owner_at_its_timeout"),
        r"place\.interruptions == ",
        never_times_out,
    ),
    Mutant(
        "a timeout is recorded as a release",
        "a job that hangs runs again and again without a failure",
        Unit(outcome_tests.test_a_timeout_ends_the_attempt_by_its_policy_with_that_cause),
        r"isinstance\(retried, Retry\)",
        timeout_is_a_release,
    ),
    Mutant(
        "recovery ignores on_timeout",
        "recovery fails a job that has attempts left",
        Unit(remedies.test_a_leased_job_that_timed_out_is_handled_by_its_policy),
        r"isinstance",
        recovery_ignores_on_timeout,
    ),
)
