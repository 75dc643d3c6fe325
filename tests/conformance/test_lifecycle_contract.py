"""The lifecycle contract (LC), on both stores, in its own vocabulary."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import (
    DedupeKeyConflict,
    IllegalTransition,
    LeaseLost,
    NotAuthorised,
    RequestIdReused,
    RevisionConflict,
)
from tenure.lifecycle.decide import decide
from tenure.lifecycle.operations import (
    Cancel,
    Complete,
    Fail,
    Heartbeat,
    Operation,
    Progress,
    Release,
    Requeue,
    Retry,
    Stall,
    Start,
    Suspend,
)
from tenure.lifecycle.records import Job
from tenure.testing.contract import StoreContract
from tenure.testing.driver import CLIENT, ERROR, RECOVERY, runner
from tests.conformance.system import HandWritten, System, check_complete
from tests.support.sample_jobs import one_of_each
from tools.generated import ROOT

WORDS = "contract"
# What the contract allows, by source status. A claim chooses its job, and is tested separately.
ALLOWED: dict[str, set[str]] = {
    "queued": set(),
    "claimed": {"start", "heartbeat", "stall"},
    "running": {"heartbeat", "complete", "fail", "stall"},
    "stalled": {"requeue"},
    "succeeded": set(),
    "failed": set(),
}
OPERATIONS: dict[str, Operation] = {
    "start": Start(),
    "heartbeat": Heartbeat(),
    "complete": Complete("1"),
    "fail": Fail(ERROR),
    "stall": Stall(),
    "requeue": Requeue(),
}


def test_every_requirement_is_shown_here_or_listed_as_missing() -> None:
    check_complete("LC", Path(__file__).read_text(encoding="utf-8"), Path(__file__).name)


async def in_status(system: System, status: str, kind: str) -> Job:
    """A job in one of the contract's statuses, with the token of its last owner."""
    if status == "queued":
        return await system.drive.add(kind)
    if status == "claimed":
        return await system.drive.claimed(kind=kind)
    running = await system.drive.running(kind=kind)
    ends: dict[str, Operation] = {"succeeded": Complete("1"), "failed": Fail(ERROR), "stalled": Release()}
    return await system.drive.apply(running, ends[status]) if status in ends else running


@pytest.mark.requirement("LC-01")
async def test_a_job_goes_through_the_six_statuses(system: System) -> None:
    job = await system.drive.add()
    seen = [(await system.shown(job.id))["status"]]
    [job] = await system.drive.claim(start=False)
    seen.append((await system.shown(job.id))["status"])
    job = await system.drive.apply(job, Start())
    seen.append((await system.shown(job.id))["status"])
    system.clock.advance(60)
    await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    seen.append((await system.shown(job.id))["status"])
    [job] = await system.drive.claim()
    await system.drive.apply(job, Complete('"done"'))
    ended = await system.shown(job.id)
    assert [*seen, ended["status"]] == ["queued", "claimed", "running", "stalled", "succeeded"]
    assert (ended["result"], ended["attempt"]) == ("done", 2)
    failed = await system.drive.apply(await system.drive.running(), Fail(ERROR))
    assert (await system.shown(failed.id))["status"] == "failed"


@pytest.mark.requirement("LC-01")
async def test_statuses_without_a_word_in_the_contract_are_stalled_or_failed(system: System) -> None:
    statuses = {}
    for job in await one_of_each(system.drive):
        statuses[job.status.value] = (await system.shown(job.id))["status"]
    assert set(statuses.values()) == set(ALLOWED)
    assert {ours for ours, theirs in statuses.items() if theirs == "stalled"} == {"stalled", "waiting", "retry"}
    assert {ours for ours, theirs in statuses.items() if theirs == "failed"} == {
        *("failed", "cancelled", "halted", "dead_lettered")
    }


@pytest.mark.requirement("LC-02")
async def test_each_status_has_the_fields_that_it_must_and_none_that_it_must_not(system: System) -> None:
    wanted: dict[str, set[str]] = {
        "queued": set(),
        "claimed": {"owner", "lease"},
        "running": {"owner", "lease"},
        "stalled": set(),
        "succeeded": {"result"},
        "failed": {"error"},
    }
    for job in await one_of_each(system.drive):
        fields = await system.shown(job.id)
        present = {"owner", "lease", "result", "error"} & set(fields)
        assert present == wanted[fields["status"]], job
        assert all(fields[name] is not None for name in present - {"result"})


