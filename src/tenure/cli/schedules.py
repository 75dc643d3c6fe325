"""`tenure schedules`: list, change, pause and trigger schedules. Changes apply to all workers without a restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import common_options, common_options_but_app, database_of, in_store
from tenure.cli.filters import operator
from tenure.cli.groups import CommandGroup
from tenure.cli.logging_setup import log_no_refusals
from tenure.cli.output import Exit, print_fields, print_json, print_line, print_table
from tenure.cli.tables import Column, format_value
from tenure.client.schedules import AppSchedules, Schedule, ScheduleRecord, upcoming
from tenure.errors import InvalidInput, UnknownKind
from tenure.lifecycle.json_text import parse
from tenure.lifecycle.records import Policy
from tenure.views.schedules import schedule_view

if TYPE_CHECKING:
    from tenure.client.job_function import PreparedCall
    from tenure.stores.contract import Store

HEADINGS = (
    Column("schedule", cut_to=16),
    Column("cron"),
    Column("timezone", rank=2),
    Column("kind", rank=1, cut_to=16),
    Column("queue", rank=5, cut_to=12),
    Column("missed", rank=6),
    Column("next"),
    Column("last", rank=4),
    Column("paused", rank=3),
    Column("by", rank=7),
)
TIMES_MAX = 1000

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
def schedules() -> None:
    """List, change, pause and trigger schedules."""


@schedules.command()
@common_options
def ls(*, database: str, as_json: bool) -> int:
    """List the schedules."""
    found = _with(database, lambda all_schedules: all_schedules.list())
    if as_json:
        print_json({"schedules": [schedule_view(record) for record in found]})
    elif found:
        print_table(HEADINGS, [_row(record) for record in found])
    else:
        print_line("no schedules; a worker registers those that its app declares when it starts")
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def show(*, database: str, as_json: bool, name: str) -> int:
    """Show one schedule."""
    _print_one(_with(database, lambda all_schedules: all_schedules.get(name)), as_json=as_json)
    return Exit.OK


def _definition(command: Command) -> Command:
    """The options that define a schedule."""
    for option in reversed(
        (
            click.option("--cron", metavar="TEXT", help="A cron expression such as '0 9 * * 1-5', or 'every 30s'."),
            click.option("--timezone", metavar="ZONE", help="Time zone of the expression, such as Europe/Berlin."),
            click.option(
                "--missed", type=click.Choice(["one", "all", "skip"]), help="Which missed due times to enqueue."
            ),
            click.option("--grace-seconds", type=float, help="A due time is missed after this delay."),
            click.option("--payload", metavar="JSON", help="The arguments of the job, by name."),
            click.option("--queue", metavar="QUEUE", help="The queue of the job."),
            click.option("--priority", type=int, help="The priority of the job."),
            click.option(
                "--app", "target", metavar="MODULE:APP", help="The app that declares the job, and its database."
            ),
            click.option("--kind", metavar="KIND", help="The kind of the job; with --app."),
        )
    ):
        command = option(command)
    return command


@schedules.command()
@common_options_but_app
@_definition
@click.argument("name")
def put(
    *,
    database: str,
    as_json: bool,
    name: str,
    target: str | None,
    kind: str | None,
    payload: str | None,
    **options: Any,
) -> int:
    """Change the schedule NAME, or create it.

    Options that are not given stay. A new schedule needs --app, --kind and --cron: the app validates the payload and
    supplies the job's policy. A worker does not overwrite a schedule that was changed here.
    """
    given = {field: value for field, value in options.items() if value is not None}
    database = database_of(target, database)
    if target is not None or kind is not None:
        if target is None or kind is None:
            raise click.UsageError("--app and --kind must be given together")
        call = _call(target, kind, payload or "{}", given)
        record = _with(database, lambda all_schedules: _put_call(all_schedules, name, call, given))
    else:
        if payload is not None:
            parse(payload, where="payload")
            given["payload"] = payload
        if not given:
            raise click.UsageError("give an option to change: --cron, --timezone, --missed, --payload, …")
        record = _with(database, lambda all_schedules: all_schedules.edit(name, **given))
    _print_one(record, as_json=as_json)
    return Exit.OK


def _call(target: str, kind: str, payload: str, given: dict[str, Any]) -> PreparedCall[Any]:
    """The enqueue request of the app's job for this payload. Moves `queue` and `priority` out of the given options."""
    from tenure.client.job_function import EnqueueOptions, Enqueuer

    app = load_app(target)
    log_no_refusals()
    known = app.kinds.get(kind)
    if known is None:
        raise UnknownKind(kind, app.kinds)
    options = EnqueueOptions(**{field: given.pop(field) for field in ("queue", "priority") if field in given})
    enqueuer: Enqueuer[..., Any] = Enqueuer(app, known, options)
    return enqueuer.request_from_json(payload)


