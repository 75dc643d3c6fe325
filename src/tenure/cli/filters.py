"""Parameters that select jobs and dead letters: ids, filters, times and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from getpass import getuser
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click
import msgspec

from tenure.client.admin import MANY, DeadLetterFilter, JobAdmin, JobFilter
from tenure.client.matching_records import MANY_MAX
from tenure.errors import InvalidInput, JobNotFound
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.records import Actor, Job, Role
from tenure.lifecycle.statuses import Status

if TYPE_CHECKING:
    from tenure.stores.contract import ReadStore, Store

Command = TypeVar("Command", bound=Callable[..., Any])
TimeOrAge = datetime | timedelta
"""A time, or an age counted back from now."""

PAGE_MAX = 10_000
PREFIX_DIGITS_MIN = 4
ID_EXAMPLE = "ids look like 01890a5d-ac96-774b-bcce-b302099a8057"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE = re.compile(r"([0-9]{1,9})([smhd])")


class IdPrefix(msgspec.Struct, frozen=True):
    """The first hexadecimal digits of a job id."""

    digits: str


GivenId = UUID | IdPrefix


def job_id(value: str) -> GivenId:
    """Parse a job id, or the beginning of one."""
    digits = value.lower().replace("-", "")
    if not re.fullmatch(f"[0-9a-f]{{{PREFIX_DIGITS_MIN},32}}", digits):
        raise click.BadParameter(f"{value!r} is not a job id or its beginning; {ID_EXAMPLE}")
    return UUID(digits) if len(digits) == 32 else IdPrefix(digits)


def whole_job_id(value: str) -> UUID:
    """Parse a whole job id."""
    given = job_id(value)
    if isinstance(given, IdPrefix):
        raise click.BadParameter(f"{value!r} is only the beginning of a job id; give all of it")
    return given


async def resolve_id(store: ReadStore, given: GivenId) -> UUID:
    """The id; of a prefix, the only id that begins with it."""
    if isinstance(given, UUID):
        return given
    first = int(given.digits.ljust(32, "0"), 16)
    page = await store.find(JobFilter(), after=UUID(int=first - 1) if first else None, limit=2)
    found = [job.id for job in page.jobs if job.id.hex.startswith(given.digits)]
    if not found:
        raise JobNotFound(f"{given.digits}…")
    if len(found) > 1:
        raise InvalidInput("id", f"{given.digits} begins more than one id, such as {found[0]} and {found[1]}")
    return found[0]


def time_or_age(value: str) -> TimeOrAge:
    """Parse a time like 2030-01-31T09:00 (UTC by default), or an age like 90s, 15m, 2h, 7d."""
    if age := _AGE.fullmatch(value):
        return timedelta(seconds=int(age[1]) * _UNITS[age[2]])
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        problem = f"{value!r} is neither a time like 2030-01-31T09:00 nor an age like 90s, 15m, 2h, 7d"
        raise click.BadParameter(problem) from None
    return at if at.utcoffset() is not None else at.replace(tzinfo=UTC)


def tag(value: str) -> tuple[str, str]:
    """Parse a tag, KEY=VALUE."""
    key, _, text = value.partition("=")
    if not (key and text):
        raise click.BadParameter(f"{value!r} is not KEY=VALUE")
    return key, text


def job_filters(command: Command) -> Command:
    """The options that select jobs. All given options must match; one given twice matches either value."""
    return _with(
        command,
        _choice("--status", "statuses", Status),
        click.option("--queue", "queues", multiple=True, metavar="NAME", help="In this queue."),
        click.option("--kind", "kinds", multiple=True, metavar="NAME", help="Of this kind."),
        click.option("--reason-is", "reasons", multiple=True, metavar="TEXT", help="Ended with exactly this reason."),
        click.option("--correlation-id", metavar="ID", help="With this correlation id."),
        click.option("--submitted-by", metavar="NAME", help="Submitted by this user."),
        click.option(
            "--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE", help="With this tag; given twice, with both."
        ),
        click.option(
            "--since",
            type=time_or_age,
            metavar="TIME",
            help="Created at this time (UTC) or later; or an age, such as 2h.",
        ),
        click.option("--until", type=time_or_age, metavar="TIME", help="Created before this time."),
    )


async def job_filter(
    store: ReadStore,
    *,
    statuses: Sequence[str] = (),
    tags: Sequence[tuple[str, str]] = (),
    since: TimeOrAge | None = None,
    until: TimeOrAge | None = None,
    **rest: Any,
) -> JobFilter:
    """The filter of the `job_filters` options. Ages count from the database's clock."""
    return JobFilter(
        statuses=tuple(Status(status) for status in statuses),
        tags=dict(tags),
        created_from=await resolve_time(store, since),
        created_until=await resolve_time(store, until),
        **rest,
    )


