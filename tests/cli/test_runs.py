"""`tenure runs`, and the provenance of runs, on real databases."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import tenure as library
from tenure.cli.run_output import STEP_HEADINGS, step_rows
from tenure.cli.tables import table_lines
from tenure.lifecycle.statuses import WAITING
from tenure.stores.contract import steps as contract_steps
from tenure.stores.contract.steps import all_steps
from tenure.testing.driver import OPERATOR
from tests.support.command import Answer, tenure
from tests.support.databases import Database
from tests.support.in_process_worker import working
from tests.support.waiting import eventually

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"
AT_ONCE = library.Backoff(base_seconds=0.001, max_seconds=0.001)
TREE = ["0", "  retry 1", "1", "2.0", "  2.0/0", "2.1", "  2.1/0", "3", "4", "5", "  deadline"]


@pytest.fixture
async def app(database: Database) -> AsyncIterator[library.App]:
    async with database.opened():
        pass
    app = library.App(database.url, version="3.1")
    yield app
    await app.close()


def runs(database: Database, *arguments: str) -> Answer:
    return tenure("runs", *arguments, "--database", database.url)


def order_workflow(app: library.App) -> Any:
    """A workflow with a retried step, parallel branches, a child, and a wait with a deadline."""
    failed: list[str] = []

    def search(topic: str) -> str:
        if not failed:
            failed.append(topic)
            raise ConnectionError("the service is away")
        return f"pages about {topic}"

    def refuse() -> None:
        raise ValueError("no stock")

    def note(page: str) -> str:
        return page.upper()

    @app.job()
    def mail(to: str) -> str:
        return f"sent to {to}"

    @app.workflow()
    async def order(run: library.Run, topic: str) -> str:
        await run.using(on_error="retry", max_attempts=3, backoff=AT_ONCE).step(search, topic)
        await run.using(on_error="continue").step(refuse)

        async def branch(page: str) -> str:
            return await run.step(note, page)

        await run.gather(branch("a"), branch("b"))
        child = await run.spawn(mail, "ada")
        await child.result()
        return await run.wait_for("approved", str, timeout_seconds=86_400)

    return order


async def waiting_for_approval(app: library.App, order: Any) -> library.Handle[Any]:
    """A run of it that waits for its signal. The caller runs the worker."""
    handle: library.Handle[Any] = await order.enqueue("otters")

    async def is_waiting() -> bool:
        steps = await all_steps(await app.store(), handle.id)
        is_last = any(step.key.endswith(".deadline") for step in steps)
        return is_last and (await handle.refresh()).status is WAITING

    await eventually(is_waiting, seconds=60)
    return handle


@pytest.mark.requirement("WC-13")
async def test_a_waiting_run_is_shown_with_a_tree_of_its_steps(app: library.App, database: Database) -> None:
    order = order_workflow(app)
    async with app, working(app):
        handle = await waiting_for_approval(app, order)
        steps = await all_steps(await app.store(), handle.id)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contract_steps, "STEPS_PER_READ", 4)
            assert await all_steps(await app.store(), handle.id) == steps, "all pages are read"
    found = runs(database, "show", str(handle.id), "--json").json
    assert (found["job"]["id"], found["waits_for"].split(",")[0]) == (str(handle.id), "a signal")
    by_key = {step["key"]: step for step in found["steps"]}
    assert list(by_key) == [step.key for step in steps]
    assert by_key["0"]["result"] == "pages about otters"
    assert by_key["1"]["error"]["message"] == "no stock"
    [child] = found["children"]
    assert (child["kind"].rpartition(".")[2], child["status"], "result" in child) == ("mail", "succeeded", False)
    in_words = runs(database, "show", str(handle.id)).out
    record, tree = in_words.split(f"\n\n{len(by_key)} recorded steps\n")
    assert "\n\nwaits for a signal, until " in record
    _heading, *rows = tree.partition("\n\n")[0].splitlines()
    assert [row[:11].rstrip() for row in rows] == TREE
    assert "ConnectionError: the service is away" in rows[1]
    assert "ValueError: no stock" in rows[2]
    assert child["id"] in in_words.partition("\nchildren\n")[2]
    assert [str(row[0]) for row in step_rows(steps[::-1])] == TREE, "the order of completion does not matter"
    assert max(map(len, table_lines(STEP_HEADINGS, list(step_rows(steps)), width=80, color=False))) <= 80


async def test_secret_fields_of_a_run_are_hidden_unless_they_are_asked_for(
    app: library.App, database: Database
) -> None:
    def sign_in(name: str) -> dict[str, Any]:
        return {"name": name, "access_token": "s3cret", "nested": [{"password": "s3cret", "floor": 7}]}

    @app.workflow
    async def visit(run: library.Run, name: str, api_key: str) -> dict[str, Any]:
        session = await run.step(sign_in, name)
        await run.state(session)
        return session

    async with app, working(app):
        handle = await visit.enqueue("ada", "s3cret")
        await handle.result(timeout_seconds=60)
    hidden = runs(database, "show", str(handle.id), "--json")
    found = hidden.json
    session = {"name": "ada", "access_token": "[redacted]", "nested": [{"password": "[redacted]", "floor": 7}]}
    assert [found["steps"][0]["result"], found["state"], found["job"]["result"]] == [session] * 3
    assert found["job"]["payload"] == {"name": "ada", "api_key": "[redacted]"}
    in_words = runs(database, "show", str(handle.id), "--secret", "floor").out
    assert "s3cret" not in hidden.out + in_words
    revealed = runs(database, "show", str(handle.id), "--json", "--reveal").json
    assert revealed["steps"][0]["result"]["access_token"] == "s3cret"


async def test_a_signal_is_sent_once_for_a_request_id(app: library.App, database: Database) -> None:
    order = order_workflow(app)
    async with app, working(app):
        handle = await waiting_for_approval(app, order)
        wanted = str(handle.id)
        assert runs(database, "signal", wanted, "late", "--json").json["id"] == wanted
        for _ in range(2):
            sent = runs(database, "signal", wanted, "approved", '"by ada"', "--request-id", "approval-7")
            assert (sent.code, sent.out) == (0, f"{wanted} was sent approved\n")
        assert await handle.result(timeout_seconds=60) == "by ada"
    found = runs(database, "show", wanted, "--json").json
    assert [signal["name"] for signal in found["unread_signals"]] == ["late"]
    assert found["waits_for"] is None
    refused = runs(database, "signal", wanted, "approved")
    assert (refused.code, refused.out) == (1, "")
    assert "succeeded" in refused.err


@pytest.mark.requirement("WF-11")
async def test_a_signal_beyond_the_limit_is_refused_with_what_to_do(app: library.App, database: Database) -> None:
    @app.workflow(signals_max=1)
    async def small(run: library.Run) -> str:
        return await run.wait_for("approved", str)

    async with app:
        handle = await small.enqueue()
        await handle.signal("late")
        with pytest.raises(library.TooManySignals, match="small"):
            await handle.signal("approved", "by ada")
        refused = runs(database, "signal", str(handle.id), "approved", '"by ada"')
    assert (refused.code, refused.out) == (1, "")
    assert "run.continue_as" in refused.err
    assert "signals_max" in refused.err
    found = runs(database, "show", str(handle.id), "--json").json
    assert [signal["name"] for signal in found["unread_signals"]] == ["late"]


@pytest.mark.requirement("WC-12", "WC-13")
async def test_the_provenance_of_a_run_lists_steps_children_and_unread_signals(
    app: library.App, database: Database
) -> None:
    order = order_workflow(app)
    async with app, working(app):
        handle = await waiting_for_approval(app, order)
        await handle.signal("late", 7)
        await handle.signal("approved", "by ada")
        await handle.result(timeout_seconds=60)
        steps = await all_steps(await app.store(), handle.id)
    shown = tenure("jobs", "show", str(handle.id), "--provenance", "--json", "--database", database.url)
    found = shown.json["provenance"]
    assert [call["key"] for call in found["tool_calls"]] == [step.key for step in steps]
    calls = {call["key"]: call for call in found["tool_calls"]}
    assert (calls["0"]["kind"], calls["0"]["name"], calls["0"]["status"]) == ("step", "search", "succeeded")
    assert (calls["0"]["result"], calls["0"]["code_version"]) == ("pages about otters", "3.1")
    assert (calls["1"]["status"], calls["1"]["error"]["message"]) == ("failed", "no stock")
    assert all(call["attempt"] >= 1 and call["duration_seconds"] >= 0 and call["started_at"] for call in calls.values())
    [child] = found["children"]
    assert (child["key"], child["kind"].rpartition(".")[2]) == ("3", "mail")
    assert [signal["name"] for signal in found["unread_signals"]] == ["late"]
    in_words = tenure("jobs", "show", str(handle.id), "--provenance", "--database", database.url).out
    assert f"\n{len(steps)} steps\n" in in_words
    assert child["job_id"] in in_words
    assert "\n1 unread signal\n" in in_words


async def test_an_erased_run_keeps_the_digests_of_its_steps(app: library.App, database: Database) -> None:
    order = order_workflow(app)
    async with app, working(app):
        handle = await waiting_for_approval(app, order)
        await handle.signal("approved", "by ada")
        await handle.result(timeout_seconds=60)
        before = (await handle.provenance()).tool_calls
        await (await app.store()).erase(handle.id, reason="asked", actor=OPERATOR)
        after = (await handle.provenance()).tool_calls
    assert [call.digest for call in after] == [call.digest for call in before]
    assert {(call.result, call.error) for call in after} == {(None, None)}
    shown = runs(database, "show", str(handle.id))
    assert shown.code == 0
    assert "otters" not in shown.out


async def test_a_job_without_steps_has_none_in_its_provenance(app: library.App, database: Database) -> None:
    @app.job()
    def plain() -> None:
        return

    async with app, working(app):
        handle = await plain.enqueue()
        await handle.result(timeout_seconds=60)
        provenance = await handle.provenance()
    assert (provenance.tool_calls, provenance.children, provenance.unread_signals) == ((), (), ())
    shown = runs(database, "show", str(handle.id))
    assert (shown.code, "\n0 recorded steps\n" in shown.out) == (0, True)
    in_words = tenure("jobs", "show", str(handle.id), "--provenance", "--database", database.url).out
    assert "step" not in in_words


@pytest.mark.parametrize("command", [("show", UNKNOWN), ("signal", UNKNOWN, "approved")])
async def test_an_unknown_run_is_a_finding(database: Database, command: tuple[str, ...]) -> None:
    async with database.opened():
        pass
    answer = runs(database, *command)
    assert (answer.code, answer.out) == (1, "")
    assert UNKNOWN in answer.err


async def test_a_value_that_is_not_json_is_a_wrong_call(database: Database) -> None:
    async with database.opened():
        pass
    answer = runs(database, "signal", UNKNOWN, "approved", "by ada")
    assert (answer.code, answer.out) == (2, "")
    assert "value" in answer.err


PLAN_APP = """
import tenure

