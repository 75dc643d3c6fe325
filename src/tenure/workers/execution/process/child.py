"""The child's side of process jobs: a fresh interpreter that runs one job after another, until its worker ends.

A job's function runs on the main thread; another thread receives the worker's messages. The outcome is sent to the
worker, which records it: a child writes only commit blocks to the database. How a job is loaded is injected.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from tenure.errors import InvalidInput, ResultRefused
from tenure.jobs.context import StepRunner
from tenure.jobs.definition import JobDefinition
from tenure.jobs.middleware import Middleware, on_thread
from tenure.lifecycle.operations import Progress
from tenure.lifecycle.records import Job
from tenure.observe.log_format import LogStyle, log_to_standard_error
from tenure.seams import SYSTEM, Seams, importing
from tenure.stores.contract import Artifact, TransactionStore
from tenure.stores.user_connections import UserTransaction
from tenure.workers.commit.commit import CommitBlock, Committer
from tenure.workers.commit.user_connection import commit_block_for
from tenure.workers.execution.executors import set_result
from tenure.workers.execution.invoke import Call, invoke
from tenure.workers.execution.outcomes import ErrorPolicy, Raised, Returned, describe_error, outcome_of_error
from tenure.workers.execution.process.protocol import (
    HEADER,
    AttemptEnded,
    AttemptUpdate,
    CallEnded,
    CallFunction,
    ChildReady,
    FromChild,
    ProgressReport,
    RunJob,
    ToChild,
    check_size,
    encode_frame,
    to_child,
)
from tenure.workers.leases import Lease

PR_SET_PDEATHSIG = 1


class ChildApp(Protocol):
    """What a child needs of the app that declares a job."""

    database: str

    @property
    def seams(self) -> Seams: ...

    @property
    def middleware(self) -> Sequence[Middleware]: ...

    def store(self) -> Awaitable[TransactionStore]: ...

    def user_transaction(self, connection: Any) -> UserTransaction: ...


class LoadedJob(NamedTuple):
    """A job definition, and the app that declares it."""

    definition: JobDefinition[..., Any]
    app: ChildApp


LoadJob = Callable[[str, str], LoadedJob]
"""Loads a job by its module and name. It is a module-level function, so that it can be passed to a process."""


def main(connection: socket.socket, load_job: LoadJob) -> None:
    """Run the worker's jobs until the worker closes the connection."""
    _isolate_process()
    connection.set_inheritable(False)
    ChildProcess(ChildConnection(connection), load_job).run()


