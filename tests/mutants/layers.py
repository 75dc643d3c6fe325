"""The layers of proof, each as a check that runs on the current code and returns what it found.

A layer is one of the project's own checks, called in this process: verdicts, a named test of the contract kit, of the
roles or of a unit, the lockstep of the stores, the simulator, `verify`, the history checker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings

from simulation.faults import Options
from simulation.runs import simulate_all
from tenure.cli import verify
from tenure.cli.output import NoProgress
from tenure.lifecycle.operation_types import OperationType
from tenure.seams import Seams
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.clock import ManualClock
from tenure.testing.contract import StoreContract
from tenure.testing.driver import Driver
from tenure.testing.history import checker
from tenure.testing.store_check import check_store
from tests.lifecycle import test_decide_exhaustively as verdicts
from tests.mutants.check_results import cases_of, found_by, wants
from tests.mutants.every_situation import run_every_situation
from tests.mutants.fresh_stores import FreshStores, opened
from tests.property import test_lockstep as lockstep
from tests.support.databases import Database
from tests.support.expected_lifecycle import EXPECTED, LEASED
from tests.support.situations import SITUATIONS, JobWithTokens, Setup, Situation
from tests.workers import test_roles as roles

TEST_SECONDS_MAX = 60.0
SEEDS_MAX = 150
EXAMPLES_MAX = 120


class Layer(Protocol):
    """A check of the project. Equal layers are the same check, which has to pass only once."""

    @property
    def name(self) -> str:
        """The name of the check in reports."""
        ...

    def find(self, stores: FreshStores) -> str | None:
        """What is wrong with the current code; None if the check passes."""
        ...


def _run(body: Coroutine[Any, Any, Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TEST_SECONDS_MAX):
            await body

    asyncio.run(bounded())


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The exhaustive verdicts of `decide`, situation by situation."""

    @property
    def name(self) -> str:
        return "exhaustive verdicts of `decide`"

    def find(self, stores: FreshStores) -> str | None:
        for situation in SITUATIONS:
            check = verdicts.test_every_combination_has_the_verdict_of_the_requirements
            found = found_by(partial(_call, check, situation=situation))
            if found is not None:
                return f"{situation.name}: {found}"
        return None


@dataclass(frozen=True, slots=True)
class StoreVerdicts:
    """The verdicts of one store on one operation, for every actor, in every situation of a leased job.

    The store gets the record that was decided on, so that its own statement has to refuse.
    """

    operation: OperationType
    store: str

    @property
    def name(self) -> str:
        return f"verdicts of {TITLES[self.store]} on `{self.operation}`"

    def find(self, stores: FreshStores) -> str | None:
        return found_by(lambda: _run(self._run(stores)))

    async def _run(self, stores: FreshStores) -> None:
        rule = EXPECTED[self.operation]
        may = {role for role in ("runner", "recovery") if role in rule.free | rule.leased}
        cases = [
            case
            for case in verdicts.CASES
            if case.asked.operation == self.operation and case.asked.request == "new" and case.asked.role in may
        ]
        async with stores.store(self.store) as (store, clock):
            setup = Setup(Driver(store), clock)
            for situation in SITUATIONS:
                if situation.facts.status in LEASED:
                    await self._ask(setup, situation, cases)

    async def _ask(self, setup: Setup, situation: Situation, cases: list[verdicts.Case]) -> None:
        tokens: JobWithTokens | None = None
        for case in cases:
            tokens = tokens or await situation.recipe(setup)
            if await verdicts.same_verdict(setup.drive, situation, case, tokens, as_record=True):
                tokens = None


def _call(test: Callable[..., Any], **arguments: Any) -> None:
    answer = test(**arguments)
    if asyncio.iscoroutine(answer):
        _run(answer)


@dataclass(frozen=True, slots=True)
class Kit:
    """One test of the store contract kit, in all of its cases, each on a fresh store."""

    test: str
    store: str = "model"

    @property
    def name(self) -> str:
        return f"contract kit on {TITLES[self.store]}: `{self.test}`"

    def find(self, stores: FreshStores) -> str | None:
        test = getattr(StoreContract, self.test)
        for case in cases_of(test):
            found = found_by(lambda case=case: _run(self._run(test, case, stores)))  # type: ignore[misc]
            if found is not None:
                return found
        return None

    async def _run(self, test: Callable[..., Any], case: dict[str, Any], stores: FreshStores) -> None:
        async with stores.store(self.store) as (store, clock):
            drive = Driver(store)
            await test(StoreContract(), **wants(test, drive=drive, clock=clock), **case)
            await check_store(store)


@dataclass(frozen=True, slots=True)
class Roles:
    """One test of the workers' roles, in all of its cases."""

    test: str

    @property
    def name(self) -> str:
        return f"roles: `{self.test}`"

    def find(self, stores: FreshStores) -> str | None:
        test = getattr(roles, self.test)
        for case in cases_of(test):
            found = found_by(lambda case=case: _run(self._run(test, case)))  # type: ignore[misc]
            if found is not None:
                return found
        return None

    async def _run(self, test: Callable[..., Any], case: dict[str, Any]) -> None:
        clock = ManualClock()
        seams = Seams(clock=clock)
        store = SqliteStore(":memory:", seams=seams, database_clock=clock.now, inline=True)
        await store.migrate()
        async with opened(store):
            place = roles.Place(store, clock, seams)
            await test(**wants(test, place=place, caplog=EventFields()), **case)