app = tenure.App()

@app.skill
def read(title: str) -> str:
    return title.upper()
"""


@pytest.mark.requirement("WC-08")
async def test_a_plan_in_a_file_is_started_once_and_a_wrong_one_is_not(database: Database, tmp_path: Path) -> None:
    async with database.opened():
        pass
    (tmp_path / "skills.py").write_text(PLAN_APP)
    plan, wrong = tmp_path / "plan.json", tmp_path / "wrong.json"
    step = {"id": "a", "skill": "read", "arguments": {"title": "x"}}
    plan.write_text(json.dumps({"goal": "read", "steps": [step]}))
    wrong.write_text(json.dumps({"goal": "read", "steps": [{**step, "skill": "write"}]}))
    options = ("--app", f"{tmp_path / 'skills.py'}:app", "--request-id", "one")
    refused = runs(database, "start-plan", str(wrong), *options)
    assert refused.code == 2
    assert "plan step 'a': skill 'write' is not registered; use one of: read" in refused.err
    only_checked = runs(database, "start-plan", str(plan), *options, "--dry-run")
    assert (only_checked.code, only_checked.out) == (0, "the plan is valid: 1 step; nothing was started\n")
    assert runs(database, "ls", "--json").json["runs"] == []
    without_goal = tmp_path / "without_goal.json"
    without_goal.write_text(json.dumps({"steps": [step]}))
    for problem, bad in (
        ("the plan has no goal; add", (str(without_goal),)),
        ("'5' is not UNIT=AMOUNT, for example cost=2.5", (str(plan), "--budget", "5")),
    ):
        refused = runs(database, "start-plan", *bad, *options)
        assert (refused.code, problem in refused.err) == (2, True), refused.err
    limited = (*options, "--budget", "cost=2", "--budget", "pages=10")
    started = runs(database, "start-plan", str(plan), *limited, "--json")
    again = runs(database, "start-plan", str(plan), *limited, "--json")
    assert (started.code, again.code) == (0, 0)
    assert started.json["job"]["payload"]["goal"] == "read"
    limits = started.json["job"]["policy"]["budget"]
    assert (limits["cost"], limits["units"]) == (2, [["pages", 10]])
    assert (started.json["created"], again.json["created"]) == (True, False)


@pytest.mark.requirement("WF-17")
async def test_a_run_is_forked_from_a_step(app: library.App, database: Database) -> None:
    executed: list[str] = []

    def search(topic: str) -> str:
        executed.append("search")
        return topic

    def write(text: str) -> str:
        executed.append("write")
        return f"on {text}"

    @app.workflow
    async def report(run: library.Run, topic: str) -> str:
        return await run.step(write, await run.step(search, topic))

    async with app, working(app):
        handle = await report.enqueue("cats")
        await handle.result(timeout_seconds=60)
        refused = runs(database, "fork", str(handle.id))
        forked = runs(database, "fork", str(handle.id), "--replace", 'search="dogs"', "--budget", "cost=2", "--json")
        fork = await app.get(forked.json["job"]["id"])
        assert await fork.result(timeout_seconds=60) == "on dogs"
        assert fork.job.policy.budget == library.Budget(cost=2)
    assert (refused.code, "it has succeeded" in refused.err) == (1, True)
    assert forked.json["forked_from"] == str(handle.id)
    assert executed == ["search", "write", "write"]
