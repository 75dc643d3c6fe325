"""The summary of worker processes: a live table on a terminal, a log line a minute elsewhere."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.cli.output import rich_table
from tenure.cli.tables import Column
from tenure.seams import Clock
from tenure.workers.supervisor.channel import WorkerReport

if TYPE_CHECKING:
    from rich.console import Console

DRAW_SECONDS = 0.5
LINE_SECONDS = 60.0
RATE_REPORTS = 6
"""The rate is averaged over this many reports."""
HEADINGS = (
    Column("process", is_number=True),
    Column("pid", rank=1, is_number=True),
    Column("running", is_number=True),
    Column("claimed", rank=5, is_number=True),
    Column("succeeded", is_number=True),
    Column("retried", is_number=True),
    Column("failed", is_number=True),
    Column("dead-lettered", is_number=True),
    Column("lost", rank=3, is_number=True),
    Column("jobs/s", is_number=True),
    Column("up", rank=4, is_number=True),
)
_COUNTED = ("claimed", "succeeded", "retry", "failed", "dead_lettered", "lost")
_WORDS = {"retry": "retried", "dead_lettered": "dead-lettered", "stalled": "released", "waiting": "suspended"}

log = logging.getLogger("tenure.worker")


@dataclass(slots=True)
class ProcessSummary:
    """The reports of one worker process. `before` are the counts of the processes that it replaced."""

    number: int
    report: WorkerReport | None = None
    before: Counter[str] = field(default_factory=Counter)
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_REPORTS))

    def record(self, report: WorkerReport) -> None:
        """Record a report. A new worker name means that the process was replaced."""
        if self.report is not None and self.report.worker != report.worker:
            self.before += Counter(self.report.counts)
            self._recent.clear()
        if self.report != report:
            self._recent.append((report.uptime_seconds, report.ended))
        self.report = report

    @property
    def counts(self) -> Counter[str]:
        return self.before + Counter(self.report.counts if self.report else {})

    @property
    def per_second(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        (since, before), (now, ended) = self._recent[0], self._recent[-1]
        return (ended - before) / (now - since) if now > since else 0.0


class WorkerSummary:
    """All worker processes of one command. `own_report` reads the report of this process, if it is a worker."""

    def __init__(self, own_report: Callable[[], WorkerReport] | None = None) -> None:
        self._own_report = own_report
        self._processes: dict[int, ProcessSummary] = {}

    def record(self, number: int, report: WorkerReport) -> None:
        """A report of the process of this number."""
        self._processes.setdefault(number, ProcessSummary(number)).record(report)

    def refresh(self) -> Sequence[ProcessSummary]:
        """All processes, with the latest reports."""
        if self._own_report is not None:
            self.record(1, self._own_report())
        return [self._processes[number] for number in sorted(self._processes)]

    def counts(self) -> Counter[str]:
        return sum((process.counts for process in self.refresh()), Counter())

    def running(self) -> int:
        return sum(process.report.running for process in self.refresh() if process.report)

    async def write_lines(self, clock: Clock) -> NoReturn:
        """Log all counts once a minute."""
        while True:
            await clock.sleep(LINE_SECONDS)
            counts, running = self.counts(), self.running()
            log.info("%d running; %s", running, counts_text(counts), extra={"counts": dict(counts), "running": running})

    async def draw(self, console: Console, clock: Clock) -> NoReturn:
        """Draw a live table; log lines appear above it."""
        from rich.live import Live

        with Live(self.table(console.width), console=console, auto_refresh=False, transient=True) as live:
            while True:
                await clock.sleep(DRAW_SECONDS)
                live.update(self.table(console.width), refresh=True)

    def table(self, width: int) -> Any:
        return rich_table(HEADINGS, [row(process) for process in self.refresh()], width=width)


def row(process: ProcessSummary) -> tuple[object, ...]:
    """A row under HEADINGS."""
    report, counts = process.report, process.counts
    pid, running, uptime = (report.pid, report.running, report.uptime_seconds) if report else (None, 0, 0.0)
    figures = (f"{counts[name]:,}" for name in _COUNTED)
    return process.number, pid, running, *figures, f"{process.per_second:,.1f}", duration(uptime)


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts in words.

    >>> counts_text({"claimed": 12, "succeeded": 9, "retry": 3})
    '12 claimed, 9 succeeded, 3 retried'
    """
    named = [*_COUNTED, *sorted(set(counts) - set(_COUNTED))]
    return ", ".join(f"{counts[name]:,} {_WORDS.get(name, name)}" for name in named if counts.get(name)) or "no jobs"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
