"""Whole lives of jobs on one store, one of every situation: enough for whoever looks at rows, log and answers."""

from __future__ import annotations

from tenure.lifecycle.operations import Signal
from tenure.testing.driver import CLIENT
from tests.support.situations import SITUATIONS, Scene


async def live(scene: Scene) -> None:
    """Bring every situation about. Some jobs are enqueued twice, and some are told something."""
    for situation in SITUATIONS:
        await situation.recipe(scene)
    drive = scene.drive
    request = drive.enqueue("twice", request_id="order-1", dedupe_key="ada")
    for _ in range(2):
        await drive.store.enqueue([request])
    await drive.store.enqueue([drive.enqueue("twice", dedupe_key="ada")])
    told = await drive.add("told")
    await drive.apply(told.id, Signal("go", "[1]"), actor=CLIENT)
