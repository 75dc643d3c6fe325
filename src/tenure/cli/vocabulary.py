"""Jobs and events in the words of another system: `--vocabulary`. Filters and ids stay tenure's own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from tenure.cli.job_output import JOB_HEADINGS, job_row
from tenure.cli.output import aligned, counted, say, say_json, say_json_line, say_table, shown
from tenure.lifecycle.records import Event, Job, Origin
from tenure.lifecycle.statuses import TERMINAL
from tenure.vocabularies import VOCABULARIES_MAX, VOCABULARY_NAMES, JobHistory, TranslatedEvent, Vocabulary, translate

if TYPE_CHECKING:
    from tenure.stores.contract import JobPage, ReadStore

JOBS_KEPT = 1000

one_vocabulary = click.option(
    "--vocabulary",
    type=click.Choice(VOCABULARY_NAMES),
    help="Show it in the words of another system.",
)
some_vocabularies = click.option(
    "--vocabulary",
    "vocabularies",
    multiple=True,
    type=click.Choice(VOCABULARY_NAMES),
    help=f"Tell events in the words of another system; given twice, in both. At most {VOCABULARIES_MAX}.",
)


async def logs_of(store: ReadStore, jobs: Sequence[Job]) -> dict[UUID, list[Event]]:
    """Each job's log up to the record's own revision, however it went on meanwhile. One that retention has removed
    since the record was read is not there."""
    logs = await store.history([job.id for job in jobs]) if jobs else {}
    return {job.id: logs[job.id][: job.rev] for job in jobs if logs[job.id]}


def say_page(page: JobPage, logs: dict[UUID, list[Event]], chosen: Vocabulary, *, as_json: bool) -> None:
    """A list of jobs, without what the user's code said."""
    if as_json:
        jobs = [chosen.job(job, logs[job.id], content=False) for job in page.jobs if job.id in logs]
        say_json({"vocabulary": chosen.name, "jobs": jobs, "after": page.after})
    else:
        say_table(JOB_HEADINGS, [_row(job, chosen) for job in page.jobs])


def _row(job: Job, chosen: Vocabulary) -> tuple[object, ...]:
    job_id, _, *rest = job_row(job)
    return job_id, chosen.status(job.status), *rest


def say_one(job: Job, log: Sequence[Event], chosen: Vocabulary, *, with_events: bool, as_json: bool) -> None:
    """One job, and where asked for all that happened to it."""
    fields = chosen.job(job, log)
    told = chosen.translate_log(job.origin, log) if with_events else None
    if as_json:
        facts = {"vocabulary": chosen.name, "job": fields}
        say_json(facts if told is None else {**facts, "events": [{"name": t.name, "event": t.fields} for t in told]})
        return
    for line in aligned([(f"{name}:", _value(fact)) for name, fact in fields.items()]):
        say(line)
    if told is not None:
        say(f"\n{counted(len(told), 'event')}")
        say_table(("event", "says"), [(one.name, _value(one.fields)) for one in told])


def say_told(event: Event, told: Sequence[TranslatedEvent], *, as_json: bool) -> None:
    """A line for each. Only the last of an event has its position: whoever goes on from there has seen all of it."""
    for one in told:
        if as_json:
            position = event.position if one is told[-1] else None
            facts = {"vocabulary": one.vocabulary, "position": position, "name": one.name, "event": one.fields}
            say_json_line(facts)
        else:
            say("  ".join((shown(event.at), one.vocabulary, one.name, shown(_value(one.fields)))))


def _value(fact: Any) -> object:
    return msgspec.json.encode(fact).decode() if isinstance(fact, dict | list) else fact


class Interpreter:
    """Tells events as they come, in other words. Some of those need to know what happened before, so it keeps the logs
    of the jobs that it met last, and reads those of others anew."""

    def __init__(self, store: ReadStore, chosen: Sequence[Vocabulary]) -> None:
        self._store, self._chosen = store, chosen
        self._met: OrderedDict[UUID, tuple[Origin | None, list[Event]]] = OrderedDict()

    async def translate(self, event: Event) -> list[TranslatedEvent]:
        return translate(self._chosen, await self._story(event))

    async def _story(self, event: Event) -> JobHistory:
        origin, events = self._met.pop(event.job_id, (None, []))
        if events and events[-1].rev + 1 == event.rev:
            events.append(event)
        else:
            origin, events = await self._read(event)
        if event.to_status not in TERMINAL:
            self._met[event.job_id] = origin, events
        if len(self._met) > JOBS_KEPT:
            self._met.popitem(last=False)
        return JobHistory(origin, events)

    async def _read(self, event: Event) -> tuple[Origin | None, list[Event]]:
        """What the job is, and its log up to here; nothing but the event where retention has removed the rest."""
        job = (await self._store.read([event.job_id])).get(event.job_id)
        log = [] if event.rev == 1 else (await self._store.history([event.job_id]))[event.job_id]
        return None if job is None else job.origin, [*(one for one in log if one.rev < event.rev), event]
