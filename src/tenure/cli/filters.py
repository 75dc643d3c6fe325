"""How a command is told which jobs it is about: ids, filters, moments, and a word of consent before many."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from getpass import getuser
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

from tenure.cli.output import counted
from tenure.client.admin import MANY, MANY_MAX, DeadLetterFilter, JobFilter
from tenure.errors import InvalidInput
from tenure.lifecycle.records import Actor, ReasonCode, Role, Stage
from tenure.lifecycle.statuses import Status

if TYPE_CHECKING:
    from tenure.stores.contract import ReadStore

Command = TypeVar("Command", bound=Callable[..., Any])
Moment = datetime | timedelta
"""A moment, or how long ago it was."""

PAGE_MAX = 10_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE = re.compile(r"([0-9]{1,9})([smhd])")


def job_id(value: str) -> UUID:
    """The id of a job."""
    try:
        return UUID(value)
    except ValueError:
        problem = f"{value!r} is not the id of a job; ids look like 01890a5d-ac96-774b-bcce-b302099a8057"
        raise click.BadParameter(problem) from None


def moment_or_age(value: str) -> Moment:
    """A moment like 2030-01-31T09:00 (in UTC, unless it names its zone), or an age like 90s, 15m, 2h, 7d."""
    if age := _AGE.fullmatch(value):
        return timedelta(seconds=int(age[1]) * _UNITS[age[2]])
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        problem = f"{value!r} is neither a moment like 2030-01-31T09:00 nor an age like 90s, 15m, 2h, 7d"
        raise click.BadParameter(problem) from None
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)


def tag(value: str) -> tuple[str, str]:
    """A tag, as KEY=VALUE."""
    key, _, text = value.partition("=")
    if not (key and text):
        raise click.BadParameter(f"{value!r} is not KEY=VALUE")
    return key, text


def job_filters(command: Command) -> Command:
    """The options that choose jobs. Everything that is given must match; an option given twice matches either."""
    return _with(
        command,
        click.option("--status", "statuses", multiple=True, type=click.Choice([status.value for status in Status])),
        click.option("--queue", "queues", multiple=True, metavar="NAME"),
        click.option("--kind", "kinds", multiple=True, metavar="NAME"),
        click.option("--reason-is", "reasons", multiple=True, metavar="TEXT", help="Why it ended, word for word."),
        click.option("--correlation-id", metavar="ID"),
        click.option("--submitted-by", metavar="NAME"),
        click.option("--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE", help="All of them must be there."),
        click.option(
            "--since",
            type=moment_or_age,
            metavar="MOMENT",
            help="Created at this moment (UTC) or later, or this long ago: 2h.",
        ),
        click.option("--until", type=moment_or_age, metavar="MOMENT", help="Created before it."),
    )


async def job_filter(
    store: ReadStore,
    *,
    statuses: Sequence[str] = (),
    tags: Sequence[tuple[str, str]] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    **rest: Any,
) -> JobFilter:
    """What the options of `job_filters` ask for. Ages count from the database's clock, which dates the jobs."""
    return JobFilter(
        statuses=tuple(Status(status) for status in statuses),
        tags=dict(tags),
        created_from=await moment_of(store, since),
        created_until=await moment_of(store, until),
        **rest,
    )


def letter_filters(command: Command) -> Command:
    """The options that choose dead letters."""
    return _with(
        command,
        click.option("--reason", "reasons", multiple=True, type=click.Choice([code.value for code in ReasonCode])),
        click.option("--stage", "stages", multiple=True, type=click.Choice([stage.value for stage in Stage])),
        click.option("--kind", "kinds", multiple=True, metavar="NAME"),
        click.option("--queue", "queues", multiple=True, metavar="NAME"),
        click.option("--correlation-id", metavar="ID"),
        click.option(
            "--since",
            type=moment_or_age,
            metavar="MOMENT",
            help="Dead at this moment (UTC) or later, or this long ago: 2h.",
        ),
        click.option("--until", type=moment_or_age, metavar="MOMENT", help="Dead before it."),
    )


async def letter_filter(
    store: ReadStore,
    *,
    reasons: Sequence[str] = (),
    stages: Sequence[str] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    **rest: Any,
) -> DeadLetterFilter:
    """What the options of `letter_filters` ask for."""
    return DeadLetterFilter(
        reason_codes=tuple(ReasonCode(code) for code in reasons),
        stages=tuple(Stage(stage) for stage in stages),
        dead_from=await moment_of(store, since),
        dead_until=await moment_of(store, until),
        **rest,
    )


def page_options(command: Command) -> Command:
    """How much to list, and from where on."""
    return _with(
        command,
        click.option("--limit", type=click.IntRange(1, PAGE_MAX), default=100, show_default=True),
        click.option("--after", type=job_id, metavar="ID", help="Go on after this one, as the last page said."),
    )


def many_options(command: Command) -> Command:
    """What goes with a command that changes many."""
    return _with(
        command,
        click.option("--limit", type=click.IntRange(1, MANY_MAX), default=MANY, show_default=True, help="At most."),
        click.option("--yes", is_flag=True, help="Do not ask first."),
    )


def require_choice(ids: Sequence[UUID], filters: dict[str, Any], *, every: bool, flag: str) -> None:
    """Ids, or a filter with the flag that says that many are meant; never both, and never neither."""
    given = any(filters.values())
    if ids and (every or given):
        raise click.UsageError(f"give ids, or filters with {flag}, and not both")
    if not ids and not every:
        wanted = f"add {flag} to mean all that match" if given else f"give ids, or {flag} with filters"
        raise click.UsageError(wanted)


def require_consent(what: str, *, yes: bool) -> None:
    """Ask on a terminal; where nobody can be asked, --yes must have been given."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"this would {what}; nobody is here to be asked, so say --yes")
    click.confirm(f"This will {what}. Go on?", abort=True, err=True)


def at_most(number: int, noun: str, *, more: bool) -> str:
    """How many were counted, where counting stopped early.

    >>> at_most(1000, "job", more=True)
    'more than 1,000 jobs'
    """
    return f"more than {counted(number, noun)}" if more else counted(number, noun)


def operator() -> Actor:
    """In whose name the command acts: that of the account that runs it."""
    try:
        name = getuser()
    except (KeyError, OSError):
        name = "unknown"
    return Actor(Role.CLIENT, f"cli/{name}")


async def moment_of(store: ReadStore, moment: Moment | None) -> datetime | None:
    """The moment itself: an age counts back from the database's clock."""
    if not isinstance(moment, timedelta):
        return moment
    try:
        return await store.now() - moment
    except OverflowError:
        raise InvalidInput("age", "is longer than there have been years") from None


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
