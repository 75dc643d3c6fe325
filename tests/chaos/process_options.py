"""The options of a worker process, and the notes that it exchanges with the test."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path

import msgspec

from tenure.seams import SYSTEM, Seams
from tenure.stores import Store, store_for

NOTE_SECONDS = 60.0


class Point(StrEnum):
    """Where a worker can be killed."""

    AFTER_CLAIM = "after_claim"
    AFTER_START = "after_start"
    INSIDE_COMMIT = "inside_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_COMPLETION = "before_completion"
    AFTER_COMPLETION = "after_completion"
    AFTER_FIRST_RECOVERY = "after_first_recovery"
    AMID_RECOVERY = "amid_recovery"


class Notes:
    """Small files in a folder, each written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def leave(self, name: str, text: str = "") -> None:
        unfinished = self._folder / f".{name}.unfinished"
        unfinished.write_text(text)
        unfinished.rename(self._folder / name)

    def are_there(self, name: str) -> bool:
        return (self._folder / name).exists()

    def read(self, name: str) -> str:
        return (self._folder / name).read_text()

    def all(self, beginning: str) -> list[str]:
        return sorted(path.name for path in self._folder.glob(f"{beginning}*"))

    def wait_for(self, beginning: str, *, count: int = 1, seconds: float = NOTE_SECONDS) -> None:
        """Block until there are so many notes with this prefix."""
        deadline = time.monotonic() + seconds
        while len(self.all(beginning)) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"there were not {count} notes {beginning!r} within {seconds} s")
            time.sleep(0.002)


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one worker process."""

    database: str
    folder: str
    name: str
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 4
    grace_seconds: float = 10.0
    poll_seconds: float = 0.1
    scan_seconds: float = 0.2
    killed_at: Point | None = None
    claims_after_note: str | None = None
    """Claim nothing until this note exists. Recovery runs meanwhile."""
    claims_most: int | None = None
    """Stop claiming after this many jobs."""
    recovers: bool = True
    recovers_after_readers: int = 0
    """After a recovery scan, wait until this many processes have scanned, so that all of them see the same jobs."""
    clock_off_seconds: float = 0.0
    mutant: str | None = None

    @property
    def notes(self) -> Notes:
        return Notes(Path(self.folder))

    def store(self, seams: Seams) -> Store:
        """Its store. A SQLite file has the clock of its machine, so there only the worker's own clock is wrong."""
        if self.database.startswith("sqlite") and self.clock_off_seconds:
            from tenure.stores.sqlite.store import SqliteStore

            return SqliteStore.from_url(self.database, seams=seams, database_clock=SYSTEM.clock.now)
        return store_for(self.database, seams=seams)
