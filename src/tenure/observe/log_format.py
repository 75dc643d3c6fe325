"""The format of log records on standard error: text or JSON lines. A job's child process uses its worker's style."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from tenure.observe.log_context import JobLogFilter

LogStyle = Literal["text", "color", "json"]

_COLORS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
NAMES_LISTED_MAX = 20
_RESET = "\x1b[0m"
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields that every record has. All others come from `extra` or a filter."""


def log_to_standard_error(level: int | str, style: LogStyle) -> None:
    """Configure the root logger. A later `logging.basicConfig` of the user's module has no effect."""
    handler = StandardErrorHandler()
    handler.addFilter(JobLogFilter())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(color=style == "color"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def current_log_style() -> LogStyle | None:
    """The style of this process's log; None where another module has configured it."""
    for handler in logging.getLogger().handlers:
        match handler.formatter:
            case JsonFormatter():
                return "json"
            case TextFormatter(color=color):
                return "color" if color else "text"
    return None


class StandardErrorHandler(logging.Handler):
    """Writes to the current `sys.stderr`: a live display replaces it while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - a failure to log must not end a job
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """One line per record, followed by its traceback. What a job raised cannot look like a record: it is indented."""

    def __init__(self, *, color: bool) -> None:
        super().__init__()
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname:<7}"
        if self.color and record.levelname in _COLORS:
            level = f"{_COLORS[record.levelname]}{level}{_RESET}"
        message = printable(record.getMessage())
        line = f"{_timestamp(record)} {level} {record.name}[{record.process}]: {message}{_job_suffix(record, message)}"
        below = [*_detail_lines(record), *_traceback(self, record).splitlines()]
        return "\n".join([line, *(f"  {printable(text)}" for text in below)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with every field added to the record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "at": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage().encode("utf-8", "backslashreplace").decode(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if traceback := _traceback(self, record):
            fields["traceback"] = traceback.encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(fields, enc_hook=str).decode()


def printable(text: str) -> str:
    """The text on one line, with control characters escaped.

    >>> printable("red: \\x1b[31m")
    'red: \\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where needed.

    >>> counted(1200, "job")
    '1,200 jobs'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _job_suffix(record: logging.LogRecord, message: str) -> str:
    """The record's job, unless the message has its id."""
    fields = vars(record)
    job_id = fields.get("job_id")
    if job_id is None or str(job_id) in message:
        return ""
    return printable(f" [{fields.get('job_kind')} {job_id}, attempt {fields.get('job_attempt')}]")


def _detail_lines(record: logging.LogRecord) -> list[str]:
    """A line per item of the record's `details`, if it has any. Of a long list the first names are shown."""
    details = vars(record).get("details")
    if not isinstance(details, Mapping):
        return []
    width = max(map(len, details)) + 1
    return [f"{f'{name}:':<{width}} {_detail_text(value)}" for name, value in details.items()]


def _detail_text(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    more = [f"and {len(value) - NAMES_LISTED_MAX} more"] if len(value) > NAMES_LISTED_MAX else []
    return ", ".join([*map(str, value[:NAMES_LISTED_MAX]), *more])


def _timestamp(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [record.stack_info] if record.stack_info else []
    # An error that a job raised in a child process has only its text.
    parts += [text] if (text := vars(record).get("traceback")) else []
    return "\n".join(parts)
