"""Jobs in every situation on one store, for checks of rows, log and results."""

from __future__ import annotations

from tenure.lifecycle.operations import Signal
from tenure.testing.driver import CLIENT
from tests.support.situations import SITUATIONS, Setup


async def run_every_situation(setup: Setup) -> None:
    """Create every situation. Some jobs are enqueued twice, and one is signalled."""
    for situation in SITUATIONS:
        await situation.recipe(setup)
    drive = setup.drive
    request = drive.enqueue("twice", request_id="order-1", dedupe_key="ada")
    for _ in range(2):
        await drive.store.enqueue([request])
    await drive.store.enqueue([drive.enqueue("twice", dedupe_key="ada")])
    with_signal = await drive.add("told")
    await drive.apply(with_signal.id, Signal("go", "[1]"), actor=CLIENT)
