"""Lines of an export: what is written is read back the same, and what no export writes is refused by its number."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from simulation.model.store import ModelStore
from tenure.archive.exporter import Exporter
from tenure.archive.format import (
    ORDER,
    BrokenArchive,
    Checksum,
    EventLine,
    Footer,
    JobLine,
    StepLine,
    artifact_line,
    event_line,
    job_line,
    kind_of,
    read,
    record_line,
    step_line,
)
from tenure.archive.importer import check_file, read_lines
from tenure.lifecycle.operations import Complete
from tenure.lifecycle.records import Policy
from tenure.lifecycle.timeouts import Timeouts
from tenure.stores import Store
from tenure.stores.contract import ArtifactRecord
from tenure.stores.contract.archive import RUN_LENGTH_MAX, ArchivedJob, Runs
from tenure.testing.clock import START, ManualClock
from tenure.testing.contract.archive import bare, lived, read_all, seen
from tenure.testing.driver import Driver
from tests.support.archives import check_and_import

Damage = Callable[[list[bytes]], tuple[list[bytes], int]]


def a_life() -> ModelStore:
    clock = ManualClock()
    model = ModelStore(clock)
    asyncio.run(lived(Driver(model), clock))
    return model


async def lines_of(store: Store) -> list[bytes]:
    async with store.archive.snapshot() as snapshot:
        return [line async for line in Exporter(snapshot).lines()]


@pytest.fixture(scope="module")
def exported() -> list[bytes]:
    """The lines of a database with something of nearly everything, without their ends."""
    return [line.removesuffix(b"\n") for line in asyncio.run(lines_of(a_life()))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "export.jsonl"


def put(file: Path, lines: list[bytes]) -> Path:
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def summed_up(lines: list[bytes]) -> list[bytes]:
    """The lines with a footer that fits them, as a forger of an export would write it."""
    total = Checksum()
    for line in lines[1:-1]:
        total.add(json.loads(line)["line"], line + b"\n")
    return [*lines[:-1], msgspec.json.encode(total.footer())]


# What is written is read back.


async def test_every_record_is_read_back_as_it_was_written() -> None:
    clock = ManualClock()
    model = ModelStore(clock)
    await lived(Driver(model), clock)
    held = await read_all(model)
    for kept in held.jobs:
        line = read(1, job_line(kept))
        assert isinstance(line, JobLine)
        assert line.record == msgspec.structs.replace(kept, artifacts=(), step_count=0)
    for step in held.steps:
        line = read(1, step_line(step, number=step.number))
        assert isinstance(line, StepLine)
        assert line.step == step
    for event in held.log:
        line = read(1, event_line(event))
        assert isinstance(line, EventLine)
        assert [line.event] == bare([event])
    for record in held.records:
        kind, raw = record_line(record)
        read_back = read(1, raw)
        assert kind_of(read_back) == kind
        assert getattr(read_back, kind) == record
    assert {kind_of(read(1, record_line(record)[1])) for record in held.records} < set(ORDER)


async def test_a_policy_that_leaves_something_open_leaves_it_open_there_too() -> None:
    """None is not the default of each of its fields, so that it has to be written."""
    drive = Driver(ModelStore(ManualClock()))
    job = await drive.add(policy={"timeouts": Timeouts(running_seconds=None)})
    line = read(1, job_line(ArchivedJob(job=job)))
    assert isinstance(line, JobLine)
    assert line.job.policy == Policy(timeouts=Timeouts(running_seconds=None))


def test_an_artifact_may_be_any_bytes() -> None:
    body = bytes(range(256))
    record = ArtifactRecord(job_id=UUID(int=1), name="n", attempt=1, media_type="x/y", bytes=len(body), at=START)
    line = read(1, artifact_line(record, body))
    assert (line.artifact, line.content()) == (record, body)  # type: ignore[union-attr]


async def test_an_export_of_the_model_is_imported_into_another(file: Path) -> None:
    clock = ManualClock()
    model, other = ModelStore(clock), ModelStore(ManualClock())
    await lived(Driver(model), clock)
    put(file, [line.removesuffix(b"\n") for line in await lines_of(model)])
    done = await check_and_import(other.archive, file)
    assert await seen(other) == await seen(model)
    assert done.footer.counts["job"] == len(await other.read([kept.job.id for kept in (await read_all(model)).jobs]))


async def test_two_exports_of_the_same_content_have_the_same_digest() -> None:
    clock = ManualClock()
    model = ModelStore(clock)
    await lived(Driver(model), clock)
    first = await lines_of(model)
    clock.advance(60)
    second = await lines_of(model)
    assert first[0] != second[0]
    assert first[1:] == second[1:]


# Stretches of a log.


async def test_a_log_in_which_jobs_follow_each_other_is_one_stretch() -> None:
    drive = Driver(ModelStore(ManualClock()))
    for _ in range(3):
        await drive.apply(await drive.running(), Complete("1"))
    log = (await drive.store.tail()).events
    runs = Runs()
    assert [runs.place(event) for event in log] == [0] * len(log)
    assert [runs.place(event) for event in log] == [1] * len(log), "the same again is behind it"
    assert runs.count == 2


async def test_a_stretch_ends_where_the_order_would_be_another_and_when_it_is_long() -> None:
    drive = Driver(ModelStore(ManualClock()))
    first, second = await drive.add(), await drive.add()
    one, two = (await drive.events_of(first.id))[0], (await drive.events_of(second.id))[0]
    runs = Runs()
    later = msgspec.structs.replace(one, rev=2)
    assert [runs.place(event) for event in (one, two, later, two)] == [0, 0, 1, 1]
    long = Runs()
    places = [long.place(msgspec.structs.replace(one, rev=rev)) for rev in range(1, RUN_LENGTH_MAX + 2)]
    assert places == [0] * RUN_LENGTH_MAX + [1]


# What is refused.


def line_of(lines: list[bytes], kind: str, number: int = 0) -> int:
    """The place of a line of this kind, from 0."""
    return [place for place, line in enumerate(lines) if json.loads(line)["line"] == kind][number]


def changed(line: bytes, **facts: Any) -> bytes:
    """The line with these facts in its record."""
    parsed = json.loads(line)
    parsed[parsed["line"]] |= facts
    return json.dumps(parsed).encode()


def cut(lines: list[bytes]) -> tuple[list[bytes], int]:
    return lines[:-1], len(lines)


def cut_within(lines: list[bytes]) -> tuple[list[bytes], int]:
    return [*lines[:7], lines[7][:20]], 8


def not_json(lines: list[bytes]) -> tuple[list[bytes], int]:
    return [*lines[:4], b"{", *lines[5:]], 5


def unknown_kind(lines: list[bytes]) -> tuple[list[bytes], int]:
    return [*lines[:4], b'{"line":"song"}', *lines[5:]], 5


def unknown_field(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "job")
    return [*lines[:at], lines[at][:-1] + b',"lyrics":1}', *lines[at + 1 :]], at + 1


def one_left_out(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "event", 9)
    return lines[:at] + lines[at + 1 :], len(lines) - 1


def one_changed(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "event", 9)
    return [*lines[:at], changed(lines[at], actor="client:eve"), *lines[at + 1 :]], len(lines)


def more_behind(lines: list[bytes]) -> tuple[list[bytes], int]:
    return [*lines, lines[3]], len(lines) + 1


def no_header(lines: list[bytes]) -> tuple[list[bytes], int]:
    return lines[1:], 1


def wrong_order(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "job")
    return [*lines[: at + 1], lines[3], *lines[at + 1 :]], at + 2


def a_job_twice(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "job")
    return [*lines[: at + 1], lines[at], *lines[at + 1 :]], at + 2


def without_time_zone(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "event")
    return [*lines[:at], changed(lines[at], at="2030-01-01T00:00:00"), *lines[at + 1 :]], at + 1


def with_a_token(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "job")
    token = "01890a5d-ac96-774b-bcce-b302099a8057"
    return [*lines[:at], changed(lines[at], token=token), *lines[at + 1 :]], at + 1


def artifact_cut(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "artifact")
    parsed = json.loads(lines[at])
    return [*lines[:at], json.dumps({**parsed, "body": "AAAA"}).encode(), *lines[at + 1 :]], at + 1


def newer(lines: list[bytes]) -> tuple[list[bytes], int]:
    return [json.dumps({**json.loads(lines[0]), "version": 4}).encode(), *lines[1:]], 1


def older(lines: list[bytes]) -> list[bytes]:
    """As the first version wrote it, which had no steps."""
    return [json.dumps({**json.loads(lines[0]), "version": 1}).encode(), *lines[1:]]


def a_step_left_out(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "step")
    return [*lines[:at], *lines[at + 1 :]], at + 1


def step_of_another_job(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "step")
    return [*lines[:at], with_step(lines[at], job_id=str(UUID(int=7))), *lines[at + 1 :]], at + 1


def step_without_a_digest(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = line_of(lines, "step")
    return [*lines[:at], with_step(lines[at], digest="x"), *lines[at + 1 :]], at + 1


def with_step(line: bytes, **facts: str) -> bytes:
    parsed = json.loads(line)
    return json.dumps({**parsed, "step": {**parsed["step"], **facts}}).encode()


def test_a_file_of_the_first_version_is_read(exported: list[bytes], file: Path) -> None:
    assert check_file(put(file, older(exported))).header.version == 1


@pytest.mark.requirement("SM-20")
async def test_a_changed_step_is_refused_even_if_the_footer_fits(exported: list[bytes], file: Path) -> None:
    at = line_of(exported, "step")
    for facts in ({"result": '"forged"'}, {"name": "forged"}, {"digest": "7"}):
        lines = [*exported[:at], with_step(exported[at], **facts), *exported[at + 1 :]]
        put(file, summed_up(lines))
        model = ModelStore(ManualClock())
        with pytest.raises(BrokenArchive, match="step"):
            await check_and_import(model.archive, file)
        assert await seen(model) == await seen(ModelStore(ManualClock()))


@pytest.mark.parametrize(
    ("damage", "expected_text"),
    [
        (cut, "the file ends without a footer, so it was truncated"),
        (cut_within, "has no newline, so the file was truncated"),
        (not_json, "Input data was truncated"),
        (unknown_kind, "Invalid value 'song'"),
        (unknown_field, "unknown field `lyrics`"),
        (one_left_out, "the footer counts"),
        (one_changed, "the digest differs: the file was changed after the export"),
        (more_behind, "follows the footer"),
        (no_header, "an export starts with a header"),
        (wrong_order, "lines must precede job lines"),
        (a_job_twice, "occurs twice"),
        (without_time_zone, "has no time zone"),
        (with_a_token, "the job has a lease token"),
        (artifact_cut, "has 3 bytes instead of"),
        (newer, "version 3, not 'tenure-export' version 4"),
        (a_step_left_out, "does not follow its job, or the step before it"),
        (step_of_another_job, "does not follow its job, or the step before it"),
        (step_without_a_digest, "must be a decimal integer of 256 bits"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_damaged_file_is_refused_with_its_line_number(
    damage: Damage, expected_text: str, exported: list[bytes], file: Path
) -> None:
    lines, number = damage(exported)
    put(file, lines)
    if damage is cut_within:
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BrokenArchive) as broken:
        check_file(file)
    assert broken.value.line == number
    assert expected_text in broken.value.problem
    assert str(broken.value).endswith("; nothing was imported")


def test_every_single_byte_counts(exported: list[bytes], file: Path) -> None:
    """Wherever between header and footer one is changed, the file is refused."""
    whole = b"".join(line + b"\n" for line in exported)
    begin, end = len(exported[0]) + 1, len(whole) - len(exported[-1]) - 1
    for place in range(begin, end, 41):
        other = b"0" if whole[place : place + 1] != b"0" else b"1"
        file.write_bytes(whole[:place] + other + whole[place + 1 :])
        with pytest.raises(BrokenArchive):
            check_file(file)


def test_every_shorter_file_is_refused(exported: list[bytes], file: Path) -> None:
    whole = b"".join(line + b"\n" for line in exported)
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(BrokenArchive):
            check_file(file)


def test_a_compressed_file_is_refused_wherever_it_was_cut_off(exported: list[bytes], tmp_path: Path) -> None:
    file = tmp_path / "export.jsonl.gz"
    whole = gzip.compress(b"".join(line + b"\n" for line in exported))
    file.write_bytes(whole)
    assert check_file(file).footer.counts["job"] > 0
    for length in range(0, len(whole) - 1, 61):
        file.write_bytes(whole[:length])
        with pytest.raises(BrokenArchive):
            check_file(file)


async def test_a_file_that_changes_while_it_is_read_is_refused(exported: list[bytes], file: Path) -> None:
    """The importer checks a line again in its second pass."""
    other = ModelStore(ManualClock())
    at = place_of(exported, "event", lambda parsed: "worker-1" in parsed["actor"])
    other_lines = [*exported[:at], exported[at].replace(b"worker-1", b"worker-9"), *exported[at + 1 :]]

    def change(doing: str, fraction: float) -> None:
        if doing == "reading" and fraction == 1.0:
            put(file, other_lines)

    check_file(put(file, exported))
    with pytest.raises(BrokenArchive, match="digest"):
        await check_and_import(other.archive, file, report=change)
    assert await seen(other) == await seen(ModelStore(ManualClock()))


def test_lines_are_numbered_from_one(exported: list[bytes], file: Path) -> None:
    found = list(read_lines(put(file, exported), step="reading"))
    assert [number for number, _, _ in found] == list(range(1, len(exported) + 1))
    assert isinstance(found[-1][1], Footer)
    assert [size for _, _, size in found] == [len(line) + 1 for line in exported]


# Forgeries with a correct digest.


def an_arrow_that_is_none(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "event", lambda parsed: parsed["type"] == "started")
    return [*lines[:at], changed(lines[at], type="progress"), *lines[at + 1 :]], at + 1


def a_revision_left_out(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "event", lambda parsed: parsed["type"] == "started")
    job_id = json.loads(lines[at])["event"]["job_id"]
    after = place_of(lines, "event", lambda parsed: parsed["job_id"] == job_id and parsed["rev"] == 4)
    return lines[:at] + lines[at + 1 :], after


def a_date_before_the_one_before(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "event", lambda parsed: parsed["type"] == "started")
    return [*lines[:at], changed(lines[at], at="2001-01-01T00:00:00Z"), *lines[at + 1 :]], at + 1


def another_result(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed.get("committed_result") is not None)
    job_id = json.loads(lines[at])["job"]["origin"]["id"]
    event = place_of(lines, "event", lambda parsed: parsed["job_id"] == job_id and parsed["type"] == "committed")
    return [*lines[:at], changed(lines[at], committed_result='"forged"'), *lines[at + 1 :]], event + 1


def another_payload(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed["status"] == "running")
    parsed = json.loads(lines[at])["job"]
    event = place_of(lines, "event", lambda one: one["job_id"] == parsed["origin"]["id"])
    return [
        *lines[:at],
        changed(lines[at], origin=parsed["origin"] | {"payload": '"forged"'}),
        *lines[at + 1 :],
    ], event + 1


def another_status(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed["status"] == "waiting")
    return [*lines[:at], changed(lines[at], status="queued"), *lines[at + 1 :]], at + 1


def fewer_failures(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed["failures"] == 1)
    return [*lines[:at], changed(lines[at], failures=0), *lines[at + 1 :]], at + 1


def no_dead_letter(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed["status"] == "dead_lettered")
    parsed = json.loads(lines[at])
    del parsed["dead_letter"]
    return [*lines[:at], json.dumps(parsed).encode(), *lines[at + 1 :]], at + 1


def a_dead_letter_of_one_that_lives(lines: list[bytes]) -> tuple[list[bytes], int]:
    dead = json.loads(lines[place_of(lines, "job", lambda parsed: parsed["status"] == "dead_lettered")])["dead_letter"]
    at = place_of(lines, "job", lambda parsed: parsed["status"] == "waiting")
    parsed = json.loads(lines[at])
    parsed["dead_letter"] = dead | {"job_id": parsed["job"]["origin"]["id"]}
    return [*lines[:at], json.dumps(parsed).encode(), *lines[at + 1 :]], at + 1


def another_signal(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = next(place for place, line in enumerate(lines) if b'"signals"' in line)
    parsed = json.loads(lines[at])
    parsed["signals"][0]["payload"] = '"forged"'
    job_id = parsed["job"]["origin"]["id"]
    event = place_of(lines, "event", lambda one: one["job_id"] == job_id and one["type"] == "signalled")
    return [*lines[:at], json.dumps(parsed).encode(), *lines[at + 1 :]], event + 1


def events_of_nobody(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "job", lambda parsed: parsed["status"] == "waiting")
    job_id = json.loads(lines[at])["job"]["origin"]["id"]
    event = place_of(lines, "event", lambda one: one["job_id"] == job_id)
    return lines[:at] + lines[at + 1 :], event + 1


def an_event_twice(lines: list[bytes]) -> tuple[list[bytes], int]:
    at = place_of(lines, "event", lambda parsed: parsed["type"] == "started")
    return [*lines[: at + 3], lines[at], *lines[at + 3 :]], at + 4


def place_of(lines: list[bytes], kind: str, wanted: Callable[[Any], bool]) -> int:
    parsed = ((place, json.loads(line)) for place, line in enumerate(lines))
    return next(place for place, line in parsed if line["line"] == kind and wanted(line[kind]))


FORGERIES: tuple[tuple[Damage, str], ...] = (
    (an_arrow_that_is_none, "progress from claimed to running is not in the table"),
    (a_revision_left_out, "follows revision 2"),
    (a_date_before_the_one_before, "is dated before its predecessor"),
    (another_result, "committed_result has the digest"),
    (another_payload, "does not match the digest in the log"),
    (another_status, "status is 'queued' in the record, 'waiting' by the log"),
    (fewer_failures, "failures is 0 in the record, 1 by the log"),
    (no_dead_letter, "its dead-letter record is missing"),
    (a_dead_letter_of_one_that_lives, "it has a dead letter, though it is waiting"),
    (another_signal, "the signal is not the one that was sent"),
    (events_of_nobody, "is not in the file"),
    (an_event_twice, "a revision has one event"),
)


@pytest.mark.requirement("EH-09")
@pytest.mark.parametrize(
    ("forge", "expected_text"), FORGERIES, ids=lambda value: value.__name__ if callable(value) else ""
)
async def test_an_illegal_history_is_refused_even_with_a_valid_digest(
    forge: Damage, expected_text: str, exported: list[bytes], file: Path
) -> None:
    lines, number = forge(exported)
    put(file, summed_up(lines))
    check_file(file)
    other = ModelStore(ManualClock())
    with pytest.raises(BrokenArchive) as broken:
        await check_and_import(other.archive, file)
    assert expected_text in broken.value.problem
    assert broken.value.line == number
    assert await seen(other) == await seen(ModelStore(ManualClock()))