@pytest.mark.requirement("LC-02", "LC-03")
async def test_the_database_itself_keeps_the_invariants_and_the_transitions(system: System) -> None:
    queued, running = await system.drive.add(), await system.drive.running()
    ended = await system.drive.apply(await system.drive.running(), Complete("1"))
    for statement, job in (
        ("update {jobs} set owner = 'me' where id = :id", queued),
        ("update {jobs} set owner = null where id = :id", running),
        ("update {jobs} set status = 'succeeded', result = '1' where id = :id", queued),
        ("update {jobs} set status = 'queued' where id = :id", ended),
        ("update {jobs} set attempt = attempt + 1 where id = :id", queued),
        ("delete from {events} where job_id = :id", ended),
    ):
        before = await system.drive.seen(job.id)
        with pytest.raises(HandWritten):
            system.by_hand(statement, id=str(job.id))
        assert await system.drive.seen(job.id) == before, statement


@pytest.mark.requirement("LC-03")
@pytest.mark.parametrize("status", list(ALLOWED))
async def test_only_the_listed_transitions_are_accepted(system: System, status: str) -> None:
    for name, operation in OPERATIONS.items():
        job = await in_status(system, status, name)
        held = job.token
        actor = RECOVERY if name in ("stall", "requeue") else runner(job)
        if name == "stall":
            system.clock.advance(60)
        if name in ALLOWED[status]:
            await system.drive.apply(job.id, operation, actor=actor)
            continue
        refusal = await system.drive.refuse(job.id, operation, actor=actor)
        assert isinstance(refusal, IllegalTransition | LeaseLost), (name, refusal)
        if isinstance(refusal, IllegalTransition):
            message = str(refusal)
            assert str(job.id) in message
            assert name in message
            assert job.status in message
            assert "allowed from" in message
        assert held is None or str(held) not in str(refusal)


@pytest.mark.requirement("LC-04")
async def test_every_change_is_compare_and_set_on_the_revision(system: System) -> None:
    job = await system.drive.running()
    current = await system.drive.apply(job, Heartbeat())
    for operation in (Heartbeat(), Complete("1"), Fail(ERROR)):
        refusal = await system.drive.refuse(job, operation)
        assert isinstance(refusal, RevisionConflict)
        assert refusal.expected_rev == job.rev
        assert refusal.current == current
    await system.drive.apply(current, Complete("1"))


@pytest.mark.requirement("LC-05")
async def test_only_the_current_owner_may_act_and_only_while_its_lease_runs(system: System) -> None:
    claimed, running = await system.drive.claimed(), await system.drive.running()
    stranger = runner(await system.drive.running())
    for job, operations in ((claimed, (Start(), Heartbeat())), (running, (Heartbeat(), Complete("1"), Fail(ERROR)))):
        for operation in operations:
            assert isinstance(await system.drive.refuse(job.id, operation, actor=stranger), LeaseLost)
    system.clock.advance(60)
    for job, operation in ((claimed, Start()), (running, Complete("1"))):
        assert isinstance(await system.drive.refuse(job.id, operation, actor=runner(job)), LeaseLost)
        assert (await system.shown(job.id))["status"] in ("claimed", "running"), "before recovery has stalled it"


@pytest.mark.requirement("LC-06")
async def test_stall_and_requeue_need_no_owner_but_the_right_status_and_revision(system: System) -> None:
    job = await system.drive.running()
    seen = await system.drive.job(job.id)
    await system.drive.apply(job, Heartbeat())
    system.clock.advance(60)
    assert isinstance(await system.drive.refuse(seen, Stall(), actor=RECOVERY), RevisionConflict)
    assert isinstance(await system.drive.refuse(job.id, Requeue(), actor=RECOVERY), IllegalTransition)
    assert isinstance(await system.drive.refuse(job.id, Stall(), actor=CLIENT), NotAuthorised)
    stalled = await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    await system.drive.apply(stalled, Requeue(), actor=RECOVERY)
    assert (await system.names(job.id))[-2:] == ["stalled", "requeued"]


@pytest.mark.requirement("LC-07")
async def test_a_repeated_request_succeeds_and_changes_nothing_also_after_the_job_moved_on(system: System) -> None:
    job = await system.drive.claimed()
    start = system.drive.request(job, Start())
    await system.drive.try_apply(start)
    running = await system.drive.job(job.id)
    assert (await system.drive.repeat(start)).rev == running.rev
    complete = system.drive.request(running, Complete("1"), actor=runner(job))
    await system.drive.try_apply(complete)
    for request in (start, complete):
        assert (await system.drive.repeat(request)).status == "succeeded"
    other = system.drive.request(job.id, Fail(ERROR), actor=runner(job), request_id=complete.request_id)
    [outcome] = await system.store.apply([other])
    assert isinstance(getattr(outcome, "error", None), RequestIdReused)
    reported = await system.reported(job.id)
    assert [one.name for one in reported] == ["enqueued", "claimed", "started", "succeeded"]
    assert reported[-1].fields["request_id"] == complete.request_id


