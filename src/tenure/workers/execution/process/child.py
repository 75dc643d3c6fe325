"""The child's side of process jobs: a fresh interpreter that runs one job after another, and ends when its worker does.

It knows its worker by one socket. A job's function runs on the main thread; a thread beside it listens. What the job
came to goes back as a value: a child writes nothing to the database but what a commit block of the job writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from tenure.errors import InvalidInput
from tenure.jobs.definition import JobDefinition
from tenure.lifecycle.operations import Progress
from tenure.lifecycle.records import Job, Stage
from tenure.observe.log_format import log_to_standard_error
from tenure.seams import SYSTEM
from tenure.stores.contract import Artifact
from tenure.workers.commit.commit import CommitBlock, Committer
from tenure.workers.commit.user_connection import block_for
from tenure.workers.execution.invoke import Invoke, call
from tenure.workers.execution.outcomes import Raised, Returned, described
from tenure.workers.execution.process.protocol import (
    HEADER,
    Begin,
    Ended,
    FromChild,
    News,
    Ready,
    Reported,
    ToChild,
    check_size,
    framed,
    to_child,
)
from tenure.workers.leases import Lease

if TYPE_CHECKING:
    from tenure.app import App

PR_SET_PDEATHSIG = 1


class Declared(NamedTuple):
    """A job's kind, and the app that it is declared in."""

    kind: JobDefinition[..., Any]
    app: App


def declared(module: str, name: str) -> Declared:
    """What a module has under this name. The name is one of the program's own; it never comes from the database."""
    found = getattr(importlib.import_module(module), name, None)
    kind = getattr(found, "definition", None)
    if found is None or not isinstance(kind, JobDefinition):
        raise InvalidInput(
            f"{module}.{name}",
            "is not a job in a process that has just imported its module; declare it at module level, whatever "
            "__name__ is",
        )
    return Declared(kind, found.app)


def main(channel: socket.socket) -> None:
    """Work for whoever holds the other end of the channel, for as long as they do."""
    _stand_apart()
    channel.set_inheritable(False)
    Child(Line(channel)).live()


class Line:
    """The child's end of the socket. Many threads may speak; one listens."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._door = threading.Lock()

    def say(self, message: FromChild) -> None:
        frame = framed(message)
        with self._door:
            self._channel.sendall(frame)

    def hear(self) -> ToChild:
        """The next message; EOFError when the worker is gone."""
        [size] = HEADER.unpack(self._exactly(HEADER.size))
        return to_child.decode(self._exactly(check_size(size)))

    def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            received = self._channel.recv_into(rest)
            if not received:
                raise EOFError("the worker is gone")
            rest = rest[received:]
        return body


class Assignment:
    """A job that the child was given, and what was heard of it since: written by the listener, read by the job."""

    def __init__(self, begin: Begin) -> None:
        token = begin.job.token
        assert token is not None, "a job that was claimed has a token"
        self.begin = begin
        self.held = Lease(begin.job, worker=begin.worker, token=token, sent_at_seconds=0.0)
        self.held.trusted_until_seconds = begin.trusted_until_seconds
        self.cancel_requested = begin.job.cancel_requested
        self.stopping = False

    def hear(self, news: News) -> None:
        self.held.trusted_until_seconds = news.trusted_until_seconds
        self.cancel_requested = news.cancel_requested
        self.stopping = news.stopping


class ChildRun:
    """The attempt as its function sees it. Trust in the lease is the worker's; commits go to a store of our own."""

    def __init__(self, assignment: Assignment, where: Declared, line: Line) -> None:
        self._assignment, self._line = assignment, line
        self._kind, self._seams, self._user_transaction = where.kind, where.app.seams, where.app.user_transaction
        self._loop = asyncio.get_running_loop()
        self._held = assignment.held
        self.committer = Committer(self._held, self._seams, where.app.store)
        self._over = False
        self._door = threading.Lock()

    @property
    def job(self) -> Job:
        job = self._held.job
        if job.cancel_requested or not self._assignment.cancel_requested:
            return job
        # Only shown, never decided upon: the record that is kept is one that the database had.
        return msgspec.structs.replace(job, cancel_requested=True)

    @property
    def lost(self) -> bool:
        """A worker that hangs or is stopped says nothing: then trust ends by itself."""
        return self._held.lost or self._held.trusted_until_seconds <= self._seams.clock.monotonic_seconds()

    @property
    def stopping(self) -> bool:
        return self._assignment.stopping

    def report(self, percent: int, message: str | None) -> None:
        reported = Progress(percent, message)
        with self._door:
            if not self._over:
                self._line.say(Reported(reported.percent, reported.message))

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return block_for(
            self.committer,
            self._kind.encode_result(result),
            user=None if connection is None else self._user_transaction(connection),
            deadline_seconds=deadline_seconds,
            loop=self._loop,
            seams=self._seams,
        )

    def close(self) -> None:
        """What the function left running must not speak for the next job."""
        with self._door:
            self._over = True


