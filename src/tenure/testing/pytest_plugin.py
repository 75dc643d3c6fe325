"""pytest fixtures for tests of programs that use tenure. pytest loads them without an import.

    async def test_a_welcome_is_sent(tenure_testing):
        harness = tenure_testing(app)
        await register("ada@example.org")
        await harness.drain(raise_errors=True)

Every pytest run with tenure installed loads this module, so it imports tenure only when a fixture is used.
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
    """Starts a harness for an app, until the end of the test."""

    def __call__(self, app: App, mode: Mode = "drain") -> Harness: ...


@pytest.fixture
def tenure_clock() -> HarnessClock:
    """The clock of all harnesses of this test. It stands still until a harness or the test moves it."""
    from tenure.testing.harness.environment import HarnessClock

    return HarnessClock()


@pytest.fixture
def tenure_testing(tenure_clock: HarnessClock) -> Iterator[StartsHarness]:
    """`harness = tenure_testing(app)`, in async and plain tests. The app is restored after the test."""
    from tenure.testing.harness.mode import HarnessMode

    with ExitStack() as entered:

        def put(app: App, mode: Mode = "drain") -> Harness:
            mode_context = HarnessMode(app, mode=mode, clock=tenure_clock)
            harness = mode_context.enter()
            entered.callback(mode_context.leave)
            return harness

        yield put
