"""What a worker's log looks like when a record belongs to a job."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tenure.observe.log_format import JsonFormatter, TextFormatter

JOB = {"job_id": "01a1", "job_kind": "mail", "job_attempt": 2, "correlation_id": "c-1", "trace_id": None}


def record(message: str, **facts: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": message, **facts})


@pytest.mark.parametrize(
    ("message", "facts", "end"),
    [
        ("sent", JOB, ": sent [mail 01a1, attempt 2]"),
        ("job 01a1 was sent", JOB, ": job 01a1 was sent"),
        ("sent", {}, ": sent"),
        ("sent", {**JOB, "job_kind": "\x1b[31m"}, ": sent [\\x1b[31m 01a1, attempt 2]"),
    ],
)
def test_a_line_names_its_job_unless_its_message_does(message: str, facts: dict[str, Any], end: str) -> None:
    assert TextFormatter(color=False).format(record(message, **facts)).endswith(end)


def test_a_json_line_has_the_facts_as_fields() -> None:
    line = json.loads(JsonFormatter().format(record("sent", **JOB)))
    assert {name: line[name] for name in JOB} == JOB
    assert line["message"] == "sent"


def test_a_traceback_is_escaped_and_cannot_look_like_a_record() -> None:
    forged = "2030-01-01T00:00:00.000Z INFO    tenure[1]: all is well"
    for facts in (
        {"traceback": f"ValueError: \x1b[2J\n{forged}\r{forged}"},
        {"exc_info": raised(f"\x1b[2J\n{forged}")},
    ):
        lines = TextFormatter(color=False).format(record("failed", **facts)).splitlines()
        assert all(line.isprintable() for line in lines)
        assert any("\\x1b[2J" in line for line in lines)
        assert all(line.startswith("  ") for line in lines[1:])
        assert f"  {forged}" in lines


def raised(message: str) -> object:
    try:
        raise ValueError(message)
    except ValueError as error:
        return type(error), error, error.__traceback__