class EventFields(logging.Handler):
    """The log, for a test that uses pytest's own `caplog`."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()

    @contextmanager
    def at_level(self, level: int) -> Iterator[None]:
        logger = logging.getLogger("tenure")
        usual = logger.level
        logger.addHandler(self)
        logger.setLevel(level)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(usual)


@dataclass(frozen=True, slots=True)
class Unit:
    """One test of a pure part, in all of its cases."""

    test: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"{self.test.__module__.removeprefix('tests.')}: `{self.test.__name__}`"

    def find(self, stores: FreshStores) -> str | None:
        for case in cases_of(self.test):
            found = found_by(partial(_call, self.test, **case))
            if found is not None:
                return found
        return None


@dataclass(frozen=True, slots=True)
class OnPostgres:
    """A test of PostgreSQL that needs sessions beside the store's."""

    test: Callable[[str, Driver], Coroutine[Any, Any, None]]

    @property
    def name(self) -> str:
        return f"on PostgreSQL: `{self.test.__name__}`"

    def find(self, stores: FreshStores) -> str | None:
        return found_by(lambda: _run(self._run(stores)))

    async def _run(self, stores: FreshStores) -> None:
        with stores.database() as dsn:
            async with opened(PostgresStore.from_url(dsn)) as store:
                await self.test(dsn, Driver(store))


@dataclass(frozen=True, slots=True)
class Lockstep:
    """The model and SQLite with the same requests in the same order."""

    @property
    def name(self) -> str:
        return f"lockstep of model and SQLite, up to {EXAMPLES_MAX} examples"

    def find(self, stores: FreshStores) -> str | None:
        how = settings(
            max_examples=EXAMPLES_MAX,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        return found_by(lambda: lockstep.check_in_lockstep(self._sides, how))

    def _sides(self, stack: ExitStack, runner: asyncio.Runner) -> list[lockstep.Side]:
        return [lockstep.model_side(), lockstep.sqlite_side(stack, runner)]


@dataclass(frozen=True, slots=True)
class Simulator:
    """Runs of the simulator until one violates an invariant. `first` is a seed near such a run, not a limit."""

    first: int = field(default=0, compare=False)
    store: str = "model"
    seeds_most: int = SEEDS_MAX

    @property
    def name(self) -> str:
        return f"simulator on {TITLES[self.store]}, up to {self.seeds_most} seeds"

    def find(self, stores: FreshStores) -> str | None:
        for seed in range(self.first, self.first + self.seeds_most):
            if (problem := _simulated(seed, self.store)) is not None:
                return f"seed {seed}: {problem}"
        return None


def _simulated(seed: int, store: str) -> str | None:
    [result] = simulate_all([seed], Options(store=store))
    return result.problem


@dataclass(frozen=True, slots=True)
class Seed:
    """One run of the simulator: the control of the run that found a mutant."""

    seed: int
    store: str

    @property
    def name(self) -> str:
        return f"simulator on {TITLES[self.store]}, seed {self.seed}"

    def find(self, stores: FreshStores) -> str | None:
        return _simulated(self.seed, self.store)


@dataclass(frozen=True, slots=True)
class Verify:
    """`tenure verify` after jobs in every situation, on a database without guards."""

    @property
    def name(self) -> str:
        return "`tenure verify` on SQLite without its guards"

    def find(self, stores: FreshStores) -> str | None:
        return found_by(lambda: _run(self._run(stores)))

    async def _run(self, stores: FreshStores) -> None:
        path = stores.file()
        clock = ManualClock()
        store = SqliteStore(path, database_clock=clock.now)
        await store.migrate()
        Database(f"sqlite:///{path}").tamper()
        async with opened(store):
            await run_every_situation(Setup(Driver(store), clock))
            tally = await verify.verify_store(store, NoProgress(), problems_max=100)
        assert tally.jobs > 0, "nothing was verified"
        assert tally.problems == [], "; ".join(map(str, tally.problems))


@dataclass(frozen=True, slots=True)
class History:
    """The history checker over jobs in every situation, with everything that the client saw."""

    store: str = "sqlite"

    @property
    def name(self) -> str:
        return f"history checker on {TITLES[self.store]}"

    def find(self, stores: FreshStores) -> str | None:
        return found_by(lambda: _run(self._run(stores)))

    async def _run(self, stores: FreshStores) -> None:
        async with stores.store(self.store) as (store, clock):
            seen = checker.History("client")
            recording = checker.recorded(store, seen, now=ManualClock().now)
            await run_every_situation(Setup(Driver(recording), clock))
            problems = checker.check_history(seen, await checker.snapshot(store))
        assert problems == [], "; ".join(map(str, problems))


TITLES = {"model": "the model", "sqlite": "SQLite", "postgres": "PostgreSQL"}


def control_of(layer: Layer, found: str) -> Layer:
    """What must pass without the mutant: the same check, and for the simulator the run that found it."""
    if isinstance(layer, Simulator):
        return Seed(int(found.partition(":")[0].removeprefix("seed ")), layer.store)
    return layer
