"""Logging of long-running commands."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from tenure.observe.log_format import TextFormatter, log_to_standard_error

LEVELS = ("debug", "info", "warning", "error", "critical")


def configure_logging(level: str, *, as_json: bool) -> None:
    """Log to standard error, in color on a terminal."""
    color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    log_to_standard_error(level.upper(), "json" if as_json else "color" if color else "text")


def log_no_refusals() -> None:
    """A refused enqueue is the error message of a command; the app's log line would repeat it."""
    logging.getLogger("tenure").addHandler(logging.NullHandler())


def log_to_file(path: Path) -> None:
    """Append the log to a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(TextFormatter(color=False))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel("INFO")
