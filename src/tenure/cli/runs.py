"""`tenure runs`: list and show runs of workflows, send them signals, unpin and fork them, and start plans."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click
import msgspec

from tenure.cli.database import common_options, in_store
from tenure.cli.filters import (
    PAGE_MAX,
    GivenId,
    job_admin,
    job_filter,
    job_filters,
    job_id,
    page_options,
    read_job,
    resolve_id,
)
from tenure.cli.groups import CommandGroup
from tenure.cli.output import Exit, counted, print_json, print_line, print_table
from tenure.cli.run_output import (
    PATCH_HEADINGS,
    RUN_HEADINGS,
    VERSION_HEADINGS,
    RunDetails,
    budget_view,
    patch_row,
    print_run,
    run_row,
    waits_for,
)
from tenure.cli.run_starts import fork, start_plan
from tenure.cli.secrets import secret_options
from tenure.client.forks import continued_by
from tenure.lifecycle.json_text import load, parse
from tenure.lifecycle.provenance import unread_signals
from tenure.lifecycle.records import Job
from tenure.lifecycle.statuses import LIVE
from tenure.lifecycle.steps import StepRecord
from tenure.stores.contract import JobFilter, ReadStore, Store
from tenure.stores.contract.steps import all_steps
from tenure.views.jobs import job_view, record_view
from tenure.views.runs import RunVersions, distinct_facts, run_versions


@click.group(cls=CommandGroup)
def runs() -> None:
    """List and show runs of workflows, send signals, and unpin runs."""


@runs.command()
@common_options
@job_filters
@page_options
def ls(*, database: str, as_json: bool, limit: int, after: UUID | None, **filters: Any) -> int:
    """List runs, newest first: jobs that have recorded steps."""
    found, cursor = in_store(database, lambda store: _runs(store, limit=limit, after=after, **filters))
    if as_json:
        print_json({"runs": [job_view(job, content=False) for job in found], "after": cursor})
    elif found:
        print_table(RUN_HEADINGS, [run_row(job) for job in found])
    else:
        print_line("no runs match")
    if cursor is not None and not as_json:
        print_line(f"more runs: --after {cursor}")
    return Exit.OK


async def _runs(
    store: Store, *, limit: int, after: UUID | None, oldest_first: bool, **filters: Any
) -> tuple[list[Job], UUID | None]:
    """The next runs that match, and where to continue."""
    wanted = await job_filter(store, **filters)
    found: list[Job] = []
    while True:
        page = await store.find(wanted, after=after, limit=PAGE_MAX, newest_first=not oldest_first)
        for job in page.jobs:
            if len(found) == limit:
                return found, found[-1].id
            if job.attempt and await store.steps(job.id, limit=1):
                found.append(job)
        if page.after is None:
            return found, None
        after = page.after


@runs.command()
@common_options
def versions(*, database: str, as_json: bool) -> int:
    """Count live runs by the versions of the code that recorded their steps, and by patch.

    A patch can be removed from the code once no live run executes the old code and none has yet to decide.
    """
    found = in_store(database, _versions)
    if as_json:
        patches = [{**msgspec.structs.asdict(one), "removable": one.removable} for one in found.patches]
        print_json({"versions": found.versions, "patches": patches})
        return Exit.OK
    print_line(counted(len(found.versions), "version") + " of live runs")
    if found.versions:
        print_table(VERSION_HEADINGS, [(one.kind, one.version, one.runs, one.pinned) for one in found.versions])
    if found.patches:
        print_line("\npatches")
        print_table(PATCH_HEADINGS, [patch_row(one) for one in found.patches])
    return Exit.OK


async def _versions(store: Store) -> RunVersions:
    live: list[tuple[Job, list[StepRecord]]] = []
    after: UUID | None = None
    while True:
        page = await store.find(JobFilter(statuses=tuple(LIVE)), after=after, limit=PAGE_MAX)
        # Of each run only what is counted: results can be large.
        live += [(job, distinct_facts(await all_steps(store, job.id))) for job in page.jobs if job.attempt]
        if page.after is None:
            return run_versions(live)
        after = page.after


@runs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@secret_options
def show(*, database: str, as_json: bool, wanted: GivenId, names: tuple[str, ...], reveal: bool) -> int:
    """Show one run: its record, budget, steps, children, unread signals, and what it waits for.

    Values of fields like password, token and authorization, and of those that the declaration calls secret, are hidden,
    in arguments, results, errors and the state.
    """
    details = in_store(database, lambda store: _details(store, wanted))
    if not reveal:
        details = details.redacted(names)
    if as_json:
        print_json(_view(details))
    else:
        print_run(details)
    return Exit.OK


async def _details(store: Store, wanted: GivenId) -> RunDetails:
    job = await read_job(store, wanted)
    steps, events = await all_steps(store, job.id), (await store.history([job.id]))[job.id]
    return RunDetails(
        job=job,
        steps=steps,
        children=await _children(store, job.id),
        unread_signals=list(unread_signals(events, steps)),
        waits_for=waits_for(job, events),
        state=await store.run_state(job.id),
        budget=await store.budget(job.id),
        continued_by=[one async for one in continued_by(store, job)],
    )


async def _children(store: ReadStore, parent_id: UUID) -> list[Job]:
    page = await store.children(parent_id, limit=PAGE_MAX)
    children = page.jobs
    while page.after is not None:
        page = await store.children(parent_id, after=page.after, limit=PAGE_MAX)
        children += page.jobs
    return children


def _view(details: RunDetails) -> dict[str, Any]:
    return {
        "job": job_view(details.job),
        "waits_for": details.waits_for,
        "state": None if details.state is None else load(details.state),
        "budget": [budget_view(line) for line in details.budget],
        "steps": [record_view(step) for step in details.steps],
        "children": [job_view(child, content=False) for child in details.children],
        "unread_signals": details.unread_signals,
        "continued_by": [job_view(one, content=False) for one in details.continued_by],
    }


@runs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--request-id", metavar="TEXT", help="Repeated with the same id, the command sends one signal.")
def signal(*, database: str, as_json: bool, wanted: GivenId, name: str, value: str, request_id: str | None) -> int:
    """Send a run a signal, with a value in JSON (null by default)."""
    content = parse(value, where="value")

    async def send(store: Store) -> Job:
        return await job_admin(store).signal(await resolve_id(store, wanted), name, content, request_id=request_id)

    return _print_changed(in_store(database, send), f"was sent {name}", as_json=as_json)


@runs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
def unpin(*, database: str, as_json: bool, wanted: GivenId) -> int:
    """Let workers with any version of the code continue a parked run."""

    async def release(store: Store) -> Job:
        return await job_admin(store).unpin(await resolve_id(store, wanted))

    return _print_changed(in_store(database, release), "is unpinned", as_json=as_json)


def _print_changed(job: Job, change: str, *, as_json: bool) -> int:
    if as_json:
        print_json({"id": job.id, "status": job.status, "rev": job.rev})
    else:
        print_line(f"{job.id} {change}")
    return Exit.OK


for command in (fork, start_plan):
    runs.add_command(command)
