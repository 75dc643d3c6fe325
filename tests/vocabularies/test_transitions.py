"""Every vocabulary reports transitions of its source and listed extensions only, whatever legal log it translates."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import TenureError
from tenure.lifecycle.decide import decide_at, expand
from tenure.lifecycle.enqueue import enqueue
from tenure.lifecycle.operation_types import OperationType
from tenure.lifecycle.records import Actor, Event, EventType, Job, Origin, Policy, Role
from tenure.lifecycle.statuses import CLAIMED, QUEUED, RETRY, RUNNING, STALLED, SUCCEEDED
from tenure.lifecycle.timeouts import Timeouts
from tenure.lifecycle.transitions import TRANSITION_OF, TRANSITIONS
from tenure.testing.clock import START
from tenure.vocabularies import (
    ALL,
    VOCABULARY_NAMES,
    TranslatedEvent,
    Vocabulary,
    engine_hardening,
    lifecycle_contract,
    state_machine,
    transition_problems,
    vocabulary,
    worker_contract,
)
from tenure.vocabularies.vocabulary import SourceTransition
from tests.lifecycle.test_decide_exhaustively import OPERATIONS, TOKEN
from tests.vocabularies.records import RECIPES, brought_about
from tests.vocabularies.sources import ENGINE_REJECTED, SOURCES, WORD_ROWS, Pair, pairs

EVERY_VOCABULARY = pytest.mark.parametrize("words", ALL, ids=VOCABULARY_NAMES)
ENDS = ("JOB_COMPLETED", "JOB_FAILED")


def pairs_of(transitions: tuple[SourceTransition, ...]) -> set[Pair]:
    return {(one.before, one.after) for one in transitions}


@EVERY_VOCABULARY
@pytest.mark.requirement("EH-12", "SM-19", "EL-02")
def test_a_vocabulary_has_the_transitions_of_its_source_and_the_listed_extensions(words: Vocabulary) -> None:
    source = SOURCES[words.name]
    assert pairs_of(words.transitions) == source.own
    assert pairs_of(words.extensions) == source.extensions
    assert len(words.transitions) == len(source.own)
    assert len(words.extensions) == len(source.extensions)


@EVERY_VOCABULARY
def test_a_transition_is_the_sources_own_or_an_extension_and_never_both(words: Vocabulary) -> None:
    for own in words.transitions:
        for extension in words.extensions:
            same = (own.before, own.after) == (extension.before, extension.after)
            assert not same or not own.by & extension.by


@pytest.mark.requirement("EH-12")
def test_what_the_hardened_engines_reject_is_in_neither_list() -> None:
    engine = vocabulary("engine")
    allowed = pairs_of(engine.transitions) | pairs_of(engine.extensions)
    assert not allowed & pairs(ENGINE_REJECTED)
    assert not {before for before, _ in allowed} & {"completed", "failed"}


@EVERY_VOCABULARY
@pytest.mark.parametrize("name", list(WORD_ROWS))
@pytest.mark.requirement("LC-01", "SM-01", "EL-02", "EH-08")
async def test_the_word_for_a_record_is_the_one_that_was_decided(words: Vocabulary, name: str) -> None:
    job, events = await brought_about(name)
    expected = WORD_ROWS[name][VOCABULARY_NAMES.index(words.name)].partition("/")[0].strip()
    assert words.status(job, events) == expected
    fields = words.job(job, events)
    assert fields.get("status", fields.get("state")) == expected
    assert transition_problems([words], job, events) == []


@pytest.mark.parametrize("name", list(WORD_ROWS))
@pytest.mark.requirement("EL-01", "EL-02")
async def test_the_last_execution_has_the_status_that_was_decided(name: str) -> None:
    job, events = await brought_about(name)
    fields = vocabulary("ledger").job(job, events)
    found = [one["status"] for one in fields["executions"]] or ["-"]
    assert found[-1] == WORD_ROWS[name][VOCABULARY_NAMES.index("ledger")].partition("/")[2].strip()
    assert fields["state"] == job.coarse_state, "the coarse state is a function of the record"
    open_executions = {"LEASED", "IN_PROGRESS", "COMMITTED"}
    assert all((one["finished_at"] is None) is (one["status"] in open_executions) for one in fields["executions"])


def test_every_record_of_the_table_has_a_recipe() -> None:
    assert list(RECIPES) == list(WORD_ROWS)


# Random legal logs


def _policies() -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        max_attempts=st.integers(1, 3),
        on_lost=st.sampled_from(["requeue", "fail", "dead_letter"]),
        on_exhausted=st.sampled_from(["fail", "dead_letter"]),
        on_timeout=st.sampled_from(["retry", "fail", "dead_letter"]),
        timeouts=st.builds(
            Timeouts,
            queued_seconds=st.sampled_from([None, 30.0]),
            claimed_seconds=st.sampled_from([None, 10.0]),
            running_seconds=st.sampled_from([60.0, 86_400.0]),
        ),
    )


REQUESTS = [(operation, by.role) for operation, _ in OPERATIONS for by in TRANSITION_OF[operation.type].by]
CHOICES = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 70.0, 100_000.0])), max_size=30)


def _possible(job: Job, now: datetime) -> Iterator[tuple[list[Event], Job]]:
    """The events of every operation that is legal now, and the job after it."""
    for operation, role in REQUESTS:
        actor = Actor(role, "worker-1", TOKEN)
        try:
            change = decide_at(job, (operation,), actor, request_id="r", now=now, expected_rev=None)
        except TenureError:
            continue
        events, after = expand(change, max(now, job.updated_at))
        yield list(events), after


def _log(policy: Policy, choices: list[tuple[int, float]]) -> tuple[Job, list[Event]]:
    origin = Origin(id=UUID(int=1), kind="mail", payload="{}", policy=policy)
    first, job = enqueue(origin, Actor(Role.CLIENT, "ada"), delay_ms=0, now=START)
    log, now = [first], START
    for number, seconds in choices:
        now += timedelta(seconds=seconds)
        if not (possible := list(_possible(job, now))):
            break
        # An end is possible in every status: one in ten, or most logs would be short.
        lasting = [one for one in possible if one[1].live and number % 10]
        events, job = (lasting or possible)[number // 10 % len(lasting or possible)]
        log += events
    return msgspec.structs.replace(job, token=None), log


@given(policy=_policies(), choices=CHOICES)
@settings(max_examples=300, deadline=None)
@pytest.mark.requirement("EH-12", "SM-19", "EL-02", "EH-07")
def test_every_legal_log_is_reported_by_allowed_transitions_that_lead_to_the_word_of_the_job(
    policy: Policy, choices: list[tuple[int, float]]
) -> None:
    job, log = _log(policy, choices)
    assert transition_problems(ALL, job, log) == []
    for words in ALL:
        reported = words.translate_log(job.origin, log)
        _check_by_source(words.name, reported)
        last = [one.transition.after for one in reported if one.transition and one.transition.subject == str(job.id)][
            -1
        ]
        assert last == words.status(job, log)
    assert vocabulary("ledger").status(job, log) == job.coarse_state
    ends = [one.name for one in vocabulary("engine").translate_log(job.origin, log) if one.name in ENDS]
    assert len(ends) == int(not job.live)


def _check_by_source(name: str, reported: list[TranslatedEvent]) -> None:
    """The same check, by the tables of the sources and not by those of the code."""
    source, words = SOURCES[name], dict[str, str]()
    for one in reported:
        if (found := one.transition) is None:
            continue
        assert found.before == words.get(found.subject)
        assert (found.before, found.after) in (source.extensions if found.extension else source.own)
        assert one.extension is found.extension
        words[found.subject] = found.after


def test_every_transition_and_every_extension_is_reported_of_some_log() -> None:
    """So none is listed that cannot happen."""
    rng = random.Random(31)
    seen = {words.name: set[tuple[Pair, bool]]() for words in ALL}
    for _ in range(400):
        policy = Policy(
            max_attempts=rng.randint(1, 3),
            on_lost=rng.choice(["requeue", "fail", "dead_letter"]),
            on_exhausted=rng.choice(["fail", "dead_letter"]),
            on_timeout=rng.choice(["retry", "fail", "dead_letter"]),
            timeouts=Timeouts(queued_seconds=30.0, claimed_seconds=10.0, running_seconds=60.0),
        )
        choices = [(rng.randrange(10_000), rng.choice([0.0, 1.0, 70.0])) for _ in range(rng.randint(1, 30))]
        job, log = _log(policy, choices)
        for words in ALL:
            for one in words.translate_log(job.origin, log):
                if (found := one.transition) is not None:
                    seen[words.name].add(((found.before, found.after), found.extension))
    for words in ALL:
        source = SOURCES[words.name]
        listed = {(pair, False) for pair in source.own} | {(pair, True) for pair in source.extensions}
        assert seen[words.name] == listed, words.name


def test_the_random_logs_can_have_every_operation() -> None:
    assert {operation.type for operation, _ in REQUESTS} == {one.operation for one in TRANSITIONS}
    assert OperationType.ENQUEUE not in TRANSITION_OF


# Single transitions


async def transitions(name: str, words: str) -> list[tuple[Any, str, bool]]:
    """The transitions of the job itself, without the first."""
    job, events = await brought_about(name)
    reported = [one.transition for one in vocabulary(words).translate_log(job.origin, events)]
    return [(one.before, one.after, one.extension) for one in reported if one and one.subject == str(job.id)][1:]


@pytest.mark.requirement("EL-02")
@pytest.mark.parametrize(("name", "extension"), [("stalled", False), ("retry", True), ("waiting", True)])
async def test_the_ledger_returns_to_pending_by_a_lost_lease_and_otherwise_by_an_extension(
    name: str, extension: bool
) -> None:
    assert (await transitions(name, "ledger"))[-1] == ("RUNNING", "PENDING", extension)


@pytest.mark.requirement("EH-12")
async def test_a_start_without_an_acknowledgement_is_also_the_dispatch() -> None:
    assert await transitions("running", "engine") == [("queued", "dispatched", False), ("dispatched", "running", False)]
    assert await transitions("claimed", "engine") == []
    assert await transitions("claimed, acked", "engine") == [("queued", "dispatched", False)]


@EVERY_VOCABULARY
@pytest.mark.parametrize(
    "name",
    ["stalled, committed", "stalled while running, ends", "stalled while acked, ends", "stalled while claimed, ends"],
)
async def test_a_stall_that_the_end_follows_is_not_reported(words: Vocabulary, name: str) -> None:
    job, events = await brought_about(name)
    assert events[-1].type is EventType.STALLED
    *before, after = [words.translate_log(job.origin, events[:count]) for count in range(1, len(events) + 1)]
    added = after[len(before[-1]) :]
    assert [one.transition for one in added] == [None] * len(added)


# The checker finds a mapping that is wrong


def _wrong_mappings() -> list[tuple[str, str, dict[Any, str], Any, str]]:
    return [
        ("contract", "a retry is queued", lifecycle_contract.STATUSES, RETRY, "queued"),
        ("machine", "a stalled job is dead-lettered", state_machine.STATUSES, STALLED, "dead_lettered"),
        ("worker", "a queued run is in retry", worker_contract.STATUSES, QUEUED, "retry"),
        ("engine", "a claimed job runs", engine_hardening.STATUSES, CLAIMED, "running"),
        ("engine", "a running job has completed", engine_hardening.STATUSES, RUNNING, "completed"),
        ("contract", "a succeeded job is queued", lifecycle_contract.STATUSES, SUCCEEDED, "queued"),
    ]


@pytest.mark.parametrize("wrong", _wrong_mappings(), ids=lambda wrong: f"{wrong[0]}: {wrong[1]}")
async def test_the_checker_finds_a_wrong_word(
    wrong: tuple[str, str, dict[Any, str], Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, statuses, status, word = wrong
    monkeypatch.setitem(statuses, status, word)
    found = []
    for record in RECIPES:
        job, events = await brought_about(record)
        found += transition_problems([vocabulary(name)], job, events)
    assert found
    assert all(problem.vocabulary == name and "→" in problem.message for problem in found)


async def test_the_checker_finds_a_transition_that_is_marked_wrongly() -> None:
    job, events = await brought_about("retry")
    ledger = vocabulary("ledger")
    listed_as_own = msgspec.structs.replace(ledger, transitions=(*ledger.transitions, *ledger.extensions))

    class Unmarked(Vocabulary, frozen=True, kw_only=True):
        """Translates by other lists than it is checked by."""

        def translate(self, history: Any) -> list[TranslatedEvent]:
            return listed_as_own.translate(history)

    unmarked = Unmarked(**{name: getattr(ledger, name) for name in ledger.__struct_fields__})
    [problem] = transition_problems([unmarked], job, events)
    assert "RUNNING → PENDING by retry_scheduled is an extension, and is marked otherwise" in str(problem)


async def test_the_checker_finds_a_stream_that_does_not_end_at_the_word_of_the_job() -> None:
    job, events = await brought_about("running")

    quiet = msgspec.structs.replace(vocabulary("engine"), translate_event=lambda history: iter(()))
    [problem] = transition_problems([quiet], job, events)
    assert problem.message == "the stream ends at None, and the job is running"
