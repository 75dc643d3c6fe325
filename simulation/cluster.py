"""One run: workers, a client and one database under random faults, then without faults until every job has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextvars import Context
from hashlib import sha256
from typing import Any

import msgspec

from simulation import sample_jobs
from simulation.budgets import SimulatedBudgets
from simulation.children import SimulatedChildren
from simulation.engines import SimulatedEngines
from simulation.faults import Fault, Options
from simulation.forks import SimulatedForks
from simulation.invariants import WAKE_UPS, InvariantViolated, LogInvariants
from simulation.model.store import ModelStore
from simulation.network import DividedStore, RemoteCommitBlock, RemoteStore, SimulatedNotifier
from simulation.outbox import SimulatedOutbox
from simulation.queue_limits import Limits
from simulation.random_streams import RandomStream
from simulation.retention import KEPT_SECONDS, RETENTION, SimulatedRetention
from simulation.schedules import SimulatedSchedules
from simulation.versions import VERSIONS, SimulatedFleet
from simulation.virtual_loop import Begun, DatabaseClock, Node, VirtualLoop, in_node
from simulation.waits import SimulatedWaits
from simulation.workflows import SimulatedWorkflows
from tenure.app import App
from tenure.client.admin import JobAdmin
from tenure.errors import JobNotFound, LeaseLost, Refused, RevisionConflict, StoreUnavailable, TooManyConnections
from tenure.lifecycle.records import Event
from tenure.lifecycle.statuses import RUNNING
from tenure.seams import Seams, SystemSpawner
from tenure.stores.contract import EnqueueResult, Failure, Outcome, Repeated
from tenure.stores.sqlite.store import SqliteStore
from tenure.testing.history.checker import History, check_history, recorded, snapshot
from tenure.testing.store_check import all_jobs, check_store
from tenure.workers.worker import Worker, WorkerOptions

QUIET_SECONDS_MAX = 600.0
NO_CONNECTION_SHARE = 0.3
"""The share of a worker's connections that the database refuses while there are faults."""
RETENTION_SHARE = 0.15
"""The share of runs that continue until every job is removed."""
OPERATIONS_LEAST = 200
"""A run with fewer requests than this gets more jobs."""

