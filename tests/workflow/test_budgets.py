"""A run spends no more than it was given: limits, reservations, and what a halted run keeps."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

import tenure
from tenure.lifecycle.budgets import SCALE, BudgetLine, decode_spend, sum_amounts
from tenure.lifecycle.provenance import provenance
from tenure.lifecycle.statuses import CANCELLED, FAILED, HALTED, SUCCEEDED
from tenure.lifecycle.steps import StepKind
from tenure.workflow.golden import replay_golden_file
from tenure.workflow.golden_file import golden_file
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = tenure.Backoff(base_seconds=0.01, max_seconds=0.01)


async def lines(app: tenure.App, handle: tenure.Handle[Any]) -> dict[str, BudgetLine]:
    return {line.unit: line for line in await (await app.store()).budget(handle.id)}


async def recorded_spend(app: tenure.App, handle: tenure.Handle[Any]) -> dict[str, int]:
    return sum_amounts(*(decode_spend(step.spend) for step in await (await app.store()).steps(handle.id)))


@pytest.mark.requirement("WC-04", "WC-06", "WF-19")
async def test_a_run_beyond_its_limit_is_halted_and_keeps_what_it_has(app: tenure.App) -> None:
    executed: list[int] = []

    async def ask(number: int) -> int:
        executed.append(number)
        tenure.current_step().spend(cost=0.4)
        return number

    @app.workflow(budget=tenure.Budget(cost=1))
    async def research(run: tenure.Run) -> int:
        total = 0
        for number in range(10):
            total += await run.step(ask, number)
            run.partial_result({"asked": number + 1})
        return total

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobHalted) as halted:
            await handle.result(timeout_seconds=60)
        job = await handle.refresh()
        steps = await (await app.store()).steps(handle.id)
        cost = (await lines(app, handle))["cost"]
    assert (job.status, job.reason) == (HALTED, "budget exceeded: 1.2 of 1 cost spent")
    assert job.partial_result == '{"asked":3}'
    assert "budget exceeded" in str(halted.value)
    assert executed == [0, 1, 2]
    assert [(step.name, step.spend) for step in steps] == [("ask", '{"cost":0.4}')] * 3
    assert (cost.spent, cost.reserved, cost.lost) == (1_200_000, 0, 0)


@pytest.mark.requirement("WC-04", "WF-19")
async def test_a_halted_run_goes_on_as_a_fork_with_a_larger_budget(app: tenure.App) -> None:
    executed: list[int] = []

    async def ask(number: int) -> int:
        executed.append(number)
        tenure.current_step().spend(cost=0.4)
        return number

    @app.workflow(budget=tenure.Budget(cost=1))
    async def research(run: tenure.Run) -> int:
        return sum([await run.step(ask, number) for number in range(5)])

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        same = await app.fork(handle.id)
        larger = await app.fork(handle.id, budget=tenure.Budget(cost=2))
        results = [await one.result(timeout_seconds=60) for one in (same, larger)]
        cost = (await lines(app, larger))["cost"]
    assert results == [10, 10]
    assert sorted(executed) == [0, 1, 2, 3, 3, 4, 4], "recorded steps are not paid for again"
    assert (cost.limit, cost.spent) == (2_000_000, 800_000)


@pytest.mark.requirement("WC-06", "WF-19")
async def test_parallel_steps_with_declared_maxima_never_pass_the_limit(app: tenure.App) -> None:
    active, paid = 0.0, 0.0
    highest = 0.0

    async def ask(number: int) -> int:
        nonlocal active, paid, highest
        active += 0.3
        highest = max(highest, paid + active)
        await asyncio.sleep(0.01)
        active -= 0.3
        spent = 0.1 if number % 2 else 0.3
        paid += spent
        tenure.current_step().spend(cost=spent)
        return number

    @app.workflow(budget=tenure.Budget(cost=2))
    async def research(run: tenure.Run) -> int:
        careful = run.using(spend_max={"cost": 0.3})
        return sum(await careful.map(ask, range(50), concurrency=50))

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        cost = (await lines(app, handle))["cost"]
        spent = await recorded_spend(app, handle)
    assert highest <= 2.000001
    assert paid > 1.6, "room that was reserved and not spent is given to other steps"
    assert cost.spent == spent["cost"] == round(paid * SCALE) <= cost.limit
    assert (cost.reserved, cost.lost) == (0, 0), "steps in progress end and are recorded before the run is halted"


@pytest.mark.requirement("WC-06")
async def test_without_declarations_the_bound_is_the_limit_plus_the_steps_in_progress(app: tenure.App) -> None:
    async def ask(_: int) -> None:
        await asyncio.sleep(0.01)
        tenure.current_step().spend(cost=0.3)

    @app.workflow(budget=tenure.Budget(cost=2))
    async def research(run: tenure.Run) -> None:
        await run.map(ask, range(60), concurrency=5)

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        cost = (await lines(app, handle))["cost"]
    assert 2 * SCALE < cost.spent <= 2 * SCALE + 5 * 300_000


@pytest.mark.requirement("WC-04")
async def test_a_partial_result_that_could_not_be_stored_is_refused_when_it_is_set(app: tenure.App) -> None:
    @app.workflow(budget=tenure.Budget(steps=1), on_exhausted="fail")
    async def research(run: tenure.Run) -> None:
        run.partial_result("x" * 300_000)

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobFailed, match="partial_result: is 300002 bytes of JSON, and at most 262144"):
            await handle.result(timeout_seconds=60)


@pytest.mark.requirement("WC-06", "WF-19")
async def test_a_step_that_is_cancelled_is_charged_and_holds_no_room(app: tenure.App) -> None:
    began = asyncio.Event()

    async def slow() -> None:
        tenure.current_step().spend(cost=0.3)
        began.set()
        await asyncio.sleep(600)

    async def fast() -> None:
        await began.wait()
        began.clear()

    async def last() -> None: ...

    @app.workflow(budget=tenure.Budget(cost=2, steps=20))
    async def research(run: tenure.Run) -> str:
        careful = run.using(spend_max={"cost": 0.6})
        await run.first(careful.step(slow), run.step(fast))
        await run.first(run.step(slow), run.step(fast))
        await run.using(spend_max={"cost": 1.1}).step(last)
        return "done"

    async with app, working(app):
        handle = await research.enqueue()
        assert await handle.result(timeout_seconds=60) == "done"
        used, spent = await lines(app, handle), await recorded_spend(app, handle)
        steps = await (await app.store()).steps(handle.id)
        job = await handle.refresh()
    assert (used["cost"].spent, used["cost"].reserved, used["cost"].lost) == (900_000, 0, 0), "0.6 declared, 0.3 not"
    assert used["steps"].spent == 5 * SCALE
    assert spent == {"cost": 900_000, "steps": 5 * SCALE}
    assert [step.key for step in steps if ".cancelled." in step.key] == ["0.cancelled.0", "3.cancelled.0"]
    assert await replay_golden_file(golden_file(job, steps), app.kinds, app.seams) == []


@pytest.mark.requirement("WC-06")
async def test_calls_that_are_cancelled_again_and_again_do_not_pass_the_limit(app: tenure.App) -> None:
    began = asyncio.Event()

    async def slow() -> None:
        tenure.current_step().spend(cost=0.3)
        began.set()
        await asyncio.sleep(600)

    async def fast() -> None:
        await began.wait()
        began.clear()

    @app.workflow(budget=tenure.Budget(cost=1))
    async def research(run: tenure.Run) -> None:
        for _ in range(20):
            await run.first(run.step(slow), run.step(fast))

    async with app, working(app):
        handle = await research.enqueue()
        with pytest.raises(tenure.JobHalted, match=r"1\.2 of 1 cost spent"):
            await handle.result(timeout_seconds=60)


@pytest.mark.requirement("WC-04")
async def test_the_steps_of_a_run_are_limited_and_retries_count(app: tenure.App) -> None:
    tries = 0

    async def flaky() -> None:
        nonlocal tries
        tries += 1
        tenure.current_step().spend(tokens=5)
        raise ValueError("no")

    @app.workflow(budget=tenure.Budget(steps=3))
    async def hopeful(run: tenure.Run) -> None:
        await run.using(on_error="retry", max_attempts=10, backoff=AT_ONCE).step(flaky)

    async with app, working(app):
        handle = await hopeful.enqueue()
        with pytest.raises(tenure.JobHalted, match="3 of 3 steps spent; the next call may need 1"):
            await handle.result(timeout_seconds=60)
        spent = await recorded_spend(app, handle)
    assert tries == 3
    assert spent == {"steps": 3 * SCALE, "tokens": 15 * SCALE}


@pytest.mark.requirement("WF-19")
async def test_a_replay_does_not_pay_again(app: tenure.App) -> None:
    async def ask() -> None:
        tenure.current_step().spend(cost=0.1)

    @app.workflow(budget=tenure.Budget(cost=1), backoff=AT_ONCE, max_attempts=5)
    async def research(run: tenure.Run) -> str:
        run.spend(cost=0.2)
        await run.step(ask)
        run.spend(cost=Decimal("0.05"))
        if run.attempt < 4:
            raise RuntimeError("again")
        await run.step(ask)
        run.spend(cost=0.01)
        return "done"

    async with app, working(app):
        handle = await research.enqueue()
        assert await handle.result(timeout_seconds=60) == "done"
        cost = (await lines(app, handle))["cost"]
        assert cost.spent == (await recorded_spend(app, handle))["cost"] == 460_000
        store = await app.store()
        kinds = [(step.key, step.kind) for step in await store.steps(handle.id)]
    assert kinds == [("0", StepKind.STEP), ("1", StepKind.STEP), ("spend:end", StepKind.DECISION)]


@pytest.mark.requirement("WC-04")
async def test_spend_after_the_last_step_halts_a_run_that_is_beyond_its_limit(app: tenure.App) -> None:
    @app.workflow(budget=tenure.Budget(cost=1))
    async def spendthrift(run: tenure.Run) -> str:
        run.spend(cost=1.000001)
        return "report"

    async with app, working(app):
        handle = await spendthrift.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        job = await handle.refresh()
    assert job.partial_result == '"report"'


@pytest.mark.requirement("WF-15", "WC-06")
async def test_children_share_the_budget_of_their_root(app: tenure.App) -> None:
    async def ask(_: int) -> None:
        tenure.current_step().spend(cost=0.1)

    @app.workflow(budget=tenure.Budget(cost=100))
    async def part(run: tenure.Run) -> None:
        await run.using(spend_max={"cost": 0.2}).map(ask, range(20), concurrency=4)

    @app.workflow(budget=tenure.Budget(cost=1))
    async def whole(run: tenure.Run) -> None:
        children = [await run.spawn(part) for _ in range(3)]
        await run.gather(*(child.result() for child in children))

    async with app, working(app):
        handle = await whole.enqueue()
        with pytest.raises(tenure.JobFailed, match="budget exceeded"):
            await handle.result(timeout_seconds=60)
        cost = (await lines(app, handle))["cost"]
        store = await app.store()
        children = (await store.children(handle.id)).jobs
        assert [line for child in children for line in await store.budget(child.id)] == []
    assert {child.status for child in children} == {HALTED}
    assert 800_000 < cost.spent <= cost.limit == SCALE


@pytest.mark.requirement("WF-18")
async def test_undo_is_exempt_from_the_budget(app: tenure.App) -> None:
    undone: list[int] = []

    async def book(number: int) -> int:
        tenure.current_step().spend(cost=0.5)
        return number

    async def cancel(number: int) -> None:
        tenure.current_step().spend(cost=9)
        undone.append(number)

    @app.workflow(budget=tenure.Budget(cost=1, steps=2), max_attempts=1)
    async def trip(run: tenure.Run) -> None:
        for number in range(2):
            await run.using(compensate=cancel).step(book, number)
        raise tenure.PermanentError("no")

    async with app, working(app):
        handle = await trip.enqueue()
        with pytest.raises(tenure.JobFailed):
            await handle.result(timeout_seconds=60)
        job = await handle.refresh()
        used = await lines(app, handle)
    assert (job.status, undone) == (FAILED, [1, 0])
    assert {unit: line.spent for unit, line in used.items()} == {"cost": SCALE, "steps": 2 * SCALE}


@pytest.mark.requirement("WC-04")
async def test_a_halted_run_cancels_its_children_and_undoes_nothing(app: tenure.App) -> None:
    undone: list[str] = []

    async def book() -> str:
        return "seat"

    @app.workflow()
    async def forever(run: tenure.Run) -> None:
        await run.wait_for("never")

    @app.workflow(budget=tenure.Budget(steps=2))
    async def trip(run: tenure.Run) -> None:
        await run.using(compensate=undone.append).step(book)
        await run.spawn(forever)
        await run.step(book)

    async with app, working(app):
        handle = await trip.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        store = await app.store()

        async def cancelled() -> bool:
            return [child.status for child in (await store.children(handle.id)).jobs] == [CANCELLED]

        await eventually(cancelled)
    assert undone == []


@pytest.mark.requirement("WC-04")
async def test_active_time_is_limited(app: tenure.App) -> None:
    async def work() -> None:
        await asyncio.sleep(0.02)

    @app.workflow(budget=tenure.Budget(active_seconds=0.2))
    async def slow(run: tenure.Run) -> None:
        for _ in range(1000):
            await run.step(work)

    async with app, working(app):
        handle = await slow.enqueue()
        with pytest.raises(tenure.JobHalted, match="active_seconds"):
            await handle.result(timeout_seconds=60)
        steps = await (await app.store()).steps(handle.id)
    assert 1 <= len(steps) <= 11


@pytest.mark.requirement("WC-13")
async def test_provenance_has_the_budget_used(app: tenure.App) -> None:
    async def ask() -> None:
        tenure.current_step().spend(cost=0.1, pages=3)

    @app.workflow(budget=tenure.Budget(cost=1))
    async def research(run: tenure.Run) -> None:
        await run.step(ask)
        await run.step(ask)

    async with app, working(app):
        handle = await research.options(budget=tenure.Budget(cost=2, steps=5)).enqueue()
        await handle.result(timeout_seconds=60)
        store, job = await app.store(), await handle.refresh()
        found = provenance(job, (await store.history([job.id]))[job.id], await store.steps(job.id))
    assert found.spend == {"cost": 0.2, "pages": 6, "steps": 2}
    assert found.inputs.policy.budget == tenure.Budget(cost=2, steps=5)
    assert [call.spend for call in found.tool_calls] == [{"cost": 0.1, "pages": 3, "steps": 1}] * 2


async def test_a_run_reads_what_is_left_and_a_replay_reads_the_same(app: tenure.App) -> None:
    seen: list[dict[str, float]] = []

    async def ask() -> None:
        tenure.current_step().spend(cost=0.25)

    @app.workflow(budget=tenure.Budget(cost=1), backoff=AT_ONCE)
    async def research(run: tenure.Run) -> None:
        seen.append(await run.budget())
        await run.step(ask)
        seen.append(await run.budget())
        if run.attempt == 1:
            raise RuntimeError("again")

    async with app, working(app):
        await (await research.enqueue()).result(timeout_seconds=60)
    assert seen == [{"cost": 1}, {"cost": 0.75}] * 2


async def test_spend_is_recorded_without_a_budget_too(app: tenure.App) -> None:
    @app.workflow()
    async def research(run: tenure.Run) -> str:
        run.spend(cost=0.5)
        return "done"

    async with app, working(app):
        handle = await research.enqueue()
        await handle.result(timeout_seconds=60)
        assert await recorded_spend(app, handle) == {"cost": 500_000}
        assert await lines(app, handle) == {}


# Policy.


@pytest.mark.requirement("WC-04", "WC-08")
async def test_a_policy_halts_a_run_before_a_step(app: tenure.App) -> None:
    seen: list[tuple[str, str, tuple[Any, ...]]] = []

    async def pay(amount: int) -> int:
        return amount

    def careful(call: tenure.PolicyCall) -> tenure.PolicyDecision:
        seen.append((call.kind, call.name, call.args))
        if call.name == "pay" and call.args[0] > 100:
            return tenure.PolicyDecision.halt("more than 100")
        return tenure.PolicyDecision.allow()

    @app.workflow(policy=careful)
    async def shopping(run: tenure.Run) -> None:
        await run.step(pay, 50)
        await run.step(pay, 500)

    async with app, working(app):
        handle = await shopping.enqueue()
        with pytest.raises(tenure.JobHalted):
            await handle.result(timeout_seconds=60)
        job = await handle.refresh()
        steps = await (await app.store()).steps(handle.id)
    assert job.reason == "halted by policy before pay: more than 100"
    assert [step.key for step in steps] == ["0"]
    assert seen == [("step", "pay", (50,)), ("step", "pay", (500,))]


@pytest.mark.requirement("WC-08")
async def test_a_policy_requires_a_signal_and_is_asked_once(app: tenure.App) -> None:
    asked: list[str] = []

    async def deploy(version: str) -> str:
        return version

    async def careful(call: tenure.PolicyCall) -> tenure.PolicyDecision:
        asked.append(call.name)
        return tenure.PolicyDecision.require_signal("approved")

    @app.workflow(policy=careful)
    async def release(run: tenure.Run) -> str:
        return await run.step(deploy, "1.2")

    async with app, working(app):
        handle = await release.enqueue()

        async def waits() -> bool:
            return (await handle.refresh()).waiting_for == "signal"

        await eventually(waits)
        await app.signal(handle.id, "approved", {"by": "ada"})
        assert await handle.result(timeout_seconds=60) == "1.2"
        steps = await (await app.store()).steps(handle.id)
    assert asked == ["deploy"]
    assert [(step.key, step.kind) for step in steps] == [
        ("0.policy", StepKind.DECISION),
        ("0.approval", StepKind.WAIT),
        ("0", StepKind.STEP),
    ]
    assert steps[1].result == '{"by":"ada"}'


async def test_a_policy_that_returns_something_else_fails_the_run(app: tenure.App) -> None:
    async def work() -> None:
        raise AssertionError("must not run")

    @app.workflow(policy=lambda _: True, max_attempts=1)  # type: ignore[arg-type, return-value]
    async def release(run: tenure.Run) -> None:
        await run.step(work)

    async with app, working(app):
        handle = await release.enqueue()
        with pytest.raises(tenure.JobFailed, match="PolicyDecision"):
            await handle.result(timeout_seconds=60)


@pytest.mark.parametrize(
    "given",
    [{}, {"cost": -1}, {"cost": "2"}, {"cost": float("nan")}, {"units": {"a b": 1}}, {"units": {"cost": 1}},
     {"cost": True}, {"cost": 1, "on_lost_spend": "forget"}, {"cost": 10**10}],
    ids=str,
)  # fmt: skip
def test_a_bad_budget_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(tenure.InvalidInput):
        tenure.Budget(**given)


def test_a_budget_is_one_value_however_its_numbers_are_written() -> None:
    assert tenure.Budget(cost=2, units={"b": 1, "a": 2.0}) == tenure.Budget(cost=2.0, units={"a": 2, "b": 1})
    assert hash(tenure.Budget(cost=Decimal("0.1"))) == hash(tenure.Budget(cost=0.1))  # type: ignore[arg-type]


async def test_a_job_without_a_budget_makes_no_statement_for_one(
    app: tenure.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> int:
        return 1

    @app.workflow()
    async def plain(run: tenure.Run) -> int:
        return await run.step(work)

    async with app:
        store = await app.store()

        async def refused(*_: Any, **__: Any) -> Any:
            raise AssertionError("no budget, no statement")

        monkeypatch.setattr(store, "reserve", refused)
        monkeypatch.setattr(store, "budget", refused)
        async with working(app):
            handle = await plain.enqueue()
            assert await handle.result(timeout_seconds=60) == 1
            assert (await handle.refresh()).status is SUCCEEDED
