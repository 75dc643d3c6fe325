"""What a run came to decides what is recorded, and what is to be recorded is always legal."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest

from tenure.errors import (
    CancelRequested,
    DependencyUnavailable,
    InvalidInput,
    LeaseLost,
    PermanentError,
    PolicyViolation,
    ResultRefused,
    Snooze,
    StoreUnavailable,
    TransientError,
    ValidationError,
)
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.decide import decide
from tenure.lifecycle.json_text import check_content, load
from tenure.lifecycle.operations import Cancel, Complete, DeadLetter, Fail, Release, Retry
from tenure.lifecycle.records import Actor, Job, OnExhausted, OnTimeout, Origin, Policy, Role
from tenure.lifecycle.statuses import RUNNING
from tenure.testing.clock import START
from tenure.workers.execution.outcomes import (
    Cancelled,
    ErrorAction,
    ErrorPolicy,
    Lost,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    UnknownArgument,
    describe_error,
    operation_for,
    outcome_of_error,
    release_cause,
)

TOKEN = UUID(int=7)
RUNNER = Actor(Role.RUNNER, "w", TOKEN)
PLAIN = ErrorPolicy()


def running(
    *,
    failures: int = 0,
    max_attempts: int = 3,
    on_exhausted: OnExhausted = "fail",
    on_timeout: OnTimeout = "retry",
    **facts: object,
) -> Job:
    policy = Policy(max_attempts=max_attempts, on_exhausted=on_exhausted, on_timeout=on_timeout)
    job = Job(
        origin=Origin(id=UUID(int=1), kind="k", payload="{}", policy=policy),
        status=RUNNING,
        rev=3,
        attempt=failures + 1,
        failures=failures,
        created_at=START,
        updated_at=START,
        started_at=START,
        owner="w",
        token=TOKEN,
    )
    return msgspec.structs.replace(job, **facts)


@pytest.mark.requirement("SM-18")
@pytest.mark.parametrize(
    ("error", "verb"),
    [
        (ValueError("no"), Retry),
        (TransientError("later"), Retry),
        (DependencyUnavailable("the bank is shut"), Retry),
        (PermanentError("never"), Fail),
        (ValidationError("not an address"), DeadLetter),
        (PolicyViolation("not allowed"), DeadLetter),
        (Snooze(5), Release),
        (SystemExit(1), Retry),
        (KeyboardInterrupt(), Retry),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_class_of_an_error_decides_what_becomes_of_the_job(error: BaseException, verb: type) -> None:
    assert isinstance(operation_for(running(), outcome_of_error(error, PLAIN)), verb)


@pytest.mark.requirement("SM-18")
def test_the_job_definition_classifies_an_error_before_its_class_does() -> None:
    policy = ErrorPolicy(retry_on=(PermanentError, LookupError), fail_on=(OSError, KeyError))
    assert isinstance(operation_for(running(), outcome_of_error(PermanentError(), policy)), Retry)
    assert isinstance(operation_for(running(), outcome_of_error(TimeoutError(), policy)), Fail)
    assert isinstance(operation_for(running(), outcome_of_error(KeyError("both"), policy)), Retry)


@pytest.mark.requirement("SM-09", "SM-11")
def test_the_last_failure_ends_by_the_policy_and_a_dead_letter_names_its_reason() -> None:
    last = running(failures=2)
    assert operation_for(last, outcome_of_error(ValueError(), PLAIN)) == Fail(
        describe_error(ValueError()), permanent=False
    )
    buried = operation_for(running(failures=2, on_exhausted="dead_letter"), outcome_of_error(ValueError(), PLAIN))
    assert isinstance(buried, DeadLetter)
    assert (buried.reason_code, buried.stage) == (ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC)
    away = operation_for(
        running(failures=2, on_exhausted="dead_letter"), outcome_of_error(DependencyUnavailable("x"), PLAIN)
    )
    assert isinstance(away, DeadLetter)
    assert away.reason_code is ReasonCode.DEPENDENCY_UNAVAILABLE


@pytest.mark.requirement("SM-11")
def test_input_that_does_not_fit_is_a_dead_letter_of_stage_input_at_the_first_try() -> None:
    letter = operation_for(running(), outcome_of_error(InvalidInput("k", "no `to`"), PLAIN, stage=Stage.INPUT))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason_code, letter.stage) == (ReasonCode.VALIDATION_FAILED, Stage.INPUT)


@pytest.mark.requirement("SM-11")
def test_a_payload_that_cannot_be_decoded_is_a_dead_letter_of_stage_fetch_at_the_first_try() -> None:
    letter = operation_for(running(), outcome_of_error(ValueError("not JSON"), PLAIN, stage=Stage.FETCH))
    assert isinstance(letter, DeadLetter)
    assert (letter.reason_code, letter.stage) == (ReasonCode.PARSE_ERROR, Stage.FETCH)


@pytest.mark.requirement("SM-11", "SM-09")
def test_a_result_that_cannot_be_stored_ends_the_job_by_on_exhausted_at_the_first_attempt() -> None:
    outcome = outcome_of_error(ResultRefused("result", "is too large"), ErrorPolicy(retry_on=(ValueError,)))
    failed = operation_for(running(), outcome)
    assert isinstance(failed, Fail)
    assert failed.permanent
    letter = operation_for(running(on_exhausted="dead_letter"), outcome)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason_code, letter.stage) == (ReasonCode.VALIDATION_FAILED, Stage.OUTPUT)


def test_an_error_may_name_its_own_delay_and_a_senseless_one_is_passed_over() -> None:
    assert operation_for(running(), outcome_of_error(TransientError(delay_seconds=7), PLAIN)) == Retry(
        describe_error(TransientError(delay_seconds=7)), 7.0
    )
    for nonsense in (-1.0, float("nan"), float("inf"), 1e12):
        retry = operation_for(running(), outcome_of_error(TransientError(delay_seconds=nonsense), PLAIN))
        assert isinstance(retry, Retry)
        assert retry.delay_seconds is None
        assert isinstance(operation_for(running(), outcome_of_error(Snooze(nonsense), PLAIN)), Retry)


@pytest.mark.requirement("WC-05")
def test_an_outage_of_the_database_in_the_middle_of_a_function_is_not_its_failure() -> None:
    job = running(failures=2)
    cause = release_cause(StoreUnavailable("gone", where="a"), job_id=job.id, database="a")
    assert cause == "database_unavailable"
    assert operation_for(job, Snoozed(1.0, cause)) == Release(cause, 1.0)
    committed = running(committed_at=START, committed_result='"once"')
    assert operation_for(committed, Snoozed(1.0, cause)) == Complete('"once"')


@pytest.mark.requirement("WC-05", "SM-18")
@pytest.mark.parametrize("where", ["b", None])
def test_an_outage_of_another_database_is_a_failure_of_the_attempt(where: str | None) -> None:
    error, job = StoreUnavailable("gone", where=where), running(failures=1)
    assert release_cause(error, job_id=job.id, database="a") is None
    assert isinstance(operation_for(job, outcome_of_error(error, PLAIN)), Retry)


def test_a_lease_that_the_function_only_fears_for_counts_no_failure() -> None:
    job = running()
    assert release_cause(LeaseLost(job, "commit"), job_id=job.id, database="a") == "lease_uncertain"


def test_a_lost_lease_of_another_job_is_a_failure_of_the_attempt() -> None:
    job = running()
    assert release_cause(LeaseLost(job, "commit"), job_id=UUID(int=99), database="a") is None
    assert isinstance(operation_for(job, outcome_of_error(LeaseLost(job, "commit"), PLAIN)), Retry)


@pytest.mark.requirement("SM-10")
def test_a_job_gives_way_to_a_cancel_only_if_one_was_asked_for() -> None:
    assert isinstance(
        operation_for(running(cancel_reason="no need"), outcome_of_error(CancelRequested(), PLAIN)), Cancel
    )
    assert isinstance(operation_for(running(), Cancelled()), Retry)


@pytest.mark.requirement("EL-06")
def test_whatever_happens_after_the_commit_the_committed_result_is_the_end() -> None:
    committed = running(committed_at=START, committed_result='"once"')
    for outcome in outcomes():
        if not isinstance(outcome, Lost):
            assert operation_for(committed, outcome) == Complete('"once"')


def test_a_lost_lease_leaves_nothing_to_record() -> None:
    assert operation_for(running(), Lost()) is None


@pytest.mark.requirement("EH-03")
def test_a_timeout_ends_the_attempt_by_its_policy_with_that_cause() -> None:
    retried = operation_for(running(), TimedOut())
    failed = operation_for(running(on_timeout="fail"), TimedOut())
    buried = operation_for(running(on_timeout="dead_letter"), TimedOut())
    assert isinstance(retried, Retry)
    assert isinstance(failed, Fail)
    assert isinstance(buried, DeadLetter)
    assert [one.event_fields().cause for one in (retried, failed, buried)] == ["timeout"] * 3
    exhausted = operation_for(running(failures=2), TimedOut())
    assert isinstance(exhausted, Fail)
    assert (exhausted.permanent, exhausted.event_fields().cause) == (False, "timeout")
    last = operation_for(running(failures=2, on_exhausted="dead_letter"), TimedOut())
    assert isinstance(last, DeadLetter)
    assert last.reason_code is ReasonCode.TIMEOUT


def undoing(*, failures: int = 0, **facts: object) -> Job:
    """A job that failed twice before it was to undo its steps, and so many times since."""
    recorded = {"ends_as": "failed", "ends_because": "exhausted_retries", "failures_before_undo": 2}
    return running(failures=2 + failures, **{**recorded, **facts})  # type: ignore[arg-type]


@pytest.mark.requirement("SM-21")
def test_a_failed_undo_attempt_is_retried_until_its_own_failures_are_exhausted() -> None:
    error = UnknownArgument("to", '{"type":"InvalidInput"}', releases=10)
    failed = [one for one in (*outcomes(), error) if not isinstance(one, Snoozed | Stopped | Lost)]
    assert {type(one) for one in failed} == {Raised, Returned, Cancelled, TimedOut, UnknownArgument}
    for outcome, asked in itertools.product(failed, (None, "no need")):
        for failures in range(2):
            job = undoing(failures=failures, cancel_reason=asked)
            retried = operation_for(job, outcome)
            assert isinstance(retried, Retry)
            assert retried.timed_out is isinstance(outcome, TimedOut)
            decide(job, retried, RUNNER, request_id="r")
        job = undoing(failures=2, cancel_reason=asked)
        letter = operation_for(job, outcome)
        assert isinstance(letter, DeadLetter)
        assert letter.reason_code is ReasonCode.COMPENSATION_FAILED
        decide(job, letter, RUNNER, request_id="r")


@pytest.mark.requirement("SM-21")
@pytest.mark.parametrize(
    "outcome", [Snoozed(1), Stopped(), UnknownArgument("to", '{"type":"InvalidInput"}', releases=9)]
)
def test_an_undo_attempt_that_has_not_failed_is_released(outcome: Outcome) -> None:
    job = undoing(failures=2)
    released = operation_for(job, outcome)
    assert isinstance(released, Release)
    decide(job, released, RUNNER, request_id="r")


def outcomes() -> Iterator[Outcome]:
    yield from (Returned("1"), Snoozed(1), Cancelled(), Stopped(), TimedOut(), Lost())
    for verdict, stage in itertools.product(ErrorAction, Stage):
        yield Raised('{"type":"E"}', verdict, stage)


@pytest.mark.requirement("WC-06")
def test_every_operation_of_every_outcome_is_legal_for_every_running_job() -> None:
    """The runner never asks for what the table would refuse."""
    policies: tuple[OnExhausted, ...] = ("fail", "dead_letter")
    checked = 0
    actions: tuple[OnTimeout, ...] = ("retry", "fail", "dead_letter")
    for failures, on_exhausted, on_timeout, asked, committed in itertools.product(
        range(3), policies, actions, (None, "no need"), (None, START)
    ):
        job = running(
            failures=failures,
            on_exhausted=on_exhausted,
            on_timeout=on_timeout,
            cancel_reason=asked,
            committed_at=committed,
            committed_result=None if committed is None else "2",
        )
        for outcome in outcomes():
            operation = operation_for(job, outcome)
            if operation is not None:
                decide(job, operation, RUNNER, request_id="r")
                checked += 1
    assert checked > 1200


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("NUL \x00 and a lone \ud800 surrogate"),
        ValueError("x" * 500_000),
        Unspeakable(),
        asyncio.CancelledError(),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        ValueError("\x01" * 20_000),
    ],
    ids=["unstorable", "huge", "unspeakable", "cancelled", "group", "control"],
)
def test_any_error_can_be_recorded(error: BaseException) -> None:
    text = describe_error(error)
    assert check_content(text, "error") == text
    described = load(text)
    assert described["type"] == type(error).__qualname__
    assert described["traceback"]
    Fail(text).event_fields()
