"""What a worker shows of itself: a table that is drawn over itself on a terminal, and a line a minute elsewhere."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.cli.output import table
from tenure.seams import Clock
from tenure.workers.supervisor.channel import WorkerReport

if TYPE_CHECKING:
    from rich.console import Console

DRAW_SECONDS = 0.5
LINE_SECONDS = 60.0
RATE_REPORTS = 6
"""The rate is that of the last few reports, so that it follows what happens without jumping about."""
HEADINGS = (
    "process", "pid", "running", "claimed", "succeeded", "retried", "failed", "dead-lettered", "lost", "per second",
    "up",
)  # fmt: skip
_COUNTED = ("claimed", "succeeded", "retry", "failed", "dead_lettered", "lost")
_WORDS = {"retry": "retried", "dead_lettered": "dead-lettered", "stalled": "handed back", "waiting": "suspended"}

log = logging.getLogger("tenure.worker")


@dataclass(slots=True)
class Process:
    """One worker process, as its reports show it. `before` counts what earlier processes in its place have done."""

    number: int
    report: WorkerReport | None = None
    before: Counter[str] = field(default_factory=Counter)
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RATE_REPORTS))

    def heard(self, report: WorkerReport) -> None:
        """Take over a report; one of another process means that the one before has ended."""
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


class Summary:
    """All processes of one command. `look` is for one that reports nothing by itself: this one."""

    def __init__(self, look: Callable[[], WorkerReport] | None = None) -> None:
        self._look = look
        self._processes: dict[int, Process] = {}

    def heard(self, number: int, report: WorkerReport) -> None:
        """What the process of that number reports."""
        self._processes.setdefault(number, Process(number)).heard(report)

    def refresh(self) -> Sequence[Process]:
        """All processes as they stand."""
        if self._look is not None:
            self.heard(1, self._look())
        return [self._processes[number] for number in sorted(self._processes)]

    def counts(self) -> Counter[str]:
        return sum((process.counts for process in self.refresh()), Counter())

    def running(self) -> int:
        return sum(process.report.running for process in self.refresh() if process.report)

    async def write_lines(self, clock: Clock) -> NoReturn:
        """A line of the log with all counts, each minute."""
        while True:
            await clock.sleep(LINE_SECONDS)
            counts, running = self.counts(), self.running()
            log.info("%d running; %s", running, in_words(counts), extra={"counts": dict(counts), "running": running})

    async def draw(self, console: Console, clock: Clock) -> NoReturn:
        """A table that is drawn over itself; what is logged or printed meanwhile stands above it."""
        from rich.live import Live

        with Live(self.drawn(), console=console, auto_refresh=False, transient=True) as live:
            while True:
                await clock.sleep(DRAW_SECONDS)
                live.update(self.drawn(), refresh=True)

    def drawn(self) -> Any:
        return table(HEADINGS, [row(process) for process in self.refresh()])


def row(process: Process) -> tuple[object, ...]:
    """A process under the headings."""
    report, counts = process.report, process.counts
    pid, running, uptime = (report.pid, report.running, report.uptime_seconds) if report else (None, 0, 0.0)
    figures = (f"{counts[name]:,}" for name in _COUNTED)
    return process.number, pid, running, *figures, f"{process.per_second:,.1f}", duration(uptime)


def in_words(counts: Mapping[str, int]) -> str:
    """Counts as a person reads them.

    >>> in_words({"claimed": 12, "succeeded": 9, "retry": 3})
    '12 claimed, 9 succeeded, 3 retried'
    """
    named = [*_COUNTED, *sorted(set(counts) - set(_COUNTED))]
    said = [f"{counts[name]:,} {_WORDS.get(name, name)}" for name in named if counts.get(name)]
    return ", ".join(said) or "nothing claimed"


def duration(seconds: float) -> str:
    """A length of time as a person reads it.

    >>> duration(3725.4)
    '1:02:05'
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
