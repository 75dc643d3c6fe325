"""Breaks of the workflow engine, which the simulator's runs of real workflows must notice."""

from __future__ import annotations

from simulation.model.rows import claimable
from tenure.lifecycle import deadlines, evolve, steps
from tenure.lifecycle.records import Job
from tenure.stores.group_commit import GroupCommit
from tenure.workers.execution import runner
from tenure.workers.leases import Lease
from tenure.workflow.children import ChildJobs
from tenure.workflow.definition import WorkflowDefinition
from tenure.workflow.engine import WorkflowEngine
from tenure.workflow.run_signals import RunSignals
from tenure.workflow.run_waits import RunWaits
from tenure.workflow.step_call import StepExecution
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.workers import test_leases
from tests.workflow import test_seen_revisions

SEEN = test_seen_revisions.test_a_suspended_run_has_seen_what_it_waits_for_up_to_its_earlier_read
NOT_READ = "test_the_steps_are_counted_for_an_owner_that_has_not_read_them"


def recorded_step_is_executed(edits: Edits) -> None:
    edits.python(StepExecution.result, "if record is None:", "if True:")


def undo_in_order_of_completion(edits: Edits) -> None:
    edits.python(steps.steps_to_undo, "reverse=True", "reverse=False")


def cancelled_run_undoes_nothing(edits: Edits) -> None:
    edits.python(WorkflowDefinition._end, "if not steps_to_undo(records) and", "if")


def signal_is_received_twice(edits: Edits) -> None:
    edits.python(RunSignals.take, "self._consumed.add(signal.rev)", "pass")


def child_has_no_request_id(edits: Edits) -> None:
    edits.python(ChildJobs._enqueue, 'request_id=f"{engine.job.id}/{call.place.key}"', "request_id=None")


def step_in_flight_is_not_undone(edits: Edits) -> None:
    edits.python(WorkflowDefinition._recorded, "not engine.save_cut_off", "True")


def waits_end_with_the_database(edits: Edits) -> None:
    edits.python(RunWaits._end_waits, "except StoreUnavailable as error:", "except ZeroDivisionError as error:")
    edits.python(RunWaits._watch_ended, "isinstance(error, Exception)", "False")


def owner_without_steps_is_believed(edits: Edits) -> None:
    edits.attribute(Job, "may_have_earlier_steps", property(lambda _: False))


def mismatch_is_overlooked(edits: Edits) -> None:
    edits.python(WorkflowEngine.recorded, "(problem := mismatch(call, record)) is not None", "(problem := None)")


def run_is_pinned_to_the_code_that_parks_it(edits: Edits) -> None:
    edits.python(WorkflowEngine.park, "self.steps.last_code_version()", "self.services.code_version")


def any_version_claims_a_pinned_run(edits: Edits) -> None:
    edits.python(claimable, "job.pinned_version in (None, request.code_version)", "True")


def postgres_completion_counts_no_steps(edits: Edits) -> None:
    edits.sql("tenure.stores.postgres", "jobs/complete", "tenure.steps_digest(accepted.id)", "null")


def deadline_ends_no_waiting_run(edits: Edits) -> None:
    edits.python(evolve._unleased_timeout, "deadline_at = deadline_of(job)", "deadline_at = None")


def child_has_no_deadline(edits: Edits) -> None:
    edits.python(ChildJobs._enqueue, "with_deadline(request.origin, deadline_of(engine.job))", "request.origin")


def owner_has_no_deadline(edits: Edits) -> None:
    edits.python(Lease.seconds_to_deadline, "deadline_at is None", "True")


def later_deadline_holds(edits: Edits) -> None:
    edits.python(deadlines.earliest, "return min(", "return max(")


def undo_has_the_deadline(edits: Edits) -> None:
    edits.python(evolve.evolve, 'if changes.get("ends_as", job.ends_as)', "if False")


def postgres_forgets_the_deadline(edits: Edits) -> None:
    edits.sql("tenure.stores.postgres", "jobs/apply", ", accepted.deadline_at)", ", null)")


def suspended_run_has_seen_everything(edits: Edits) -> None:
    edits.python(RunWaits._suspension, "seen_rev = self._engine.signals.seen_rev", "seen_rev = self._engine.job.rev")
    edits.python(
        RunWaits._suspension, "min(seen_rev, self._seen_rev) if has_signals else self._seen_rev", "self._engine.job.rev"
    )


def later_read_counts(edits: Edits) -> None:
    edits.python(RunWaits._suspension, "min(seen_rev, self._seen_rev)", "max(seen_rev, self._seen_rev)")


def one_outcome_for_all_signals(edits: Edits) -> None:
    edits.python(GroupCommit._write_group, "zip(group, answers, strict=True)", "zip(group, [answers[0]] * len(group))")


