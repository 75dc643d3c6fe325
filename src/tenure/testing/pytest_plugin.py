"""Fixtures for tests of programs that use tenure. pytest finds them by itself; nothing needs to be imported.

    async def test_a_welcome_is_sent(tenure_testing):
        bench = tenure_testing(app)
        await register("ada@example.org")
        await bench.drain(raise_errors=True)

Every pytest run of an environment that has tenure installed loads this module, so it imports nothing before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.testing.harness.environment import HarnessClock
    from tenure.testing.harness.harness import Harness, Mode


class StartsHarness(Protocol):
    """Puts an app on a bench until the end of the test."""

    def __call__(self, app: App, mode: Mode = "drain") -> Harness: ...


@pytest.fixture
def tenure_clock() -> HarnessClock:
    """The clock of every bench of this test. It stands still until a bench or the test moves it."""
    from tenure.testing.harness.environment import HarnessClock

    return HarnessClock()


@pytest.fixture
def tenure_testing(tenure_clock: HarnessClock) -> Iterator[StartsHarness]:
    """`bench = tenure_testing(app)`, in async tests and in plain ones; the app is itself again after the test."""
    from tenure.testing.harness.mode import HarnessMode

    with ExitStack() as benches:

        def put(app: App, mode: Mode = "drain") -> Harness:
            on_bench = HarnessMode(app, mode=mode, clock=tenure_clock)
            bench = on_bench.enter()
            benches.callback(on_bench.leave)
            return bench

        yield put
