"""Breaks of checkpoints: who may save a step, which of two writers wins, and what the log records of steps."""

from __future__ import annotations

from simulation.model.store import ModelStore
from tenure.lifecycle import steps, verify
from tenure.stores.contract import decide_save
from tenure.stores.postgres import apply_batch
from tenure.stores.sqlite import apply
from tenure.stores.sqlite import steps as sqlite_steps
from tests.lifecycle.test_steps import test_a_step_of_which_anything_was_changed_is_found
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Lockstep, OnPostgres, Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.stores.postgres.test_step_interleavings import (
    test_an_actor_that_ends_an_attempt_counts_the_step_that_was_being_saved as step_in_flight_is_counted,
)

POSTGRES = "tenure.stores.postgres"
INSERTS = ("steps/insert", "steps/insert_one")
"""The statements that save a batch of steps, and one."""


def postgres_step_without_token(edits: Edits) -> None:
    edits.sql(POSTGRES, "steps/insert", "where locked.token = step.token", "where true")
    edits.sql(POSTGRES, "steps/insert_one", "where locked.token = :token::uuid", "where true")


def postgres_step_of_another_attempt(edits: Edits) -> None:
    edits.sql(POSTGRES, "steps/insert", "\n      and locked.attempt = step.attempt")
    edits.sql(POSTGRES, "steps/insert_one", "\n      and locked.attempt = :attempt::integer")


def postgres_step_after_the_lease(edits: Edits) -> None:
    for name in INSERTS:
        edits.sql(POSTGRES, name, "\n      and locked.lease_expires_at > finished.at")


def postgres_step_at_expiry(edits: Edits) -> None:
    for name in INSERTS:
        edits.sql(POSTGRES, name, "locked.lease_expires_at > finished.at", "locked.lease_expires_at >= finished.at")


def postgres_step_after_the_commit(edits: Edits) -> None:
    for name in INSERTS:
        edits.sql(POSTGRES, name, "\n      and locked.committed_at is null")


def postgres_step_before_the_start(edits: Edits) -> None:
    for name in INSERTS:
        edits.sql(POSTGRES, name, "\n      and locked.status = 'running'")


def postgres_step_without_lock(edits: Edits) -> None:
    edits.sql(POSTGRES, "steps/insert", "\n    for key share skip locked")
    edits.sql(POSTGRES, "steps/insert_one", "\n        for key share skip locked")


def postgres_end_without_exclusive_lock(edits: Edits) -> None:
    edits.sql(POSTGRES, "jobs/apply", "for update skip locked", "for no key update skip locked")


def postgres_last_writer_wins(edits: Edits) -> None:
    for name in INSERTS:
        edits.sql(POSTGRES, name, "do nothing", "do update set result = excluded.result")


def last_writer_wins(edits: Edits) -> None:
    edits.python(decide_save, "None if existing is None else StepExists(existing)", "None")


def any_token_saves(edits: Edits) -> None:
    edits.python(steps.save_refusal, "job.token == actor.token", "True")


def expired_lease_saves(edits: Edits) -> None:
    edits.python(steps.save_refusal, "job.lease_expires_at <= at", "False")


def committed_job_saves(edits: Edits) -> None:
    edits.python(steps.save_refusal, "if job.committed:", "if False:")


def model_counts_no_steps(edits: Edits) -> None:
    edits.python(ModelStore._write, "if change.counts_steps:", "if False:")


def sqlite_counts_no_steps(edits: Edits) -> None:
    edits.python(apply._apply_wave, "if verdict.counts_steps:", "if False:")


def postgres_counts_no_steps(edits: Edits) -> None:
    edits.python(apply_batch.apply_parameters, "counts = change.counts_steps", "counts = False")


def sum_is_not_compared(edits: Edits) -> None:
    edits.python(verify._recorded_step_problems, "elif found != recorded:", "elif False:")


def result_is_not_digested(edits: Edits) -> None:
    edits.python(steps.step_content, "(step.result, step.error, step.undo)", "(step.error, step.undo)")


def name_is_not_digested(edits: Edits) -> None:
    edits.python(steps.step_digest, "step.name,", "None,")


def sqlite_step_of_a_batch_is_lost(edits: Edits) -> None:
    edits.python(
        sqlite_steps._save, "_write(session, list(written.values()))", "_write(session, list(written.values())[:1])"
    )


TOKEN = "test_a_step_needs_the_token_of_the_current_lease"
LEASE = "test_a_step_needs_a_lease_that_runs_by_the_databases_clock"
COMMITTED = "test_only_a_running_job_that_is_not_committed_has_steps_saved"
FIRST = "test_the_first_writer_of_a_key_wins_and_the_second_gets_what_was_recorded"
COUNTED = "test_the_store_counts_the_steps_when_another_actor_ends_the_attempt"
VERIFIED = "test_verify_finds_what_the_end_of_an_attempt_has_not_recorded"
REFUSED = r"errors_of_steps\("

