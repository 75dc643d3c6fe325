"""What a gateway does so that dispatches are quick: it claims in batches, and sends each message at once."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from contextlib import closing
from typing import Any

import tenure
from tenure.engines.connection import CLAIM_PAUSE_SECONDS
from tenure.engines.protocol import JobDispatch
from tenure.engines.server import listening_socket
from tests.support.engine_socket import QUICK, connected, declare


class PausedClaims:
    """A clock on which the pause before a claim lasts until `over` is set."""

    def __init__(self, clock: Any) -> None:
        self._clock, self.over = clock, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def sleep(self, seconds: float) -> None:
        await (self.over.wait() if seconds == CLAIM_PAUSE_SECONDS else self._clock.sleep(seconds))


async def test_jobs_that_an_engine_finishes_meanwhile_are_replaced_by_one_claim(app: tenure.App) -> None:
    render = declare(app)
    gateway = app.gateway(**QUICK)
    clock = PausedClaims(gateway._seams.clock)
    gateway._seams = dataclasses.replace(gateway._seams, clock=clock)
    await app.enqueue_many(render.request(str(number)) for number in range(40))
    async with gateway.open(), connected(gateway, "render", capacity=30) as engine:
        jobs = [await engine.next(JobDispatch) for _ in range(30)]
        assert {job.claim for job in jobs} == {1}
        for job in jobs[:5]:
            await engine.acked(engine.about(job, "job_complete", result="x"))
        clock.over.set()
        assert {(await engine.next(JobDispatch)).claim for _ in range(5)} == {2}


def test_messages_of_a_gateway_do_not_wait_for_one_another() -> None:
    """Without the option, a message waits up to 40 ms for the acknowledgement of the one before it."""
    with closing(listening_socket("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
