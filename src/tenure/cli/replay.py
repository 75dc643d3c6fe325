"""`tenure replay`: a job as it was, folded anew from its log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import click

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import Moment, job_id, moment_of, moment_or_age, operator
from tenure.cli.job_output import facts_of, job_facts, say_events, say_job
from tenure.cli.output import Exit, complain, counted, say, say_json
from tenure.client.admin import Operator
from tenure.lifecycle.fold import contents_of, fold
from tenure.lifecycle.records import Event, Job


@click.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option(
    "--at", type=moment_or_age, metavar="TIME", help="As it was then: a moment, or how long ago (90s, 2h, 7d)."
)
@click.option("--rev", type=click.IntRange(1), metavar="N", help="As it was at this revision.")
@click.option("--events", "with_events", is_flag=True, help="Also everything that had happened to it by then.")
def replay(*, database: str, as_json: bool, wanted: UUID, at: Moment | None, rev: int | None, with_events: bool) -> int:
    """Show a job as it was at a moment or a revision, by the events that there were until then.

    Without --at and --rev it is the job as it stands, by its log. Errors of attempts that later ones have replaced are
    not kept, so that they are not shown.
    """
    if at is not None and rev is not None:
        raise click.UsageError("--at and --rev both say when; give one of them")
    job, events, moment = run(_read(database, wanted, at))
    until = [event for event in events if (moment is None or event.at <= moment) and (rev is None or event.rev <= rev)]
    if not until or (rev is not None and until[-1].rev != rev):
        complain(f"tenure: {_never(job, events, moment=moment, rev=rev)}")
        return Exit.PROBLEMS
    then = fold(job.origin, until, contents_of(job))
    assert then is not None, "there is at least one event"
    if as_json:
        told = {"events": [facts_of(event) for event in until]} if with_events else {}
        say_json({"job": job_facts(then), "of_revisions": len(events), **told})
    else:
        _say(then, until, events, with_events=with_events)
    return Exit.OK


async def _read(database: str, wanted: UUID, at: Moment | None) -> tuple[Job, list[Event], datetime | None]:
    async with opened(database) as store:
        job = await Operator(store, actor=operator()).job(wanted)
        return job, (await store.history([wanted]))[wanted], await moment_of(store, at)


def _never(job: Job, events: Sequence[Event], *, moment: datetime | None, rev: int | None) -> str:
    """Why there is nothing to show."""
    if rev is not None:
        return f"job {job.id} has no revision {rev}; its last one is {len(events)}"
    return f"job {job.id} was not there at {moment}; it was enqueued at {job.created_at}"


def _say(then: Job, until: Sequence[Event], events: Sequence[Event], *, with_events: bool) -> None:
    say_job(then)
    left = len(events) - len(until)
    if left:
        say(f"{counted(left, 'event')} came after that, the next at {events[len(until)].at}")
    if with_events:
        say_events(until)