MUTANTS = (
    Mutant(
        "PostgreSQL: a step without token",
        "`steps/insert.sql` does not compare the token",
        Kit(TOKEN, "postgres"),
        REFUSED,
        postgres_step_without_token,
    ),
    Mutant(
        "PostgreSQL: a step of another attempt",
        "`steps/insert.sql` does not compare the attempt, which the digest of the step covers",
        Kit(TOKEN, "postgres"),
        REFUSED,
        postgres_step_of_another_attempt,
    ),
    Mutant(
        "PostgreSQL: a step after the lease",
        "`steps/insert.sql` does not compare the end of the lease",
        Kit(LEASE, "postgres"),
        REFUSED,
        postgres_step_after_the_lease,
    ),
    Mutant(
        "PostgreSQL: `>=` for `>` at expiry of a step's lease",
        "a step is saved at the time at which the lease ends",
        Kit(LEASE, "postgres"),
        REFUSED,
        postgres_step_at_expiry,
    ),
    Mutant(
        "PostgreSQL: a step after the commit",
        "`steps/insert.sql` saves a step that the commit's event does not count",
        Kit(COMMITTED, "postgres"),
        REFUSED,
        postgres_step_after_the_commit,
    ),
    Mutant(
        "PostgreSQL: a step before the start",
        "`steps/insert.sql` saves a step of a job that is claimed and not running",
        Kit(COMMITTED, "postgres"),
        REFUSED,
        postgres_step_before_the_start,
    ),
    Mutant(
        "PostgreSQL: a step is saved without a lock",
        "an actor that ends the attempt counts the steps while one is being saved",
        OnPostgres(step_in_flight_is_counted),
        r"did not count the step",
        postgres_step_without_lock,
    ),
    Mutant(
        "PostgreSQL: the end of an attempt does not exclude saving",
        "the row is locked so that a step can be saved beside it",
        OnPostgres(step_in_flight_is_counted),
        r"did not count the step",
        postgres_end_without_exclusive_lock,
    ),
    Mutant(
        "PostgreSQL: the last writer of a step wins",
        "the second step under a key replaces the first",
        Kit(FIRST, "postgres"),
        r"StepExists\(first\)|GuardViolated|RowPoisoned",
        postgres_last_writer_wins,
    ),
    Mutant(
        "the last writer of a step wins", "a recorded step is not adopted", Kit(FIRST), r"StepExists", last_writer_wins
    ),
    Mutant(
        "SQLite: the last writer of a step wins",
        "a recorded step is not adopted",
        Kit(FIRST, "sqlite"),
        r"StepExists",
        last_writer_wins,
    ),
    Mutant("any token saves a step", "the token is not compared", Kit(TOKEN, "sqlite"), REFUSED, any_token_saves),
    Mutant(
        "a step is saved after the lease",
        "its end is not checked",
        Kit(LEASE, "sqlite"),
        REFUSED,
        expired_lease_saves,
    ),
    Mutant(
        "a step is saved after the commit",
        "the commit's event does not count it",
        Kit(COMMITTED, "sqlite"),
        REFUSED,
        committed_job_saves,
    ),
    Mutant(
        "steps are not counted for an actor without a lease",
        "the event that ends the attempt carries no digest",
        Kit(COUNTED, "model"),
        r"last\.steps == ",
        model_counts_no_steps,
    ),
    Mutant(
        "SQLite: steps are not counted for an actor without a lease",
        "the event that ends the attempt carries no digest",
        Kit(COUNTED, "sqlite"),
        r"last\.steps == ",
        sqlite_counts_no_steps,
    ),
    Mutant(
        "PostgreSQL: steps are not counted for an actor without a lease",
        "the event that ends the attempt carries no digest",
        Kit(COUNTED, "postgres"),
        r"last\.steps == ",
        postgres_counts_no_steps,
    ),
    Mutant(
        "steps are not counted for recovery, in the simulator",
        "the event that stalls a lost job carries no digest",
        Simulator(),
        r"step",
        model_counts_no_steps,
    ),
    Mutant(
        "verify does not compare the sum of digests",
        "a changed step is not found",
        Kit(VERIFIED),
        r"ProblemType.STEP",
        sum_is_not_compared,
    ),
    Mutant(
        "a step's digest does not cover its result",
        "a forged result is not found",
        Unit(test_a_step_of_which_anything_was_changed_is_found),
        r"is_changed.*name='result'",
        result_is_not_digested,
    ),
    Mutant(
        "a step's digest does not cover its name",
        "a result of one function is shown as that of another",
        Unit(test_a_step_of_which_anything_was_changed_is_found),
        r"is_changed.*name='name'",
        name_is_not_digested,
    ),
    Mutant(
        "SQLite: a step of a batch is lost",
        "it is acknowledged and not written",
        Lockstep(),
        r"SQLite and the model differ|Problem\(",
        sqlite_step_of_a_batch_is_lost,
    ),
)