def timeout_ends_any_run(edits: Edits) -> None:
    edits.python(runner._after_timeout, "if may_undo and", "if False and")


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a suspended run has seen everything",
        "a signal after the last read is lost if a heartbeat has brought its revision",
        Unit(SEEN),
        r"found\.seen_rev",
        suspended_run_has_seen_everything,
    ),
    Mutant(
        "the later read counts",
        "a run that waits for a signal and a child has seen both up to the later of two reads",
        Unit(SEEN),
        r"found\.seen_rev",
        later_read_counts,
    ),
    Mutant(
        "one outcome for all signals",
        "of several signals that are written together each gets the outcome of the first",
        Kit("test_signals_at_the_same_time_each_have_their_own_outcome", store="sqlite"),
        r"assert",
        one_outcome_for_all_signals,
    ),
    Mutant(
        "a timeout ends a run whose steps were not read",
        "a run that reaches its deadline before its worker knows its steps undoes none",
        Simulator(first=16),
        r"it has done .* and undone",
        timeout_ends_any_run,
    ),
    Mutant(
        "a waiting run has no deadline",
        "recovery does not find the runs that wait at their deadline",
        Kit("test_a_job_without_a_lease_is_found_at_its_deadline"),
        r"timeout_at",
        deadline_ends_no_waiting_run,
    ),
    Mutant(
        "a child does not inherit the deadline",
        "a tree of runs goes on after the deadline of its root",
        Simulator(),
        r"one of its children has another",
        child_has_no_deadline,
    ),
    Mutant(
        "the owner keeps no deadline",
        "a run that holds a worker goes on after its deadline",
        Unit(test_leases.test_the_time_of_an_attempt_ends_at_the_deadline_of_its_job),
        r"overdue_at_seconds",
        owner_has_no_deadline,
    ),
    Mutant(
        "the later deadline holds",
        "a child outlives the deadline of its parent",
        Kit("test_of_its_own_deadline_and_that_of_its_parent_the_earlier_one_holds"),
        r"deadline_of",
        later_deadline_holds,
    ),
    Mutant(
        "a run that undoes its steps has a deadline",
        "recovery ends it again and again, with its steps not undone",
        Kit("test_a_job_that_undoes_its_steps_has_no_deadline_any_more"),
        r"timeout_at",
        undo_has_the_deadline,
    ),
    Mutant(
        "PostgreSQL: a batch forgets the deadline",
        "a run that was suspended never reaches its deadline",
        Kit("test_a_job_without_a_lease_is_found_at_its_deadline", "postgres"),
        r"timeout_at",
        postgres_forgets_the_deadline,
    ),
    Mutant(
        "a recorded step is executed again",
        "the record is not read before the execution",
        Simulator(),
        r"executed call|did not come to an end",
        recorded_step_is_executed,
    ),
    Mutant(
        "undo begins with the oldest step",
        "steps are undone in the order of their completion",
        Simulator(),
        r"it has done .* and undone",
        undo_in_order_of_completion,
    ),
    Mutant(
        "a cancelled run undoes nothing",
        "a run that was asked to cancel ends at once",
        Simulator(),
        r"it has done .* and undone",
        cancelled_run_undoes_nothing,
    ),
    Mutant(
        "a signal is received twice",
        "a call does not mark the signal that it takes",
        Simulator(),
        r"received the signals|is its result",
        signal_is_received_twice,
    ),
    Mutant(
        "a step in flight is not undone",
        "a run that is cancelled while a step is being saved undoes only what it knows of",
        Simulator(),
        r"it has done .* and undone",
        step_in_flight_is_not_undone,
    ),
    Mutant(
        "waits end with the database",
        "a run that waits on its worker while the database is unavailable waits for ever",
        Simulator(),
        r"did not come to an end",
        waits_end_with_the_database,
    ),
    Mutant(
        "a child has no request id",
        "an attempt that is repeated spawns another child",
        Simulator(),
        r"children, and spawns",
        child_has_no_request_id,
    ),
    Mutant(
        "an owner that has read no steps is taken at its word",
        "an attempt that ended before it had read the steps records none",
        Simulator(),
        r"recorded 0|which attempt 1 has recorded",
        owner_without_steps_is_believed,
    ),
    Mutant(
        "a mismatch is overlooked",
        "code that does not fit the record goes on with the results of other calls",
        Simulator(),
        r"was recorded there before|its record determines|has failed attempts",
        mismatch_is_overlooked,
    ),
    Mutant(
        "a run is pinned to the code that parks it",
        "a parked run waits for the version that does not fit it",
        Simulator(),
        r"wrote its last record",
        run_is_pinned_to_the_code_that_parks_it,
    ),
    Mutant(
        "any version claims a pinned run",
        "the model's claim does not compare the version of a pinned run with its own",
        Simulator(),
        r"is pinned to version .* has claimed it",
        any_version_claims_a_pinned_run,
    ),
    Mutant(
        "PostgreSQL: a completion counts no earlier steps",
        "a job that calls no step in its last attempt records none",
        Kit(NOT_READ, "postgres"),
        r"steps == ",
        postgres_completion_counts_no_steps,
    ),
)
