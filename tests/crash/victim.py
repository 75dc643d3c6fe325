"""The program that dies. It is started once, knows everything by then, and forks a process for each death.

    python -m tests.crash.victim

Orders come in and reports go out as lines of JSON. A fork is made while there is neither a thread nor a connection, so
that the child differs from a fresh process in nothing but the time that it takes to start.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tenure.errors import StoreError
from tenure.lifecycle.records import Job
from tenure.stores import Store
from tests.crash.acts import Act, Scene
from tests.crash.acts_of_recovery import DYING
from tests.crash.acts_of_store import ACTS
from tests.crash.watching import WATCH, Crossing, watch_drivers

LIFETIME_SECONDS = 30
"""However it goes, a child ends."""
BY_NAME = {act.name: act for act in (*ACTS, *DYING)}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One life: which act on which database, and where it ends. `held` lets it wait for a word before it begins, so
    that a tracer can be attached; `file_bytes_max` is how large a file may grow meanwhile."""

    act: str
    url: str
    jobs: list[Job]
    dies_at: int | None = None
    held: bool = False
    file_bytes_max: int | None = None
    again: bool = False
    """Where the store refused, ask once more in the same process, without the limit."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a child had to say."""

    crossed: list[Crossing] = []
    acknowledged: bool = False
    refused: str | None = None
    """The store's own error, by class and words."""
    refused_again: str | None = None
    """The same for the second time that it was asked, in the same process."""
    broken: str | None = None
    """An error that is nobody's but the test's."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended, and its report where it lived to give one."""

    pid: int
    signal: int | None = None
    report: Report | None = None


async def live(order: Order) -> Report:
    act = BY_NAME[order.act]
    store = act.store(order.url)
    if act.migrated:
        try:
            await store.open()
        except StoreError as error:
            return Report(refused=f"{type(error).__name__}: {error}")
    with _limit(order.file_bytes_max):
        report = await _perform(act, store, order)
    if order.again and report.refused is not None:
        second = await _perform(act, store, order)
        return msgspec.structs.replace(report, acknowledged=second.acknowledged, refused_again=second.refused)
    return report


async def _perform(act: Act, store: Store, order: Order) -> Report:
    WATCH.dies_at = order.dies_at
    WATCH.armed = True
    try:
        await act.run(Scene(store, order.url, order.jobs))
    except StoreError as error:
        return Report(refused=f"{type(error).__name__}: {error}", crossed=WATCH.crossed)
    WATCH.cross("acknowledge", act.name)
    WATCH.armed = False
    return Report(acknowledged=True, crossed=WATCH.crossed)


@contextmanager
def _limit(bytes_max: int | None) -> Iterator[None]:
    """The kernel lets no file grow beyond this. It says so with an error, as the signal that would come is ignored."""
    if bytes_max is None:
        yield
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, most))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))


def child(order: Order, word: int, out: int) -> None:
    """One life. It is left by a signal or by `_exit`, never by the way that it came."""
    try:
        signal.alarm(LIFETIME_SECONDS)
        if order.held:
            os.read(word, 1)
        report = asyncio.run(live(order))
    except BaseException:  # noqa: BLE001 - whatever it is, the test has to hear of it
        report = Report(broken=traceback.format_exc())
    with os.fdopen(out, "wb") as pipe:
        pipe.write(msgspec.json.encode(report))
    os._exit(0)


def attend(order: Order) -> Death:
    """Fork, pass the word on where it is waited for, and see the child to its end."""
    word_read, word_write = os.pipe()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        child(order, word_read, write)
    os.close(write)
    os.close(word_read)
    if order.held:
        say(Death(pid=pid))
        sys.stdin.buffer.readline()
        os.write(word_write, b"!")
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.close(word_write)
    status = os.waitpid(pid, 0)[1]
    report = msgspec.json.decode(said, type=Report) if said else None
    return Death(pid=pid, signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, report=report)


def say(death: Death) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(death) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    watch_drivers()
    # What is here by now stays: a child that collected garbage would have to copy all of it first.
    gc.freeze()
    while line := sys.stdin.buffer.readline():
        say(attend(msgspec.json.decode(line, type=Order)))


if __name__ == "__main__":
    main()
