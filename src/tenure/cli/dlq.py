"""`tenure dlq`: list, show, redrive and discard dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.bulk import COUNTED_MAX, change_each, change_matching, confirm, print_each, print_report, require_choice
from tenure.cli.database import common_options, in_store
from tenure.cli.filters import (
    GivenId,
    dead_letter_filter,
    dead_letter_filters,
    job_id,
    many_options,
    page_options,
    read_job,
)
from tenure.cli.groups import CommandGroup
from tenure.cli.job_output import abbreviate, print_attempts, print_dead_letter, print_job
from tenure.cli.output import Exit, print_error, print_json, print_line, print_table
from tenure.cli.retry import retried_fields, retried_line
from tenure.cli.secrets import secret_options
from tenure.cli.tables import Column
from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.executions import Execution
from tenure.lifecycle.records import Job
from tenure.views.jobs import job_view, record_view
from tenure.views.redaction import Redaction

if TYPE_CHECKING:
    from tenure.stores.contract import DeadLetterPage, Store

HEADINGS = (
    Column("id"),
    Column("reason"),
    Column("stage", rank=4),
    Column("kind", cut_to=16),
    Column("queue", rank=5, cut_to=12),
    Column("attempts", rank=2, is_number=True),
    Column("at", rank=3),
    Column("error", rank=1, cut_to=20),
)


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List, show, redrive and discard dead letters."""


@dlq.command()
@common_options
@dead_letter_filters
@click.option("--handled", is_flag=True, help="Also list redriven and discarded ones.")
@page_options
def ls(*, database: str, as_json: bool, limit: int, after: UUID | None, **filters: Any) -> int:
    """List open dead letters, newest job first."""
    page, jobs = in_store(database, lambda store: _page(store, limit=limit, after=after, **filters))
    shown = [_without_secrets(letter, jobs.get(letter.job_id)) for letter in page.letters]
    if as_json:
        letters = [{**record_view(letter), **_kind_and_queue(jobs.get(letter.job_id))} for letter in shown]
        print_json({"dead_letters": letters, "after": page.after})
        return Exit.OK
    if page.letters:
        print_table(HEADINGS, [_row(letter, jobs.get(letter.job_id)) for letter in shown])
    else:
        print_line("no dead letters match")
    if page.after is not None:
        print_line(f"more dead letters: --after {page.after}")
    return Exit.OK


async def _page(
    store: Store, *, limit: int, after: UUID | None, oldest_first: bool, **filters: Any
) -> tuple[DeadLetterPage, dict[UUID, Job]]:
    chosen = await dead_letter_filter(store, **filters)
    page = await store.dead_letters(chosen, after=after, limit=limit, newest_first=not oldest_first)
    return page, await store.read([letter.job_id for letter in page.letters])


def _without_secrets(letter: DeadLetterRecord, job: Job | None) -> DeadLetterRecord:
    return letter if job is None else Redaction.of(job).dead_letter(letter)


def _kind_and_queue(job: Job | None) -> dict[str, Any]:
    return {} if job is None else {"kind": job.kind, "queue": job.queue}


def _row(letter: DeadLetterRecord, job: Job | None) -> tuple[object, ...]:
    kind, queue = (None, None) if job is None else (job.kind, job.queue)
    error = abbreviate(letter.last_error)
    if letter.handled_as is not None:
        error = f"({letter.handled_as}) {error}"
    return letter.job_id, letter.reason_code, letter.stage, kind, queue, letter.attempts, letter.at, error


@dlq.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@secret_options
def show(*, database: str, as_json: bool, wanted: GivenId, names: tuple[str, ...], reveal: bool) -> int:
    """Show one dead letter with its job. Values of secret fields are hidden."""
    job, letter, executions = in_store(database, lambda store: _read(store, wanted))
    if letter is None:
        print_error(f"job {job.id} is {job.status} and has no dead letter; show it with: tenure jobs show {job.id}")
        return Exit.PROBLEMS
    if not reveal:
        hidden = Redaction.of(job, names)
        job, letter = hidden.job(job), hidden.dead_letter(letter)
    if as_json:
        print_json({"dead_letter": record_view(letter), "job": job_view(job), "attempts": executions})
    else:
        print_job(job)
        print_attempts(executions)
        print_dead_letter(letter)
    return Exit.OK


async def _read(store: Store, wanted: GivenId) -> tuple[Job, DeadLetterRecord | None, list[Execution]]:
    job = await read_job(store, wanted)
    return job, await store.dead_letter(job.id), await store.executions(job.id)


@dlq.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@dead_letter_filters
@click.option("--all", "every", is_flag=True, help="Redrive all open dead letters that the filters match.")
@many_options
def redrive(
    *, database: str, as_json: bool, ids: tuple[GivenId, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Enqueue a new job for each dead letter. The old job is kept and linked.

    A failed or halted job can be redriven by its id, too. Repeating a redrive enqueues no second job. Exit code 1 if
    any redrive was refused.
    """
    require_choice(ids, filters, every=every, flag="--all")
    if ids:
        results = change_each(database, ids, lambda acting, one: acting.redrive(one))
        return print_each(results, retried_line("redriven"), retried_fields, as_json=as_json)
    _confirm("redrive", database, yes=yes, **filters)
    report = change_matching(
        database, dead_letter_filter, filters, lambda acting, wanted: acting.redrive_many(wanted, limit=limit)
    )
    return print_report(
        report, f"{report.redriven:,} redriven, {report.already_redriven:,} redriven before", as_json=as_json
    )


@dlq.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@dead_letter_filters
@click.option("--all", "every", is_flag=True, help="Discard all open dead letters that the filters match.")
@many_options
def discard(
    *, database: str, as_json: bool, ids: tuple[GivenId, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Mark dead letters as handled without a redrive.

    Nothing is deleted. Exit code 1 if any discard was refused.
    """
    require_choice(ids, filters, every=every, flag="--all")
    if ids:
        results = change_each(database, ids, lambda acting, one: acting.discard(one))
        return print_each(results, lambda one, _: f"{one} discarded", record_view, as_json=as_json)
    _confirm("discard", database, yes=yes, **filters)
    report = change_matching(
        database, dead_letter_filter, filters, lambda acting, wanted: acting.discard_many(wanted, limit=limit)
    )
    return print_report(report, f"{report.discarded:,} discarded", as_json=as_json)


def _confirm(action: str, database: str, *, yes: bool, **filters: Any) -> None:
    async def matching(store: Store) -> DeadLetterPage:
        return await store.dead_letters(await dead_letter_filter(store, **filters), limit=COUNTED_MAX)

    if not yes:
        page = in_store(database, matching)
        confirm(action, len(page.letters), "dead letter", more=page.after is not None)
