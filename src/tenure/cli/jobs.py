"""`tenure jobs`: list jobs, look at one, cancel some, follow what happens to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click
import msgspec

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import (
    at_most,
    job_filter,
    job_filters,
    job_id,
    many_options,
    operator,
    page_options,
    require_choice,
    require_consent,
)
from tenure.cli.job_output import (
    JOB_HEADINGS,
    facts_of,
    job_facts,
    job_row,
    provenance_facts,
    say_attempts,
    say_events,
    say_job,
    say_letter,
    say_provenance,
)
from tenure.cli.output import Exit, complain, counted, say, say_json, say_table
from tenure.cli.tail import tail
from tenure.cli.vocabulary import logs_of, one_vocabulary, say_one, say_page
from tenure.client.admin import CancelReport, Operator
from tenure.errors import JobNotFound, Refused, TenureError
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import DeadLetter, Event, Execution, Job
from tenure.lifecycle.statuses import CANCELLED, LIVE
from tenure.vocabularies import vocabulary as vocabulary_named

if TYPE_CHECKING:
    from tenure.stores.contract import ArtifactRecord, JobPage

COUNTED_MAX = 1000


@click.group()
def jobs() -> None:
    """Look at jobs, cancel them, and follow what happens to them."""


jobs.add_command(tail)


@jobs.command()
@common_options
@job_filters
@page_options
@one_vocabulary
def ls(*, database: str, as_json: bool, limit: int, after: UUID | None, vocabulary: str | None, **filters: Any) -> int:
    """List jobs, oldest first."""
    page, logs = run(_page(database, with_logs=vocabulary is not None, limit=limit, after=after, **filters))
    if vocabulary is not None and (as_json or page.jobs):
        say_page(page, logs, vocabulary_named(vocabulary), as_json=as_json)
    elif as_json:
        say_json({"jobs": [job_facts(job, content=False) for job in page.jobs], "after": page.after})
    elif page.jobs:
        say_table(JOB_HEADINGS, [job_row(job) for job in page.jobs])
    else:
        say("no job matches")
    if page.after is not None and not as_json:
        say(f"there are more: --after {page.after}")
    return Exit.OK


async def _page(
    database: str, *, with_logs: bool, limit: int, after: UUID | None, **filters: Any
) -> tuple[JobPage, dict[UUID, list[Event]]]:
    async with opened(database) as store:
        page = await store.find(await job_filter(store, **filters), after=after, limit=limit)
        return page, await logs_of(store, page.jobs) if with_logs else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is known of one job."""

    job: Job
    executions: list[Execution]
    letter: DeadLetter | None
    artifacts: list[ArtifactRecord]
    events: list[Event] | None = None
    provenance: Provenance | None = None


@jobs.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
@click.option("--events", "with_events", is_flag=True, help="Also everything that happened to it.")
@click.option("--provenance", "with_provenance", is_flag=True, help="How it came to its end, once it has ended.")
@one_vocabulary
def show(
    *, database: str, as_json: bool, wanted: UUID, with_events: bool, with_provenance: bool, vocabulary: str | None
) -> int:
    """Show one job: its record, attempts, artifacts and dead letter."""
    if vocabulary is not None:
        if with_provenance:
            raise click.UsageError("no vocabulary has a word for --provenance; ask for it without --vocabulary")
        job, log = run(_logged(database, wanted))
        say_one(job, log, vocabulary_named(vocabulary), with_events=with_events, as_json=as_json)
        return Exit.OK
    seen = run(_seen(database, wanted, with_events=with_events, with_provenance=with_provenance))
    if as_json:
        say_json(_seen_facts(seen))
    else:
        _say_seen(seen)
    return Exit.OK


async def _logged(database: str, wanted: UUID) -> tuple[Job, list[Event]]:
    async with opened(database) as store:
        job = await Operator(store, actor=operator()).job(wanted)
        if not (log := (await logs_of(store, [job])).get(wanted)):
            raise JobNotFound(wanted)
        return job, log


async def _seen(database: str, wanted: UUID, *, with_events: bool, with_provenance: bool) -> Seen:
    async with opened(database) as store:
        acting = Operator(store, actor=operator())
        return Seen(
            job=await acting.job(wanted),
            executions=await store.executions(wanted),
            letter=await store.dead_letter(wanted),
            artifacts=await store.artifacts(wanted),
            events=(await store.history([wanted]))[wanted] if with_events else None,
            provenance=await acting.provenance(wanted) if with_provenance else None,
        )


