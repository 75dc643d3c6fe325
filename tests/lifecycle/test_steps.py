"""Digests of steps: everything of a row is covered but its number and its times, and erased content still is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tenure.lifecycle.enqueue import enqueued_job
from tenure.lifecycle.records import Actor, EventType, Origin, Policy, Role
from tenure.lifecycle.statuses import LEASED, Status
from tenure.lifecycle.steps import (
    DIGEST_MODULUS,
    RECORDS_STEPS,
    NewStep,
    StepKind,
    StepRecord,
    StepsDigest,
    records_steps,
    stored_step,
)
from tenure.lifecycle.transitions import TRANSITIONS
from tenure.stores.contract import SaveStep
from tenure.testing.clock import START

JOB = msgspec.structs.replace(
    enqueued_job(Origin(id=UUID(int=7), kind="pay", payload="{}", policy=Policy()), at=START, due_at=None), attempt=3
)
STEP = NewStep(key="main/1", kind=StepKind.STEP, name="charge", result="1", undo='"refund"', spend='{"cost":1}')
OTHER: dict[str, Any] = {
    "job_id": UUID(int=8),
    "key": "main/2",
    "kind": StepKind.UNDO,
    "name": "refund",
    "branch": "left",
    "ordinal": 1,
    "attempt": 2,
    "arguments_digest": "x",
    "status": "failed",
    "code_version": "2",
    "child_id": UUID(int=9),
    "signal_rev": 4,
    "content_digest": "x",
    "digest": "7",
    "spend": '{"cost":2}',
    "undo": None,
    "result": "2",
    "error": "2",
}
UNCOVERED = {"number": 2, "started_at": START, "finished_at": START + timedelta(seconds=5)}


def record(step: NewStep = STEP) -> StepRecord:
    return SaveStep(JOB, step, Actor(Role.WORKFLOW, "w")).record(number=1, at=START + timedelta(seconds=1))


@pytest.mark.requirement("SM-20")
def test_every_field_of_a_step_is_listed_here() -> None:
    assert {*OTHER, *UNCOVERED} == {*StepRecord.__struct_fields__}


@pytest.mark.requirement("SM-20")
@pytest.mark.parametrize("name", OTHER)
def test_a_step_of_which_anything_was_changed_is_found(name: str) -> None:
    assert not stored_step(record()).is_changed
    assert stored_step(msgspec.structs.replace(record(), **{name: OTHER[name]})).is_changed


@pytest.mark.requirement("SM-20")
def test_number_and_times_are_not_covered_since_the_database_sets_them() -> None:
    assert stored_step(msgspec.structs.replace(record(), **UNCOVERED)) == stored_step(record())


@pytest.mark.requirement("SM-20")
def test_an_erased_step_has_the_same_digest_and_is_seen_to_be_empty() -> None:
    blank: dict[str, None] = {"result": None, "error": None, "undo": None}
    whole, erased = stored_step(record()), stored_step(msgspec.structs.replace(record(), **blank))
    assert (erased.digest, erased.is_changed, erased.is_empty) == (whole.digest, False, True)
    assert not whole.is_empty


def test_the_sum_has_no_order_and_does_not_grow_beyond_256_bits() -> None:
    digests = [5, DIGEST_MODULUS - 3, 9]
    total = StepsDigest.of(digests)
    assert total == StepsDigest.of(map(str, reversed(digests))) == StepsDigest(3, 11)
    assert StepsDigest().plus(5).plus(str(DIGEST_MODULUS - 3)).plus(9) == total
    assert StepsDigest.parse(str(total)) == total
    assert (StepsDigest().recorded, total.recorded) == (None, "3:11")


def test_every_event_that_takes_a_lease_away_records_the_steps() -> None:
    ends = {
        (transition.event, source)
        for transition in TRANSITIONS
        for source in transition.sources
        if source in LEASED and transition.to(source) not in LEASED
    }
    recording = {(type_, status) for type_ in EventType for status in Status if records_steps(type_, status)}
    assert ends <= recording
    assert {type_ for type_, _ in recording} == {type_ for type_, _ in ends} | {EventType.COMMITTED} == RECORDS_STEPS
    assert all(status in LEASED for _, status in recording)
