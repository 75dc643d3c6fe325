"""Where a process that works for ever writes its log."""

from __future__ import annotations

import logging
from pathlib import Path

from tenure.observe.log_format import TextFormatter, log_to_standard_error

LEVELS = ("debug", "info", "warning", "error", "critical")


def set_up_logs(level: str, *, as_json: bool, color: bool) -> None:
    """Send the whole program's log to standard error."""
    log_to_standard_error(level.upper(), "json" if as_json else "color" if color else "text")


def log_to(path: Path) -> None:
    """Send this program's log to the end of a file instead."""
    handler = logging.FileHandler(path)
    handler.setFormatter(TextFormatter(color=False))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel("INFO")
