"""Plans as data: validated before they are enqueued, and run by the engine of workflows."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import tenure
from tenure.lifecycle.statuses import DEAD_LETTERED, FAILED, SUCCEEDED, WAITING
from tenure.stores.contract import JobFilter
from tenure.stores.contract.steps import all_steps
from tenure.workflow import plan as plan_module
from tenure.workflow.golden import replay_golden_file
from tenure.workflow.golden_file import golden_file
from tenure.workflow.plan import PlanStep, decode_plan, in_order
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

AT_ONCE = {"base_seconds": 0.01, "max_seconds": 0.01}


class Page(msgspec.Struct):
    title: str
    words: int


@pytest.fixture
def executed() -> list[str]:
    return []


@pytest.fixture
def skilled(app: tenure.App, executed: list[str]) -> tenure.App:
    """An app with skills, one of which fails at first."""

    @app.skill
    async def search(topic: str, limit: int = 2) -> list[Page]:
        executed.append(f"search {topic}")
        return [Page(f"{topic} {number}", number) for number in range(limit)]

    @app.skill
    def read(title: str) -> str:
        executed.append(f"read {title}")
        return f"text of {title}"

    @app.skill(name="write_report")
    def write(texts: list[str], goal: str = "") -> dict[str, Any]:
        executed.append("write")
        return {"text": "; ".join(texts), "goal": goal}

    @app.skill
    def flaky(word: str) -> str:
        executed.append("flaky")
        if executed.count("flaky") < 3:
            raise ConnectionError("away")
        return word

    @app.skill
    def fail() -> str:
        executed.append("fail")
        raise ValueError("no way")

    return app


RESEARCH = {
    "steps": [
        {"id": "found", "skill": "search", "arguments": {"topic": "cats"}},
        {
            "id": "first",
            "skill": "read",
            "arguments": {"title": {"$ref": "steps.found.result[0].title"}},
        },
        {"id": "second", "skill": "read", "arguments": {"title": {"$ref": "steps.found.result[1].title"}}},
        {
            "id": "report",
            "skill": "write_report",
            "arguments": {"texts": [{"$ref": "steps.first.result"}, {"$ref": "steps.second.result"}]},
        },
    ],
    "output": {"text": {"$ref": "steps.report.result.text"}},
}


@pytest.mark.requirement("WC-08")
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_plan_runs_with_references_and_checkpoints(
    skilled: tenure.App, executed: list[str], concurrency: int
) -> None:
    async with skilled as app, working(app):
        handle = await app.run_plan(goal="a report", plan={**RESEARCH, "concurrency": concurrency})
        assert await handle.result(timeout_seconds=60) == {"text": "text of cats 0; text of cats 1"}
        job, steps = await handle.refresh(), await all_steps(await app.store(), handle.id)
    assert sorted(executed) == ["read cats 0", "read cats 1", "search cats", "write"]
    assert {step.key: step.name for step in steps} == {
        "found": "search",
        "first": "read",
        "second": "read",
        "report": "write_report",
    }
    assert '"goal":"a report"' in job.origin.payload
    assert await replay_golden_file(golden_file(job, steps), app.kinds, app.seams) == []


@pytest.mark.requirement("WC-08")
async def test_after_a_crash_a_plan_goes_on_from_its_last_checkpoint(skilled: tenure.App, executed: list[str]) -> None:
    stopped = asyncio.Event()

    @skilled.skill
    async def pause() -> str:
        executed.append("pause")
        if executed.count("pause") == 1:
            stopped.set()
            await asyncio.sleep(600)
        return "done"

    plan = {
        "steps": [
            {"id": "found", "skill": "search", "arguments": {"topic": "cats"}},
            {"id": "pause", "skill": "pause", "depends_on": ["found"]},
        ]
    }
    async with skilled as app:
        async with working(app, grace_seconds=0.1):
            handle = await app.run_plan(goal="a goal", plan=plan)
            await asyncio.wait_for(stopped.wait(), 60)
        async with working(app):
            result = await handle.result(timeout_seconds=60)
    assert result["pause"] == "done"
    assert executed == ["search cats", "pause", "pause"]


@pytest.mark.requirement("WC-08")
async def test_on_error_of_a_step_is_abort_continue_or_retry(skilled: tenure.App, executed: list[str]) -> None:
    failing = {"id": "bad", "skill": "fail"}
    after = {"id": "after", "skill": "read", "arguments": {"title": "x"}, "depends_on": ["bad"]}
    retried = {"id": "again", "skill": "flaky", "arguments": {"word": "w"}, "on_error": "retry", "backoff": AT_ONCE}
    async with skilled as app, working(app):
        aborted = await app.run_plan(goal="a goal", plan={"steps": [failing, after]})
        assert (await aborted.wait(60)).status is DEAD_LETTERED
        assert executed == ["fail"]
        continued = await app.run_plan(goal="a goal", plan={"steps": [{**failing, "on_error": "continue"}, after]})
        assert await continued.result(timeout_seconds=60) == {"bad": None, "after": "text of x"}
        again = await app.run_plan(goal="a goal", plan={"steps": [retried]})
        assert await again.result(timeout_seconds=60) == {"again": "w"}
    assert executed.count("flaky") == 3


async def test_parallel_steps_run_only_where_the_plan_asks(app: tenure.App) -> None:
    running, most = 0, 0

    @app.skill
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if most < wanted:
            await eventually(lambda: most >= wanted)
        running -= 1

    steps = [{"id": f"s{number}", "skill": "work"} for number in range(6)]
    wanted = 1
    async with app, working(app):
        handle = await app.run_plan(goal="a goal", plan={"steps": steps})
        await handle.result(timeout_seconds=60)
        assert most == 1
        wanted = 3
        handle = await app.run_plan(goal="a goal", plan={"steps": steps, "concurrency": 3})
        await handle.result(timeout_seconds=60)
    assert most == 3


@pytest.mark.requirement("WC-04", "WC-06")
async def test_a_plan_is_halted_at_its_budget_and_goes_on_as_a_fork(app: tenure.App) -> None:
    asked: list[str] = []

    @app.skill
    async def ask(word: str) -> str:
        asked.append(word)
        tenure.current_step().spend(cost=0.3)
        return word.upper()

    steps = [{"id": word, "skill": "ask", "arguments": {"word": word}, "spend_max": {"cost": 0.4}} for word in "abcd"]
    async with app, working(app):
        handle = await app.run_plan(goal="a goal", plan={"steps": steps}, budget=tenure.Budget(cost=1))
        with pytest.raises(tenure.JobHalted, match=r"0\.9 of 1 cost spent; the next call may need 0\.4"):
            await handle.result(timeout_seconds=60)
        assert (await handle.refresh()).partial_result == '{"a":"A","b":"B","c":"C"}'
        assert asked == ["a", "b", "c"]
        fork = await app.fork(handle.id, budget=tenure.Budget(cost=2))
        assert await fork.result(timeout_seconds=60) == {word: word.upper() for word in "abcd"}
    assert asked == ["a", "b", "c", "d"]


@pytest.mark.requirement("WC-08")
async def test_the_policy_of_plans_sees_each_step(app: tenure.App) -> None:
    seen: list[tuple[str, str, dict[str, Any]]] = []

    @app.skill
    def pay(cents: int) -> int:
        return cents

    @app.plan_policy
    def careful(call: tenure.PolicyCall) -> tenure.PolicyDecision:
        seen.append((call.name, call.key, dict(call.kwargs)))
        return tenure.PolicyDecision.halt("too much") if call.kwargs["cents"] > 50 else tenure.PolicyDecision.allow()

    with pytest.raises(tenure.InvalidInput, match="declared already"):
        app.plan_policy(careful)
    steps = [{"id": "a", "skill": "pay", "arguments": {"cents": 30}},
             {"id": "b", "skill": "pay", "arguments": {"cents": 70}, "depends_on": ["a"]}]  # fmt: skip
    async with app, working(app):
        handle = await app.run_plan(goal="a goal", plan={"steps": steps})
        with pytest.raises(tenure.JobHalted, match="halted by policy before pay: too much"):
            await handle.result(timeout_seconds=60)
    assert seen == [("pay", "a", {"cents": 30}), ("pay", "b", {"cents": 70})]


def test_the_dependencies_of_a_step_are_read_once_however_many_steps_a_plan_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def dependencies(step: PlanStep) -> list[str]:
        read.append(step.id)
        return list(step.depends_on)

    monkeypatch.setattr(plan_module, "dependencies", dependencies)
    ids = [f"s{number}" for number in range(1000)]
    steps = [step(id_, depends_on=[before]) for before, id_ in pairwise(ids)]
    ordered = in_order(decode_plan({"steps": [*reversed(steps), step(ids[0])]}))
    assert [one.id for one in ordered] == ids
    assert sorted(read) == sorted(ids)


def step(id_: str = "a", skill: str = "read", **fields: Any) -> dict[str, Any]:
    fields.setdefault("arguments", {"title": "x"})
    return {"id": id_, "skill": skill, **fields}


def title(reference: Any) -> dict[str, Any]:
    return {"arguments": {"title": {"$ref": reference}}}


REFUSED: list[tuple[str, Any, str]] = [
    ("no steps", {"steps": []}, "plan: has 0 steps"),
    ("no object", [], "plan: must be an object with a list of steps"),
    ("unknown field of the plan", {"steps": [step()], "gaol": 1}, "plan: Object contains unknown field `gaol`"),
    ("concurrency", {"steps": [step()], "concurrency": 0}, r"plan\.concurrency"),
    ("step that is no object", {"steps": [3]}, "plan step number 1: Expected `object`"),
    ("missing id", {"steps": [{"skill": "read"}]}, "plan step number 1: .*required field `id`"),
    ("bad id", {"steps": [step("1 2")]}, "plan step '1 2': the id '1 2' must begin with a letter"),
    ("same id", {"steps": [step(), step()]}, "plan step 'a': another step has this id"),
    ("unknown field", {"steps": [step(retries=3)]}, "plan step 'a': Object contains unknown field `retries`"),
    ("unknown skill", {"steps": [step(skill="fly")]}, "plan step 'a': skill 'fly' is not registered; use one of: fail"),
    ("missing argument", {"steps": [step(arguments={})]}, "plan step 'a': skill 'read' needs the argument 'title'"),
    (
        "extra argument",
        {"steps": [step(arguments={"title": "x", "page": 1})]},
        "plan step 'a': skill 'read' has no argument 'page'; its arguments are: title",
    ),
    (
        "type of an argument",
        {"steps": [step(arguments={"title": 3})]},
        "plan step 'a': arguments.title: Expected `str`, got `int`",
    ),
    ("unknown step", {"steps": [step(**title("steps.b.result"))]}, "plan step 'a': arguments.title: .* no such step"),
    ("malformed reference", {"steps": [step(**title("b"))]}, "plan step 'a': arguments.title: 'b' is not a reference"),
    (
        "reference to itself",
        {"steps": [step(**title("steps.a.result"))]},
        "plan step 'a': .* refers to the step itself",
    ),
    ("reference of no text", {"steps": [step(**title(3))]}, "plan step 'a': arguments.title: a reference has the form"),
    ("unknown dependency", {"steps": [step(depends_on=["b"])]}, "plan step 'a': depends_on names 'b'"),
    ("dependency on itself", {"steps": [step(depends_on=["a"])]}, "plan step 'a': depends_on names the step itself"),
    (
        "cycle",
        {"steps": [step("a", depends_on=["b"]), step("b", **title("steps.c.result")), step("c", depends_on=["a"])]},
        "plan step '[abc]': depends on itself: .* → .*; remove one",
    ),
    ("on_error", {"steps": [step(on_error="panic")]}, "plan step 'a': Invalid enum value 'panic'"),
    ("max_attempts", {"steps": [step(max_attempts=0)]}, "plan step 'a': max_attempts"),
    ("timeout", {"steps": [step(timeout_seconds=-1)]}, "plan step 'a': timeout_seconds"),
    ("spend_max", {"steps": [step(spend_max={"cost": -1})]}, "plan step 'a': spend_max: cost: is -1"),
    ("type of spend_max", {"steps": [step(spend_max={"cost": "x"})]}, "plan step 'a': Expected `float`, got `str`"),
    ("backoff", {"steps": [step(backoff={"factor": 0.1})]}, "plan step 'a': .*factor"),
    ("output", {"steps": [step()], "output": {"$ref": "steps.b.result"}}, r"plan\.output: output: .* no such step"),
]


@pytest.mark.requirement("WC-08")
@pytest.mark.parametrize(("plan", "problem"), [pytest.param(p, q, id=name) for name, p, q in REFUSED])
async def test_a_wrong_plan_is_refused_and_nothing_is_stored(skilled: tenure.App, plan: Any, problem: str) -> None:
    async with skilled as app:
        with pytest.raises(tenure.InvalidInput, match=problem):
            await app.run_plan(goal="a goal", plan=plan)
        assert (await app.find(JobFilter())).jobs == []


@pytest.mark.requirement("WF-17")
async def test_a_plan_whose_skill_is_gone_is_parked(skilled: tenure.App, executed: list[str]) -> None:
    other = tenure.App(skilled.database, version="2")

    @other.skill
    def unrelated() -> None: ...

    async with skilled as app:
        handle = await app.run_plan(goal="a goal", plan={"steps": [step()]})
        async with other, working(other):
            await eventually(lambda: _is_parked(app, handle))
        assert executed == []
        await app.cancel(handle.id)


async def _is_parked(app: tenure.App, handle: tenure.Handle[Any]) -> bool:
    job = await handle.refresh()
    return job.status is WAITING and job.waiting_for == "code"


async def test_a_referenced_value_of_another_type_fails_its_step(skilled: tenure.App) -> None:
    plan = {
        "steps": [
            {"id": "found", "skill": "search", "arguments": {"topic": "cats"}},
            step(**title("steps.found.result[0].words")),
        ]
    }
    async with skilled as app, working(app):
        job = await (await app.run_plan(goal="a goal", plan=plan)).wait(60)
    assert job.status is DEAD_LETTERED
    assert "skill 'read': Expected `str`, got `int` - at `title`" in (job.last_error or "")


async def test_a_part_that_a_result_does_not_have_fails_the_run(skilled: tenure.App) -> None:
    plan = {
        "steps": [
            {"id": "found", "skill": "search", "arguments": {"topic": "cats", "limit": 0}},
            step(**title("steps.found.result[0].title")),
        ]
    }
    async with skilled as app, working(app):
        job = await (await app.run_plan(goal="a goal", plan=plan)).wait(60)
    assert job.status is FAILED
    assert "plan step 'a': steps.found.result[0].title: the result of step 'found' has no 0 there" in (job.error or "")


def test_steps_are_ordered_by_dependencies_and_then_by_the_plan() -> None:
    plan = decode_plan({"steps": [step("c", depends_on=["a"]), step("b"), step("a")]})
    assert [one.id for one in in_order(plan)] == ["b", "a", "c"]


def test_a_skill_is_registered_once_and_without_a_context() -> None:
    app = tenure.App("sqlite:///unused.db")

    @app.skill
    def read(title: str) -> str:
        return title

    assert read("x") == "x"
    with pytest.raises(tenure.InvalidInput, match="is registered already"):
        app.skill(read)

    def with_context(ctx: tenure.Context) -> None: ...

    with pytest.raises(tenure.InvalidInput, match="a skill has no context"):
        app.skill(with_context)


async def test_a_repeated_request_runs_a_plan_once(skilled: tenure.App) -> None:
    async with skilled as app:
        first = await app.run_plan(goal="g", plan={"steps": [step()]}, request_id="order-7")
        second = await app.run_plan(goal="g", plan={"steps": [step()]}, request_id="order-7")
    assert (first.id, first.created, second.created) == (second.id, True, False)
    assert first.job.status is not SUCCEEDED