class ChildConnection:
    """The child's end of the socket. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, message: FromChild) -> None:
        frame = encode_frame(message)
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> ToChild:
        """The next message. Raises EOFError when the worker has ended."""
        [size] = HEADER.unpack(self._exactly(HEADER.size))
        return to_child.decode(self._exactly(check_size(size)))

    def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        rest = memoryview(body)
        while rest:
            received = self._socket.recv_into(rest)
            if not received:
                raise EOFError("the worker has ended")
            rest = rest[received:]
        return body


class Assignment:
    """The job that the child runs, and its latest state. The receiving thread writes it, the job reads it."""

    def __init__(self, message: RunJob) -> None:
        token = message.job.token
        assert token is not None, "a claimed job has a token"
        self.message = message
        self.lease = Lease(message.job, worker=message.worker, token=token, sent_at_seconds=0.0)
        self.lease.local_deadline_seconds = message.local_deadline_seconds
        self.cancel_reason = message.job.cancel_reason
        self.stopping = False

    def update(self, update: AttemptUpdate) -> None:
        self.lease.local_deadline_seconds = update.local_deadline_seconds
        self.cancel_reason = update.cancel_reason
        self.stopping = update.stopping


class ChildAttempt:
    """The attempt that `Context` uses in a child. The worker renews the lease; commits use a store of the child."""

    def __init__(self, assignment: Assignment, loaded: LoadedJob, connection: ChildConnection) -> None:
        self._assignment, self._connection = assignment, connection
        self._definition, self._seams = loaded.definition, loaded.app.seams
        self._user_transaction = loaded.app.user_transaction
        self._loop = asyncio.get_running_loop()
        self._lease = assignment.lease
        self.committer = Committer(self._lease, self._seams, loaded.app.store)
        self._closed = False
        self._lock = threading.Lock()

    @property
    def job(self) -> Job:
        job = self._lease.job
        if job.cancel_requested or self._assignment.cancel_reason is None:
            return job
        # For the function only. Writes are decided on the lease's record, which the database had.
        return msgspec.structs.replace(job, cancel_reason=self._assignment.cancel_reason)

    @property
    def is_async(self) -> bool:
        return self._definition.is_async

    @property
    def lost(self) -> bool:
        """A worker that hangs sends nothing, so the local deadline is checked here too."""
        return self._lease.lost or self._lease.local_deadline_seconds <= self._seams.clock.monotonic_seconds()

    @property
    def stopping(self) -> bool:
        return self._assignment.stopping

    @property
    def database(self) -> str:
        return self._assignment.message.where

    @property
    def steps(self) -> StepRunner:
        raise InvalidInput("step", "is not available in a job with isolation='process'; use a workflow for its steps")

    def raised_in_commit(self, error: BaseException) -> bool:
        return self.committer.raised(error)

    def report(self, percent: int, message: str | None) -> None:
        progress = Progress(percent, message)
        with self._lock:
            if not self._closed:
                self._connection.send(ProgressReport(progress.percent, progress.message))

    def attach(self, artifact: Artifact) -> None:
        self.committer.attach(artifact)

    def commit(self, *, result: Any, connection: Any, deadline_seconds: float | None) -> CommitBlock:
        return commit_block_for(
            self.committer,
            self._definition.encode_committed(result, job_id=self._lease.job.id),
            user=None if connection is None else self._user_transaction(connection),
            deadline_seconds=deadline_seconds,
            loop=self._loop,
            seams=self._seams,
        )

    def close(self) -> None:
        """Send no more progress: a thread that the function left running must not report for the next job."""
        with self._lock:
            self._closed = True


class ChildProcess:
    """Runs the jobs that the worker sends. Its event loop runs except while a plain function has the main thread."""

    def __init__(self, connection: ChildConnection, load_job: LoadJob) -> None:
        self._connection, self._load_job = connection, load_job
        self._assigned: asyncio.Queue[Assignment | CallFunction] = asyncio.Queue()
        self._second_loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> NoReturn:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            SYSTEM.spawn.thread(lambda: self._receive(loop), name="tenure-child-receiver")
            self._send(ChildReady())
            while True:
                assigned = runner.run(self._assigned.get())
                if isinstance(assigned, CallFunction):
                    self._send_after_output(self._call(assigned, runner))
                else:
                    self._finish(self._run_job(assigned, runner))

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        current: Assignment | None = None
        try:
            while True:
                message = self._connection.receive()
                if isinstance(message, RunJob):
                    current = Assignment(message)
                    loop.call_soon_threadsafe(self._assigned.put_nowait, current)
                elif isinstance(message, CallFunction):
                    loop.call_soon_threadsafe(self._assigned.put_nowait, message)
                elif current is not None:
                    current.update(message)
        finally:
            # Without its worker the child has no work, and nothing that its job does would be recorded.
            _kill_itself()

    def _call(self, message: CallFunction, runner: asyncio.Runner) -> CallEnded:
        try:
            if message.job_path is not None:
                with importing(message.job_path[0]):
                    self._load_job(*message.job_path)
            function: Callable[[str], Coroutine[Any, Any, str]] = getattr(import_module(message.module), message.name)
            _log_as_the_worker(message.log_level, message.log_style)
            text = runner.run(function(message.text), context=contextvars.copy_context())
            check_size(len(text))
        except Exception as error:  # noqa: BLE001 - importing a module runs user code
            return CallEnded(error=describe_error(error))
        return CallEnded(text=text)

    def _run_job(self, assignment: Assignment, runner: asyncio.Runner) -> AttemptEnded:
        message = assignment.message
        try:
            with importing(message.module):
                loaded = self._load_job(message.module, message.name)
        except Exception as error:  # noqa: BLE001 - importing a module runs user code
            return AttemptEnded(Raised(describe_error(error)))
        loaded.app.database = message.database
        _log_as_the_worker(message.log_level, message.log_style)
        if loaded.definition.is_async:
            # A context of its own, so that no job sees the context variables of another.
            return runner.run(self._invoke(assignment, loaded, _call), context=contextvars.copy_context())
        return self._run_plain(assignment, loaded)

    def _run_plain(self, assignment: Assignment, loaded: LoadedJob) -> AttemptEnded:
        """Run the function on this thread, and its middleware and commits on a second event loop."""
        calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        ending = asyncio.run_coroutine_threadsafe(
            self._invoke(assignment, loaded, _call_through(calls, loaded.app.middleware)), self._started_second_loop()
        )
        ending.add_done_callback(lambda _: calls.put(None))
        while (body := calls.get()) is not None:
            body()
        return ending.result()

    async def _invoke(self, assignment: Assignment, loaded: LoadedJob, call: Call) -> AttemptEnded:
        attempt = ChildAttempt(assignment, loaded, self._connection)
        try:
            outcome = await invoke(loaded.definition, attempt, loaded.app.middleware, call)
        except asyncio.CancelledError:
            error = asyncio.CancelledError("the job's function was cancelled from within")
            outcome = Raised(describe_error(error))
        attempt.close()
        return AttemptEnded(outcome, tuple(attempt.committer.artifacts) if isinstance(outcome, Returned) else ())

    def _finish(self, ended: AttemptEnded) -> None:
        try:
            self._send_after_output(ended)
        except InvalidInput as too_large:
            refused = ResultRefused(too_large.where, too_large.problem)
            self._send(AttemptEnded(outcome_of_error(refused, ErrorPolicy())))

    def _send_after_output(self, message: FromChild) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A job may have replaced the stream by anything. The outcome must be sent nevertheless.
            with contextlib.suppress(Exception):
                stream.flush()
        self._send(message)

    def _send(self, message: FromChild) -> None:
        try:
            self._connection.send(message)
        except OSError:
            _kill_itself()

    def _started_second_loop(self) -> asyncio.AbstractEventLoop:
        if self._second_loop is None:
            self._second_loop = asyncio.new_event_loop()
            SYSTEM.spawn.thread(self._second_loop.run_forever, name="tenure-child-loop")
        return self._second_loop


def _log_as_the_worker(level: int, style: LogStyle | None) -> None:
    """Log to standard error, unless the program has configured its log when it was imported."""
    if not logging.getLogger().handlers:
        log_to_standard_error(level, style or "text")


async def _call(function: Callable[[], Any]) -> Any:
    return await function()


def _call_through(calls: queue.SimpleQueue[Callable[[], None] | None], middleware: Sequence[Middleware]) -> Call:
    """Calls the function on the thread that reads this queue."""

    async def call(function: Callable[[], Any]) -> Any:
        function = on_thread(middleware, function)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                value, error = context.run(function), None
            except BaseException as raised:  # noqa: BLE001 - the error is set on the future
                value, error = None, raised
            loop.call_soon_threadsafe(set_result, result, value, error)

        calls.put(body)
        return await result

    return call


def _isolate_process() -> None:
    """Give the child its own process group, which the worker kills with all that a job has started."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the programs that a job starts would inherit.
        signal.signal(number, _ignore)
    faulthandler.enable()
    if sys.platform == "linux":
        # For native code that never releases the interpreter lock to the receiving thread.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ignore(_number: int, _frame: object) -> None:
    """The worker receives the same signals, and ends the child when it stops."""


def _kill_itself() -> NoReturn:
    """End at once, with all that a job has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
