"""`tenure dlq`: the jobs that were set aside for a person. Look at them, run them again, or let them rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from tenure.cli.database import common_options, opened, run
from tenure.cli.filters import (
    at_most,
    job_id,
    letter_filter,
    letter_filters,
    many_options,
    operator,
    page_options,
    require_choice,
    require_consent,
)
from tenure.cli.job_output import brief, facts_of, job_facts, say_attempts, say_job, say_letter
from tenure.cli.output import Exit, complain, say, say_json, say_table
from tenure.client.admin import DiscardReport, Operator, RedriveReport
from tenure.errors import Refused, TenureError
from tenure.lifecycle.records import DeadLetter, Execution, Job

if TYPE_CHECKING:
    from tenure.stores.contract import DeadLetterPage, EnqueueResult

COUNTED_MAX = 1000
HEADINGS = ("id", "reason", "stage", "kind", "queue", "attempts", "at", "error")


@click.group()
def dlq() -> None:
    """Look after dead letters: jobs that were set aside for a person to look at."""


@dlq.command()
@common_options
@letter_filters
@click.option("--handled", is_flag=True, help="Also those that were redriven or discarded.")
@page_options
def ls(*, database: str, as_json: bool, limit: int, after: UUID | None, **filters: Any) -> int:
    """List the dead letters that nobody has dealt with, oldest job first."""
    page, jobs = run(_page(database, limit=limit, after=after, **filters))
    if as_json:
        letters = [{**facts_of(letter), **_whose(jobs.get(letter.job_id))} for letter in page.letters]
        say_json({"dead_letters": letters, "after": page.after})
        return Exit.OK
    if page.letters:
        say_table(HEADINGS, [_row(letter, jobs.get(letter.job_id)) for letter in page.letters])
    else:
        say("no dead letter matches")
    if page.after is not None:
        say(f"there are more: --after {page.after}")
    return Exit.OK


async def _page(
    database: str, *, limit: int, after: UUID | None, **filters: Any
) -> tuple[DeadLetterPage, dict[UUID, Job]]:
    async with opened(database) as store:
        page = await store.dead_letters(await letter_filter(store, **filters), after=after, limit=limit)
        return page, await store.read([letter.job_id for letter in page.letters])


def _whose(job: Job | None) -> dict[str, Any]:
    return {} if job is None else {"kind": job.kind, "queue": job.queue}


def _row(letter: DeadLetter, job: Job | None) -> tuple[object, ...]:
    kind, queue = (None, None) if job is None else (job.kind, job.queue)
    error = brief(letter.last_error)
    if letter.handled_as is not None:
        error = f"({letter.handled_as}) {error}"
    return letter.job_id, letter.reason_code, letter.stage, kind, queue, letter.attempts, letter.at, error


@dlq.command()
@common_options
@click.argument("wanted", metavar="ID", type=job_id)
def show(*, database: str, as_json: bool, wanted: UUID) -> int:
    """Show one dead letter, with the job that it is about."""
    job, letter, executions = run(_seen(database, wanted))
    if letter is None:
        complain(f"tenure: job {wanted} is {job.status}, and no dead letter; see it with: tenure jobs show {wanted}")
        return Exit.PROBLEMS
    if as_json:
        say_json({"dead_letter": facts_of(letter), "job": job_facts(job), "attempts": executions})
    else:
        say_job(job)
        say_attempts(executions)
        say_letter(letter)
    return Exit.OK


async def _seen(database: str, wanted: UUID) -> tuple[Job, DeadLetter | None, list[Execution]]:
    async with opened(database) as store:
        job = await Operator(store, actor=operator()).job(wanted)
        return job, await store.dead_letter(wanted), await store.executions(wanted)


@dlq.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@letter_filters
@click.option("--all", "every", is_flag=True, help="All open dead letters that the filters match.")
@many_options
def redrive(
    *, database: str, as_json: bool, ids: tuple[UUID, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Run dead letters again: a new job for each, linked to the old one, which stays as it is.

    A failed or halted job can be redriven by its id too. Asked twice, the same new job. Exit code 1 when any was
    refused.
    """
    _require(database, ids, filters, every=every, yes=yes, what="redrive")
    if ids:
        answers = run(_each(database, ids, lambda acting, one: acting.redrive(one)))
        return _say_each(answers, _redriven_line, _redriven_facts, as_json=as_json)
    report = run(_redrive_many(database, limit=limit, **filters))
    return _say_report(report, f"{report.redriven:,} redriven, {report.before:,} before", as_json=as_json)


