"""Breaks of budgets: what counts against a limit, and when it is charged."""

from __future__ import annotations

from tenure.lifecycle import budgets
from tenure.stores.contract import decide_reserve
from tenure.stores.postgres import budgets as postgres_budgets
from tenure.stores.sqlite import budgets as sqlite_budgets
from tests.mutants.edits import Edits
from tests.mutants.layers import Kit, Simulator
from tests.mutants.mutant import Mutant

POSTGRES, SQLITE = "tenure.stores.postgres", "tenure.stores.sqlite"


def reservations_do_not_count(edits: Edits) -> None:
    edits.python(budgets.lines_of, "reserved.get(one.unit, 0) + one.amount", "0")


def lost_reservations_do_not_count(edits: Edits) -> None:
    edits.python(budgets.lines_of, 'elif on_lost_spend == "charge":', "elif False:")


def lost_reservations_always_count(edits: Edits) -> None:
    edits.python(budgets.lines_of, 'elif on_lost_spend == "charge":', "else:")


def limit_cannot_be_reached(edits: Edits) -> None:
    edits.python(budgets.exceeded, "line.used + amount <= line.limit", "line.used + amount < line.limit")


def repeated_reservation_counts_twice(edits: Edits) -> None:
    edits.python(decide_reserve, "if (one.job_id, one.attempt, one.key) != own", "if own")


def sqlite_step_is_not_charged(edits: Edits) -> None:
    edits.sql(SQLITE, "budgets/settle", "spent + :amount", "spent")


def sqlite_reservation_outlives_its_step(edits: Edits) -> None:
    edits.python(sqlite_budgets.settle, 'session.execute("reservations/settle", call)', "pass")


def postgres_step_is_not_charged(edits: Edits) -> None:
    edits.sql(POSTGRES, "budgets/settle", "budget.spent + charge.amount", "budget.spent")


def postgres_lost_reservation_is_live(edits: Edits) -> None:
    edits.sql(POSTGRES, "reservations/select", " and job.attempt = reservation.attempt")


def postgres_reserves_nothing(edits: Edits) -> None:
    edits.python(postgres_budgets.PostgresBudgets._reserve, "isinstance(outcome, Reserved)", "False")


SETTLED = "test_a_reservation_counts_until_its_step_settles_it"
REACHED = "test_a_limit_may_be_reached_and_not_passed"
REPEATED = "test_a_repeated_reservation_reserves_once"
LOST = "test_the_reservation_of_a_lost_attempt_is_charged_once"
RELEASED = "test_the_reservation_of_a_lost_attempt_is_released_where_the_budget_says_so"
FIGURES = r"figures\(|isinstance\(|lines =="

MUTANTS = (
    Mutant(
        "reservations do not count",
        "calls in progress may pass a limit together",
        Simulator(),
        r"paid from one budget|are counted",
        reservations_do_not_count,
    ),
    Mutant(
        "the reservation of a lost attempt does not count",
        "a call that was paid before its worker died is not counted",
        Simulator(),
        r"paid from one budget|are counted",
        lost_reservations_do_not_count,
    ),
    Mutant(
        "the reservation of a lost attempt always counts",
        "`on_lost_spend` is not checked",
        Kit(RELEASED),
        FIGURES,
        lost_reservations_always_count,
    ),
    Mutant(
        "`<` for `<=` at a limit", "a limit cannot be reached", Kit(REACHED, "sqlite"), FIGURES, limit_cannot_be_reached
    ),
    Mutant(
        "a repeated reservation counts twice",
        "a repeated call is refused for its own reservation",
        Kit(REPEATED, "sqlite"),
        FIGURES,
        repeated_reservation_counts_twice,
    ),
    Mutant(
        "SQLite: a step is not charged",
        "`budgets/settle.sql` adds nothing",
        Kit(SETTLED, "sqlite"),
        FIGURES,
        sqlite_step_is_not_charged,
    ),
    Mutant(
        "SQLite: a reservation outlives its step",
        "the step is charged and still reserved",
        Kit(SETTLED, "sqlite"),
        FIGURES,
        sqlite_reservation_outlives_its_step,
    ),
    Mutant(
        "PostgreSQL: a step is not charged",
        "`budgets/settle.sql` adds nothing",
        Kit(SETTLED, "postgres"),
        FIGURES,
        postgres_step_is_not_charged,
    ),
    Mutant(
        "PostgreSQL: a lost reservation is live",
        "`reservations/select.sql` does not compare the attempt",
        Kit(LOST, "postgres"),
        FIGURES,
        postgres_lost_reservation_is_live,
    ),
    Mutant(
        "PostgreSQL: nothing is reserved",
        "a call begins without a reservation",
        Kit(SETTLED, "postgres"),
        FIGURES,
        postgres_reserves_nothing,
    ),
)
