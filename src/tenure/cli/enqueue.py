"""`tenure jobs enqueue`: enqueue a call from the shell."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tenure.cli.app_loader import load_app
from tenure.cli.database import run
from tenure.cli.filters import operator, tag
from tenure.cli.logging_setup import log_no_refusals
from tenure.cli.output import Exit, print_json, print_line
from tenure.cli.secrets import without_secrets
from tenure.client.job_function import EnqueueOptions
from tenure.views.jobs import job_view

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.handle import Handle


def due_time(value: str) -> datetime:
    """Parse a time like 2030-01-31T09:00, UTC by default."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time like 2030-01-31T09:00") from None
    return at if at.utcoffset() is not None else at.replace(tzinfo=UTC)


@click.command()
@click.argument("kind")
@click.argument("payload", metavar="[JSON]", default="{}")
@click.option("--app", "target", metavar="MODULE:APP", required=True, help="The app that declares the kind.")
@click.option("--database", metavar="URL", help="Use this database instead of the app's.")
@click.option("--queue", metavar="NAME", help="Another queue than the declared one.")
@click.option("--priority", type=int, metavar="N", help="Another priority than the declared one; higher first.")
@click.option("--max-attempts", type=int, metavar="N", help="Another number of attempts than the declared one.")
@click.option("--delay-seconds", type=float, default=0.0, metavar="S", help="Due after so many seconds.")
@click.option("--at", type=due_time, metavar="TIME", help="Due at this time (UTC).")
@click.option("--dedupe-key", metavar="KEY", help="If a live job of the kind has this key, return that job.")
@click.option("--request-id", metavar="ID", help="Repeated with the same id, the command enqueues nothing.")
@click.option("--tag", "tags", multiple=True, type=tag, metavar="KEY=VALUE", help="Attach a tag.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def enqueue(*, kind: str, payload: str, target: str, database: str | None, as_json: bool, **given: Any) -> int:
    """Enqueue a job of KIND. JSON is an object of its arguments by name; - reads it from standard input.

    The arguments are validated against the function that the app declares. Exit code 2 if they do not fit.
    """
    app = load_app(target, database=database)
    app.client = operator()
    log_no_refusals()
    text = sys.stdin.read() if payload == "-" else payload
    options = EnqueueOptions(**{**given, "tags": dict(given["tags"]) or None})
    handle = run(_enqueue(app, kind, text, options))
    return print_enqueued(handle, as_json=as_json)


def print_enqueued(handle: Handle[Any], *, as_json: bool) -> Exit:
    """The new job, or the one that exists already."""
    if as_json:
        print_json({"job": job_view(without_secrets(handle.job)), "created": handle.created})
    else:
        print_line(f"{handle.id} {'enqueued' if handle.created else f'was there already and is {handle.job.status}'}")
    return Exit.OK


async def _enqueue(app: App, kind: str, payload: str, options: EnqueueOptions) -> Handle[Any]:
    async with app:
        return await app.submit(kind, payload, options=options)
