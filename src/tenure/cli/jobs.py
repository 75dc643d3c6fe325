"""`tenure jobs`: list, show, tail and cancel jobs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.bulk import change_each, change_matching, confirm_jobs, print_each, print_report, require_choice
from tenure.cli.database import common_options, in_store
from tenure.cli.enqueue import enqueue
from tenure.cli.filters import (
    GivenId,
    job_admin,
    job_filter,
    job_filters,
    job_id,
    many_options,
    page_options,
    read_job,
)
from tenure.cli.groups import CommandGroup
from tenure.cli.job_output import (
    JOB_HEADINGS,
    job_row,
    print_attempts,
    print_dead_letter,
    print_events,
    print_job,
    print_provenance,
)
from tenure.cli.output import Exit, counted, print_error, print_json, print_line, print_table
from tenure.cli.retry import retry
from tenure.cli.secrets import secret_options
from tenure.cli.tables import Column
from tenure.cli.tail import tail
from tenure.cli.vocabulary import logs_of, print_job_page, print_translated_job, vocabulary_option
from tenure.errors import JobNotFound
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.statuses import CANCELLED, LIVE
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract.steps import all_steps
from tenure.views.jobs import job_view, provenance_view, record_view
from tenure.views.redaction import Redaction
from tenure.vocabularies import vocabulary as vocabulary_named

if TYPE_CHECKING:
    from tenure.stores.contract import ArtifactRecord, JobPage, Store


ARTIFACT_HEADINGS = (
    Column("name", cut_to=24),
    Column("type", rank=1, cut_to=16),
    Column("bytes", is_number=True),
    Column("attempt", rank=2, is_number=True),
    Column("at", rank=3),
)


@click.group(cls=CommandGroup)
def jobs() -> None:
    """List, show, tail, enqueue, cancel and retry jobs."""


jobs.add_command(enqueue)
jobs.add_command(retry)
jobs.add_command(tail)


@jobs.command()
@common_options
@job_filters
@page_options
@vocabulary_option
def ls(*, database: str, as_json: bool, limit: int, after: UUID | None, vocabulary: str | None, **filters: Any) -> int:
    """List jobs, newest first."""
    with_logs = vocabulary is not None
    page, logs = in_store(database, lambda store: _page(store, with_logs, limit=limit, after=after, **filters))
    if vocabulary is not None and (as_json or page.jobs):
        print_job_page(page, logs, vocabulary_named(vocabulary), as_json=as_json)
    elif as_json:
        print_json({"jobs": [job_view(job, content=False) for job in page.jobs], "after": page.after})
    elif page.jobs:
        print_table(JOB_HEADINGS, [job_row(job) for job in page.jobs])
    else:
        print_line("no jobs match")
    if page.after is not None and not as_json:
        print_line(f"more jobs: --after {page.after}")
    for row in page.unreadable:
        print_error(f"{row}; run `tenure verify`")
    return Exit.OK


async def _page(
    store: Store, with_logs: bool, *, limit: int, after: UUID | None, oldest_first: bool, **filters: Any
) -> tuple[JobPage, dict[UUID, list[Event]]]:
    chosen = await job_filter(store, **filters)
    page = await store.find(chosen, after=after, limit=limit, newest_first=not oldest_first)
    return page, await logs_of(store, page.jobs) if with_logs else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """One job with its attempts, dead letter and artifacts."""

    job: Job
    executions: list[Execution]
    dead_letter: DeadLetterRecord | None
    artifacts: list[ArtifactRecord]
    events: list[Event] | None = None
    provenance: Provenance | None = None
    steps: list[StepRecord] = field(default_factory=list)
    """Where content of them is shown."""

    def redacted(self, names: Collection[str]) -> JobDetails:
        """The same without the values of secret fields."""
        hidden = Redaction.of(self.job, names, self.steps)
        return replace(
            self,
            job=hidden.job(self.job),
            dead_letter=None if self.dead_letter is None else hidden.dead_letter(self.dead_letter),
            events=None if self.events is None else [hidden.event(event) for event in self.events],
            provenance=None if self.provenance is None else hidden.provenance(self.provenance),
        )


@jobs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option("--events", "with_events", is_flag=True, help="Also show its events.")
@click.option(
    "--provenance", "with_provenance", is_flag=True, help="Show inputs, code versions and outcome of an ended job."
)
@secret_options
@vocabulary_option
def show(
    *,
    database: str,
    as_json: bool,
    wanted: GivenId,
    with_events: bool,
    with_provenance: bool,
    names: tuple[str, ...],
    reveal: bool,
    vocabulary: str | None,
) -> int:
    """Show one job: its record, attempts, artifacts and dead letter.

    Values of fields like password, token and authorization, and of those that the declaration calls secret, are hidden.
    """
    if vocabulary is not None:
        if with_provenance:
            raise click.UsageError("--provenance cannot be translated; use it without --vocabulary")
        job, log = in_store(database, lambda store: _job_and_log(store, wanted))
        print_translated_job(job, log, vocabulary_named(vocabulary), with_events=with_events, as_json=as_json)
        return Exit.OK
    details = in_store(
        database, lambda store: _details(store, wanted, with_events=with_events, with_provenance=with_provenance)
    )
    if not reveal:
        details = details.redacted(names)
    if as_json:
        print_json(_details_view(details))
    else:
        _print_details(details)
    return Exit.OK


async def _job_and_log(store: Store, wanted: GivenId) -> tuple[Job, list[Event]]:
    job = await read_job(store, wanted)
    if not (log := (await logs_of(store, [job])).get(job.id)):
        raise JobNotFound(job.id)
    return job, log


async def _details(store: Store, wanted: GivenId, *, with_events: bool, with_provenance: bool) -> JobDetails:
    job = await read_job(store, wanted)
    return JobDetails(
        job=job,
        executions=await store.executions(job.id),
        dead_letter=await store.dead_letter(job.id),
        artifacts=await store.artifacts(job.id),
        events=(await store.history([job.id]))[job.id] if with_events else None,
        provenance=await job_admin(store).provenance(job.id) if with_provenance else None,
        steps=await all_steps(store, job.id) if with_events or with_provenance else [],
    )


def _details_view(details: JobDetails) -> dict[str, Any]:
    view: dict[str, Any] = {
        "job": job_view(details.job),
        "attempts": details.executions,
        "dead_letter": None if details.dead_letter is None else record_view(details.dead_letter),
        "artifacts": details.artifacts,
    }
    if details.events is not None:
        view["events"] = [record_view(event) for event in details.events]
    if details.provenance is not None:
        view["provenance"] = provenance_view(details.provenance)
    return view


def _print_details(details: JobDetails) -> None:
    if details.provenance is not None:
        print_provenance(details.provenance)
    else:
        print_job(details.job)
        print_attempts(details.executions)
    if details.dead_letter is not None:
        print_dead_letter(details.dead_letter)
    if details.artifacts:
        print_line(f"\n{counted(len(details.artifacts), 'artifact')}")
        rows = [(one.name, one.media_type, one.bytes, one.attempt, one.at) for one in details.artifacts]
        print_table(ARTIFACT_HEADINGS, rows)
    if details.events is not None:
        print_events(details.events)


@jobs.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@job_filters
@click.option("--all-matching", "every", is_flag=True, help="Cancel all live jobs that the filters match.")
@click.option("--hard", is_flag=True, help="End running jobs at once. By default they are asked to stop.")
@click.option("--reason", default="requested", show_default=True, help="Recorded with the cancel.")
@many_options
def cancel(
    *,
    database: str,
    as_json: bool,
    ids: tuple[GivenId, ...],
    every: bool,
    hard: bool,
    reason: str,
    limit: int,
    yes: bool,
    **filters: Any,
) -> int:
    """Cancel jobs by id, or all that match the filters.

    A job that is not leased is cancelled at once. The worker of a running job is asked to stop it. Exit code 1 if any
    cancel was refused.
    """
    require_choice(ids, filters, every=every, flag="--all-matching")
    if ids:
        results = change_each(database, ids, lambda acting, one: acting.cancel(one, hard=hard, reason=reason))
        return print_each(results, _cancelled_line, _cancelled_fields, as_json=as_json)
    if not yes:
        confirm_jobs("cancel", database, LIVE, filters)
    how: dict[str, Any] = {"hard": hard, "reason": reason, "limit": limit}
    report = change_matching(database, job_filter, filters, lambda acting, wanted: acting.cancel_many(wanted, **how))
    changed = f"{report.cancelled:,} cancelled, {report.requested:,} asked to stop"
    return print_report(report, changed, as_json=as_json)


def _cancelled_line(job_id: UUID, job: Job) -> str:
    return f"{job_id} {'cancelled' if job.status is CANCELLED else f'is {job.status}, asked to stop'}"


def _cancelled_fields(job: Job) -> dict[str, Any]:
    return {"status": job.status, "cancel_requested": job.cancel_requested}
