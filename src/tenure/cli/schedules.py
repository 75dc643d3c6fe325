"""`tenure schedules`: what is enqueued again and again, and when. Changes hold for all workers, without a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from tenure.cli.app_loader import find_app
from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import operator
from tenure.cli.output import Exit, say, say_json, say_table, shown
from tenure.client.schedules import AppSchedules, Schedule, ScheduleRecord, upcoming
from tenure.errors import InvalidInput, UnknownKind
from tenure.lifecycle.json_text import parse
from tenure.lifecycle.records import Policy

if TYPE_CHECKING:
    from tenure.client.job_function import Prepared
    from tenure.stores.contract import Store

HEADINGS = ("schedule", "cron", "timezone", "kind", "queue", "missed", "next", "last", "paused", "by")
TIMES_MAX = 1000

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def schedules() -> None:
    """Look at schedules, change and pause them, and see when they are due."""


@schedules.command()
@common_options
def ls(*, database: str, as_json: bool) -> int:
    """List the schedules."""
    found = run(_with(database, lambda desk: desk.list()))
    if as_json:
        say_json({"schedules": [_facts(record) for record in found]})
    elif found:
        say_table(HEADINGS, [_row(record) for record in found])
    else:
        say("nothing is scheduled; what the code declares is written down when a worker starts")
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def show(*, database: str, as_json: bool, name: str) -> int:
    """Show all of one schedule."""
    _say_one(run(_with(database, lambda desk: desk.get(name))), as_json=as_json)
    return Exit.OK


def _definition(command: Command) -> Command:
    """The options that say what a schedule is."""
    for option in reversed(
        (
            click.option("--cron", metavar="TEXT", help="A cron expression such as '0 9 * * 1-5', or 'every 30s'."),
            click.option("--timezone", metavar="ZONE", help="Whose wall clock is meant, such as Europe/Berlin."),
            click.option("--missed", type=click.Choice(["one", "all", "skip"]), help="What becomes of missed times."),
            click.option("--grace-seconds", type=float, help="How late is not too late."),
            click.option("--payload", metavar="JSON", help="The arguments of the job, by name."),
            click.option("--queue", metavar="QUEUE"),
            click.option("--priority", type=int),
            click.option("--app", "target", metavar="MODULE:APP", help="The app that declares the job."),
            click.option("--kind", metavar="KIND", help="Which job; with --app."),
        )
    ):
        command = option(command)
    return command


@schedules.command()
@common_options
@_definition
@click.argument("name")
def put(
    *, database: str, as_json: bool, name: str, target: str | None, kind: str | None, payload: str | None, **facts: Any
) -> int:
    """Change the schedule NAME, or make a new one.

    What is not given stays as it is. A new one needs --app, --kind and --cron: the job's arguments are checked, and
    what becomes of it when things go wrong is taken from the app. Workers whose code says otherwise leave it alone.
    """
    given = {field: value for field, value in facts.items() if value is not None}
    if target is not None or kind is not None:
        if target is None or kind is None:
            raise click.UsageError("--app and --kind go together")
        call = _call(target, kind, payload or "{}", given)
        record = run(_with(database, lambda desk: _put_call(desk, name, call, given)))
    else:
        if payload is not None:
            parse(payload, where="payload")
            given["payload"] = payload
        if not given:
            raise click.UsageError("say what to change: --cron, --timezone, --missed, --payload, …")
        record = run(_with(database, lambda desk: desk.edit(name, **given)))
    _say_one(record, as_json=as_json)
    return Exit.OK


def _call(target: str, kind: str, payload: str, given: dict[str, Any]) -> Prepared[Any]:
    """The call that the app's own job makes of this payload, with the options that belong to its jobs taken out."""
    from tenure.client.job_function import EnqueueOptions, Enqueuer

    app = find_app(target)
    known = app.kinds.get(kind)
    if known is None:
        raise UnknownKind(kind, app.kinds)
    options = EnqueueOptions(**{field: given.pop(field) for field in ("queue", "priority") if field in given})
    enqueuer: Enqueuer[..., Any] = Enqueuer(app, known, options)
    return enqueuer.request_of(payload)


async def _put_call(desk: AppSchedules, name: str, call: Prepared[Any], given: dict[str, Any]) -> ScheduleRecord:
    """A new definition; what an old one of this name said about times stays, where nothing else is said."""
    there = next((record.schedule for record in await desk.list() if record.name == name), None)
    if there is not None:
        timing = {field: getattr(there, field) for field in ("cron", "timezone", "missed", "grace_seconds")}
        given = {**timing, **given}
    if "cron" not in given:
        raise click.UsageError(f"there is no schedule {name!r} yet, and a new one needs --cron")
    return await desk.put(call, given.pop("cron"), name=name, **given)


