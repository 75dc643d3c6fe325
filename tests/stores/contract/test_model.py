"""The oracle passes the kit that it is the measure of: otherwise one of the two is wrong."""

from __future__ import annotations

import pytest

from simulation.model.store import ModelStore
from tenure.stores.contract import Store
from tenure.testing.clock import ManualClock
from tenure.testing.contract import StoreContract


@pytest.mark.requirement("LC-13")
class TestModelStore(StoreContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Store:
        return ModelStore(clock)
