"""Breaks of the wakes of jobs that wait for children: in the lifecycle, after a change, in the reads, in recovery."""

from __future__ import annotations

from simulation.model import rows
from tenure.lifecycle import evolve, records
from tenure.stores import wake_parents
from tenure.stores.commit_block import BaseCommitBlock
from tenure.workers.maintenance import recovery
from tests.lifecycle import test_records
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, OnPostgres, Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.stores.postgres import test_children as interleavings

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"
LAST_CHILD = "test_the_end_of_the_last_child_wakes_its_parent_whoever_ends_it"
SHOWN = "test_a_waiting_job_shows_the_number_of_children_that_it_waits_for_until_it_is_claimed"
ONE_WAKE = "test_a_job_is_woken_once_when_so_many_children_are_left"
NOT_AWAITED = "test_a_child_that_is_not_awaited_neither_keeps_its_parent_waiting_nor_wakes_it"
STRANGERS = "test_children_of_another_job_are_not_waited_for"
LOST_WAKE = "test_recovery_finds_a_job_that_waits_although_enough_children_have_ended"


def digest_of_every_origin_changes(edits: Edits) -> None:
    edits.python(records._around_payload, 'facts["awaited"] or None', 'facts["awaited"]')


def end_wakes_no_parent(edits: Edits) -> None:
    edits.python(
        wake_parents._actors_by_parent, "ended = origin.awaited and outcome.status in TERMINAL", "ended = False"
    )


def suspend_is_not_tested(edits: Edits) -> None:
    edits.python(wake_parents._actors_by_parent, "isinstance(last, Suspend)", "False")


def repeated_end_is_not_tested(edits: Edits) -> None:
    edits.python(wake_parents._actors_by_parent, "origin.awaited and not outcome.job.live", "False")


def repeated_suspend_is_not_tested(edits: Edits) -> None:
    edits.python(wake_parents._actors_by_parent, "outcome.job.children_max is not None", "False")


def wake_by_another_role(edits: Edits) -> None:
    edits.python(wake_parents._wake, "actor.role if actor.role in WAKERS else Role.RECOVERY", "Role.RECOVERY")


def block_wakes_no_parent(edits: Edits) -> None:
    edits.python(BaseCommitBlock.__aexit__, "await self.store.wake_parents(self._requests, self._outcomes)", "pass")


def recovery_wakes_no_parent(edits: Edits) -> None:
    edits.python(recovery.recovery_operations, "(Wake(),) if", "() if")


def claimed_keeps_its_number(edits: Edits) -> None:
    edits.python(evolve._claimed, '"children_max": None', '"children_max": job.children_max')


def ended_keeps_its_number(edits: Edits) -> None:
    edits.python(evolve._end, ', "children_max": None', "")


def suspended_has_no_number(edits: Edits) -> None:
    edits.python(evolve._suspended, 'detail.get("children_max")', "None")


def model_wakes_too_early(edits: Edits) -> None:
    edits.python(rows.waits_for_no_child, "<= job.children_max", "<= job.children_max + 1")


