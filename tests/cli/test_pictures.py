"""What the main commands show on terminals of 80 and 120 columns, compared with `pictures/`.

`UPDATE_PICTURES=1 pytest tests/cli/test_pictures.py` writes the pictures anew. Look at them before you commit them.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
from pathlib import Path
from uuid import UUID

import click
import pytest

from tenure.cli import database
from tenure.cli.main import tenure
from tenure.cli.output import print_text
from tenure.cli.tables import Column, table_lines
from tenure.cli.worker_summary import HEADINGS, ProcessSummary, row
from tenure.lifecycle.dead_letter import ReasonCode, Stage
from tenure.lifecycle.json_text import encode
from tenure.lifecycle.operations import Complete, DeadLetter, Progress, Retry
from tenure.lifecycle.queue_limits import QueueLimits, Rate
from tenure.lifecycle.records import Policy
from tenure.lifecycle.schedules import Schedule
from tenure.stores import Store
from tenure.stores.contract import WorkerRecord
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.driver import OPERATOR, Driver
from tenure.workers.supervisor.channel import WorkerReport
from tests.support.sample_jobs import one_of_each

PICTURES = Path(__file__).parent / "pictures"
ID = re.compile(r"01890a5d-[0-9a-f]{4}-7000-8000-[0-9a-f]{12}")
LONG_KIND = "billing.invoices.send_monthly_statement"
LONG_ERROR = encode(
    {
        "type": "ConnectionResetError",
        "message": "the mail server closed the connection before it had accepted the message of 12,345 bytes",
        "traceback": 'Traceback (most recent call last):\n  File "mail.py", line 7, in send\nConnectionResetError: …',
    }
)
COMMANDS = {
    "jobs-ls": "jobs ls",
    "jobs-show": "jobs show {retried} --events",
    "jobs-show-dead-letter": "jobs show {dead}",
    "jobs-show-provenance": "jobs show {dead} --provenance",
    "jobs-tail": "jobs tail {dead}",
    "events": "events",
    "replay": "replay {dead} --rev 3 --events",
    "dlq-ls": "dlq ls",
    "dlq-show": "dlq show {dead}",
    "queues-ls": "queues ls",
    "schedules-ls": "schedules ls",
    "stats": "stats",
    "verify": "verify",
}


class CountedIds:
    """Ids that are the same in every run."""

    def __init__(self) -> None:
        self._count = 0

    def job_id(self) -> UUID:
        self._count += 1
        return UUID(f"01890a5d-{self._count:04x}-7000-8000-{self._count * 0x9E3779B1 % 2**48:012x}")

    def token(self) -> UUID:
        return self.job_id()

    def name(self) -> str:
        self._count += 1
        return f"{self._count:08x}"

    def fraction(self) -> float:
        return 0.5


class TerminalOutput(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


class Pictures:
    """A database with jobs of every status, and the commands on it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.clock = ManualClock()
        self.url = f"sqlite:///{path}"
        monkeypatch.setattr(database, "store_for", self.store_for)
        self.ids = asyncio.run(self._fill())

    def store_for(self, url: str) -> Store:
        return SqliteStore.from_url(url, database_clock=self.clock.now)

    async def _fill(self) -> dict[str, str]:
        store = self.store_for(self.url)
        await store.migrate()
        await store.open()
        try:
            driver = Driver(store, random=CountedIds())
            await one_of_each(driver)
            retried = await driver.running(kind=LONG_KIND, queue="statements", payload='{"customer":4711}')
            retried = await driver.apply(retried, Progress(40, "two of five pages"))
            self.clock.advance(2.5)
            retried = await driver.apply(retried, Retry(LONG_ERROR, delay_seconds=1))
            dead = await driver.running(kind="mail")
            self.clock.advance(21)
            await driver.apply(dead, DeadLetter(ReasonCode.EXHAUSTED_RETRIES, Stage.EXEC, LONG_ERROR))
            await driver.apply(await driver.running(kind="pay"), Complete('"receipt 7"'))
            await self._configure(store)
        finally:
            await store.close()
        return {"retried": str(retried.id), "dead": str(dead.id)}

    async def _configure(self, store: Store) -> None:
        limits = QueueLimits(concurrency_max=20, key_concurrency_max=2, rate=Rate(100, 60), key_rate=Rate(10, 60))
        await store.queues.put("statements", limits, actor=OPERATOR)
        await store.queues.pause("imports-of-the-night", actor=OPERATOR)
        schedule = Schedule(
            name="monthly statements",
            cron="0 9 1 * *",
            kind=LONG_KIND,
            payload="{}",
            policy=Policy(),
            timezone="Europe/Berlin",
        )
        now = self.clock.now()
        await store.schedules.put(schedule, next_at=now, paused=False, expected_rev=0, actor=OPERATOR)
        await store.register(
            WorkerRecord(
                id="web-1.example.com-4711-5f3a9c1e",
                host="web-1.example.com",
                pid=4711,
                version="2.4.1",
                queues=("default", "statements"),
                kinds=("mail", "pay", LONG_KIND),
                concurrency=10,
                started_at=now,
                seen_at=now,
            )
        )

    def picture(self, command: str, columns: int, *, color: bool = False) -> str:
        """What the command shows."""
        output = TerminalOutput()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            patch.setenv("COLUMNS", str(columns))
            patch.setenv("NO_COLOR", "" if color else "1")
            arguments = [*command.format(**self.ids).split(), "--database", self.url]
            assert tenure.main(arguments, prog_name="tenure", standalone_mode=False) == 0
        return output.getvalue()


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pictures:
    return Pictures(tmp_path / "jobs.db", monkeypatch)


