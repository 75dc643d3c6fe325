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
def test_a_line_says_which_job_it_is_about_unless_its_message_does(
    message: str, facts: dict[str, Any], end: str
) -> None:
    assert TextFormatter(color=False).format(record(message, **facts)).endswith(end)


def test_a_json_line_has_the_facts_as_fields() -> None:
    line = json.loads(JsonFormatter().format(record("sent", **JOB)))
    assert {name: line[name] for name in JOB} == JOB
    assert line["message"] == "sent"
