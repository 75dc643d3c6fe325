"""Histories with one fault each, made from a true one by one edit, with the code that the checker must report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tenure.lifecycle.json_text import digest
from tenure.lifecycle.records import EventType
from tenure.lifecycle.statuses import CANCELLED, CLAIMED, RETRY, STALLED, WAITING
from tenure.testing.driver import ERROR
from tenure.testing.history.checker import Code, Failed, Ok
from tests.support.history_edits import (
    CHANGED,
    Edit,
    answered,
    claimed_again,
    different,
    effect_of,
    effects,
    followed,
    invoked,
    key_of,
    later,
    log,
    ok_with,
    origin,
    refused,
    repeated,
    row,
    skipped,
    swapped,
    tail,
    tail_of,
    until,
    vanished,
    without,
)
from tests.support.recorded_history import LEASE_SECONDS


@dataclass(frozen=True)
class Corruption:
    """The edit of the recorded run, the code that must be reported for it, and the codes that follow from it."""

    name: str
    code: Code
    edit: Edit
    also: frozenset[Code] = frozenset()
    drained: bool = False


STRANGER = UUID(int=7)
RECOVERS = "recovery:mender"

CORRUPTIONS = [
    # Lost, duplicated or invented results.
    Corruption("an acknowledged job is lost", Code.ACKNOWLEDGED_LOST, vanished("queued")),
    Corruption("a job that was worked on is lost", Code.ACKNOWLEDGED_LOST, vanished("slept")),
    Corruption(
        "an enqueue was refused and the job is there", Code.REFUSED_STORED, answered("enqueue", "queued too", refused)
    ),
    Corruption(
        "a new job has another id than the one that was answered",
        Code.WRONG_JOB,
        answered("enqueue", "queued too", ok_with(job_ids=(STRANGER,))),
    ),
    Corruption(
        "a change was answered for another job",
        Code.WRONG_JOB,
        answered("heartbeat", "held", ok_with(job_ids=(STRANGER,))),
    ),
    Corruption(
        "a job was made by another request than the one that was answered",
        Code.OK_NOT_WRITTEN,
        log("queued too", different(1, request_id="forged")),
    ),
    Corruption("an acknowledged change was not written", Code.OK_NOT_WRITTEN, log("held", until(5))),
    Corruption("a change was refused and written", Code.REFUSED_WRITTEN, answered("heartbeat", "held", refused)),
    Corruption("a claim was refused and written", Code.REFUSED_WRITTEN, answered("claim+start", "halted", refused)),
    Corruption(
        "an acknowledged change was written as another",
        Code.WRITTEN_OTHERWISE,
        invoked("heartbeat", "held", op="progress"),
    ),
    Corruption(
        "a change without an answer was written as another",
        Code.WRITTEN_OTHERWISE,
        invoked("signal", "unanswered", op="cancel"),
    ),
    Corruption(
        "an enqueue without an answer made another job",
        Code.WRITTEN_OTHERWISE,
        invoked("enqueue", "unanswered", job_id=STRANGER),
    ),
    Corruption("an answer names a later revision", Code.RESULT_WRONG, answered("heartbeat", "held", ok_with(rev=9))),
    Corruption(
        "an answer names another status", Code.RESULT_WRONG, answered("heartbeat", "held", ok_with(status=WAITING))
    ),
    Corruption(
        "one change had two results",
        Code.TWO_RESULTS,
        repeated(
            "heartbeat", "held", lambda recorded_run, call: Ok(*key_of(call), (recorded_run.jobs["held"],), rev=7)
        ),
    ),
    Corruption(
        "one enqueue made a job twice",
        Code.TWO_RESULTS,
        repeated(
            "enqueue",
            "queued too",
            lambda recorded_run, call: Ok(*key_of(call), (recorded_run.jobs["queued too"],), created=True),
        ),
    ),
    Corruption(
        "one enqueue was answered with two jobs",
        Code.TWO_RESULTS,
        repeated(
            "enqueue",
            "queued too",
            lambda recorded_run, call: Ok(*key_of(call), (recorded_run.jobs["queued"],), created=False),
        ),
        also=frozenset({Code.OK_NOT_WRITTEN}),
    ),
    Corruption(
        "one claim was answered with different jobs",
        Code.TWO_RESULTS,
        repeated("claim+start", "halted", lambda recorded_run, call: Ok(*key_of(call), (recorded_run.jobs["queued"],))),
        also=frozenset({Code.CLAIM_NOT_WRITTEN}),
    ),
    Corruption(
        "what was done is refused later",
        Code.REFUSED_AFTER_OK,
        repeated("heartbeat", "held", lambda _, call: Failed(*key_of(call), "IllegalTransition")),
    ),
    Corruption(
        "one request was carried out twice",
        Code.REQUEST_TWICE,
        log("working", lambda events: different(-1, request_id=events[3].request_id)(events)),
    ),
    Corruption("one enqueue made two jobs", Code.REQUEST_TWICE, log("done", different(1, request_id="order-1"))),
    Corruption(
        "a claim was answered with a job that it did not take",
        Code.CLAIM_NOT_WRITTEN,
        lambda recorded_run: answered(
            "claim+start", "halted", ok_with(job_ids=(recorded_run.jobs["halted"], recorded_run.jobs["queued"]))
        )(recorded_run),
    ),
    Corruption(
        "a claim took a job without telling",
        Code.CLAIM_UNREPORTED,
        answered("claim+start", "halted", ok_with(job_ids=())),
    ),
    # Effects.
    Corruption(
        "a job had its effect twice",
        Code.EFFECT_TWICE,
        effects(lambda recorded_run, seen: [*seen, effect_of(seen, recorded_run, "paid")]),
    ),
    Corruption(
        "a job had its effect and is not committed",
        Code.EFFECT_WITHOUT_COMMIT,
        effects(lambda recorded_run, seen: [*seen, CHANGED(seen[0], job_id=recorded_run.jobs["not paid"])]),
    ),
    Corruption(
        "a job had its effect in an attempt that did not commit",
        Code.EFFECT_OF_ANOTHER_ATTEMPT,
        effects(
            lambda recorded_run, seen: [
                CHANGED(effect, attempt=1) if effect.job_id == recorded_run.jobs["paid later"] else effect
                for effect in seen
            ]
        ),
    ),
    Corruption(
        "a committed job had no effect",
        Code.COMMIT_WITHOUT_EFFECT,
        effects(lambda recorded_run, seen: [effect for effect in seen if effect.job_id != recorded_run.jobs["paid"]]),
    ),
    # One job's log.
    Corruption("a log is empty", Code.NO_EVENTS, log("done", lambda _: [], in_row=False)),
    Corruption("a row is gone and its log is there", Code.NO_JOB, vanished("done", row_only=True)),
    Corruption("an event is missing in the middle", Code.REVISION_GAP, log("working", without(4), in_row=False)),
    Corruption(
        "the first event is missing",
        Code.REVISION_GAP,
        log("working", without(1), in_row=False),
        also=frozenset({Code.ORIGIN_CHANGED}),
    ),
    Corruption(
        "a log has an event twice",
        Code.REVISION_REPEATED,
        log("working", lambda events: [*events, events[-1]], in_row=False, in_tail=False),
    ),
    Corruption("a log is out of order", Code.REVISION_ORDER, log("working", swapped, in_row=False, in_tail=False)),
    Corruption(
        "something happens after the end",
        Code.TERMINAL_CHANGED,
        log("stopped", followed(EventType.SIGNALLED, actor="client:ada")),
    ),
    Corruption("a job is claimed while it is held", Code.LEASE_OVERLAP, log("working", claimed_again)),
    Corruption(
        "a heartbeat comes after its lease has ended", Code.LEASE_ENDED, log("working", later(-1, LEASE_SECONDS * 2))
    ),
    Corruption(
        "a heartbeat is written at the time at which its lease ends",
        Code.LEASE_ENDED,
        log("working", lambda events: different(-1, at=events[1].until_at)(events)),
    ),
    Corruption(
        "a running job is only claimed again",
        Code.RANK_FELL,
        log("working", followed(EventType.HEARTBEAT, to_status=CLAIMED)),
    ),
    Corruption("an attempt is counted twice", Code.ATTEMPT_MISCOUNTED, log("claimed", different(-1, attempt=2))),
    Corruption(
        "an attempt is counted by a heartbeat", Code.ATTEMPT_MISCOUNTED, log("working", different(-1, attempt=2))
    ),
    Corruption(
        "a step does not start where the last one ended",
        Code.CHAIN_BROKEN,
        log("claimed", different(-1, from_status=RETRY)),
    ),
    Corruption(
        "a log begins in the middle of a life",
        Code.CHAIN_BROKEN,
        log("claimed", skipped(1), in_row=False),
        also=frozenset({Code.ORIGIN_CHANGED}),
    ),
    Corruption(
        "a step is not in the table", Code.ILLEGAL_STEP, log("claimed", followed(EventType.PROGRESS, actor="runner:w"))
    ),
    Corruption("a client reports progress", Code.NOT_AUTHORISED, log("working", different(5, actor="client:ada"))),
    Corruption("time goes back", Code.TIME_BACK, log("working", later(-1, -1.5))),
    Corruption(
        "a job is committed twice",
        Code.COMMITTED_TWICE,
        log("committed", lambda events: followed(EventType.COMMITTED, commits=True, digest=events[-1].digest)(events)),
    ),
    Corruption(
        "a committed job is signalled",
        Code.AFTER_COMMIT,
        log("committed", followed(EventType.SIGNALLED, actor="client:ada")),
    ),
    Corruption(
        "a job is taken for lost while its lease runs",
        Code.TOO_EARLY,
        log("working", followed(EventType.STALLED, to_status=STALLED, actor=RECOVERS, cause="lease_expired")),
    ),
    Corruption(
        "a job is claimed before it is due",
        Code.TOO_EARLY,
        log(
            "put off",
            lambda events: [
                events[0],
                *(CHANGED(event, at=event.at - timedelta(milliseconds=1)) for event in events[1:]),
            ],
        ),
    ),
    Corruption(
        "a job is tried again that has no failure left",
        Code.AGAINST_POLICY,
        log(
            "on its last try",
            lambda events: followed(
                EventType.RETRY_SCHEDULED, to_status=RETRY, until_at=events[-1].at, digest=digest(ERROR)
            )(events),
        ),
    ),
    Corruption(
        "an owner cancels a job without a cancel request",
        Code.AGAINST_POLICY,
        log("working", followed(EventType.CANCELLED, to_status=CANCELLED, cause="bored")),
    ),
    Corruption("the commit is not marked as one", Code.BROKEN_LOG, log("committed", different(-1, commits=False))),
    Corruption("an event cannot be read", Code.BROKEN_LOG, log("working", different(5, detail="{"), in_row=False)),
    # One job's row.
    Corruption("a row has another progress than its log", Code.ROW_DIFFERS, row("working", progress=99)),
    Corruption("the last event of a live job is missing", Code.ROW_DIFFERS, log("working", until(5), in_row=False)),
    Corruption("a halted job has no reason", Code.ROW_INVARIANT, log("stopped", different(-1, cause=None))),
    Corruption("a payload was exchanged", Code.ORIGIN_CHANGED, origin("working", payload='{"to":"mallory"}')),
    Corruption("a result was exchanged", Code.CONTENT_CHANGED, row("done", result='"forged"')),
    Corruption("a job has ended without an event", Code.NO_END_EVENT, log("stopped", until(3), in_row=False)),
    Corruption("a token can be read", Code.SECRET_SHOWN, row("working", token=STRANGER)),
    # The whole log, and relations between jobs.
    Corruption("the tail leaves an event out", Code.TAIL_MISSING, tail_of("working", lambda own: own[:-1])),
    Corruption(
        "the tail has an event twice", Code.TAIL_REPEATED, tail(lambda tail_events: [*tail_events, tail_events[0]])
    ),
    Corruption("the tail is out of order", Code.TAIL_ORDER, tail_of("working", swapped)),
    Corruption(
        "the tail has it changed",
        Code.TAIL_DIFFERS,
        tail(lambda tail_events: [CHANGED(tail_events[0], actor="client:mallory"), *tail_events[1:]]),
    ),
    Corruption(
        "the tail has an event that the log does not have",
        Code.TAIL_DIFFERS,
        tail(lambda tail_events: [*tail_events, CHANGED(tail_events[0], rev=99)]),
    ),
    Corruption("two live jobs share a dedupe key", Code.DEDUPE_OVERLAP, log("first of its key", until(3))),
    Corruption("a live job is left", Code.LIVE_LEFT, log("done", until(5)), drained=True),
]
