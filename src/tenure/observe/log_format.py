"""How records of the log are written: readable lines or JSON lines, on standard error.

The processes of a worker's jobs write theirs as the worker does.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from tenure.observe.log_context import JobFacts

Style = Literal["lines", "colours", "json"]

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_PLAIN = "\x1b[0m"
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has. Whatever else is on one was put there by whoever logged it."""


def log_to_standard_error(level: int | str, style: Style) -> None:
    """Send the whole program's log there, each record with the job that it belongs to. A module that sets up logging of
    its own comes too late, and its `logging.basicConfig` does nothing."""
    handler = StandardError()
    handler.addFilter(JobFacts())
    handler.setFormatter(JsonLines() if style == "json" else Lines(colour=style == "colours"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def style_in_use() -> Style | None:
    """How this program's log is written; None where it is not by this module."""
    for handler in logging.getLogger().handlers:
        match handler.formatter:
            case JsonLines():
                return "json"
            case Lines(colour=colour):
                return "colours" if colour else "lines"
    return None


class StandardError(logging.Handler):
    """Writes to what standard error is at that moment: a live display may have put itself in between."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a log that cannot be written must not end a job
            self.handleError(record)


class Lines(logging.Formatter):
    """One line for people, and the traceback below it where there is one."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        if self.colour and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}{_PLAIN}"
        said = printable(record.getMessage())
        line = f"{_moment(record)} {level} {record.name}[{record.process}]: {said}{_of_job(record, said)}"
        return f"{line}\n{traceback}" if (traceback := _traceback(self, record)) else line


class JsonLines(logging.Formatter):
    """One JSON object per line, with everything that whoever logged it has added."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage().encode("utf-8", "backslashreplace").decode(),
        }
        facts |= {name: value for name, value in vars(record).items() if name not in _KNOWN}
        if traceback := _traceback(self, record):
            facts["traceback"] = traceback
        return msgspec.json.encode(facts, enc_hook=str).decode()


def printable(text: str) -> str:
    """The text on one line, and without anything that a terminal would obey.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _of_job(record: logging.LogRecord, said: str) -> str:
    """Which job it was, unless the message says so itself."""
    facts = vars(record)
    job_id = facts.get("job_id")
    if job_id is None or str(job_id) in said:
        return ""
    return printable(f" [{facts.get('job_kind')} {job_id}, attempt {facts.get('job_attempt')}]")


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [record.stack_info] if record.stack_info else []
    return "\n".join(parts)
