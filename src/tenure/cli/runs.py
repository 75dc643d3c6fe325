"""`tenure runs`: show the steps of a workflow's run, and send it a signal."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import click

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import PAGE_MAX, GivenId, job_id, operator, resolve_id
from tenure.cli.output import Exit, print_json, print_line
from tenure.cli.run_output import RunDetails, print_run, waits_for
from tenure.client.admin import JobAdmin
from tenure.lifecycle.json_text import parse
from tenure.lifecycle.provenance import unread_signals
from tenure.lifecycle.records import Job
from tenure.stores.contract import ReadStore
from tenure.stores.contract.steps import all_steps
from tenure.views.jobs import job_view, record_view


@click.group()
def runs() -> None:
    """Show the steps of workflow runs, and send signals."""


@runs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
def show(*, database: str, as_json: bool, wanted: GivenId) -> int:
    """Show one run: its record, steps, children, unread signals, and what it waits for."""
    details = run(_details(database, wanted))
    if as_json:
        print_json(_view(details))
    else:
        print_run(details)
    return Exit.OK


async def _details(database: str, wanted: GivenId) -> RunDetails:
    async with opened(database) as store:
        job = await JobAdmin(store, actor=operator()).job(await resolve_id(store, wanted))
        steps, events = await all_steps(store, job.id), (await store.history([job.id]))[job.id]
        return RunDetails(
            job=job,
            steps=steps,
            children=await _children(store, job.id),
            unread_signals=list(unread_signals(events, steps)),
            waits_for=waits_for(job, events),
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
        "steps": [record_view(step) for step in details.steps],
        "children": [job_view(child, content=False) for child in details.children],
        "unread_signals": details.unread_signals,
    }


@runs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null")
@click.option("--request-id", metavar="TEXT", help="Repeated with the same id, the command sends one signal.")
def signal(*, database: str, as_json: bool, wanted: GivenId, name: str, value: str, request_id: str | None) -> int:
    """Send a run a signal, with a value in JSON (null by default)."""
    job = run(_signal(database, wanted, name, parse(value, where="value"), request_id=request_id))
    if as_json:
        print_json({"id": job.id, "status": job.status, "rev": job.rev})
    else:
        print_line(f"{job.id} was sent {name}")
    return Exit.OK


async def _signal(database: str, wanted: GivenId, name: str, value: object, *, request_id: str | None) -> Job:
    async with opened(database) as store:
        whole = await resolve_id(store, wanted)
        return await JobAdmin(store, actor=operator()).signal(whole, name, value, request_id=request_id)