def sqlite_wakes_due_jobs(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_wakeable", "\n    and (job.due_at is null or job.due_at > :now)")


def sqlite_counts_every_child(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_wakeable", " indexed by tenure_jobs_awaited")
    edits.sql(SQLITE, "jobs/select_wakeable", " and child.awaited = 1")


def sqlite_counts_ended_children(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_wakeable", " indexed by tenure_jobs_awaited")
    edits.sql(SQLITE, "jobs/select_wakeable", " and child.finished_at is null")


def sqlite_counts_strangers(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_wakeable", "child.parent_id = job.id", "child.parent_id is not null")


def sqlite_wakes_one_child_late(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_wakeable", ") <= job.children_max", ") < job.children_max")


def sqlite_recovery_does_not_look(edits: Edits) -> None:
    edits.sql(SQLITE, "jobs/select_recoverable", ") <= job.children_max", ") < 0")


def postgres_wakes_due_jobs(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", "\n      and (job.due_at is null or job.due_at > clock.now)")


def postgres_counts_every_child(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", " and child.awaited")


def postgres_counts_ended_children(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", " and child.finished_at is null")


def postgres_counts_strangers(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", "child.parent_id = job.id", "child.parent_id is not null")


def postgres_wakes_one_child_late(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", ") <= job.children_max", ") < job.children_max")


def postgres_reads_too_few_children(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_wakeable", "limit job.children_max + 1", "limit job.children_max")


def postgres_recovery_does_not_look(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/select_recoverable", ") <= job.children_max", ") < 0")


def postgres_claimed_job_keeps_its_number(edits: Edits) -> None:
    for statement in ("jobs/claim", "jobs/claim_lane"):
        edits.sql(POSTGRES, statement, "\n        children_max = null,")


MUTANTS = (
    Mutant(
        "awaited is in every digest",
        "a repeated enqueue of an earlier version is refused",
        Unit(test_records.test_an_origin_that_is_not_awaited_has_the_digest_of_the_first_version),
        r"assert",
        digest_of_every_origin_changes,
    ),
    Mutant(
        "the end of a child wakes no parent", "a parent waits for ever", Kit(LAST_CHILD), r"assert", end_wakes_no_parent
    ),
    Mutant(
        "a suspend for children is not tested",
        "a job waits for children that ended before it suspended",
        Kit("test_a_job_whose_children_have_ended_before_it_suspends_does_not_wait"),
        r"assert",
        suspend_is_not_tested,
    ),
    Mutant(
        "no test after the suspend, between processes",
        "a child that ends between decision and write of the suspend does not wake its parent",
        OnPostgres(interleavings.test_a_child_that_ends_between_the_decision_and_the_write_of_the_suspend),
        r"it waits for ever",
        suspend_is_not_tested,
    ),
    Mutant(
        "a repeated end is not tested",
        "a reply that was lost leaves its parent without its wake",
        OnPostgres(interleavings.test_a_repeated_end_wakes_the_parent_that_the_first_did_not),
        r"it waits for ever",
        repeated_end_is_not_tested,
    ),
    Mutant(
        "a repeated suspend is not tested",
        "a reply that was lost leaves the job without its wake",
        OnPostgres(interleavings.test_a_repeated_suspend_is_tested_again),
        r"it waits for ever",
        repeated_suspend_is_not_tested,
    ),
    Mutant(
        "every wake is recovery's",
        "the log names another role than the one that ended the child",
        Kit(LAST_CHILD),
        r"event\.actor",
        wake_by_another_role,
    ),
    Mutant(
        "a commit block wakes no parent",
        "a child that ends in a transaction does not wake its parent",
        Kit("test_a_suspend_in_a_transaction_is_tested_after_its_commit"),
        r"assert",
        block_wakes_no_parent,
    ),
    Mutant(
        "recovery wakes no parent",
        "a parent waits for ever when the process died before the wake",
        Simulator(),
        r"was not woken for \d+ s|did not come to an end",
        recovery_wakes_no_parent,
    ),
    Mutant(
        "a suspend keeps no number of children",
        "no job that waits for children is woken",
        Kit(SHOWN),
        r"children_max",
        suspended_has_no_number,
    ),
    Mutant(
        "a claimed job keeps its number of children",
        "a running job has a field of waiting ones",
        Kit(SHOWN),
        r"children_max",
        claimed_keeps_its_number,
    ),
    Mutant(
        "an ended job keeps its number of children",
        "an ended job has a field of waiting ones",
        Kit("test_a_waiting_job_that_ends_has_no_number_of_children_any_more"),
        r"children_max",
        ended_keeps_its_number,
    ),
    Mutant(
        "a parent is woken too early",
        "a parent is woken while a child is live that it waits for",
        Simulator(),
        r"is woken while \d+ of its children are live",
        model_wakes_too_early,
    ),
    Mutant(
        "SQLite: a due job is woken",
        "every further child wakes it",
        Kit(ONE_WAKE, "sqlite"),
        r"due",
        sqlite_wakes_due_jobs,
    ),
    Mutant(
        "SQLite: every child is waited for",
        "a child that is not awaited keeps its parent waiting",
        Kit(NOT_AWAITED, "sqlite"),
        r"assert",
        sqlite_counts_every_child,
    ),
    Mutant(
        "SQLite: ended children are counted",
        "a parent is never woken",
        Kit(LAST_CHILD, "sqlite"),
        r"assert",
        sqlite_counts_ended_children,
    ),
    Mutant(
        "SQLite: children of others are counted",
        "a parent waits for the children of another",
        Kit(STRANGERS, "sqlite"),
        r"assert",
        sqlite_counts_strangers,
    ),
    Mutant(
        "SQLite: a parent is woken one child late",
        "one child fewer must be live than the job needs",
        Kit(ONE_WAKE, "sqlite"),
        r"assert",
        sqlite_wakes_one_child_late,
    ),
    Mutant(
        "SQLite: recovery does not look for lost wakes",
        "a parent waits for ever when the process died before the wake",
        Kit(LOST_WAKE, "sqlite"),
        r"assert",
        sqlite_recovery_does_not_look,
    ),
    Mutant(
        "PostgreSQL: a due job is woken",
        "every further child wakes it",
        Kit(ONE_WAKE, "postgres"),
        r"due",
        postgres_wakes_due_jobs,
    ),
    Mutant(
        "PostgreSQL: every child is waited for",
        "a child that is not awaited keeps its parent waiting",
        Kit(NOT_AWAITED, "postgres"),
        r"assert",
        postgres_counts_every_child,
    ),
    Mutant(
        "PostgreSQL: ended children are counted",
        "a parent is never woken",
        Kit(LAST_CHILD, "postgres"),
        r"assert",
        postgres_counts_ended_children,
    ),
    Mutant(
        "PostgreSQL: children of others are counted",
        "a parent waits for the children of another",
        Kit(STRANGERS, "postgres"),
        r"assert",
        postgres_counts_strangers,
    ),
    Mutant(
        "PostgreSQL: a parent is woken one child late",
        "one child fewer must be live than the job needs",
        Kit(ONE_WAKE, "postgres"),
        r"assert",
        postgres_wakes_one_child_late,
    ),
    Mutant(
        "PostgreSQL: too few children are read",
        "a parent is woken while more children are live than it needs",
        Kit(ONE_WAKE, "postgres"),
        r"assert",
        postgres_reads_too_few_children,
    ),
    Mutant(
        "PostgreSQL: recovery does not look for lost wakes",
        "a parent waits for ever when the process died before the wake",
        Kit(LOST_WAKE, "postgres"),
        r"assert",
        postgres_recovery_does_not_look,
    ),
    Mutant(
        "PostgreSQL: a claimed job keeps its number of children",
        "a running job has a field of waiting ones",
        Kit(SHOWN, "postgres"),
        r"only a job that waits for children has a number of them|children_max",
        postgres_claimed_job_keeps_its_number,
    ),
)
