"""The servers that tests share: one PostgreSQL for the whole run, and a fresh database on it for each test.

The process that pytest was called in owns the server. Where xdist spreads the tests over workers, it is started before
them and passes its address to them; otherwise the first test that needs it starts it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.crash.strace import find_strace
from tests.support.databases import Database
from tests.support.postgres import PgBouncer, Postgres, PostgresServer, find_install, find_pgbouncer
from tests.support.server_process import memory_folder

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

pytest_plugins = ["tests.support.traceability", "tests.support.skip_summary"]

# A busy machine makes an example slow; that is not a failure.
settings.register_profile("tenure", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tenure")

OWN_SERVER = pytest.StashKey[PostgresServer]()


def pytest_configure() -> None:
    """A shell's background ignores interrupts, nohup ignores hangups, and every child would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Tests kill processes, never the machine, so their files need no disk: waiting for one was half of a test's time.
    if (folder := memory_folder()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)


def own_server(config: pytest.Config) -> PostgresServer:
    """The run's server, started when it is first asked for."""
    server = config.stash.get(OWN_SERVER, None)
    if server is None:
        # A test kills processes, never the machine: without fsync they lose nothing, and run much faster.
        server = PostgresServer(fsync=False, in_memory=True).__enter__()
        config.stash[OWN_SERVER] = server
    return server


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    server = own_server(node.config)
    node.workerinput["postgres"] = {
        "version": server.version,
        "port": server.port,
        "socket_folder": server.socket_folder,
    }


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(OWN_SERVER, None)
    if server is not None:
        del config.stash[OWN_SERVER]
        server.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    server = config.stash.get(OWN_SERVER, None)
    version = server.version if server is not None else f"{find_install().version} (no test asked for it)"
    terminalreporter.write_line(f"PostgreSQL: {version}")
    if find_pgbouncer():
        terminalreporter.write_line("pgbouncer: found")
    else:
        missing = "pgbouncer: NOT FOUND, so the tests behind it were skipped; make services installs it"
        terminalreporter.write_line(missing, yellow=True, bold=True)
    if find_strace():
        terminalreporter.write_line("strace: found")
    else:
        missing = "strace: NOT FOUND, so no system call was made to fail; make services installs it"
        terminalreporter.write_line(missing, yellow=True, bold=True)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Postgres:
    """The run's PostgreSQL. It is shared: a test that stops or kills a server starts a PostgresServer of its own."""
    workerinput = getattr(request.config, "workerinput", None)
    return own_server(request.config) if workerinput is None else Postgres(**workerinput["postgres"])


@pytest.fixture
def postgres_dsn(postgres_server: Postgres) -> Iterator[str]:
    """An empty database of the test's own."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of the run's PostgreSQL; the test is skipped where there is none."""
    if find_pgbouncer() is None:
        pytest.skip("pgbouncer is not installed: run make services")
    with PgBouncer(postgres_server) as pooler:
        yield pooler


@pytest.fixture
def pgbouncer_dsn(pgbouncer: PgBouncer, postgres_dsn: str) -> str:
    """The way through PgBouncer to the same database that `postgres_dsn` leads to directly."""
    return pgbouncer.dsn_like(postgres_dsn)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind, not migrated."""
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    return Database(request.getfixturevalue("postgres_dsn"))
