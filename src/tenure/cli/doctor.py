"""`tenure doctor`: is all around the jobs as it should be? Versions, clocks, schema, and the store's own view."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from tenure import __version__
from tenure.cli.database import common_options, connected, run, without_password
from tenure.cli.output import Exit, counted, say, say_json
from tenure.seams import SYSTEM, Clock
from tenure.stores import Finding

if TYPE_CHECKING:
    from tenure.stores.contract import FiringStore, ReadStore, SchemaState, Store

SKEW_SECONDS_MAX = 1.0
CLOCK_READINGS = 5
SCHEMA = "schema"
LATE_SECONDS = 60
"""How long a due time may have passed before it is worth a word: the next worker deals with it, if there is one."""
LATE_MAX = 20
"""How many late schedules are named."""


@click.command()
@common_options
def doctor(*, database: str, as_json: bool) -> int:
    """Look for trouble: versions, clock skew, missing migrations, and what the store itself finds.

    Warnings leave the exit code at 0; an error makes it 1.
    """
    findings = run(examine(database))
    levels = Counter(finding.level for finding in findings)
    if as_json:
        say_json({"database": without_password(database), "ok": not levels["error"], "findings": findings})
    else:
        for finding in findings:
            _say(finding)
        say(f"{counted(levels['error'], 'error')}, {counted(levels['warning'], 'warning')}")
    return Exit.PROBLEMS if levels["error"] else Exit.OK


async def examine(database: str) -> list[Finding]:
    """Everything there is to say about this database and the way to it."""
    async with connected(database) as store:
        schema = _schema(await store.schema())
        fits = all(finding.level != "error" for finding in schema)
        opened = await _opened(store) if fits else []
        # A store may speak of its schema too; here it is spoken of once, in the same words for every store.
        rest = [finding for finding in await store.doctor() if finding.about != SCHEMA]
        return [*_versions(database), *schema, *opened, *rest]


async def _opened(store: Store) -> list[Finding]:
    await store.open()
    return [await clock_skew(store, SYSTEM.clock), *await late_schedules(store.schedules)]


async def late_schedules(schedules: FiringStore) -> list[Finding]:
    """Schedules whose time has come, and that nobody has dealt with."""
    soonest = await schedules.soonest(limit=LATE_MAX)
    return [
        Finding(
            "warning",
            "schedules",
            f"schedule {record.name!r} has been due since {record.next_at.isoformat(timespec='seconds')}",
            "start a worker with this app: its scheduler deals with what was missed as the schedule says",
        )
        for record in soonest.records
        if record.next_at is not None and (soonest.now - record.next_at).total_seconds() > LATE_SECONDS
    ]


async def clock_skew(store: ReadStore, clock: Clock) -> Finding:
    """How far the database's clock is from ours: the reading with the shortest round trip, halved."""
    trip, ahead = min([await _reading(store, clock) for _ in range(CLOCK_READINGS)])
    says = (
        f"the database's clock is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} ours (± {trip / 2:.3f} s)"
    )
    if abs(ahead) - trip / 2 <= SKEW_SECONDS_MAX:
        return Finding("ok", "clock", says)
    advice = "jobs go by the database's clock and are safe; synchronise both machines, or logs will not line up"
    return Finding("warning", "clock", says, advice)


async def _reading(store: ReadStore, clock: Clock) -> tuple[float, float]:
    sent_at, sent_seconds = clock.now(), clock.monotonic_seconds()
    theirs = await store.now()
    trip = clock.monotonic_seconds() - sent_seconds
    return trip, (theirs - sent_at).total_seconds() - trip / 2


def _versions(database: str) -> list[Finding]:
    driver = "sqlite3, of Python's own library" if database.startswith("sqlite") else f"asyncpg {version('asyncpg')}"
    return [
        Finding("ok", "driver", driver),
        Finding("ok", "tenure", __version__),
        Finding("ok", "python", f"{platform.python_version()} ({platform.python_implementation()})"),
    ]


def _schema(state: SchemaState) -> list[Finding]:
    known = f"the database has {len(state.applied)} of the {state.code_version} that this tenure knows"
    findings = []
    if state.min_code_version > state.code_version:
        says = f"the database needs code that knows migration {state.min_code_version}, not only {state.code_version}"
        findings.append(Finding("error", SCHEMA, says, "upgrade tenure"))
    if state.changed:
        numbers = ", ".join(f"{number:04d}" for number in state.changed)
        advice = "install the tenure that migrated this database, or restore the file"
        findings.append(Finding("error", SCHEMA, f"{numbers} was applied from another file than ours", advice))
    if state.pending:
        names = ", ".join(f"{migration.number:04d}_{migration.name}" for migration in state.pending)
        findings.append(Finding("error", SCHEMA, f"{names} not applied; {known}", "run `tenure migrate`"))
    if state.unknown and not findings:
        numbers = ", ".join(f"{number:04d}" for number in state.unknown)
        findings.append(Finding("ok", SCHEMA, f"the database is newer ({numbers}) and admits this version"))
    return findings or [Finding("ok", SCHEMA, f"up to date, {len(state.applied)} applied")]


def _say(finding: Finding) -> None:
    say(f"{finding.level:<8} {finding.about}: {finding.says}", level=finding.level)
    if finding.advice:
        say(f"{'':<8} → {finding.advice}")
