"""`tenure doctor`: checks versions, clock, schema and late schedules, and runs the store's own checks."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from tenure import __version__
from tenure.cli.database import common_options, connected, run
from tenure.cli.output import Exit, counted, print_json, print_line, print_text
from tenure.cli.verify import unreadable_rows
from tenure.cli.version_skew import skewed_kinds
from tenure.lifecycle.schedules import ScheduleRecord
from tenure.lifecycle.statuses import LIVE
from tenure.seams import SYSTEM, Clock
from tenure.stores import Finding, JobFilter
from tenure.stores.contract.archive import KeyRateUsage, QueueState
from tenure.stores.database_url import shown_url

if TYPE_CHECKING:
    from tenure.stores.contract import FiringStore, JobPage, ReadStore, SchemaState, Store

SKEW_SECONDS_MAX = 1.0
CLOCK_READINGS = 5
SCHEMA = "schema"
LATE_SECONDS = 60
"""A schedule that is due for longer is reported: a running worker would have handled it."""
LATE_SCHEDULES_MAX = 20
LIVE_JOBS_PER_PAGE, LIVE_PAGES_MAX = 500, 20
"""How many of the live jobs are read."""


@click.command()
@common_options
def doctor(*, database: str, as_json: bool) -> int:
    """Check versions, clock, migrations, schedules and the database.

    Exit code 1 if there are errors; warnings do not change it.
    """
    findings = run(find_problems(database))
    levels = Counter(finding.level for finding in findings)
    if as_json:
        print_json({"database": shown_url(database), "ok": not levels["error"], "findings": findings})
    else:
        for finding in findings:
            _print(finding)
        print_line(f"{counted(levels['error'], 'error')}, {counted(levels['warning'], 'warning')}")
    return Exit.PROBLEMS if levels["error"] else Exit.OK


async def find_problems(database: str) -> list[Finding]:
    """The findings of all checks. Checks that need a fitting schema are skipped without one."""
    async with connected(database) as store:
        schema = _schema(await store.schema())
        fits = all(finding.level != "error" for finding in schema)
        opened = await _opened_checks(store) if fits else []
        # The schema is reported above, in the same words for every store.
        rest = [finding for finding in await store.doctor() if finding.about != SCHEMA]
        return [*_versions(database), *schema, *opened, *rest]


async def _opened_checks(store: Store) -> list[Finding]:
    await store.open()
    return [
        await clock_skew(store, SYSTEM.clock),
        *await late_schedules(store.schedules),
        *await unknown_arguments(store),
        *await unreadable(store),
    ]


async def unreadable(store: Store) -> list[Finding]:
    """Rows of live jobs, queues and schedules that cannot be read. `verify` looks at all rows."""
    found = [*await unreadable_rows(store.archive, (QueueState, KeyRateUsage, ScheduleRecord))]
    page: JobPage | None = None
    for _ in range(LIVE_PAGES_MAX):
        after = None if page is None else page.after
        page = await store.find(JobFilter(statuses=tuple(sorted(LIVE))), after=after, limit=LIVE_JOBS_PER_PAGE)
        found += page.unreadable
        if page.after is None:
            break
    advice = "repair or remove the row by hand; `tenure verify` looks at the rows of all jobs and events"
    return [Finding("error", "unreadable row", str(row), advice) for row in found]


async def unknown_arguments(store: ReadStore) -> list[Finding]:
    """Kinds with jobs that wait for a worker with newer code."""
    advice = "deploy the newer code to every worker: after 10 releases such a job is a dead letter"
    return [
        Finding(
            "warning",
            "code version",
            f"kind {one.kind!r} has {counted(one.jobs, 'job')} in queue {one.queue!r} with an argument that the code "
            f"of a worker does not have",
            advice,
        )
        for one in await skewed_kinds(store)
    ]


async def late_schedules(schedules: FiringStore) -> list[Finding]:
    """Schedules whose due time passed and was not handled."""
    soonest = await schedules.soonest(limit=LATE_SCHEDULES_MAX)
    return [
        Finding(
            "warning",
            "schedules",
            f"schedule {record.name!r} has been due since {record.next_at.isoformat(timespec='seconds')}",
            "start a worker of this app; its scheduler handles missed due times",
        )
        for record in soonest.records
        if record.next_at is not None and (soonest.now - record.next_at).total_seconds() > LATE_SECONDS
    ]


async def clock_skew(store: ReadStore, clock: Clock) -> Finding:
    """The difference between both clocks, by the reading with the shortest round trip."""
    trip, ahead = min([await _reading(store, clock) for _ in range(CLOCK_READINGS)])
    direction = "ahead of" if ahead > 0 else "behind"
    message = f"the database's clock is {abs(ahead):.3f} s {direction} this machine's (± {trip / 2:.3f} s)"
    if abs(ahead) - trip / 2 <= SKEW_SECONDS_MAX:
        return Finding("ok", "clock", message)
    advice = "jobs use the database's clock and are not affected; synchronise both clocks to compare logs"
    return Finding("warning", "clock", message, advice)


async def _reading(store: ReadStore, clock: Clock) -> tuple[float, float]:
    sent_at, sent_seconds = clock.now(), clock.monotonic_seconds()
    database_now = await store.now()
    trip = clock.monotonic_seconds() - sent_seconds
    return trip, (database_now - sent_at).total_seconds() - trip / 2


def _versions(database: str) -> list[Finding]:
    driver = (
        "sqlite3 of Python's standard library" if database.startswith("sqlite") else f"asyncpg {version('asyncpg')}"
    )
    return [
        Finding("ok", "driver", driver),
        Finding("ok", "tenure", __version__),
        Finding("ok", "python", f"{platform.python_version()} ({platform.python_implementation()})"),
    ]


def _schema(state: SchemaState) -> list[Finding]:
    known = f"{len(state.applied)} of {state.code_version} migrations are applied"
    findings = []
    if state.min_code_version > state.code_version:
        message = f"the database needs schema version {state.min_code_version}; this tenure has {state.code_version}"
        findings.append(Finding("error", SCHEMA, message, "upgrade tenure"))
    if state.changed:
        numbers = ", ".join(f"{number:04d}" for number in state.changed)
        advice = "install the tenure that migrated this database"
        findings.append(
            Finding("error", SCHEMA, f"the applied migration {numbers} differs from the one of this tenure", advice)
        )
    if state.pending:
        names = ", ".join(f"{migration.number:04d}_{migration.name}" for migration in state.pending)
        findings.append(Finding("error", SCHEMA, f"{names} is not applied; {known}", "run `tenure migrate`"))
    if state.unknown and not findings:
        numbers = ", ".join(f"{number:04d}" for number in state.unknown)
        findings.append(Finding("ok", SCHEMA, f"the database is newer (it has {numbers}) and supports this version"))
    return findings or [Finding("ok", SCHEMA, f"up to date, migrations applied: {len(state.applied)}")]


def _print(finding: Finding) -> None:
    print_text(f"{finding.level:<8} {finding.about}: {finding.message}", indent=9, level=finding.level)
    if finding.advice:
        print_text(f"{'':<8} → {finding.advice}", indent=11)