def _seen_facts(seen: Seen) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "job": job_facts(seen.job),
        "attempts": seen.executions,
        "dead_letter": None if seen.letter is None else facts_of(seen.letter),
        "artifacts": seen.artifacts,
    }
    if seen.events is not None:
        facts["events"] = [facts_of(event) for event in seen.events]
    if seen.provenance is not None:
        facts["provenance"] = provenance_facts(seen.provenance)
    return facts


def _say_seen(seen: Seen) -> None:
    if seen.provenance is not None:
        say_provenance(seen.provenance)
    else:
        say_job(seen.job)
        say_attempts(seen.executions)
    if seen.letter is not None:
        say_letter(seen.letter)
    if seen.artifacts:
        say(f"\n{counted(len(seen.artifacts), 'artifact')}")
        rows = [(one.name, one.media_type, one.bytes, one.attempt, one.at) for one in seen.artifacts]
        say_table(("name", "type", "bytes", "attempt", "at"), rows)
    if seen.events is not None:
        say_events(seen.events)


@jobs.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@job_filters
@click.option("--all-matching", "every", is_flag=True, help="All live jobs that the filters match.")
@click.option("--hard", is_flag=True, help="End it now, whoever holds it; softly, its owner is told and may tidy up.")
@click.option("--reason", default="requested", show_default=True, help="Why, for the record.")
@many_options
def cancel(
    *,
    database: str,
    as_json: bool,
    ids: tuple[UUID, ...],
    every: bool,
    hard: bool,
    reason: str,
    limit: int,
    yes: bool,
    **filters: Any,
) -> int:
    """Cancel jobs: some by their ids, or all that match the filters.

    A job that nobody holds ends at once; whoever holds the others is told. Exit code 1 when any was refused.
    """
    require_choice(ids, filters, every=every, flag="--all-matching")
    if ids:
        return _say_cancelled(run(_cancel(database, ids, hard=hard, reason=reason)), as_json=as_json)
    if not yes:
        number, more = run(_count(database, **filters))
        require_consent(f"cancel {at_most(number, 'job', more=more)}", yes=yes)
    return _say_report(run(_cancel_many(database, hard=hard, reason=reason, limit=limit, **filters)), as_json=as_json)


async def _cancel(database: str, ids: Sequence[UUID], *, hard: bool, reason: str) -> dict[UUID, Job | Refused]:
    answers: dict[UUID, Job | Refused] = {}
    async with opened(database) as store:
        acting = Operator(store, actor=operator())
        for one in dict.fromkeys(ids):
            try:
                answers[one] = await acting.cancel(one, hard=hard, reason=reason)
            except Refused as refusal:
                answers[one] = refusal
    return answers


async def _cancel_many(database: str, *, hard: bool, reason: str, limit: int, **filters: Any) -> CancelReport:
    async with opened(database) as store:
        wanted = await job_filter(store, **filters)
        return await Operator(store, actor=operator()).cancel_many(wanted, hard=hard, reason=reason, limit=limit)


async def _count(database: str, **filters: Any) -> tuple[int, bool]:
    async with opened(database) as store:
        wanted = await job_filter(store, **filters)
        if not wanted.statuses:
            wanted = msgspec.structs.replace(wanted, statuses=tuple(sorted(LIVE)))
        page = await store.find(wanted, limit=COUNTED_MAX)
        return len(page.jobs), page.after is not None


def _say_cancelled(answers: dict[UUID, Job | Refused], *, as_json: bool) -> int:
    refused = [answer for answer in answers.values() if isinstance(answer, TenureError)]
    if as_json:
        say_json({"jobs": [_cancelled_facts(one, answer) for one, answer in answers.items()]})
    else:
        for one, answer in answers.items():
            if isinstance(answer, TenureError):
                complain(f"tenure: {answer}")
            else:
                how = "cancelled" if answer.status is CANCELLED else f"is {answer.status}, and was asked to end"
                say(f"{one} {how}")
    return Exit.PROBLEMS if refused else Exit.OK


def _cancelled_facts(one: UUID, answer: Job | Refused) -> dict[str, Any]:
    if isinstance(answer, Refused):
        return {"id": one, "refused": str(answer)}
    return {"id": one, "status": answer.status, "cancel_requested": answer.cancel_requested}


def _say_report(report: CancelReport, *, as_json: bool) -> int:
    if as_json:
        say_json(report)
        return Exit.PROBLEMS if report.left else Exit.OK
    for left in report.left:
        complain(f"tenure: {left.why}")
    say(f"{report.cancelled:,} cancelled, {report.asked:,} asked to end, {len(report.left):,} left as they were")
    if report.more:
        say("there are more; the limit was reached: call it again, or raise --limit")
    return Exit.PROBLEMS if report.left else Exit.OK
