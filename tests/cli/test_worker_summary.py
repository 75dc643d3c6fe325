"""What a worker shows of itself: counts that survive a restart, a rate, a line a minute, and a log that can be read."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter

import pytest

from tenure.cli.logging_setup import configure_logging
from tenure.cli.worker_summary import LINE_SECONDS, ProcessSummary, WorkerSummary, row
from tenure.observe.log_format import JsonFormatter, TextFormatter
from tenure.testing.clock import ManualClock
from tenure.workers.supervisor.channel import WorkerReport


def report(worker: str = "w", *, uptime: float = 1.0, running: int = 0, **counts: int) -> WorkerReport:
    return WorkerReport(worker=worker, pid=7, running=running, counts=counts, uptime_seconds=uptime)


def test_the_counts_of_a_process_that_was_replaced_are_kept() -> None:
    summary = WorkerSummary()
    summary.record(1, report("first", claimed=5, succeeded=3))
    summary.record(1, report("first", claimed=6, succeeded=4))
    summary.record(1, report("second", claimed=1))
    summary.record(2, report("other", claimed=10, lost=1))
    assert summary.counts() == Counter(claimed=17, succeeded=4, lost=1)
    assert [process.number for process in summary.refresh()] == [1, 2]


def test_the_rate_is_that_of_the_last_reports() -> None:
    process = ProcessSummary(1)
    assert process.per_second == 0.0
    for second in range(20):
        process.record(report(uptime=second, claimed=1000, succeeded=10 * second if second < 10 else 100))
    assert process.per_second == 0.0
    process.record(report(uptime=20, claimed=1000, succeeded=125))
    assert process.per_second == pytest.approx(5.0)
    process.record(report("another", uptime=0.5))
    assert process.per_second == 0.0


def test_a_row_has_every_column() -> None:
    process = ProcessSummary(
        2, report(uptime=75, running=4, claimed=1234, succeeded=1200, retry=20, failed=6, dead_lettered=3)
    )
    assert row(process) == (2, 7, 4, "1,234", "1,200", "20", "6", "3", "0", "0.0", "0:01:15")
    assert row(ProcessSummary(1))[:3] == (1, None, 0)


class Minutes(ManualClock):
    """A clock on which no sleep lasts for ever."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if self.monotonic_seconds() > 2 * LINE_SECONDS:
            raise asyncio.CancelledError


async def test_a_summary_is_logged_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    summary = WorkerSummary(lambda: report(running=2, claimed=5, succeeded=2, stalled=1))
    with caplog.at_level(logging.INFO), pytest.raises(asyncio.CancelledError):
        await summary.write_lines(Minutes())
    assert [record.getMessage() for record in caplog.records] == ["2 running; 5 claimed, 2 succeeded, 1 released"] * 2


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    try:
        raise ValueError("no")
    except ValueError:
        made = logging.LogRecord("shop", logging.WARNING, "f.py", 1, message, arguments, sys.exc_info())
    made.__dict__.update(extra, created=1893456000.25, process=42)
    return made


def test_a_text_log_line_is_followed_by_its_traceback() -> None:
    first, *rest = TextFormatter(color=False).format(record("two\nlines %s", "\x1b[31m")).splitlines()
    assert first == r"2030-01-01T00:00:00.250Z WARNING shop[42]: two\nlines \x1b[31m"
    assert rest[-1] == "  ValueError: no"
    assert "\x1b[33mWARNING" in TextFormatter(color=True).format(record("x"))


def test_a_json_log_line_has_its_extra_fields() -> None:
    text = JsonFormatter().format(record("job \udc80 %s", 7, job_id="a", thing=object))
    assert len(text.splitlines()) == 1
    line = json.loads(text)
    assert (line["at"], line["level"], line["logger"], line["pid"]) == (
        "2030-01-01T00:00:00.250Z",
        "warning",
        "shop",
        42,
    )
    assert (line["message"], line["job_id"], line["thing"]) == (r"job \udc80 7", "a", "<class 'object'>")
    assert "ValueError: no" in line["traceback"]


def test_a_module_that_sets_up_logging_changes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    try:
        configure_logging("info", as_json=False)
        logging.basicConfig(level="DEBUG")
        logging.getLogger("shop").debug("too much")
        logging.getLogger("shop").info("hello")
    finally:
        root.setLevel(before)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("shop[" + line.partition("[")[2].partition("]")[0] + "]: hello")