MUTATES = ("enqueue", "claim", "fire", "apply", "commit")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `problem` is None if every invariant held."""

    seed: int
    options: Options
    problem: str | None
    trace: str
    operations: int
    jobs: int
    faults: dict[str, int]
    seen: dict[str, int]
    seconds: float


class SimulatedCluster:
    """The state of a run."""

    def __init__(self, seed: int, options: Options) -> None:
        self.seed, self.options = seed, options
        self.chance = RandomStream(seed)
        self.loop = VirtualLoop(self.chance.of("order"))
        self.clock = DatabaseClock(self.loop)
        self.store = self._new_store()
        self.faulty = True
        self.outage = False
        self.subscriptions: dict[SimulatedNotifier, frozenset[str]] = {}
        self.blocks: dict[RemoteCommitBlock, Node] = {}
        self.operations = 0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.broken: BaseException | None = None
        self._watches = LogInvariants()
        self._histories: dict[str, History] = {}
        self._position: str | None = None
        self._trace = sha256()
        self._workers: dict[Node, Worker] = {}
        self._born = 0
        self._closing = False
        self._hint_chance = self.chance.of("hints")
        self._ticks = SimulatedSchedules(self.chance.of("schedules"))
        self._limits = Limits(self.chance.of("limits"))
        self._waits = SimulatedWaits(self.chance.of("waits"), self.clock.sleep, dies=Fault.CRASH not in options.without)
        self._budgets = SimulatedBudgets(
            self.chance.of("budgets"), self.clock.sleep, dies=Fault.CRASH not in options.without
        )
        forks = self.chance.of("forks")
        self._forks = SimulatedForks(forks, self.seams(forks.of("ids")), self._budgets)
        self._outbox = SimulatedOutbox(self, self.chance.of("outbox"), self.seams)
        self._scheduled = 0
        self.retention = SimulatedRetention()
        self.app = App("sqlite:///:memory:", seams=self.seams(self.chance.of("client")), environment={})
        sample_jobs.declare(self.app, self.clock.sleep)
        self._engines = SimulatedEngines(self, self.chance.of("engines"))
        self._parents = SimulatedChildren(
            self.app,
            self.chance.of("children"),
            self.clock.sleep,
            self.loop.time,
            dies=Fault.CRASH not in options.without,
        )
        self._workflows = SimulatedWorkflows(self.app, self.chance.of("workflows"), self.clock.sleep)
        self._fleet = SimulatedFleet(self, self.chance.of("fleet"), self.seams)
        self._versions: dict[Node, str] = {}
        """The version of each worker of the fleet."""

    def _new_store(self) -> DividedStore:
        if self.options.store == "model":
            return ModelStore(self.clock)  # type: ignore[arg-type]
        seams = self.seams(self.chance.of("database"))
        return SqliteStore(":memory:", seams=seams, database_clock=self.clock.now, inline=True)

    def seams(self, chance: RandomStream) -> Seams:
        return Seams(clock=self.clock, random=chance, spawn=SystemSpawner())

    # Observations of the network.

    def note(self, node: Node, what: str, fault: Fault | None) -> None:
        """A request is sent. The trace is the whole run: two runs with the same trace are the same."""
        self.operations += 1
        if fault is not None:
            self.faults[fault] += 1
        self._trace.update(f"{self.loop.time():.9f} {node.name} {what} {fault or ''}\n".encode())

    async def served(self, what: str) -> None:
        """The database has served a request: check what it wrote."""
        if what.startswith(MUTATES):
            events = await self._new_events()
            for event in events:
                self.seen[event.type] += 1
                self.seen["wake-up met a running job"] += event.type in WAKE_UPS and event.from_status is RUNNING
                if event.cause == "reconciled":
                    self.seen["reconciled"] += 1
                self._trace.update(f"{event.job_id}/{event.rev} {event.type} {event.at}\n".encode())
                try:
                    self._watches.check_event(event)
                    self._limits.check_event(event)
                    if (shown := self._parents.check_event(event)) is not None:
                        self.seen[shown] += 1
                except InvariantViolated as broken:
                    self._break(broken)
            try:
                await self._watches.check_waits(self.store, events)
                await self._fleet.check_events(self.store, events)
                if self._budgets.problem is not None:
                    raise self._budgets.problem
            except InvariantViolated as broken:
                self._break(broken)

    def answered(self, outcomes: Iterable[Outcome], *, inside: bool = False) -> None:
        """A process has the outcome of its requests, or of a mark inside its transaction."""
        for outcome in outcomes:
            if inside and isinstance(outcome, Failure):
                self.seen["commit refused"] += 1
            match outcome:
                case Repeated():
                    self.seen["request answered from the log"] += 1
                case Failure(LeaseLost()):
                    self.seen["lease lost"] += 1
                case Failure(RevisionConflict()):
                    self.seen["conflict decided anew"] += 1

    def fired(self, added: list[EnqueueResult] | None) -> None:
        """A scheduler has the outcome of a firing."""
        if added is None:
            self.seen["fired by another scheduler"] += 1
        else:
            self.seen["schedule fired"] += bool(added)
            self.seen["missed times made up for"] += len(added) > 1
            self._scheduled += len(added)
            self.wake({one.job.queue for one in added})

    async def _new_events(self) -> list[Event]:
        after = self._position
        page = await self.store.tail(after=after, limit=1000)
        if self._position != after:
            # Two requests were served at once, and the other check has read these events already: each event is checked
            # once.
            return await self._new_events()
        self._position = page.position
        return page.events

    def wake(self, names: Iterable[str]) -> None:
        wanted = set(names)
        for subscription, queues in list(self.subscriptions.items()):
            if not queues.isdisjoint(wanted):
                lost = self.faulty and self._may(Fault.WAKEUP_LOST) and self._hint_chance.happens(0.2)
                if lost:
                    self.faults[Fault.WAKEUP_LOST] += 1
                else:
                    subscription.wake()

    def serve(self, body: Coroutine[Any, Any, None]) -> None:
        """What the database does with a request that has just arrived: mostly at once, without a task."""
        try:
            waits_for = body.send(None)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - a request's own error is returned to its sender
            self._break(error)
            return
        self.spawn_outside(Begun(body, waits_for))

    def spawn_outside(self, body: Coroutine[Any, Any, Any]) -> None:
        """Run something that belongs to no process: the database, or the fault injector."""
        task = self.loop.create_task(body, context=Context())
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._closing:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        self.broken = self.broken or error

    # Processes.

    def _start_worker(self, version: str | None = None) -> None:
        """Start a worker of the usual jobs, or of this version of the fleet's."""
        self._born += 1
        node = Node(f"worker-{self._born}", self.loop)
        if version is not None:
            self._versions[node] = version
        chance = self.chance.of(node.name)
        seams = self.seams(chance)

        connecting = chance.of("connecting")

        async def open_store() -> Any:
            if connecting.happens(NO_CONNECTION_SHARE) and self.faulty and self._may(Fault.NO_CONNECTION):
                self.note(node, "open", Fault.NO_CONNECTION)
                raise TooManyConnections("the database accepts no further connection", where=RemoteStore.where)
            return self.wired(node, chance.of("wire"))

        options = WorkerOptions(
            concurrency=4,
            poll_seconds=4.0,
            scan_seconds=4.0,
            grace_seconds=4.0,
            in_thread=False,
            name=node.name,
            version=version,
        )
        definitions = self.app.kinds if version is None else self._fleet.definitions(version)
        worker = Worker(
            definitions=definitions, open_store=open_store, seams=seams, options=options, retention=RETENTION
        )
        self._workers[node] = worker
        node.when_dead = lambda: self._node_ended(node)
        in_node(node, lambda: self.loop.create_task(self._live(node, worker)))

    def _may(self, fault: Fault) -> bool:
        return fault not in self.options.without

    def wired(self, node: Node, chance: RandomStream) -> Any:
        """A process's connection to the store. Its requests and results are recorded, to be checked at the end."""
        wired: Any = RemoteStore(self, node, chance)
        return recorded(wired, self._histories.setdefault(node.name, History(node.name)), now=self.clock.now)

    def _wired_as(self, node: Node, name: str) -> Any:
        return self.wired(node, self.chance.of(name))

    async def _live(self, node: Node, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception as error:  # noqa: BLE001 - a worker that fails is what this is looking for
            self._break(error)
        if not self._closing:
            self._workers.pop(node, None)
            self.spawn_outside(self._replace(node))

    def _node_ended(self, node: Node) -> None:
        worker = self._workers.pop(node, None)
        if worker is not None and worker.running:
            self.seen["crashed while holding jobs"] += 1
        for block, owner in list(self.blocks.items()):
            if owner is node:
                self.seen["crashed inside a commit"] += 1
                block.abandon()
        self.spawn_outside(self._replace(node))

    async def _replace(self, node: Node) -> None:
        await self.clock.sleep(self.chance.of(f"replace-{self._born}").between(0.1, 4.0))
        if not self._closing:
            version = self._versions.pop(node, None)
            self._start_worker(None if version is None else self._fleet.replacement(version, self._versions.values()))

    # Faults.

    async def _befall(self, number: int) -> None:
        chance = self.chance.of(f"fault-{number}")
        kind = Fault(chance.pick([Fault.CRASH, Fault.CRASH, Fault.PAUSE, Fault.STOP, Fault.OUTAGE, Fault.CLOCK_JUMP]))
        await self.clock.sleep(chance.between(0.5, self.options.faulty_seconds))
        steps, seconds, which = chance.whole(1, 150), chance.between(0.5, 14.0), chance.fraction()
        if kind in self.options.without or not self.faulty:
            return
        self.faults[kind] += 1
        nodes = [node for node in self._workers if not (node.dead or node.paused)]
        if kind is Fault.OUTAGE:
            await self._go_away(seconds)
        elif kind is Fault.CLOCK_JUMP:
            self.clock.advance(seconds if which < 0.5 else -seconds)
        elif nodes:
            await self._strike(kind, nodes[int(which * len(nodes))], steps, seconds)

    async def _strike(self, kind: Fault, node: Node, steps: int, seconds: float) -> None:
        if kind is Fault.CRASH:
            node.dies_at_step = node.steps + steps
        elif kind is Fault.STOP:
            in_node(node, self._workers[node].stop)
        else:
            if seconds > sample_jobs.LEASE_SECONDS and self._workers[node].running:
                self.seen["paused past a lease"] += 1
            node.pause()
            await self.clock.sleep(seconds)
            node.resume()

    async def _pause_queue(self) -> None:
        self.seen["queue paused"] += await self._limits.pause(self.store, self.clock.sleep)

    async def _go_away(self, seconds: float) -> None:
        self.outage = True
        await self.clock.sleep(seconds)
        self.outage = False

    # The client.

    async def _enqueue(self, node: Node) -> None:
        chance = self.chance.of("calls")
        store = self.wired(node, chance.of("wire"))
        operator = JobAdmin(store, actor=self.app.client, seams=self.app.seams)
        self.acknowledged: list[Any] = []
        calls = 0
        while calls + self._scheduled < self.options.jobs or self.operations < OPERATIONS_LEAST:
            calls += 1
            await self.clock.sleep(chance.between(0.0, 1.5 * self.options.faulty_seconds / self.options.jobs))
            burst = [sample_jobs.a_call(self.app, chance).enqueue for _ in range(4 if chance.happens(0.1) else 1)]
            keyed = [msgspec.structs.replace(call, origin=self._limits.keyed(call.origin)) for call in burst]
            await asyncio.wait([self.loop.create_task(self._add(store, call)) for call in keyed])
            calls += len(burst) - 1
            which, hard, asks = chance.fraction(), chance.happens(0.5), chance.happens(0.2)
            if asks and self.acknowledged:
                job_id = self.acknowledged[int(which * len(self.acknowledged))]
                try:
                    await operator.cancel(job_id, hard=hard)
                except (Refused, JobNotFound, StoreUnavailable):
                    continue

    async def _add(self, store: Any, request: Any) -> None:
        """Repeated under the same id until there is a result, as a careful client does."""
        for _ in range(30):
            try:
                [added] = await store.enqueue([request])
            except StoreUnavailable:
                self.seen["enqueue repeated"] += 1
                await self.clock.sleep(0.5)
            else:
                self.acknowledged.append(added.job.id)
                return

    # The run.

    async def run(self) -> None:
        """Both phases, and the final checks."""
        await self.store.migrate()
        await self.store.open()
        await self._ticks.begin(self.store)
        await self._limits.begin(self.store)
        self.spawn_outside(self._pause_queue())
        for _ in range(self.options.nodes):
            self._start_worker()
        client = Node("client", self.loop)
        calls = in_node(client, lambda: self.loop.create_task(self._enqueue(client)))
        wakes = in_node(client, lambda: self.loop.create_task(self._waits.enqueue(self._wired_as(client, "wakes"))))
        children = self._parents
        parents = in_node(client, lambda: self.loop.create_task(children.enqueue(self._wired_as(client, "parents"))))
        parent = Node("parent", self.loop)
        in_node(parent, lambda: self.loop.create_task(children.run(self._wired_as(parent, "parent"))))
        waiter = Node("waiter", self.loop)
        in_node(waiter, lambda: self.loop.create_task(self._waits.run(self._wired_as(waiter, "waiter"))))
        journeys = in_node(
            client, lambda: self.loop.create_task(self._workflows.enqueue(self._wired_as(client, "workflows")))
        )
        clients = [calls, wakes, parents, journeys, *await self._outbox.begin(self.store, client)]
        if self._budgets.happens:
            wired = self._wired_as(client, "budgets")
            clients.append(in_node(client, lambda: self.loop.create_task(self._budgets.enqueue(wired))))
            forking = self._wired_as(client, "forks")
            clients.append(in_node(client, lambda: self.loop.create_task(self._forks.fork(forking))))
            for name in ("spender 1", "spender 2"):
                self._start_spender(name)
        if self._fleet.happens:
            clients += self._begin_fleet(client)
        if self._engines.happens:
            remote = self._wired_as(client, "remote jobs")
            clients.append(in_node(client, lambda: self.loop.create_task(self._engines.enqueue(remote))))
            self._engines.start()
        for number in range(self.options.process_faults):
            self.spawn_outside(self._befall(number))
        await self._until(self.options.faulty_seconds)
        self.faulty = False
        for version in list(self._fleet.missing(self._versions.values())) if self._fleet.happens else ():
            self._start_worker(version)
        await self._drain(*clients)
        await self._budgets.check(self.store)
        await self._forks.check(self.store)
        self.seen["run forked"] += self._forks.many
        if self.broken is None:
            await self._workflows.check(self.store, await all_jobs(self.store), removed=self.retention.jobs.values())
            self.seen.update(self._workflows.seen)
            await self._fleet.check(self.store, await all_jobs(self.store))
            self.seen.update(self._fleet.seen)
        await self._outbox.check(self.store)
        if self.broken is None:
            self._engines.check([*await all_jobs(self.store), *self.retention.jobs.values()])
        if self.chance.of("retention").happens(RETENTION_SHARE):
            await self._until_pruned()
        if self.broken is None:
            await self._last_look()

    def _begin_fleet(self, client: Node) -> list[asyncio.Task[None]]:
        for version in VERSIONS:
            self._start_worker(version)
        enqueuing, unpinning = self._wired_as(client, "parcels"), self._wired_as(client, "unpins")
        operator = self.seams(self.chance.of("operator"))
        return [
            in_node(client, lambda: self.loop.create_task(self._fleet.enqueue(enqueuing))),
            in_node(client, lambda: self.loop.create_task(self._fleet.unpin(unpinning, operator))),
        ]

    def _start_spender(self, name: str) -> None:
        spender = Node(name, self.loop)
        in_node(spender, lambda: self.loop.create_task(self._budgets.run(self._wired_as(spender, name))))

    async def _until(self, seconds: float) -> None:
        while self.loop.time() < seconds and self.broken is None:
            await self.clock.sleep(0.5)

    async def _drain(self, *clients: asyncio.Task[None]) -> None:
        limit_seconds = self.loop.time() + QUIET_SECONDS_MAX
        quiet_at = self.clock.now()
        while self.broken is None:
            await self.clock.sleep(1.0)
            caught_up = await self._ticks.caught_up(self.store, quiet_at)
            jobs = await all_jobs(self.store)
            if all(client.done() for client in clients) and caught_up and not any(job.live for job in jobs):
                await self._ticks.check(self.store, [*jobs, *self.retention.jobs.values()], quiet_at)
                return
            if self.loop.time() > limit_seconds:
                left = [f"{job!r} due {job.due_at}" for job in jobs if job.live]
                raise InvariantViolated(f"{len(left)} jobs did not come to an end: {left[:3]}")

    async def _until_pruned(self) -> None:
        """Continue until the workers have removed every job."""
        limit_seconds = self.loop.time() + QUIET_SECONDS_MAX
        while self.broken is None and (left := await all_jobs(self.store)):
            await self.clock.sleep(KEPT_SECONDS / 4)
            if self.loop.time() > limit_seconds:
                raise InvariantViolated(f"retention did not remove {len(left)} jobs: {left[:3]}")

    async def _last_look(self) -> None:
        # `check_history` asks the vocabularies about every log, also of removed jobs.
        await check_store(self.store, vocabularies=())
        self.seen["limit reached"] += self._limits.reached
        if not self.faults[Fault.CLOCK_JUMP]:
            self._limits.check_rate()
        history = History.merged(list(self._histories.values()))
        kept = await snapshot(self.store, clock=self.clock)
        problems = check_history(history, kept.plus(self.retention.removed), drained=True)
        if problems:
            raise InvariantViolated("; ".join(f"{problem.code}: {problem.message}" for problem in problems[:3]))
        jobs = {**self.retention.jobs, **{job.id: job for job in kept.jobs}}
        missing = [job_id for job_id in self.acknowledged if job_id not in jobs]
        if missing:
            raise InvariantViolated(f"acknowledged and lost: {missing}")
        sample_jobs.check_effects(jobs.values())

    def result(self) -> Result:
        return Result(
            seed=self.seed,
            options=self.options,
            problem=None if self.broken is None else f"{type(self.broken).__name__}: {self.broken}",
            trace=self._trace.hexdigest()[:16],
            operations=self.operations,
            jobs=len(self._watches.by_job),
            faults=dict(sorted(self.faults.items())),
            seen=dict(sorted(self.seen.items())),
            seconds=round(self.loop.time(), 3),
        )

    def close(self) -> None:
        """Release everything."""
        self._closing = True
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self.loop.close()
