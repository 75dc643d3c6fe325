"""Tracebacks that begin where the user's code does. Pure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

PACKAGE = str(Path(__file__).parents[1])
"""The folder of tenure."""


def without_leading_frames(at: TracebackType | None, is_left_out: Callable[[str], bool]) -> TracebackType | None:
    """The traceback from the first frame on whose file is not left out. None: there is no such frame."""
    while at is not None and is_left_out(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an error from the user's first frame on: without those of tenure that called it."""
    return without_leading_frames(error.__traceback__, is_of_tenure) or error.__traceback__


def is_of_tenure(file: str) -> bool:
    """Whether the file is one of tenure's own."""
    return file.startswith(PACKAGE)
