"""Steps that are executed in a process of their own, and a workflow that calls them. A child process imports this."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import tenure


class Page(msgspec.Struct):
    """An argument and result with types of its own."""

    title: str
    at: datetime


class Refused(Exception):
    """An error that the workflow has registered."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def measure(page: Page, *, factor: int = 1) -> tuple[int, int, Page]:
    """A plain step: its process, a number, and its argument."""
    tenure.current_step().spend(cost=0.25)
    return os.getpid(), factor, Page(page.title.upper(), page.at)


async def identify(numbers: list[int]) -> str:
    """An async step: its key for other systems."""
    await asyncio.sleep(0)
    return f"{tenure.current_step().key} {sum(numbers)}"


def loops() -> int:
    """A plain step that starts an event loop of its own."""
    return asyncio.run(_seven())


async def _seven() -> int:
    return 7


def refuse(code: int) -> None:
    """A step whose error the workflow raises again as itself."""
    raise Refused(code)


def dies(marker: str) -> str:
    """A step whose first execution ends its process."""
    path = Path(marker)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), 9)
    return "survived"


def hangs(marker: str) -> None:
    """A step that only a kill can end. The marker has the id of its process."""
    path = Path(marker)
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(600)


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
