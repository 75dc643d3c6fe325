"""What commands that change jobs have in common: ids or filters, confirmation, and the report of the result."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click
import msgspec

from tenure.cli.database import in_store
from tenure.cli.filters import GivenId, job_admin, job_filter, resolve_id
from tenure.cli.output import Exit, counted, print_error, print_json, print_line
from tenure.client.admin import JobAdmin
from tenure.errors import Refused
from tenure.lifecycle.statuses import Status

if TYPE_CHECKING:
    from tenure.client.admin import CancelReport, DiscardReport, RedriveReport
    from tenure.stores.contract import JobPage, Store

Selection = TypeVar("Selection")
Report = TypeVar("Report")

COUNTED_MAX = 1000
MORE_LEFT = "the limit was reached and more match; run the command again, or raise --limit"


def require_choice(ids: Sequence[GivenId], filters: dict[str, Any], *, every: bool, flag: str) -> None:
    """Require ids, or filters with the flag that confirms that many jobs are meant."""
    given = any(filters.values())
    if ids and (every or given):
        raise click.UsageError(f"give either ids, or {flag} with filters")
    if not ids and not every:
        raise click.UsageError(f"add {flag} to select all that match" if given else f"give ids, or {flag} with filters")


def confirm(action: str, count: int, noun: str, *, more: bool) -> None:
    """Ask on a terminal; elsewhere --yes is required. Of none there is nothing to ask."""
    if not count and not more:
        return
    what = f"{action} {'more than ' if more else ''}{counted(count, noun)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"this would {what}; confirm it with --yes")
    click.confirm(f"This will {what}. Continue?", abort=True, err=True)


def confirm_jobs(action: str, database: str, statuses: Collection[Status], filters: Mapping[str, Any]) -> None:
    """Ask with the number of jobs that match. Without a filter of statuses, those in any of these statuses count."""

    async def matching(store: Store) -> JobPage:
        wanted = await job_filter(store, **filters)
        if not wanted.statuses:
            wanted = msgspec.structs.replace(wanted, statuses=tuple(sorted(statuses)))
        return await store.find(wanted, limit=COUNTED_MAX)

    page = in_store(database, matching)
    confirm(action, len(page.jobs), "job", more=page.after is not None)


def change_each(
    database: str, ids: Sequence[GivenId], change: Callable[[JobAdmin, UUID], Awaitable[Any]]
) -> dict[UUID, Any]:
    """Change each job; the result of each, or its Refused. Nothing is changed if an id is ambiguous."""

    async def change_in(store: Store) -> dict[UUID, Any]:
        results: dict[UUID, Any] = {}
        whole = [await resolve_id(store, given) for given in ids]
        for job_id in dict.fromkeys(whole):
            try:
                results[job_id] = await change(job_admin(store), job_id)
            except Refused as refusal:
                results[job_id] = refusal
        return results

    return in_store(database, change_in)


def change_matching(
    database: str,
    select: Callable[..., Awaitable[Selection]],
    filters: Mapping[str, Any],
    change: Callable[[JobAdmin, Selection], Awaitable[Report]],
) -> Report:
    """Change what the filters select; the report."""

    async def change_in(store: Store) -> Report:
        return await change(job_admin(store), await select(store, **filters))

    return in_store(database, change_in)


def print_each(
    results: dict[UUID, Any],
    line: Callable[[UUID, Any], str],
    fields: Callable[[Any], dict[str, Any]],
    *,
    as_json: bool,
) -> Exit:
    """A line or an object per id, or why its change was refused."""
    if as_json:
        rows = [
            {"id": job_id, "refused": str(result)} if isinstance(result, Refused) else {"id": job_id, **fields(result)}
            for job_id, result in results.items()
        ]
        print_json({"jobs": rows})
    else:
        for job_id, result in results.items():
            if isinstance(result, Refused):
                print_error(str(result))
            else:
                print_line(line(job_id, result))
    return Exit.PROBLEMS if any(isinstance(result, Refused) for result in results.values()) else Exit.OK


def print_report(report: CancelReport | RedriveReport | DiscardReport, changed: str, *, as_json: bool) -> Exit:
    """The result of a change by filters."""
    if as_json:
        print_json(report)
    else:
        for skipped in report.skipped:
            print_error(skipped.reason)
        print_line(f"{changed}, {len(report.skipped):,} unchanged")
        if report.more:
            print_line(MORE_LEFT)
    return Exit.PROBLEMS if report.skipped else Exit.OK