@pytest.mark.requirement("LC-08", "LC-09", "LC-10")
async def test_attempts_grow_at_claims_revisions_at_every_change_and_each_change_is_one_event(system: System) -> None:
    job = await system.drive.add()
    expected: list[tuple[str, str | None, str, int]] = [("enqueued", None, "queued", 0)]
    [job] = await system.drive.claim(start=False)
    expected.append(("claimed", "queued", "claimed", 1))
    job = await system.drive.apply(job, Heartbeat())
    expected.append(("heartbeat", "claimed", "claimed", 1))
    job = await system.drive.apply(job, Start())
    expected.append(("started", "claimed", "running", 1))
    job = await system.drive.apply(job, Heartbeat())
    expected.append(("heartbeat", "running", "running", 1))
    system.clock.advance(60)
    await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    expected.append(("stalled", "running", "stalled", 1))
    await system.drive.apply(job.id, Requeue(), actor=RECOVERY)
    expected.append(("requeued", "stalled", "queued", 1))
    [job] = await system.drive.claim()
    expected += [("claimed", "queued", "claimed", 2), ("started", "claimed", "running", 2)]
    await system.drive.apply(job, Complete("1"))
    expected.append(("succeeded", "running", "succeeded", 2))
    reported = [one.fields for one in await system.reported(job.id)]
    assert [(one["type"], one["from_status"], one["to_status"], one["attempt"]) for one in reported] == expected
    assert [one["rev"] for one in reported] == list(range(1, len(expected) + 1))
    assert all({"at", "actor", "request_id"} <= {name for name, fact in one.items() if fact} for one in reported)
    assert (await system.shown(job.id))["rev"] == len(expected)


KEYS = ("order:7", " ", "a/b?c=d&e", "\N{SNOWMAN}" * 50, '{"not":"parsed"}')


@pytest.mark.requirement("LC-11", "LC-14")
@pytest.mark.parametrize("key", KEYS)
async def test_a_dedupe_key_is_an_opaque_string_that_is_unique_among_live_jobs(system: System, key: str) -> None:
    first = await system.drive.add(dedupe_key=key)
    assert (await system.drive.add(dedupe_key=key)).id == first.id
    with pytest.raises(DedupeKeyConflict, match=str(first.id)):
        await system.drive.add("bill", dedupe_key=key)
    await system.drive.apply(first.id, Cancel(), actor=CLIENT)
    assert (await system.drive.add(dedupe_key=key)).id != first.id
    assert key not in [*(await system.shown(first.id)).values()], "the lifecycle never reads it"


@pytest.mark.requirement("LC-12")
async def test_a_stalled_job_can_be_claimed_again_by_its_policy(system: System) -> None:
    again = await system.drive.running()
    never = await system.drive.running(kind="bill", policy={"on_lost": "fail"})
    system.clock.advance(60)
    for job in (again, never):
        await system.drive.apply(job.id, Stall(), actor=RECOVERY)
    [claimed] = await system.drive.claim(kinds=("mail", "bill"), limit=10)
    assert (claimed.id, claimed.attempt) == (again.id, 2)
    assert (await system.reported(again.id))[-2].fields["from_status"] == "stalled"


WAYS: list[tuple[Operation, ...]] = [
    (Heartbeat(),),
    (Progress(5, "on its way"),),
    (Complete('{"n":1}'),),
    (Retry(ERROR),),
    (Suspend(delay_seconds=5),),
    (Fail(ERROR),),
    (Release(),),
]


@pytest.mark.requirement("LC-13")
async def test_what_a_store_writes_is_what_the_pure_policy_decides(system: System) -> None:
    for operations in WAYS:
        job = await system.drive.running()
        request = system.drive.request(job, *operations)
        after = await system.drive.apply(job, *operations, request_id=request.request_id)
        change = decide(job, operations[0], request.actor, request_id=request.request_id)
        [expected] = change.events(after.updated_at)
        written = (await system.drive.events_of(job.id))[-1]
        facts: dict[str, Any] = {
            name: getattr(written, name) for name in ("type", "from_status", "to_status", "cause", "detail", "digest")
        }
        assert facts == {name: getattr(expected, name) for name in facts}


@pytest.mark.requirement("LC-13")
@pytest.mark.parametrize("name", ["Model", "Sqlite", "Postgres"])
def test_every_store_enters_the_same_kit(name: str) -> None:
    # Imported here, since pytest would otherwise collect the whole kit in this module.
    suite = getattr(import_module(f"tests.stores.contract.test_{name.lower()}"), f"Test{name}Store")
    assert issubclass(suite, StoreContract)
    assert [name for name in vars(suite) if name.startswith("test")] == [], "none brings easier tests of its own"


@pytest.mark.requirement("LC-14")
def test_the_boundaries_are_written_down() -> None:
    page = (ROOT / "docs" / "internals" / "boundaries.md").read_text(encoding="utf-8")
    for word in ("dedupe key", "lease", "lifecycle"):
        assert word in page


@pytest.mark.requirement("LC-15")
def test_one_command_runs_the_strict_types_and_the_tests() -> None:
    planned = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "mypy" in planned
    assert "pytest" in planned
    assert "strict = true" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
