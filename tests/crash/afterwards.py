"""What must hold after a crash, whatever was asked for: the rules that every act is held to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenure.errors import TenureError
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import SUCCEEDED
from tenure.stores import Store, store_for
from tenure.stores.contract import Applied, Busy, EnqueueResult, Failure, MigrationRecord, QueueRecord, Repeated
from tenure.testing.driver import Driver
from tenure.testing.store_check import check_store
from tests.crash.acts import Act, Scene
from tests.crash.mortals import Mortals
from tests.crash.places import Place, State, clean_text
from tests.crash.victim import Order
from tests.crash.watching import Crossing


@dataclass(slots=True)
class Plan:
    """An act in its place: where it starts from, what it leaves, what it answers, and every place that it passes."""

    act: Act
    place: Place
    jobs: list[Job] = field(default_factory=list)
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    answers: list[Any] = field(default_factory=list)
    """To who asks for the first time, and to who asks again."""
    crossed: list[Crossing] = field(default_factory=list)
    lasting: Store | None = None
    checked: dict[bytes, bool] = field(default_factory=dict)

    def order(self, **facts: Any) -> Order:
        return Order(act=self.act.name, url=self.place.url, jobs=self.jobs, **facts)


async def prepare(act: Act, place: Place, *, keeps: bool = True) -> Plan:
    """Bring the place to where the act starts from, and let it remember that."""
    made = Plan(act, place)
    if act.empty:
        place.clear()
    if act.migrated:
        store = store_for(place.url)
        if await store.migrate():
            place.prepare_effects()
        await store.open()
        made.jobs = await act.prepare(Driver(store))
        # Its policy is the one that `check_works` uses, so that a lasting store may go on believing that it is there.
        if not act.empty:
            await Driver(store).add("ballast", queue="nobody")
        await store.close()
    place.settled()
    if keeps:
        place.keep()
    return made


async def plan(act: Act, place: Place, mortals: Mortals) -> Plan:
    """Prepare the place, and let the act happen undisturbed: twice here, to know what is right, and once there, to list
    the places that it passes."""
    made = await prepare(act, place)
    made.before = place.state()
    made.answers = [await answer(made), await answer(made)]
    require_repetition(*made.answers)
    made.after = place.state()
    assert made.after != made.before, "an act that leaves nothing would prove nothing"
    place.put_back()
    made.crossed = crossed(made, mortals)
    return made


def crossed(plan: Plan, mortals: Mortals) -> list[Crossing]:
    """The places that the act passes when nothing happens to it."""
    report = mortals.survived(plan.order())
    assert report.acknowledged, report
    return report.crossed


async def answer(plan: Plan, store: Store | None = None) -> Any:
    """What the act answers here and now, without what differs from one time to the next."""
    if store is not None and plan.act.leaves_open:
        return told(await plan.act.run(Scene(store, plan.place.url, plan.jobs)))
    store = plan.act.store(plan.place.url)
    try:
        if plan.act.migrated:
            await store.open()
        return told(await plan.act.run(Scene(store, plan.place.url, plan.jobs)))
    finally:
        await store.close()


def told(answer: Any) -> Any:
    """An answer in plain words."""
    match answer:
        case [*answers]:
            return [told(one) for one in answers]
        case EnqueueResult(job, created):
            return "created" if created else "was there", told(job)
        case Applied() | Repeated() | Busy():
            return type(answer).__name__, told(answer.job)
        case Failure(error):
            return type(error).__name__
        case Job():
            [facts] = clean_text([msgspec.to_builtins(answer)])
            return facts
        case MigrationRecord():
            return answer.number
        case QueueRecord():
            return f"{answer.name}: {answer.limits}, {'paused' if answer.paused_at else 'open'}"
    return answer


FIRST_AND_AGAIN = {("Applied", "Repeated"), ("created", "was there"), ("was there", "was there")}


def require_repetition(first: Any, again: Any) -> None:
    """What is taken as right is right: the first time it was done, and the second answer is that of a repetition, with
    the same records. What only counts, or has nothing to say, finds nothing left to do."""
    match first, again:
        case (str() as word, dict() as record), (str() as other_word, dict() as other_record):
            assert (word, other_word) in FIRST_AND_AGAIN, f"first {word}, then {other_word}"
            assert record == other_record, "a repetition is answered with another record"
        case [*one], [*other] if one and isinstance(one[0], int):
            assert other == [], f"applied again: {other}"
        case [*one], [*other]:
            assert len(one) == len(other) > 0
            for pair in zip(one, other, strict=True):
                require_repetition(*pair)
        case int(), int():
            assert first > 0, "nothing was done"
            assert again == 0, "something was done twice"
        case _:
            assert first == again, f"first {first}, then {again}"


async def check_works(store: Store) -> None:
    """The store does all that it is there for."""
    drive = Driver(store)
    added = await drive.add("probe", queue="probe")
    [job] = await drive.claim(kinds=("probe",), queues=("probe",))
    assert job.id == added.id
    assert (await drive.apply(job, Complete('"well"'))).status is SUCCEEDED
    await check_store(store)


async def check_after_crash(plan: Plan) -> bool:
    """Whole or absent, repeatable, and everything goes on. Whether it was there. Where a death has left the very bytes
    that an earlier one left, what was found then holds now."""
    plan.place.settled()
    left = plan.place.left()
    if left is None or left not in plan.checked:
        there = await _check_anew(plan)
        if left is not None:
            plan.checked[left] = there
        return there
    return plan.checked[left]


async def _check_anew(plan: Plan) -> bool:
    if plan.lasting is not None:
        return await _check(plan, plan.lasting)
    store = plan.act.store(plan.place.url)
    try:
        return await _check(plan, store)
    finally:
        await store.close()


async def _check(plan: Plan, store: Store) -> bool:
    opened = await _opened(store)
    # Opened as any process would, with what the dead one left of its WAL, and only then looked at from outside.
    there = _is_there(plan)
    if opened:
        await check_store(store)
    await _check_repeated(plan, store, there=there)
    await store.open()
    await check_works(store)
    return there


@asynccontextmanager
async def lasting_store(plan: Plan) -> AsyncIterator[None]:
    """Check with one store that stays, where that can be: a process that lives on beside those that die. It saves the
    time to connect. A file is always opened anew, since what its last user left is what opening has to cope with."""
    if plan.place.kind == "postgres" and plan.act.migrated and not plan.act.new_policies:
        plan.lasting = plan.act.store(plan.place.url)
    try:
        yield
    finally:
        if plan.lasting is not None:
            await plan.lasting.close()


def _is_there(plan: Plan) -> bool:
    found = plan.place.state()
    assert found in (plan.before, plan.after), f"neither whole nor absent: {_difference(plan, found)}"
    return found == plan.after


async def _check_repeated(plan: Plan, store: Store, *, there: bool) -> None:
    assert await answer(plan, store) == plan.answers[there], "asked again, it is answered otherwise than it should be"
    found = plan.place.state()
    assert found == plan.after, f"asked again, it left: {_difference(plan, found)}"
    assert await answer(plan, store) == plan.answers[1], "asked a third time, it is answered otherwise"
    assert plan.place.state() == plan.after, "asked a third time, it changed something"


async def _opened(store: Store) -> bool:
    """Open it, unless its schema is still missing as a whole."""
    state = await store.schema()
    if state.applied:
        await store.open()
        return True
    try:
        await store.open()
    except TenureError:
        return False
    raise AssertionError("a database without a schema was opened")


def _difference(plan: Plan, found: State) -> dict[str, Any]:
    return {
        table: {"found": rows, "before": plan.before.get(table), "after": plan.after.get(table)}
        for table, rows in found.items()
        if rows not in (plan.before.get(table), plan.after.get(table))
    } or {"all tables are as before or as after, but not all as one of them": sorted(found)}
