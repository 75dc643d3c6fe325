"""Faults of the vocabularies: words that lead to transitions which their source forbids."""

from __future__ import annotations

from tenure.lifecycle.statuses import CLAIMED, RETRY
from tenure.vocabularies import (
    engine_hardening,
    engine_legacy,
    execution_ledger,
    lifecycle_contract,
    state_machine,
    steps,
    worker_contract,
)
from tests.mutants.edits import Edits
from tests.mutants.layers import History, Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.vocabularies import test_transitions as transitions


def contract_retry_is_queued(edits: Edits) -> None:
    edits.item(lifecycle_contract.STATUSES, RETRY, "queued")


def machine_claimed_is_running(edits: Edits) -> None:
    edits.item(state_machine.STATUSES, CLAIMED, "running")


def worker_ignores_the_attempt(edits: Edits) -> None:
    edits.python(worker_contract.word, "facts.status is QUEUED and facts.attempt > 0", "False")


def ledger_done_without_a_commit(edits: Edits) -> None:
    edits.python(execution_ledger._execution_changes, "after == DONE and before == IN_PROGRESS", "False")


def ledger_ignores_the_commit(edits: Edits) -> None:
    edits.python(steps._facts_after, "keeps_status = event.to_status is STALLED and will_end", "keeps_status = False")


def engine_starts_without_a_dispatch(edits: Edits) -> None:
    edits.python(engine_hardening.entered, '(before, after) == ("queued", "running")', "False")


def old_name_of_running_is_finished(edits: Edits) -> None:
    edits.item(engine_legacy._OLD_NAMES, "running", "finished")


def stall_before_the_end_is_reported(edits: Edits) -> None:
    edits.python(steps._facts_after, "record is not None and record.ends_by_policy", "False")


MUTANTS = (
    Mutant(
        "contract: a retry is queued",
        "the lifecycle contract returns a running job to queued",
        History(),
        r"contract: running → queued by retry_scheduled is neither",
        contract_retry_is_queued,
    ),
    Mutant(
        "machine: a claimed job is running",
        "the state machine starts a job that was never assigned",
        History(),
        r"machine: queued → running by claimed is neither",
        machine_claimed_is_running,
    ),
    Mutant(
        "worker: queued again is queued",
        "the worker contract returns a run from retry to queued",
        Simulator(),
        r"worker(, revision \d+)?: retry → queued by requeued is neither",
        worker_ignores_the_attempt,
    ),
    Mutant(
        "ledger: done without a commit",
        "the ledger completes an execution that was never committed",
        History(),
        r"ledger: IN_PROGRESS → DONE by succeeded is neither",
        ledger_done_without_a_commit,
    ),
    Mutant(
        "ledger: a committed job is pending",
        "the ledger aborts a committed execution whose lease was lost",
        Simulator(),
        r"COMMITTED → ABORTED by stalled is neither|succeeded by succeeded is neither",
        ledger_ignores_the_commit,
    ),
    Mutant(
        "engine: a start is no dispatch",
        "the engines run a job that was never dispatched",
        History(),
        r"engine: queued → running by started is neither",
        engine_starts_without_a_dispatch,
    ),
    Mutant(
        "engine-old: running is finished",
        "the old names finish a job that never started",
        History(),
        r"engine-old: queued → finished by started is neither",
        old_name_of_running_is_finished,
    ),
    Mutant(
        "a stall before the end is reported",
        "a lost job that its policy ends is reported as queued first",
        Unit(transitions.test_a_stall_that_the_end_follows_is_not_reported),
        r"one\.transition for one in added",
        stall_before_the_end_is_reported,
    ),
)