@schedules.command()
@common_options
@click.argument("name")
def pause(*, database: str, as_json: bool, name: str) -> int:
    """Fire NAME no more until it is resumed. Due times that come meanwhile are let go."""
    _say_one(run(_with(database, lambda desk: desk.pause(name))), as_json=as_json)
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def resume(*, database: str, as_json: bool, name: str) -> int:
    """Go on with the next due time of NAME from now."""
    _say_one(run(_with(database, lambda desk: desk.resume(name))), as_json=as_json)
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def rm(*, database: str, as_json: bool, name: str) -> int:
    """Remove NAME. Its jobs stay. One that the code declares comes back with the next worker: pause it instead."""
    run(_with(database, lambda desk: desk.remove(name)))
    if as_json:
        say_json({"name": name, "removed": True})
    else:
        say(f"schedule {shown(name)} is removed")
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def trigger(*, database: str, as_json: bool, name: str) -> int:
    """Enqueue the job of NAME now, besides its due times."""
    added = run(_with(database, lambda desk: desk.trigger(name)))
    if as_json:
        say_json({"name": name, "job": added.job.id, "created": added.created, "status": added.job.status})
    elif added.created:
        say(f"{added.job.id} queued")
    else:
        say(f"{added.job.id} has the schedule's dedupe key, and is {added.job.status}")
    return Exit.OK


@schedules.command("next")
@common_options
@click.argument("name", required=False)
@click.option("-n", "--count", type=click.IntRange(1, TIMES_MAX), default=5, show_default=True)
@click.option("--cron", metavar="TEXT", help="Try an expression instead of a schedule.")
@click.option("--timezone", metavar="ZONE", help="Whose wall clock is meant by --cron.  [default: UTC]")
@click.option(
    "--after", type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"]), help="From then, in UTC."
)
def next_(
    *,
    database: str,
    as_json: bool,
    name: str | None,
    count: int,
    cron: str | None,
    timezone: str | None,
    after: datetime | None,
) -> int:
    """Show when NAME is due next, on the wall clock of its time zone and in UTC; or when --cron would be."""
    if (name is None) == (cron is None):
        raise click.UsageError("name a schedule, or give --cron")
    begin = None if after is None else after.replace(tzinfo=UTC)
    if cron is not None:
        tried = Schedule(name="-", cron=cron, kind="-", payload="{}", policy=Policy(), timezone=timezone or "UTC")
        times = upcoming(tried, after=begin or _now(), count=count)
    elif timezone is not None:
        raise click.UsageError("--timezone goes with --cron; to move a schedule, use `tenure schedules put`")
    else:
        times = run(_with_store(database, lambda store: _times(store, str(name), begin, count)))
    _say_times(times, as_json=as_json)
    return Exit.OK


def _now() -> datetime:
    from tenure.seams import SYSTEM

    return SYSTEM.clock.now()


async def _times(store: Store, name: str, begin: datetime | None, count: int) -> list[datetime]:
    """What is written down comes first, even when it is over already: then it is about to be fired."""
    record = await store.schedules.get(name)
    if record is None:
        raise InvalidInput("schedule", f"there is no {name!r}; see `tenure schedules ls`")
    if begin is not None:
        return upcoming(record.schedule, after=begin, count=count)
    if record.next_at is None:
        return []
    rest = upcoming(record.schedule, after=record.next_at, count=count)
    return [record.next_at.astimezone(rest[0].tzinfo if rest else UTC), *rest][:count]


def _say_times(times: list[datetime], *, as_json: bool) -> None:
    if as_json:
        say_json({"times": [{"local": one, "utc": one.astimezone(UTC)} for one in times]})
    elif times:
        say_table(("on the wall clock", "UTC"), [(one.strftime("%a %Y-%m-%d %H:%M:%S %z"), one) for one in times])
    else:
        say("never again")


async def _with(database: str, work: Callable[[AppSchedules], Awaitable[T]]) -> T:
    return await _with_store(database, lambda store: work(_desk(store)))


async def _with_store(database: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async with opened(database) as store:
        return await work(store)


def _desk(store: Store) -> AppSchedules:
    async def the_store() -> Store:
        return store

    return AppSchedules(the_store, operator())


def _row(record: ScheduleRecord) -> tuple[object, ...]:
    schedule = record.schedule
    return (
        *(schedule.name, schedule.cron, schedule.timezone, schedule.kind, schedule.queue, schedule.missed),
        *(record.next_at, record.last_at, record.paused_at, schedule.source),
    )


def _facts(record: ScheduleRecord) -> dict[str, Any]:
    """All of a schedule on one level, with its payload as JSON."""
    facts = msgspec.structs.asdict(record.schedule)
    moments = {name: getattr(record, name) for name in ("rev", "next_at", "last_at", "paused_at", "updated_at")}
    return {**facts, "payload": msgspec.Raw(record.schedule.payload.encode()), **moments}


def _say_one(record: ScheduleRecord, *, as_json: bool) -> None:
    if as_json:
        say_json(_facts(record))
        return
    facts = {**_facts(record), "payload": record.schedule.payload, "policy": None}
    for name, value in facts.items():
        if value is not None:
            say(f"{name.replace('_', ' '):<15} {shown(value)}")
