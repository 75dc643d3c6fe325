"""Realistic faults of the code, each of which a named layer of proof must detect.

Without the mutant the same check passes, so that no mutant is killed by a check that always fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tenure.lifecycle import decide
from tenure.stores import sql_files
from tenure.stores.sqlite import statements
from tests.mutants.catalogue import MUTANTS
from tests.mutants.edits import Edits, Stale, editing
from tests.mutants.fresh_stores import FreshStores
from tests.mutants.layers import Kit, Layer, Simulator, Verdicts, control_of
from tests.mutants.mutant import Mutant
from tests.mutants.table import markdown

SOUND = "test_an_expired_lease_is_lost_before_recovery_stalls_the_job"

_passed: set[Layer] = set()
"""The controls that passed in this process."""


def _kind(mutant: Mutant) -> tuple[str, str]:
    return type(mutant.layer).__name__, getattr(mutant.layer, "store", "")


IN_MAKE_TEST = {_kind(mutant): mutant.name for mutant in reversed(MUTANTS)}
"""The first mutant of each kind of layer and store. All others are deep."""


def _marks(mutant: Mutant) -> list[pytest.MarkDecorator]:
    deep = [] if IN_MAKE_TEST[_kind(mutant)] == mutant.name else [pytest.mark.deep]
    # The simulator may need many runs until one has the faults that it takes.
    return [*deep, pytest.mark.timeout(600)] if isinstance(mutant.layer, Simulator) else deep


CASES = [pytest.param(mutant, id=mutant.name, marks=_marks(mutant)) for mutant in MUTANTS]


@pytest.mark.requirement("LC-04", "LC-05", "LC-06", "LC-07", "LC-10", "EL-03", "EL-04", "EL-05", "EL-06", "WC-10")
@pytest.mark.parametrize("mutant", CASES)
def test_every_mutant_is_killed_by_its_layer(mutant: Mutant, stores: FreshStores) -> None:
    with editing(mutant.apply):
        found = mutant.layer.find(stores)
    assert found is not None, f"{mutant.name} survived {mutant.layer.name}"
    assert re.search(mutant.noticed, found, re.DOTALL), f"{mutant.name} died of something else: {found}"
    control = control_of(mutant.layer, found)
    if control not in _passed:
        assert control.find(stores) is None, f"{control.name} fails without any mutant"
        _passed.add(control)


def test_every_mutant_fits_the_code() -> None:
    stale: dict[str, str] = {}
    for mutant in MUTANTS:
        try:
            with editing(mutant.apply):
                pass
        except Stale as problem:
            stale[mutant.name] = str(problem)
    assert stale == {}


def test_there_are_enough_of_them_and_each_has_its_own_name() -> None:
    assert len(MUTANTS) >= 24
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    kinds = {type(mutant.layer).__name__ for mutant in MUTANTS}
    assert kinds >= {
        "Verdicts",
        "StoreVerdicts",
        "Kit",
        "Roles",
        "Simulator",
        "Lockstep",
        "Verify",
        "History",
        "OnPostgres",
    }
    assert {mutant.layer.store for mutant in MUTANTS if isinstance(mutant.layer, Kit)} == {
        "model",
        "sqlite",
        "postgres",
    }


def test_a_change_that_breaks_nothing_is_not_killed(stores: FreshStores) -> None:
    def same(edits: Edits) -> None:
        edits.python(decide.decide_at, "job.lease_expires_at <= at", "not job.lease_expires_at > at")
        edits.sql("tenure.stores.sqlite", "jobs/select_due", "job.due_at <= :now", ":now >= job.due_at")

    with editing(same):
        assert Kit(SOUND, "sqlite").find(stores) is None


def _stale_code(edits: Edits) -> None:
    edits.python(decide.decide_at, "what is not there", "True")


def _stale_statement(edits: Edits) -> None:
    edits.sql("tenure.stores.sqlite", "jobs/select_due", "what is not there")


def _twice_there(edits: Edits) -> None:
    edits.sql("tenure.stores.postgres", "jobs/claim", "job.due_at <= clock.now")


@pytest.mark.parametrize("apply", [_stale_code, _stale_statement, _twice_there], ids=["code", "statement", "several"])
def test_a_mutant_of_code_that_has_changed_is_reported(apply: Callable[[Edits], None]) -> None:
    with pytest.raises(Stale, match="times"), editing(apply):
        pass


def test_a_mutant_that_makes_no_sense_is_not_taken_for_a_dead_one(stores: FreshStores) -> None:
    def nonsense(edits: Edits) -> None:
        edits.python(decide.decide_at, "job.lease_expires_at <= at", "no_such_name")

    with pytest.raises(NameError), editing(nonsense):
        Verdicts().find(stores)


def test_everything_is_put_back(stores: FreshStores) -> None:
    code = decide.decide_at.__code__
    texts = [statements.sql("jobs/select_due"), statements._for_rows("jobs/update", 4), sql_files.named]

    def several(edits: Edits) -> None:
        edits.python(decide.decide_at, "job.lease_expires_at <= at", "False")
        edits.sql("tenure.stores.sqlite", "jobs/select_due", "and job.due_at <= :now", "")
        edits.sql("tenure.stores.sqlite", "jobs/update", "and tenure_jobs.rev = changed.rev_before", "")

    with editing(several):
        assert decide.decide_at.__code__ is not code
        assert "due_at <= :now" not in statements.sql("jobs/select_due")
        assert "rev_before\n" not in statements._for_rows("jobs/update", 4).partition("where")[2]
    assert decide.decide_at.__code__ is code
    assert [statements.sql("jobs/select_due"), statements._for_rows("jobs/update", 4), sql_files.named] == texts


def test_the_table_names_every_mutant_and_its_layer() -> None:
    lines = markdown().splitlines()
    assert len(lines) == 2 + len(MUTANTS)
    for mutant, line in zip(MUTANTS, lines[2:], strict=True):
        assert line.startswith(f"| {mutant.name} | {mutant.breaks} | ")
        assert mutant.layer.name in line