class Child:
    """Runs what it is given. Its event loop runs all the time, but while plain code has the main thread."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._begun: asyncio.Queue[Assignment] = asyncio.Queue()
        self._beside: asyncio.AbstractEventLoop | None = None

    def live(self) -> NoReturn:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            SYSTEM.spawn.thread(lambda: self._listen(loop), name="tenure-child-listener")
            self._say(Ready())
            while True:
                self._finish(self._run(runner.run(self._begun.get()), runner))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        current: Assignment | None = None
        try:
            while True:
                message = self._line.hear()
                if isinstance(message, Begin):
                    current = Assignment(message)
                    loop.call_soon_threadsafe(self._begun.put_nowait, current)
                elif current is not None:
                    current.hear(message)
        finally:
            # Whatever it was: without its worker this process has nothing to do, and nothing of it would be recorded.
            _end()

    def _run(self, assignment: Assignment, runner: asyncio.Runner) -> Ended:
        begin = assignment.begin
        try:
            where = declared(begin.module, begin.name)
        except Exception as error:  # noqa: BLE001 - a module is the user's own code
            return Ended(Raised(described(error)))
        where.app.database = begin.database
        if not logging.getLogger().handlers:
            log_to_standard_error(begin.log_level, begin.log_style or "text")
        if where.kind.is_async:
            # A context of its own, so that nothing that one job sets is seen by the next.
            return runner.run(self._ended(assignment, where, _awaited), context=contextvars.copy_context())
        return self._plain(assignment, where)

    def _plain(self, assignment: Assignment, where: Declared) -> Ended:
        """The middleware and the commits on a loop beside, the function itself here."""
        calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        ending = asyncio.run_coroutine_threadsafe(
            self._ended(assignment, where, _on_main_thread(calls)), self._loop_beside()
        )
        ending.add_done_callback(lambda _: calls.put(None))
        while (body := calls.get()) is not None:
            body()
        return ending.result()

    async def _ended(self, assignment: Assignment, where: Declared, invoke: Invoke) -> Ended:
        run = ChildRun(assignment, where, self._line)
        try:
            outcome = await call(where.kind, run, where.app.middleware, invoke)
        except asyncio.CancelledError:
            outcome = Raised(described(asyncio.CancelledError("the job's function was cancelled from within")))
        run.close()
        return Ended(outcome, tuple(run.committer.artifacts) if isinstance(outcome, Returned) else ())

    def _finish(self, ended: Ended) -> None:
        for stream in (sys.stdout, sys.stderr):
            # Whatever a job has put there in their place: what it has done must be heard of.
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            self._say(ended)
        except InvalidInput as too_large:
            self._say(Ended(Raised(described(too_large), stage=Stage.OUTPUT)))

    def _say(self, message: FromChild) -> None:
        try:
            self._line.say(message)
        except OSError:
            _end()

    def _loop_beside(self) -> asyncio.AbstractEventLoop:
        if self._beside is None:
            self._beside = asyncio.new_event_loop()
            SYSTEM.spawn.thread(self._beside.run_forever, name="tenure-child-loop")
        return self._beside


async def _awaited(function: Callable[[], Any]) -> Any:
    return await function()


def _on_main_thread(calls: queue.SimpleQueue[Callable[[], None] | None]) -> Invoke:
    async def invoke(function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                value = context.run(function)
            except StopIteration as error:
                # A future cannot carry it, and it must not end anybody's generator.
                loop.call_soon_threadsafe(answer.set_exception, RuntimeError(f"the job raised {error!r}"))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
                loop.call_soon_threadsafe(answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer.set_result, value)

        calls.put(body)
        return await answer

    return invoke


def _stand_apart() -> None:
    """A process group of our own, so that we can be ended with all that a job has started, and by the worker alone."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: the programs that a job starts would inherit that, and nobody could ask them to end.
        signal.signal(number, _unmoved)
    faulthandler.enable()
    if sys.platform == "linux":
        # For code that never lets the listener have its turn.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _unmoved(_number: int, _frame: object) -> None:
    """The worker hears the same signals and decides; a child ends when it says so."""


def _end() -> NoReturn:
    """Now, with all that a job has started, and without tidying up: there is nobody left to do it for."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
