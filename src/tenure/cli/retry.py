"""`tenure jobs retry`: run failed, dead-lettered and halted jobs again, as new jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.bulk import change_each, confirm_jobs, print_each, print_report, require_choice
from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import GivenId, job_filter, job_filters, job_id, many_options, operator
from tenure.client.admin import JobAdmin, RedriveReport
from tenure.client.redrive import REDRIVABLE

if TYPE_CHECKING:
    from tenure.stores.contract import EnqueueResult


@click.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@job_filters
@click.option("--all-matching", "every", is_flag=True, help="Retry all ended jobs without a result that match.")
@many_options
def retry(
    *, database: str, as_json: bool, ids: tuple[GivenId, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Run failed, dead-lettered and halted jobs again.

    Each becomes a new job that is linked to the old one, which stays as it is. Repeating a retry enqueues no second
    job. --all-matching leaves out dead letters that were discarded. Exit code 1 if any retry was refused.
    """
    require_choice(ids, filters, every=every, flag="--all-matching")
    if ids:
        results = run(change_each(database, ids, lambda acting, one: acting.redrive(one)))
        return print_each(results, _retried_line, retried_fields, as_json=as_json)
    if not yes:
        confirm_jobs("retry", database, REDRIVABLE, filters)
    report = run(_retry_many(database, limit=limit, **filters))
    changed = f"{report.redriven:,} retried, {report.already_redriven:,} retried before"
    return print_report(report, changed, as_json=as_json)


async def _retry_many(database: str, *, limit: int, **filters: Any) -> RedriveReport:
    async with opened(database) as store:
        wanted = await job_filter(store, **filters)
        return await JobAdmin(store, actor=operator()).retry_many(wanted, limit=limit)


def _retried_line(job_id: UUID, result: EnqueueResult) -> str:
    if result.created:
        return f"{job_id} retried as {result.job.id}"
    return f"{job_id} was retried before as {result.job.id}, which is {result.job.status}"


def retried_fields(result: EnqueueResult) -> dict[str, Any]:
    """The new job of a retry or redrive."""
    return {"redriven_as": result.job.id, "created": result.created, "status": result.job.status}
