"""The same false changes, written in the store's own name, are refused by the guards of both stores.

Each change is one event and one row: what `evolve` makes of the event, with one thing falsified. Statements run behind
the writer setting, so that only the rules about jobs and events remain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg
import pytest

from tenure.lifecycle.causes import CAUSES
from tenure.lifecycle.evolve import evolve
from tenure.lifecycle.operations import (
    Ack,
    Cancel,
    Claim,
    Commit,
    Compensate,
    Complete,
    Fail,
    GiveUp,
    Halt,
    Heartbeat,
    Operation,
    Progress,
    Reconcile,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    Signal,
    Stall,
    Start,
    Suspend,
    TimeOut,
    Wake,
)
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.statuses import LEASED, QUEUED, SUCCEEDED
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.testing.driver import ERROR, Driver
from tests.support.databases import Database
from tests.support.sample_jobs import DEAD_LETTER

TOKEN = UUID(int=5)
LATER = timedelta(seconds=1)
SECRET = {name for name in Job.__struct_fields__ if name in ("origin", "created_at", "erased_at")}
OF_THE_LOG = {"correlation_id", "trace", "position"}

OPERATIONS: Mapping[str, Operation] = {
    operation.type: operation
    for operation in (
        *(
            Claim(TOKEN),
            Ack(),
            Start(),
            Heartbeat(),
            Progress(7),
            Commit("1"),
            Complete("1"),
            Retry(ERROR),
            Fail(ERROR),
        ),
        *(
            Halt("budget", "[]"),
            Suspend(60.0),
            Signal("go"),
            Wake(),
            Compensate(),
            Release(),
            RequestCancel(),
            Cancel(),
        ),
        *(Stall(), Requeue(), Reconcile(), GiveUp(ERROR), TimeOut(ERROR), DEAD_LETTER),
    )
}
SITUATIONS: Mapping[str, tuple[str, ...]] = {
    "queued": (),
    "claimed": ("claim",),
    "running": ("claim", "start"),
    "committed": ("claim", "start", "commit"),
    "waiting": ("claim", "start", "suspend"),
    "retry": ("claim", "start", "retry"),
    "stalled": ("claim", "start", "stall"),
    "committed and stalled": ("claim", "start", "commit", "stall"),
}
"""A job in each status, by the operations that lead there."""


@dataclass(frozen=True)
class Write:
    """An event and the row that it leads to, as a statement writes them."""

    before: Job
    event: Event
    after: Job
    transitions: int = 1
    previous: str = ""

    def changed(self, *, event: Mapping[str, object] | None = None, **row: object) -> Write:
        return Write(
            self.before,
            msgspec.structs.replace(self.event, **(event or {})),
            msgspec.structs.replace(self.after, **row),
            self.transitions,
            self.previous,
        )


def honest(job: Job, operation: Operation) -> Write:
    """What the operation writes, whether or not the job is in a state that allows it."""
    transition = TRANSITION_OF[operation.type]
    at = job.updated_at + LATER
    content = job.committed_result if transition.to(job.status) is SUCCEEDED and job.committed else operation.content()
    until_ms = operation.until_after_ms(job)
    event = Event(
        job_id=job.id,
        rev=job.rev + 1,
        type=transition.event,
        from_status=job.status,
        to_status=transition.to(job.status),
        at=at,
        attempt=job.attempt + (transition.event is EventType.CLAIMED),
        actor="runner:worker-1",
        request_id="forged",
        cause=operation.event_fields().cause or operation.cause_for(job) or CAUSES[transition.event],
        detail=operation.event_fields().detail,
        until_at=None if until_ms is None else at + timedelta(milliseconds=until_ms),
        commits=transition.event is EventType.COMMITTED
        or (transition.event is EventType.SUCCEEDED and not job.committed),
    )
    after = evolve(job, event, content)
    return Write(job, event, msgspec.structs.replace(after, token=TOKEN if after.status in LEASED else None))


Falsify = Callable[[Write], Write]

FALSE: Mapping[str, Falsify] = {
    "an attempt too many": lambda w: w.changed(event={"attempt": w.event.attempt + 1}, attempt=w.after.attempt + 1),
    "an attempt too few": lambda w: w.changed(event={"attempt": w.event.attempt - 1}, attempt=w.after.attempt - 1),
    "an attempt of the row alone": lambda w: w.changed(attempt=w.after.attempt + 1),
    "an attempt of the event alone": lambda w: w.changed(event={"attempt": w.event.attempt + 1}),
    "failures that go back": lambda w: w.changed(failures=w.after.failures - 1),
    "more failures than attempts": lambda w: w.changed(failures=w.after.attempt + 1),
    "more losses than failures": lambda w: w.changed(losses=w.after.failures + 1),
    "losses that go back": lambda w: w.changed(losses=-1),
    "another status": lambda w: w.changed(status=QUEUED if w.after.status is not QUEUED else w.before.status),
    "a commit that was none": lambda w: w.changed(committed_at=w.event.at),
    "a commit of the event alone": lambda w: w.changed(event={"commits": True}),
    "a commit taken back": lambda w: w.changed(committed_at=None, committed_result=None),
    "a commit redated": lambda w: w.changed(committed_at=w.event.at + LATER),
    "another committed result": lambda w: w.changed(committed_result='"forged"'),
    "a result": lambda w: w.changed(result='"forged"'),
    "no result": lambda w: w.changed(result=None),
    "an error": lambda w: w.changed(error='"forged"'),
    "no error": lambda w: w.changed(error=None),
    "a reason": lambda w: w.changed(reason="forged"),
    "no reason": lambda w: w.changed(reason=None),
    "an owner": lambda w: w.changed(owner="forged"),
    "no owner": lambda w: w.changed(owner=None),
    "no token": lambda w: w.changed(token=None),
    "a token": lambda w: w.changed(token=UUID(int=6)),
    "no end of the lease": lambda w: w.changed(lease_expires_at=None),
    "an end of a lease": lambda w: w.changed(lease_expires_at=w.event.at + LATER),
    "no heartbeat deadline": lambda w: w.changed(heartbeat_deadline_at=None),
    "a heartbeat deadline": lambda w: w.changed(heartbeat_deadline_at=w.event.at + LATER),
    "a revision too many": lambda w: w.changed(rev=w.after.rev + 1),
    "the old revision": lambda w: w.changed(rev=w.before.rev),
    "a revision of the event alone": lambda w: w.changed(event={"rev": w.event.rev + 1}),
    "two revisions with one event": lambda w: Write(w.before, w.event, w.changed(rev=w.before.rev + 2).after, 2),
    "another status before": lambda w: Write(w.before, w.event, w.after, 1, "halted"),
    "a time of the row alone": lambda w: w.changed(updated_at=w.after.updated_at + LATER),
    "a time before the last change": lambda w: w.changed(
        event={"at": w.before.updated_at - 2 * LATER}, updated_at=w.before.updated_at - 2 * LATER
    ),
    "an end": lambda w: w.changed(finished_at=w.event.at),
    "no end": lambda w: w.changed(finished_at=None),
    "a start before its creation": lambda w: w.changed(started_at=w.before.created_at - LATER),
    "an end after the last change": lambda w: w.changed(finished_at=w.after.updated_at + LATER),
    "progress beyond its end": lambda w: w.changed(progress=101),
    "a signal's revision of its own": lambda w: w.changed(signal_rev=w.after.rev if not w.after.signal_rev else 0),
    "a signal's revision beyond its own": lambda w: w.changed(signal_rev=w.after.rev + 1),
    "something else to wait for": lambda w: w.changed(waiting_for=None if w.after.waiting_for else "signal"),
    "a wait for nothing known": lambda w: w.changed(waiting_for="luck"),
    "a number of children": lambda w: w.changed(children_max=0 if w.after.children_max is None else -1),
}


UNGUARDED = frozenset(
    {
        *("an owner", "a token", "an end of a lease", "a heartbeat deadline", "failures that go back"),
        *("a result", "an error", "a reason", "another committed result"),
    }
)
"""Accepted where a column of this kind is set anyway. `verify` compares the values with the log."""


class Shell:
    """One connection that writes as the store and rolls everything back."""

    def __init__(self, database: Database) -> None:
        self.is_sqlite = database.is_sqlite
        if self.is_sqlite:
            self._connection: sqlite3.Connection | psycopg.Connection = sqlite3.connect(
                database.path, isolation_level=None
            )
        else:
            self._connection = psycopg.connect(database.url, autocommit=True)
        self._prefix = "tenure_" if self.is_sqlite else "tenure."

    def close(self) -> None:
        self._connection.close()

    def refusal(self, write: Write, *, keep: bool = False) -> str | None:
        """Why the write is refused; None if it is accepted."""
        self._run("begin")
        try:
            self._run(
                "update tenure_writer set writer = 'store'"
                if self.is_sqlite
                else "select set_config('tenure.writer', 'store', true)"
            )
            for statement in self._statements(write):
                self._run(statement)
            if keep:
                self._run("update tenure_writer set writer = null" if self.is_sqlite else "select 1")
                self._run("commit")
        except (sqlite3.IntegrityError, psycopg.Error) as refused:
            self._run("rollback")
            return str(refused).splitlines()[0]
        if not keep:
            self._run("rollback")
        return None

    def _run(self, statement: str) -> None:
        self._connection.execute(statement)

    def _statements(self, write: Write) -> Iterator[str]:
        facts = {name: value for name, value in msgspec.structs.asdict(write.event).items() if name not in OF_THE_LOG}
        yield f"insert into {self._prefix}events ({', '.join(facts)}) values ({self._values(facts.values())})"
        if write.event.type is EventType.DEAD_LETTERED:
            job_id = write.event.job_id
            values = self._values([job_id, "timeout", "exec", ERROR, 1, write.event.at, str(job_id)])
            columns = "job_id, reason_code, stage, last_error, attempts, at, correlation_id"
            yield f"insert into {self._prefix}dead_letters ({columns}) values ({values})"
        row = {name: value for name, value in msgspec.structs.asdict(write.after).items() if name not in SECRET}
        row["previous_status"] = write.previous or write.before.status
        row["transition_count"] = write.transitions
        sets = ", ".join(f"{name} = {self._literal(value)}" for name, value in row.items())
        yield f"update {self._prefix}jobs set {sets} where id = '{write.before.id}'"

    def _values(self, values: Iterable[object]) -> str:
        return ", ".join(self._literal(value) for value in values)

    def _literal(self, value: object) -> str:
        match value:
            case None:
                return "null"
            case bool():
                return str(int(value)) if self.is_sqlite else str(value).lower()
            case int():
                return str(value)
            case datetime() if self.is_sqlite:
                return str(round(value.timestamp() * 1_000_000))
            case datetime():
                return f"'{value.isoformat()}'"
            case _:
                text = str(value).replace("'", "''")
                return f"'{text}'"


@pytest.fixture
async def shells(tmp_path: Path, postgres_dsn: str) -> AsyncIterator[dict[str, tuple[Shell, Job]]]:
    """A queued job of each store, and a connection by hand."""
    made: dict[str, tuple[Shell, Job]] = {}
    async with AsyncExitStack() as stack:
        for name, url in (("sqlite", f"sqlite:///{tmp_path}/jobs.db"), ("postgres", postgres_dsn)):
            database = Database(url)
            store = await stack.enter_async_context(database.opened())
            job = await Driver(store).add(policy={"max_attempts": 5})
            shell = Shell(database)
            stack.callback(shell.close)
            made[name] = shell, job
        yield made


def brought_to(shell: Shell, job: Job, situation: str) -> Job:
    for operation in SITUATIONS[situation]:
        write = honest(job, OPERATIONS[operation])
        assert shell.refusal(write, keep=True) is None
        job = write.after
    return job


@pytest.mark.requirement("LC-02", "LC-03", "LC-08")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_both_stores_refuse_the_same_false_changes(shells: dict[str, tuple[Shell, Job]], situation: str) -> None:
    jobs = [(shell, brought_to(shell, job, situation)) for shell, job in shells.values()]
    wrong: list[str] = []
    for operation in OPERATIONS.values():
        if jobs[0][1].status not in TRANSITION_OF[operation.type].sources:
            continue
        for what, falsify in FALSE.items():
            writes = [(shell, honest(job, operation), falsify(honest(job, operation))) for shell, job in jobs]
            refusals = [shell.refusal(false) for shell, true, false in writes if false != true]
            if what not in UNGUARDED and None in refusals:
                wrong.append(f"{operation.type} with {what} is accepted: {refusals}")
            elif len({refusal is None for refusal in refusals}) > 1:
                wrong.append(f"{operation.type} with {what}: {refusals}")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.requirement("LC-03", "EL-05")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_both_stores_accept_an_honest_change_unless_a_commit_forbids_it(
    shells: dict[str, tuple[Shell, Job]], situation: str
) -> None:
    for shell, queued in shells.values():
        job = brought_to(shell, queued, situation)
        for operation in OPERATIONS.values():
            transition = TRANSITION_OF[operation.type]
            # Without a commit, reconcile has no result to finish with.
            if job.status in transition.sources and (operation.type != "reconcile" or job.committed):
                refusal = shell.refusal(honest(job, operation))
                legal = transition.after_commit or not job.committed
                assert (refusal is None) == legal, f"{operation.type}: {refusal}"


def claimed_and_started(job: Job) -> Write:
    """A claim with its start, which both stores write as one event row with the revision of the start."""
    claim = honest(job, OPERATIONS["claim"])
    start = honest(claim.after, OPERATIONS["start"])
    after = evolve(claim.after, msgspec.structs.replace(start.event, at=claim.event.at))
    event = msgspec.structs.replace(claim.event, rev=start.event.rev, to_status=start.event.to_status)
    return Write(job, event, msgspec.structs.replace(after, token=TOKEN), transitions=2)


FALSE_PAIRS: Mapping[str, Falsify] = {
    what: falsify for what, falsify in FALSE.items() if what != "two revisions with one event"
} | {
    "one revision": lambda w: Write(w.before, w.event, w.after, 1),
    "the claim's revision": lambda w: w.changed(event={"rev": w.event.rev - 1}, rev=w.after.rev - 1),
    "one transition at the claim's revision": lambda w: Write(
        w.before,
        msgspec.structs.replace(w.event, rev=w.event.rev - 1),
        msgspec.structs.replace(w.after, rev=w.after.rev - 1),
        1,
    ),
    "three transitions": lambda w: Write(w.before, w.event, w.after, 3),
}


@pytest.mark.requirement("LC-02", "LC-03", "LC-08")
@pytest.mark.parametrize("situation", ["queued", "waiting", "retry", "stalled"])
def test_both_stores_refuse_the_same_false_claims_with_a_start(
    shells: dict[str, tuple[Shell, Job]], situation: str
) -> None:
    jobs = [(shell, brought_to(shell, job, situation)) for shell, job in shells.values()]
    assert [shell.refusal(claimed_and_started(job)) for shell, job in jobs] == [None, None]
    wrong: list[str] = []
    for what, falsify in FALSE_PAIRS.items():
        writes = [(shell, claimed_and_started(job), falsify(claimed_and_started(job))) for shell, job in jobs]
        refusals = [shell.refusal(false) for shell, true, false in writes if false != true]
        if what not in UNGUARDED and None in refusals:
            wrong.append(f"{what} is accepted: {refusals}")
        elif len({refusal is None for refusal in refusals}) > 1:
            wrong.append(f"{what}: {refusals}")
    assert wrong == [], "\n".join(wrong)
