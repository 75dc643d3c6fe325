"""`--vocabulary`: jobs and events in the words of another system. Filters and ids are not translated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from tenure.cli.job_output import JOB_HEADINGS, job_row
from tenure.cli.output import (
    counted,
    print_fields,
    print_json,
    print_json_line,
    print_line,
    print_table,
)
from tenure.cli.tables import format_value
from tenure.lifecycle.records import Event, Job
from tenure.vocabularies import VOCABULARIES_MAX, VOCABULARY_NAMES, TranslatedEvent, Vocabulary

if TYPE_CHECKING:
    from tenure.stores.contract import JobPage, ReadStore

vocabulary_option = click.option(
    "--vocabulary",
    type=click.Choice(VOCABULARY_NAMES),
    help="Translate into the words of another system.",
)
vocabularies_option = click.option(
    "--vocabulary",
    "vocabularies",
    multiple=True,
    type=click.Choice(VOCABULARY_NAMES),
    help=f"Translate into the words of another system. Can be given {VOCABULARIES_MAX} times.",
)


async def logs_of(store: ReadStore, jobs: Sequence[Job]) -> dict[UUID, list[Event]]:
    """Each job's events up to the revision of its record; without jobs that retention has removed since."""
    logs = await store.history([job.id for job in jobs]) if jobs else {}
    return {job.id: logs[job.id][: job.rev] for job in jobs if logs[job.id]}


def print_job_page(page: JobPage, logs: dict[UUID, list[Event]], chosen: Vocabulary, *, as_json: bool) -> None:
    """A page of jobs, without content of the user's code."""
    if as_json:
        jobs = [chosen.job(job, logs[job.id], content=False) for job in page.jobs if job.id in logs]
        print_json({"vocabulary": chosen.name, "jobs": jobs, "after": page.after})
    else:
        print_table(JOB_HEADINGS, [_row(job, logs[job.id], chosen) for job in page.jobs if job.id in logs])


def _row(job: Job, log: Sequence[Event], chosen: Vocabulary) -> tuple[object, ...]:
    job_id, _, *rest = job_row(job)
    return job_id, chosen.status(job, log), *rest


def print_translated_job(
    job: Job, log: Sequence[Event], chosen: Vocabulary, *, with_events: bool, as_json: bool
) -> None:
    """One job, and its events where wanted."""
    fields = chosen.job(job, log)
    events = chosen.translate_log(job.origin, log) if with_events else None
    if as_json:
        view: dict[str, Any] = {"vocabulary": chosen.name, "job": fields}
        if events is not None:
            view["events"] = [event.as_fields() for event in events]
        print_json(view)
        return
    print_fields([(name, "-" if value is None else _json_text(value)) for name, value in fields.items()])
    if events is not None:
        print_line(f"\n{counted(len(events), 'event')}")
        print_table(("event", "fields"), [(_marked_name(event), _json_text(event.fields)) for event in events])


def print_translated_events(event: Event, translated: Sequence[TranslatedEvent], *, as_json: bool) -> None:
    """A line per translated event. Only the last has the position, so that resuming after it skips none."""
    for one in translated:
        if as_json:
            position = event.position if one is translated[-1] else None
            print_json_line({"vocabulary": one.vocabulary, "position": position, **one.as_fields()})
        else:
            fields = format_value(_json_text(one.fields))
            print_line("  ".join((format_value(event.at), one.vocabulary, _marked_name(one), fields)))


def _marked_name(event: TranslatedEvent) -> str:
    return f"{event.name} (extension)" if event.extension else event.name


def _json_text(value: Any) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value