@dlq.command()
@common_options
@click.argument("ids", metavar="[ID]...", nargs=-1, type=job_id)
@letter_filters
@click.option("--all", "every", is_flag=True, help="All open dead letters that the filters match.")
@many_options
def discard(
    *, database: str, as_json: bool, ids: tuple[UUID, ...], every: bool, limit: int, yes: bool, **filters: Any
) -> int:
    """Note that dead letters need no more attention. Nothing is removed. Exit code 1 when any was refused."""
    _require(database, ids, filters, every=every, yes=yes, what="discard")
    if ids:
        answers = run(_each(database, ids, lambda acting, one: acting.discard(one)))
        return _say_each(answers, _discarded_line, facts_of, as_json=as_json)
    report = run(_discard_many(database, limit=limit, **filters))
    return _say_report(report, f"{report.discarded:,} discarded", as_json=as_json)


def _require(database: str, ids: Sequence[UUID], filters: dict[str, Any], *, every: bool, yes: bool, what: str) -> None:
    require_choice(ids, filters, every=every, flag="--all")
    if every and not yes:
        number, more = run(_count(database, **filters))
        require_consent(f"{what} {at_most(number, 'dead letter', more=more)}", yes=yes)


async def _count(database: str, **filters: Any) -> tuple[int, bool]:
    async with opened(database) as store:
        page = await store.dead_letters(await letter_filter(store, **filters), limit=COUNTED_MAX)
        return len(page.letters), page.after is not None


async def _each(
    database: str, ids: Sequence[UUID], act: Callable[[Operator, UUID], Awaitable[Any]]
) -> dict[UUID, Any | Refused]:
    answers: dict[UUID, Any | Refused] = {}
    async with opened(database) as store:
        acting = Operator(store, actor=operator())
        for one in dict.fromkeys(ids):
            try:
                answers[one] = await act(acting, one)
            except Refused as refusal:
                answers[one] = refusal
    return answers


async def _redrive_many(database: str, *, limit: int, **filters: Any) -> RedriveReport:
    async with opened(database) as store:
        wanted = await letter_filter(store, **filters)
        return await Operator(store, actor=operator()).redrive_many(wanted, limit=limit)


async def _discard_many(database: str, *, limit: int, **filters: Any) -> DiscardReport:
    async with opened(database) as store:
        wanted = await letter_filter(store, **filters)
        return await Operator(store, actor=operator()).discard_many(wanted, limit=limit)


def _redriven_line(one: UUID, added: EnqueueResult) -> str:
    if added.created:
        return f"{one} redriven as {added.job.id}"
    return f"{one} was redriven before as {added.job.id}, which is {added.job.status}"


def _redriven_facts(added: EnqueueResult) -> dict[str, Any]:
    return {"redriven_as": added.job.id, "created": added.created, "status": added.job.status}


def _discarded_line(one: UUID, letter: DeadLetter) -> str:
    return f"{one} discarded"


def _say_each(
    answers: dict[UUID, Any | Refused],
    line: Callable[[UUID, Any], str],
    facts: Callable[[Any], dict[str, Any]],
    *,
    as_json: bool,
) -> int:
    """What became of each id: its line, or why it was refused."""
    refused = {one for one, answer in answers.items() if isinstance(answer, TenureError)}
    if as_json:
        found = [
            {"id": one, "refused": str(answer)} if one in refused else {"id": one, **facts(answer)}
            for one, answer in answers.items()
        ]
        say_json({"jobs": found})
    else:
        for one, answer in answers.items():
            if one in refused:
                complain(f"tenure: {answer}")
            else:
                say(line(one, answer))
    return Exit.PROBLEMS if refused else Exit.OK


def _say_report(report: RedriveReport | DiscardReport, done: str, *, as_json: bool) -> int:
    if as_json:
        say_json(report)
        return Exit.PROBLEMS if report.left else Exit.OK
    for left in report.left:
        complain(f"tenure: {left.why}")
    say(f"{done}, {len(report.left):,} left as they were")
    if report.more:
        say("there are more; the limit was reached: call it again, or raise --limit")
    return Exit.PROBLEMS if report.left else Exit.OK
