"""How many streams are leased ahead of the deliveries."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidInput
from tenure.outbox.endpoint_slots import QUICK_SECONDS, EndpointSlots
from tenure.outbox.processor import ProcessorOptions


def fill(slots: EndpointSlots) -> int:
    asked = slots.free
    slots.claimed(asked, asked=asked)
    return asked


def test_more_is_leased_ahead_while_streams_end_quickly_and_more_are_due() -> None:
    slots = EndpointSlots(10)
    leased = fill(slots)
    assert leased == 20
    for _ in range(1000):
        slots.ended(0.1)
        slots.claimed(1, asked=1)
    for _ in range(20):
        slots.ended(0.1)
    assert slots.free == 250


def test_streams_that_take_long_leave_the_others_to_other_processors() -> None:
    slots = EndpointSlots(10)
    for _ in range(100):
        slots.claimed(1, asked=1)
        slots.ended(0.1)
    assert slots.free > 20
    for _ in range(200):
        slots.claimed(1, asked=1)
        slots.ended(QUICK_SECONDS)
    assert slots.free == 20


def test_a_few_free_slots_are_not_worth_a_claim() -> None:
    slots = EndpointSlots(10)
    fill(slots)
    for _ in range(4):
        slots.ended(QUICK_SECONDS)
    assert slots.free == 0
    slots.ended(QUICK_SECONDS)
    assert slots.free == 5


def test_one_delivery_at_a_time_is_possible() -> None:
    slots = EndpointSlots(1)
    assert fill(slots) == 2
    slots.ended(QUICK_SECONDS)
    assert slots.free == 1


def test_a_lease_is_long_enough_for_a_delivery_that_begins_in_its_first_half() -> None:
    with pytest.raises(InvalidInput, match="lease_seconds: must be at least 120, so that a delivery that takes 60 s"):
        ProcessorOptions(delivery_seconds_max=60.0, lease_seconds=100.0)