def dead_letter_filters(command: Command) -> Command:
    """The options that select dead letters."""
    return _with(
        command,
        _choice("--reason", "reasons", ReasonCode),
        _choice("--stage", "stages", Stage),
        click.option("--kind", "kinds", multiple=True, metavar="NAME", help="Of this kind."),
        click.option("--queue", "queues", multiple=True, metavar="NAME", help="In this queue."),
        click.option("--correlation-id", metavar="ID", help="With this correlation id."),
        click.option(
            "--since",
            type=time_or_age,
            metavar="TIME",
            help="Dead-lettered at this time (UTC) or later; or an age, such as 2h.",
        ),
        click.option("--until", type=time_or_age, metavar="TIME", help="Dead-lettered before this time."),
    )


async def dead_letter_filter(
    store: ReadStore,
    *,
    reasons: Sequence[str] = (),
    stages: Sequence[str] = (),
    since: TimeOrAge | None = None,
    until: TimeOrAge | None = None,
    **rest: Any,
) -> DeadLetterFilter:
    """The filter of the `dead_letter_filters` options."""
    return DeadLetterFilter(
        reason_codes=tuple(ReasonCode(code) for code in reasons),
        stages=tuple(Stage(stage) for stage in stages),
        dead_from=await resolve_time(store, since),
        dead_until=await resolve_time(store, until),
        **rest,
    )


def page_options(command: Command) -> Command:
    """Page size, start and order."""
    return _with(
        command,
        click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=100, show_default=True, help="Page size."),
        click.option("--after", type=whole_job_id, metavar="ID", help="List those after this id."),
        click.option("--oldest", "oldest_first", is_flag=True, help="Oldest first.  [default: newest first]"),
    )


def many_options(command: Command) -> Command:
    """The options of commands that change many jobs."""
    return _with(
        command,
        click.option(
            "--limit",
            type=click.IntRange(1, MANY_MAX),
            default=MANY,
            show_default=True,
            help="Change at most this many.",
        ),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    )


def operator() -> Actor:
    """The actor that changes are recorded for: the operating system's user."""
    try:
        name = getuser()
    except (KeyError, OSError):
        name = "unknown"
    return Actor(Role.CLIENT, f"cli/{name}")


def job_admin(store: Store) -> JobAdmin:
    """Changes of jobs, recorded for the operator."""
    return JobAdmin(store, actor=operator())


async def read_job(store: Store, given: GivenId) -> Job:
    """The job of an id or prefix, or JobNotFound."""
    return await job_admin(store).job(await resolve_id(store, given))


async def resolve_time(store: ReadStore, value: TimeOrAge | None) -> datetime | None:
    """The time; an age counts back from the database's clock."""
    if not isinstance(value, timedelta):
        return value
    try:
        return await store.now() - value
    except OverflowError:
        raise InvalidInput("age", "is too long") from None


def _choice(flag: str, name: str, values: type[StrEnum]) -> Callable[[Command], Command]:
    """An option whose values are listed in its help: as a metavar they would not fit into 80 columns."""
    names = [value.value for value in values]
    return click.option(
        flag,
        name,
        multiple=True,
        type=click.Choice(names),
        metavar=flag.removeprefix("--").upper(),
        help=f"One of: {', '.join(names)}.",
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