async def _put_call(
    all_schedules: AppSchedules, name: str, call: PreparedCall[Any], given: dict[str, Any]
) -> ScheduleRecord:
    """Replace the definition. Times that are not given are those of the existing schedule."""
    existing = next((record.schedule for record in await all_schedules.list() if record.name == name), None)
    if existing is not None:
        timing = {field: getattr(existing, field) for field in ("cron", "timezone", "missed", "grace_seconds")}
        given = {**timing, **given}
    if "cron" not in given:
        raise click.UsageError(f"schedule {name!r} does not exist; a new one needs --cron")
    return await all_schedules.put(call, given.pop("cron"), name=name, **given)


@schedules.command()
@common_options
@click.argument("name")
def pause(*, database: str, as_json: bool, name: str) -> int:
    """Pause the schedule NAME. Due times that pass until it is resumed are skipped."""
    _print_one(_with(database, lambda all_schedules: all_schedules.pause(name)), as_json=as_json)
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def resume(*, database: str, as_json: bool, name: str) -> int:
    """Resume the schedule NAME at its next due time."""
    _print_one(_with(database, lambda all_schedules: all_schedules.resume(name)), as_json=as_json)
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def rm(*, database: str, as_json: bool, name: str) -> int:
    """Remove the schedule NAME. Its jobs are kept.

    The next worker restores a schedule that its app declares: pause it instead.
    """
    _with(database, lambda all_schedules: all_schedules.remove(name))
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        print_line(f"schedule {format_value(name)} removed")
    return Exit.OK


@schedules.command()
@common_options
@click.argument("name")
def trigger(*, database: str, as_json: bool, name: str) -> int:
    """Enqueue the job of NAME now. Its due times do not change."""
    added = _with(database, lambda all_schedules: all_schedules.trigger(name))
    if as_json:
        print_json({"name": name, "job": added.job.id, "created": added.created, "status": added.job.status})
    elif added.created:
        print_line(f"{added.job.id} enqueued")
    else:
        print_line(f"not enqueued: job {added.job.id} has the same dedupe key and is {added.job.status}")
    return Exit.OK


@schedules.command("next")
@common_options
@click.argument("name", required=False)
@click.option("-n", "--count", type=click.IntRange(1, TIMES_MAX), default=5, show_default=True, help="Number of times.")
@click.option("--cron", metavar="TEXT", help="Evaluate this expression instead of a schedule.")
@click.option("--timezone", metavar="ZONE", help="Time zone of --cron.  [default: UTC]")
@click.option(
    "--after",
    metavar="TIME",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"]),
    help="Start at this time, in UTC.",
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
    """Show the next due times of NAME, or of --cron.

    They are shown in the local time of the schedule and in UTC.
    """
    if (name is None) == (cron is None):
        raise click.UsageError("give either NAME or --cron")
    begin = None if after is None else after.replace(tzinfo=UTC)
    if cron is not None:
        schedule = Schedule(name="-", cron=cron, kind="-", payload="{}", policy=Policy(), timezone=timezone or "UTC")
        times = upcoming(schedule, after=begin or _now(), count=count)
    elif timezone is not None:
        raise click.UsageError(
            "--timezone needs --cron; change the time zone of a schedule with `tenure schedules put`"
        )
    else:
        times = in_store(database, lambda store: _times(store, str(name), begin, count))
    _print_times(times, as_json=as_json)
    return Exit.OK


def _now() -> datetime:
    from tenure.seams import SYSTEM

    return SYSTEM.clock.now()


async def _times(store: Store, name: str, begin: datetime | None, count: int) -> list[datetime]:
    """The stored due time comes first, even if it has passed: a scheduler is about to handle it."""
    record = await store.schedules.get(name)
    if record is None:
        raise InvalidInput("schedule", f"{name!r} does not exist; list all with: tenure schedules ls")
    if begin is not None:
        return upcoming(record.schedule, after=begin, count=count)
    if record.next_at is None:
        return []
    rest = upcoming(record.schedule, after=record.next_at, count=count)
    return [record.next_at.astimezone(rest[0].tzinfo if rest else UTC), *rest][:count]


def _print_times(times: list[datetime], *, as_json: bool) -> None:
    if as_json:
        print_json({"times": [{"local": one, "utc": one.astimezone(UTC)} for one in times]})
    elif times:
        print_table(("local time", "UTC"), [(one.strftime("%a %Y-%m-%d %H:%M:%S %z"), one) for one in times])
    else:
        print_line("no further due times")


def _with(database: str, work: Callable[[AppSchedules], Awaitable[T]]) -> T:
    async def within(store: Store) -> T:
        async def opened_store() -> Store:
            return store

        return await work(AppSchedules(opened_store, operator()))

    return in_store(database, within)


def _row(record: ScheduleRecord) -> tuple[object, ...]:
    schedule = record.schedule
    return (
        *(schedule.name, schedule.cron, schedule.timezone, schedule.kind, schedule.queue, schedule.missed),
        *(record.next_at, record.last_at, record.paused_at, schedule.source),
    )


def _print_one(record: ScheduleRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule_view(record))
    else:
        fields = {**schedule_view(record), "payload": record.schedule.payload, "policy": None}
        print_fields((name.replace("_", " "), value) for name, value in fields.items())
