"""The context that `app.testing()` returns: it replaces an app's runtime by a test harness, and restores it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from tenure.client.app_stores import AppStores
from tenure.errors import InvalidInput
from tenure.stores.sqlite.connect import MEMORY
from tenure.testing.clock import START
from tenure.testing.harness.environment import HarnessClock, HarnessLoop
from tenure.testing.harness.harness import Harness, Mode
from tenure.testing.harness.report import HarnessError

if TYPE_CHECKING:
    from tenure.app import App


class HarnessMode:
    """A context in which an app's jobs are in memory and run on demand. Leaving it restores the app.

    Enter it with `async with` on the event loop that the test runs on, or with `with` in plain code.
    """

    def __init__(
        self, app: App, *, mode: Mode = "drain", now: datetime | None = None, clock: HarnessClock | None = None
    ) -> None:
        if mode not in get_args(Mode):
            raise InvalidInput("mode", f"is {mode!r}, and must be one of {', '.join(get_args(Mode))}")
        if now is not None and now.tzinfo is None:
            raise InvalidInput("now", "has no time zone; write datetime(…, tzinfo=UTC)")
        self._app, self._mode = app, mode
        self._clock = clock or HarnessClock(START if now is None else now)
        self._harness: Harness | None = None
        self._instead: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    async def __aenter__(self) -> Harness:
        return self.enter()

    async def __aexit__(self, *_: object) -> None:
        harness = self._off()
        await harness.close()

    def __enter__(self) -> Harness:
        if _in_a_loop():
            raise HarnessError("inside a running event loop write `async with app.testing()`")
        return self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> Harness:
        """Start a harness for the app on the running event loop; without one, on the app's background loop."""
        state = vars(self._app)
        if "harness" in state:
            raise HarnessError("this app is being tested already; leave that `app.testing()` before you enter another")
        home = asyncio.get_running_loop() if _in_a_loop() else self._app.background.run(_running_loop)
        self._harness = harness = Harness(self._app, HarnessLoop(home), mode=self._mode, clock=self._clock)
        self._instead = {
            "harness": harness,
            "database": f"sqlite://{MEMORY}",
            "seams": harness.app_seams(),
            "background": harness,
            "store": harness.store,
            "open_store": harness.no_worker,
            "rejections": Counter(),
            "_stores": AppStores(self._app),
        }
        self._before = {name: state[name] for name in self._instead if name in state}
        state.update(self._instead)
        return harness

    def leave(self) -> None:
        """Restore the app, without awaiting. The test's own event loop may have been closed."""
        harness = self._off()
        if harness.home.is_running:
            harness.home.run(harness.close)
        else:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(harness.close())

    def _off(self) -> Harness:
        harness, self._harness = self._harness, None
        if harness is None:
            raise HarnessError("this `app.testing()` was not entered, or left before")
        state = vars(self._app)
        for name in self._instead:
            state.pop(name, None)
        state.update(self._before)
        return harness


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