def compare(name: str, picture: str) -> None:
    path = PICTURES / f"{name}.txt"
    if os.environ.get("UPDATE_PICTURES"):
        path.write_text(picture, encoding="utf-8")
    assert picture == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_looks_as_in_its_picture(pictures: Pictures, name: str, columns: int) -> None:
    picture = pictures.picture(COMMANDS[name], columns)
    assert max(map(len, picture.splitlines())) <= columns
    assert all(ID.match(line) for line in picture.splitlines() if line.startswith("01890a5d"))
    compare(f"{name}-{columns}", picture)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_live_table_of_a_worker_fits(columns: int) -> None:
    counts = {"claimed": 123_456, "succeeded": 120_000, "retry": 3_000, "failed": 6, "dead_lettered": 450}
    report = WorkerReport(worker="w", pid=4_194_304, running=10, counts=counts, uptime_seconds=93_784)
    rows = [row(ProcessSummary(number, report)) for number in (1, 2)]
    lines = table_lines(HEADINGS, rows, width=columns, color=False)
    assert max(map(len, lines)) <= columns
    compare(f"worker-{columns}", "\n".join([*lines, ""]))


def test_statuses_have_a_colour_and_their_text(pictures: Pictures) -> None:
    plain, colored = (pictures.picture("jobs ls", 120, color=color) for color in (False, True))
    assert "\x1b[32msucceeded" in colored
    assert "\x1b[31mdead_lettered" in colored
    assert click.unstyle(colored).split() == plain.split()
    assert "\x1b" not in plain


def test_of_one_job_no_id_is_repeated_and_progress_is_no_error(pictures: Pictures) -> None:
    shown = pictures.picture(COMMANDS["jobs-show"], 160)
    assert shown.count(pictures.ids["retried"]) == 1
    assert "40 % two of five pages" in shown
    assert "error: two of five pages" not in shown


def test_a_sentence_is_continued_at_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    output = TerminalOutput()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("COLUMNS", "40")
    print_text("warning  version: an old version that has a known fault", indent=9)
    assert output.getvalue() == "warning  version: an old version that\n         has a known fault\n"


@pytest.mark.parametrize(("width", "headings"), [(60, "id status kind"), (200, "id status kind attempt note")])
def test_columns_are_left_out_before_an_id_is_cut(width: int, headings: str) -> None:
    columns = ("id", "status", Column("kind", cut_to=8), Column("attempt", rank=1), Column("note", rank=2))
    job_id = "01890a5d-ac96-774b-bcce-b302099a8057"
    heading, line = table_lines(columns, [(job_id, "running", "a-long-kind", 1, "note")], width=width, color=False)
    assert heading.split() == headings.split()
    assert line.startswith(job_id)
    assert len(line) <= width
