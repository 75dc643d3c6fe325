"""`tenure replay`: a job at an earlier time, folded from its events."""

from __future__ import annotations

from datetime import datetime

import click

from tenure.cli.database import common_options, in_store
from tenure.cli.filters import GivenId, TimeOrAge, job_id, read_job, resolve_time, time_or_age
from tenure.cli.job_output import print_events, print_job
from tenure.cli.output import Exit, counted, print_error, print_json, print_line
from tenure.cli.secrets import secret_options
from tenure.cli.tables import format_value
from tenure.lifecycle.fold import contents_of, fold
from tenure.lifecycle.records import Event, Job
from tenure.stores.contract import Store
from tenure.views.jobs import job_view, record_view
from tenure.views.redaction import Redaction


@click.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option("--at", type=time_or_age, metavar="TIME", help="At this time, or this long ago: 90s, 2h, 7d.")
@click.option("--rev", type=click.IntRange(1), metavar="N", help="At this revision.")
@click.option("--events", "with_events", is_flag=True, help="Also show its events until then.")
@secret_options
def replay(
    *,
    database: str,
    as_json: bool,
    wanted: GivenId,
    at: TimeOrAge | None,
    rev: int | None,
    with_events: bool,
    names: tuple[str, ...],
    reveal: bool,
) -> int:
    """Show a job at an earlier time or revision, folded from its events.

    Without --at and --rev: the job now. Only the last error of a job is stored, so that earlier ones are not shown.
    Values of secret fields are hidden.
    """
    if at is not None and rev is not None:
        raise click.UsageError("--at and --rev cannot be combined")
    job, events, time = in_store(database, lambda store: _read(store, wanted, at))
    until = [event for event in events if (time is None or event.at <= time) and (rev is None or event.rev <= rev)]
    if not until or (rev is not None and until[-1].rev != rev):
        print_error(
            f"job {job.id} has no revision {rev}; its last one is {len(events)}"
            if rev is not None
            else f"job {job.id} did not exist at {time}; it was enqueued at {job.created_at}"
        )
        return Exit.PROBLEMS
    then = fold(job.origin, until, contents_of(job))
    assert then is not None, "there is at least one event"
    if not reveal:
        hidden = Redaction.of(job, names)
        then, until = hidden.job(then), [hidden.event(event) for event in until]
    if as_json:
        logged = {"events": [record_view(event) for event in until]} if with_events else {}
        print_json({"job": job_view(then), "of_revisions": len(events), **logged})
        return Exit.OK
    print_job(then)
    if later := events[len(until) :]:
        print_line(f"{counted(len(later), 'later event')}, the next at {format_value(later[0].at)}")
    if with_events:
        print_events(until)
    return Exit.OK


async def _read(store: Store, wanted: GivenId, at: TimeOrAge | None) -> tuple[Job, list[Event], datetime | None]:
    job = await read_job(store, wanted)
    return job, (await store.history([job.id]))[job.id], await resolve_time(store, at)
