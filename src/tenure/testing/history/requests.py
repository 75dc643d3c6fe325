"""Results compared with what is stored: each request has one result, and the log has it under the request's id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

import msgspec

from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Event, EventType, Job
from tenure.lifecycle.transitions import TRANSITION_OF
from tenure.testing.history.job_log import in_order
from tenure.testing.history.problems import Code, HistoryProblem
from tenure.testing.history.records import Effect, Failed, Ok, RecordedRequest

_REUSED = "RequestIdReused"
_OF_ANOTHER_BODY = frozenset({_REUSED, "InvalidInput", "UnknownKind", "PayloadRefused"})
"""Refusals of a request that only shares its id with the applied one."""
_MAY_FOLLOW_OK = _OF_ANOTHER_BODY | {"Busy"}
"""The row of a job may be locked when an applied request is repeated: it is to be sent again."""

RequestKey = tuple[str, str, UUID | None]
"""Repetitions of one request: enqueues and claims by their id, all others by id and job."""


class Written(msgspec.Struct, frozen=True):
    """The log by request ids."""

    jobs: Mapping[UUID, Job]
    changes: Mapping[tuple[UUID, str], Sequence[Event]]
    enqueues: Mapping[str, Sequence[UUID]]
    claims: Mapping[str, Sequence[UUID]]


def written(jobs: Mapping[UUID, Job], logs: Mapping[UUID, Sequence[Event]]) -> Written:
    """The log as requests left it."""
    changes: dict[tuple[UUID, str], list[Event]] = {}
    enqueues: dict[str, list[UUID]] = {}
    claims: dict[str, list[UUID]] = {}
    for job_id, events in logs.items():
        for event in in_order(events):
            changes.setdefault((job_id, event.request_id), []).append(event)
            if event.type is EventType.ENQUEUED:
                enqueues.setdefault(event.request_id, []).append(job_id)
            elif event.type is EventType.CLAIMED:
                claims.setdefault(event.request_id, []).append(job_id)
    return Written(jobs, changes, enqueues, claims)


def request_problems(requests: Iterable[RecordedRequest], log: Written) -> Iterator[HistoryProblem]:
    """Every request whose stored result differs from the recorded one."""
    yield from _written_twice(log)
    by_key: dict[RequestKey, list[RecordedRequest]] = {}
    for one in requests:
        by_key.setdefault(_request_key(one), []).append(one)
    for (family, request_id, job_id), calls in by_key.items():
        yield from _CHECKS.get(family, _change)(request_id, calls, log)
        yield from _refused_after_ok(request_id, calls, job_id)


def effect_problems(
    effects: Iterable[Effect], log: Written, *, kinds: Collection[str] | None
) -> Iterator[HistoryProblem]:
    """At most one effect per job, and exactly one if the job is committed.

    A committed job without an effect is a problem only in kinds that have effects: those given, or those that had any.
    """
    by_job: dict[UUID, list[Effect]] = {}
    for effect in effects:
        by_job.setdefault(effect.job_id, []).append(effect)
    commits = {job_id: event for (job_id, _), events in log.changes.items() for event in events if event.commits}
    for job_id, found in by_job.items():
        yield from _effects_of(job_id, found, commits.get(job_id))
    having = {log.jobs[job_id].kind for job_id in by_job if job_id in log.jobs} if kinds is None else kinds
    for job_id, event in commits.items():
        if job_id not in by_job and job_id in log.jobs and log.jobs[job_id].kind in having:
            message = f"{event.type} committed it in attempt {event.attempt}, and it had no effect"
            yield HistoryProblem(Code.COMMIT_WITHOUT_EFFECT, message, job_id, event.rev)


def _effects_of(job_id: UUID, effects: Sequence[Effect], commit: Event | None) -> Iterator[HistoryProblem]:
    attempts = [effect.attempt for effect in effects]
    if len(effects) > 1:
        yield HistoryProblem(
            Code.EFFECT_TWICE, f"it had its effect {len(effects)} times, in attempts {attempts}", job_id
        )
    if commit is None:
        message = f"it had its effect in attempt {attempts[0]}, and the log has no commit"
        yield HistoryProblem(Code.EFFECT_WITHOUT_COMMIT, message, job_id)
    elif any(attempt not in (None, commit.attempt) for attempt in attempts):
        message = f"it had its effect in attempt {attempts[0]}, and attempt {commit.attempt} committed it"
        yield HistoryProblem(Code.EFFECT_OF_ANOTHER_ATTEMPT, message, job_id, commit.rev)


def _request_key(one: RecordedRequest) -> RequestKey:
    first = one.verbs[0]
    if first in (OperationType.ENQUEUE, OperationType.CLAIM):
        return first.value, one.invoked.request_id, None
    return "change", one.invoked.request_id, one.invoked.job_id


def _written_twice(log: Written) -> Iterator[HistoryProblem]:
    """One request is one change: consecutive revisions with one timestamp. One enqueue is one job."""
    for (job_id, request_id), events in log.changes.items():
        for before, event in pairwise(events):
            if (event.rev - before.rev, event.at, event.actor) != (1, before.at, before.actor):
                message = f"request {request_id!r} was carried out at revision {before.rev} and again"
                yield HistoryProblem(Code.REQUEST_TWICE, message, job_id, event.rev)
    for request_id, job_ids in log.enqueues.items():
        for job_id in job_ids[1:]:
            message = f"request {request_id!r} made this job and job {job_ids[0]}"
            yield HistoryProblem(Code.REQUEST_TWICE, message, job_id, 1)


def _change(request_id: str, calls: Sequence[RecordedRequest], log: Written) -> Iterator[HistoryProblem]:
    job_id = calls[0].invoked.job_id
    assert job_id is not None, "a history refuses a change that names no job"
    events = log.changes.get((job_id, request_id), ())
    answered = _answered(calls)
    results = {(answer.rev, answer.status) for _, answer in answered if answer.rev is not None}
    if len(results) > 1:
        message = f"request {request_id!r} had several results: {_listed(f'revision {rev}' for rev, _ in results)}"
        yield HistoryProblem(Code.TWO_RESULTS, message, job_id)
    for one, answer in answered:
        yield from _done(one, answer, events, log, one_result=len(results) < 2)
    if not answered and events and not _reused(calls):
        yield from _unanswered(request_id, calls, events)


def _done(
    one: RecordedRequest, answer: Ok, events: Sequence[Event], log: Written, *, one_result: bool
) -> Iterator[HistoryProblem]:
    op, request_id, job_id = one.invoked.op, one.invoked.request_id, one.invoked.job_id
    call = f"{op} (request {request_id!r}) was applied"
    if any(named != job_id for named in answer.job_ids):
        yield HistoryProblem(Code.WRONG_JOB, f"{call}, for {_listed(answer.job_ids)} instead", job_id)
    elif job_id not in log.jobs:
        yield HistoryProblem(Code.ACKNOWLEDGED_LOST, f"{call}, and there is no such job", job_id)
    elif not events:
        yield HistoryProblem(Code.OK_NOT_WRITTEN, f"{call}, and its log has nothing of it", job_id)
    elif not _is_own(one, events):
        message = f"{call}, and its log has {_listed(event.type for event in events)} under that request"
        yield HistoryProblem(Code.WRITTEN_OTHERWISE, message, job_id, events[0].rev)
    elif one_result and _differs(answer, events[-1]):
        message = f"{call} with revision {answer.rev}, {answer.status}; its log has {events[-1].to_status}"
        yield HistoryProblem(Code.RESULT_WRONG, message, job_id, events[-1].rev)


def _unanswered(request_id: str, calls: Sequence[RecordedRequest], events: Sequence[Event]) -> Iterator[HistoryProblem]:
    found = _listed(event.type for event in events)
    if not any(one.open for one in calls):
        message = f"request {request_id!r} was refused ({_refusals(calls)}), and its log has {found}"
        yield HistoryProblem(Code.REFUSED_WRITTEN, message, events[0].job_id, events[0].rev)
    elif not any(_is_own(one, events) for one in calls):
        message = f"request {request_id!r} is a {calls[0].invoked.op}, and its log has {found}"
        yield HistoryProblem(Code.WRITTEN_OTHERWISE, message, events[0].job_id, events[0].rev)


def _enqueue(request_id: str, calls: Sequence[RecordedRequest], log: Written) -> Iterator[HistoryProblem]:
    answered = _answered(calls)
    named = {job_id for _, answer in answered for job_id in answer.job_ids}
    if len(named) > 1 or sum(answer.created is True for _, answer in answered) > 1:
        message = f"request {request_id!r} was answered with several new jobs, or with several: {_listed(named)}"
        yield HistoryProblem(Code.TWO_RESULTS, message, min(named, default=None))
    for one, answer in answered:
        for job_id in answer.job_ids:
            yield from _added(one, answer, job_id, log)
    stored = log.enqueues.get(request_id, ())
    if answered or not stored or _reused(calls):
        return
    if not any(one.open for one in calls):
        message = f"enqueue (request {request_id!r}) was refused ({_refusals(calls)}), and the job is there"
        yield HistoryProblem(Code.REFUSED_STORED, message, stored[0])
    elif not {one.invoked.job_id for one in calls} & {None, stored[0]}:
        message = f"enqueue (request {request_id!r}) was to make job {calls[0].invoked.job_id}, and made this one"
        yield HistoryProblem(Code.WRITTEN_OTHERWISE, message, stored[0], 1)


def _added(one: RecordedRequest, answer: Ok, job_id: UUID, log: Written) -> Iterator[HistoryProblem]:
    call = f"enqueue (request {one.invoked.request_id!r}) was applied"
    job = log.jobs.get(job_id)
    if answer.created and one.invoked.job_id not in (None, job_id):
        yield HistoryProblem(Code.WRONG_JOB, f"{call} with this id instead of {one.invoked.job_id}", job_id)
    elif job is None:
        yield HistoryProblem(Code.ACKNOWLEDGED_LOST, f"{call}, and there is no such job", job_id)
    elif answer.created is not True and job.origin.dedupe_key is not None:
        return  # It may have been there for another request, which had the same key.
    elif job_id not in log.enqueues.get(one.invoked.request_id, ()):
        yield HistoryProblem(Code.OK_NOT_WRITTEN, f"{call}, and the job was not made by that request", job_id)


def _claim(request_id: str, calls: Sequence[RecordedRequest], log: Written) -> Iterator[HistoryProblem]:
    answered = _answered(calls)
    results = {frozenset(answer.job_ids) for _, answer in answered if answer.job_ids}
    won = log.claims.get(request_id, ())
    named = {job_id for result in results for job_id in result}
    if len(results) > 1:
        yield HistoryProblem(Code.TWO_RESULTS, f"claim {request_id!r} was answered with different jobs", min(named))
    for job_id in sorted(named):
        message = f"claim {request_id!r} was answered with this job"
        if job_id not in log.jobs:
            yield HistoryProblem(Code.ACKNOWLEDGED_LOST, f"{message}, and there is no such job", job_id)
        elif job_id not in won:
            yield HistoryProblem(Code.CLAIM_NOT_WRITTEN, f"{message}, and its log has no such claim", job_id)
    if any(one.open for one in calls) or _reused(calls):
        return
    for job_id in won:
        if not answered:
            message = f"claim {request_id!r} was refused ({_refusals(calls)}), and its log has the claim"
            yield HistoryProblem(Code.REFUSED_WRITTEN, message, job_id)
        elif job_id not in named:
            yield HistoryProblem(
                Code.CLAIM_UNREPORTED, f"claim {request_id!r} took it, and no reply has named it", job_id
            )


_CHECKS: Mapping[str, Callable[[str, Sequence[RecordedRequest], Written], Iterator[HistoryProblem]]] = {
    OperationType.ENQUEUE.value: _enqueue,
    OperationType.CLAIM.value: _claim,
}


def _refused_after_ok(
    request_id: str, calls: Sequence[RecordedRequest], job_id: UUID | None
) -> Iterator[HistoryProblem]:
    """An applied request stays applied. Only within one process is the order of two calls known."""
    done: dict[str, int] = {}
    for one in sorted(calls, key=lambda one: one.invoked_place):
        process, answer = one.invoked.process, one.answer
        if isinstance(answer, Ok) and one.answer_place is not None:
            done[process] = min(one.answer_place, done.get(process, one.answer_place))
        came_later = done.get(process, one.invoked_place) < one.invoked_place
        if came_later and isinstance(answer, Failed) and answer.refusal not in _MAY_FOLLOW_OK:
            message = f"request {request_id!r} was applied, and then refused ({answer.refusal})"
            yield HistoryProblem(Code.REFUSED_AFTER_OK, message, job_id or one.invoked.job_id)


def _answered(calls: Sequence[RecordedRequest]) -> list[tuple[RecordedRequest, Ok]]:
    return [(one, one.answer) for one in calls if isinstance(one.answer, Ok)]


def _reused(calls: Sequence[RecordedRequest]) -> bool:
    """Whether another process has used the id, so that what the log has under it may be its."""
    return any(isinstance(one.answer, Failed) and one.answer.refusal == _REUSED for one in calls)


def _refusals(calls: Sequence[RecordedRequest]) -> str:
    return _listed({one.answer.refusal for one in calls if isinstance(one.answer, Failed)})


def _is_own(one: RecordedRequest, events: Sequence[Event]) -> bool:
    return [event.type for event in events] == [TRANSITION_OF[verb].event for verb in one.verbs]


def _differs(answer: Ok, last: Event) -> bool:
    return answer.rev not in (None, last.rev) or answer.status not in (None, last.to_status)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names)))
