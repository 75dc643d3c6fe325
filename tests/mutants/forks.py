"""Breaks of forks, plans and golden files: what is reused, in which order steps run, and which changes are found."""

from __future__ import annotations

from tenure.lifecycle import forks
from tenure.workflow import golden, golden_differences, plan
from tests.lifecycle import test_forks
from tests.mutants.edits import Edits
from tests.mutants.layers import Simulator, Unit
from tests.mutants.mutant import Mutant
from tests.workflow import test_golden, test_plans


def fork_reuses_the_step_to_fork_from(edits: Edits) -> None:
    edits.python(forks.forked_steps, "step.number < cut or", "step.number <= cut or")


def fork_reuses_nothing(edits: Edits) -> None:
    edits.python(forks.forked_steps, "step.number < cut or", "False or")


def copies_keep_their_spend(edits: Edits) -> None:
    edits.python(forks._copy, "spend=None, ", "")


def undone_steps_are_reused(edits: Edits) -> None:
    edits.python(forks._first_executed, "return min(undone, failed)", "return failed")


def dependencies_are_ignored(edits: Edits) -> None:
    edits.python(plan.dependencies, "[*step.depends_on, *referred]", "[*referred]")


def arguments_are_not_compared(edits: Edits) -> None:
    edits.python(golden._same_arguments, "digests[0] == digests[1]", "True")


def names_are_not_compared(edits: Edits) -> None:
    edits.python(
        golden._is_named, "(record.kind, record.name, recorded_part)", "(record.kind, call.name, recorded_part)"
    )


def order_is_not_compared(edits: Edits) -> None:
    edits.python(golden_differences.call_differences, "elif one.record.key in moved:", "elif False:")


def removed_calls_are_not_reported(edits: Edits) -> None:
    edits.python(golden_differences.call_differences, "if not blocked:", "if False:")


def added_calls_are_not_reported(edits: Edits) -> None:
    edits.python(golden_differences.call_differences, "if run.outcome.is_cut_off and", "if")


MUTANTS = (
    Mutant(
        "a fork reuses the step to fork from",
        "the step that was to be executed again is not",
        Unit(test_forks.test_the_step_to_fork_from_and_later_ones_are_executed_again),
        r"keys\(|assert",
        fork_reuses_the_step_to_fork_from,
    ),
    Mutant(
        "a fork reuses nothing",
        "recorded steps are executed and paid again",
        Simulator(),
        r"paid again|does not have the recorded steps",
        fork_reuses_nothing,
    ),
    Mutant(
        "copied steps keep their spend",
        "a fork has spent what the old run has",
        Unit(test_forks.test_copies_have_spent_nothing_and_belong_to_the_first_attempt),
        r"spend|assert",
        copies_keep_their_spend,
    ),
    Mutant(
        "a fork reuses undone steps",
        "what was undone counts as done",
        Unit(test_forks.test_undone_steps_are_executed_again),
        r"keys\(|assert",
        undone_steps_are_reused,
    ),
    Mutant(
        "a plan ignores `depends_on`",
        "a step begins before those that it depends on",
        Unit(test_plans.test_steps_are_ordered_by_dependencies_and_then_by_the_plan),
        r"in_order|assert",
        dependencies_are_ignored,
    ),
    Mutant(
        "golden files: arguments are not compared",
        "a call with other arguments is the same",
        Unit(test_golden.test_other_arguments_and_another_output_are_found),
        r"arguments",
        arguments_are_not_compared,
    ),
    Mutant(
        "golden files: names are not compared",
        "another function at a place is the same",
        Unit(test_golden.test_a_renamed_step_is_found_and_the_replay_goes_on),
        r"renamed",
        names_are_not_compared,
    ),
    Mutant(
        "golden files: the order is not compared",
        "reordered calls are the same",
        Unit(test_golden.test_reordered_steps_are_found),
        r"reordered|assert",
        order_is_not_compared,
    ),
    Mutant(
        "golden files: removed calls are not reported",
        "a recorded call that is not made is the same",
        Unit(test_golden.test_a_removed_step_is_found),
        r"removed|assert",
        removed_calls_are_not_reported,
    ),
    Mutant(
        "golden files: added calls are not reported",
        "a call that was not recorded is the same",
        Unit(test_golden.test_an_added_step_is_found),
        r"added|assert",
        added_calls_are_not_reported,
    ),
)
