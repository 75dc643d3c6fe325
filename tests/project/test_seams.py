"""The system's clock, randomness, threads and processes behind the seams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tenure.seams import SYSTEM


def test_job_ids_are_unique_uuids_of_version_seven_in_the_order_of_their_making() -> None:
    ids = [SYSTEM.random.job_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {job_id.version for job_id in ids} == {7}
    assert ids == sorted(ids)


def test_tokens_and_names_do_not_repeat() -> None:
    assert len({SYSTEM.random.token() for _ in range(1000)}) == 1000
    assert len({SYSTEM.random.name() for _ in range(1000)}) == 1000


def test_fractions_lie_between_nought_and_one() -> None:
    fractions = [SYSTEM.random.fraction() for _ in range(1000)]
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert len(set(fractions)) > 900


async def test_time_advances_and_has_a_zone() -> None:
    before, ticks = SYSTEM.clock.now(), SYSTEM.clock.monotonic_seconds()
    await SYSTEM.clock.sleep(0.001)
    assert before.utcoffset() is not None
    assert SYSTEM.clock.now() > before
    assert SYSTEM.clock.monotonic_seconds() > ticks


async def test_threads_and_tasks_run_what_they_are_given() -> None:
    seen: list[str] = []

    async def body() -> str:
        return "task"

    SYSTEM.spawn.thread(lambda: seen.append("thread"), name="t").join(10)
    seen.append(await SYSTEM.spawn.task(body(), name="t"))
    assert seen == ["thread", "task"]


def test_a_process_runs_ends_and_can_be_killed() -> None:
    ended = SYSTEM.spawn.process(sys.exit, 7, name="p")
    ended.join(30)
    assert (ended.exit_code, ended.pid != os.getpid()) == (7, True)
    stuck = SYSTEM.spawn.process(signal.pause, name="p")
    assert stuck.exit_code is None
    stuck.kill()
    stuck.join(30)
    assert stuck.exit_code == -signal.SIGKILL


FORKING = """
import os
import uuid_utils.compat
from tenure.seams import SYSTEM
made = uuid_utils.compat.uuid7()
{stub}
ids = [SYSTEM.random.job_id()]
for _ in range({children}):
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(writer, SYSTEM.random.job_id().bytes)
            os._exit(0)
        os.write(writer, SYSTEM.random.job_id().bytes + SYSTEM.random.job_id().bytes)
        os.wait()
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        read = pipe.read()
    ids += [__import__("uuid").UUID(bytes=read[at : at + 16]) for at in range(0, len(read), 16)]
    os.wait()
assert all(one.version == 7 and one.variant == made.variant for one in ids), ids
print(len(ids), len(set(ids)))
"""


@pytest.mark.parametrize(
    ("stub", "unique"),
    [
        # A generator that repeats after a fork, and within a process: each process has ids of its own.
        ("uuid_utils.compat.uuid7 = lambda: made", 81),
        ("", 121),
    ],
    ids=["repeating generator", "installed generator"],
)
def test_forked_processes_never_make_the_same_id(stub: str, unique: int) -> None:
    program = FORKING.format(stub=stub, children=40)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, f"121 {unique}\n"), done
