"""A process dies at every place that anything that writes can be in: before and after each statement, between a
request and its reply, and before the answer reaches whoever asked."""

from __future__ import annotations

import signal

import pytest

from tenure.lifecycle.operations import OperationType
from tests.crash.acts import Act
from tests.crash.acts_of_store import ACTS
from tests.crash.afterwards import Plan, check_after_crash, crossed, lasting_store, plan, prepare
from tests.crash.mortals import Mortals
from tests.crash.naming import files_of, shown, writing_in_postgres, writing_in_sqlite
from tests.crash.places import Place, SqlitePlace

IN_MAKE_TEST = {"add many", "claim and start three", "complete", "commit block"}
"""The acts that `make test` runs on both stores: one of each duty. All others are deep."""
WHERE = [
    pytest.param(
        kind,
        act,
        id=f"{kind}-{act.name.replace(' ', '-')}",
        marks=[] if act.name in IN_MAKE_TEST else [pytest.mark.deep],
    )
    for kind in ("sqlite", "postgres")
    for act in ACTS
    if act.only in (None, kind)
]


@pytest.mark.requirement("LC-07", "LC-10", "SM-13", "EL-04")
@pytest.mark.parametrize(("place", "act"), WHERE, indirect=["place"])
async def test_whatever_dies_at_any_statement_is_whole_or_absent_and_can_be_repeated(
    act: Act, place: Place, mortals: Mortals
) -> None:
    made = await plan(act, place, mortals)
    assert made.crossed[-1].when == "acknowledge"
    there: list[bool] = []
    async with lasting_store(made):
        for number, crossing in enumerate(made.crossed):
            place.put_back()
            death = mortals.send(made.order(dies_at=number))
            assert death.signal == signal.SIGKILL, f"it did not die at {crossing}: {death}"
            try:
                there.append(await check_after_crash(made))
            except AssertionError as problem:
                raise AssertionError(f"died at place {number}, {crossing}: {problem}") from problem
    check_order(made, there)
    print(f"{place.kind}: {act.name}: {len(made.crossed)} places")


def check_order(made: Plan, there: list[bool]) -> None:
    """Nothing is there at first, all of it before the answer is given, and it comes about at one moment. What was sent
    to a server and not waited for may be on either side."""
    sure = [(crossing, was) for crossing, was in zip(made.crossed, there, strict=True) if crossing.when != "sent"]
    assert not sure[0][1], "it was there before its first statement"
    assert sure[-1][1], "it was not there when it was about to be acknowledged"
    seen = [was for _, was in sure]
    assert seen == sorted(seen), f"it came and went: {[str(crossing) for crossing, was in sure if was]}"


def test_there_is_an_act_for_every_operation_of_the_lifecycle() -> None:
    shown_by_other_acts = {OperationType.ENQUEUE, OperationType.CLAIM}
    assert {verb for act in ACTS for verb in act.verbs} == set(OperationType) - shown_by_other_acts


async def test_no_statement_that_writes_is_without_a_place_to_die_at(place: Place, mortals: Mortals) -> None:
    """Every file of statements that writes is crossed by some act, and so by the deaths of that act."""
    await prepare(ACTS[0], place)
    writing = writing_in_sqlite(place.path) if isinstance(place, SqlitePlace) else writing_in_postgres(place.url)
    assert len(writing) > 10, f"hardly any file is taken to write, so this would prove nothing: {writing}"
    assert writing < set(files_of(place.kind)), "files that only read are taken to write"
    seen: set[str] = set()
    for act in ACTS:
        if act.only in (None, place.kind) and act.migrated:
            place.put_back()
            made = await prepare(act, place, keeps=False)
            seen |= shown(place.kind, (crossing.sql for crossing in crossed(made, mortals)))
    assert writing - seen == set(), "no act comes by these statements; add one that does"
