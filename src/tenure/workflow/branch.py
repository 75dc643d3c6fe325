"""The branches of a run, and the places of calls in them.

A call's identity is its branch and its ordinal in that branch, taken when the call is made and not when it is awaited.
So it does not depend on timing. Each branch is one task of the run; a call from any other task needs a key of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from tenure.errors import InvalidInput, StepCallRefused
from tenure.lifecycle.json_text import check_text
from tenure.seams import SeededRandom, seeded_random

R = TypeVar("R")

KEY_LENGTH_MAX = 200
_PART = r"\.(?:deadline|policy|approval|cancelled\.[0-9]+|(?:undo\.)?retry\.[0-9]+|order\.[0-9]+|undo)"
_AUTOMATIC = re.compile(rf"[0-9./]*({_PART})?")
_PART_OF_CALL = re.compile(rf"(.*?){_PART}")
_RESERVED = ("continue:", "fork:", "patch:", "spend:", "undo:")


class Place(msgspec.Struct, frozen=True):
    """Where a call stands in the run. `key` is its identity; without an explicit one it follows from the rest."""

    key: str
    branch: str
    ordinal: int

    def sub_key(self, name: str) -> str:
        """The key of a record that belongs to this call."""
        return f"{self.key}.{name}"


class Branch:
    """One sequence of calls. `path` is empty for the main branch, `3.0` for the first branch of the main branch's
    fourth call, `3.0/1.2` for a branch within that."""

    def __init__(self, path: str, *, seed: str, began_at: datetime) -> None:
        self.path = path
        self.task: asyncio.Task[object] | None = None
        """The task whose calls belong to this branch."""
        self.is_leaf = False
        """Whether this branch ends with the child that it waits for, while others wait for all of its kind."""
        self._seed, self._next, self._last_key = seed, 0, ""
        self._random: tuple[str, SeededRandom] | None = None
        self.spend: dict[str, int] = {}
        """What the code has spent since the last executed call of this branch, in millionths."""
        self.now = began_at
        """When the last completed call of this branch was recorded."""

    @property
    def upcoming_key(self) -> str:
        """The key of the next call."""
        return self._key(self._next)

    def take(self) -> Place:
        """The place of a call that is made now."""
        place = Place(self.upcoming_key, self.path, self._next)
        self._next += 1
        self._last_key = place.key
        return place

    def take_key(self, key: str) -> Place:
        """The place of a call with an explicit key, which takes no ordinal."""
        self._last_key = key
        return Place(key, self.path, self._next)

    def sub_branch(self, place: Place, index: int | None = None) -> Branch:
        """A branch of the call at this place."""
        path = place.key if index is None else f"{place.key}.{index}"
        return Branch(path, seed=self._seed, began_at=self.now)

    def completed(self, at: datetime) -> None:
        self.now = max(self.now, at)

    @property
    def random(self) -> SeededRandom:
        """Seeded by the last call of this branch, so that a new call changes only what is drawn before the next one."""
        if self._random is None or self._random[0] != self._last_key:
            self._random = self._last_key, seeded_random(f"{self._seed}:{self.path}:{self._last_key}")
        return self._random[1]

    def _key(self, ordinal: int) -> str:
        return f"{self.path}/{ordinal}" if self.path else str(ordinal)


def check_key(key: str) -> str:
    """An explicit key. Keys that look like automatic ones, or like records that belong to a call, are refused."""
    check_text(key, "key", length_max=KEY_LENGTH_MAX)
    if key.startswith(_RESERVED) or _PART_OF_CALL.fullmatch(key):
        raise InvalidInput("key", f"{key!r} is of a form that the run uses itself; use another key")
    if _AUTOMATIC.fullmatch(key):
        raise InvalidInput("key", f"{key!r} looks like the key of a call without one; use a key with a letter in it")
    return key


def call_key(key: str) -> str:
    """The key of the call that a record belongs to: itself, or the call whose retry, deadline, order or undo it is.

    >>> call_key("3.0/1.retry.2"), call_key("3.0/1")
    ('3.0/1', '3.0/1')
    """
    part = _PART_OF_CALL.fullmatch(key)
    return key if part is None else part[1]


def require_own_task(branch: Branch | None, what: str) -> Branch:
    """The branch of the current task. StepCallRefused: this is a task that the run did not start."""
    if branch is None or branch.task is not asyncio.current_task():
        raise StepCallRefused(
            f"{what} was called in a task that the run did not start, so a replay could give it another place; "
            f"pass a key of its own with run.using(key=...), or start parallel work with run.gather"
        )
    return branch


class RunCall(Generic[R]):
    """A call of a run. Its place was fixed when it was made; await it once, at once or later."""

    def __init__(self, what: str, start: Callable[[], Coroutine[Any, Any, R]], *, is_leaf: bool = False) -> None:
        self._what, self._start = what, start
        self.is_leaf = is_leaf
        """Whether nothing but the end of a child is awaited, so that a branch with this call alone ends with it."""
        self._awaited = False

    def __await__(self) -> Generator[Any, None, R]:
        if self._awaited:
            raise RuntimeError(f"{self._what} was awaited before; keep its result instead")
        self._awaited = True
        return self._start().__await__()


current_branch: ContextVar[Branch | None] = ContextVar("tenure_branch", default=None)
"""The branch whose task this code runs in, or that started this task."""
