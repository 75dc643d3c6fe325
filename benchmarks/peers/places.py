"""The databases of the cells: a new PostgreSQL database, SQLite file or Redis for each, on own servers on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from benchmarks.peers.roster import Backend
from tests.support.postgres import PostgresServer
from tests.support.server_process import Supervised, free_port, temporary_folder, unprivileged_account, wait_until

POSTGRES_SETTINGS = {"shared_buffers": "1GB"}
INSTALL_SECONDS_MAX = 300


@dataclass(frozen=True)
class Place:
    """An empty database for one cell, and the process of its server, where there is one."""

    url: str
    server_pid: int | None = None


class NoPlace(Exception):
    """A server cannot be had, and why."""


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL with its default durability; only its memory is set."""
    with PostgresServer(fsync=True, settings=POSTGRES_SETTINGS) as server:
        yield server


@contextmanager
def place(backend: Backend, server: PostgresServer) -> Iterator[Place]:
    """An empty place for one cell; what was in it is removed afterwards."""
    match backend:
        case "postgres":
            with _database(server) as url:
                yield Place(url, server.pid)
        case "sqlite":
            with tempfile.TemporaryDirectory(prefix="tenure-peers-") as folder:
                yield Place(f"sqlite:///{folder}/jobs.db")
        case "redis":
            with _redis() as redis:
                yield redis


@contextmanager
def _database(server: PostgresServer) -> Iterator[str]:
    # A checkpoint writes the pages of earlier cells now, so that the next cell does not pay for it.
    with psycopg.connect(server.socket_dsn(), autocommit=True) as connection:
        connection.execute("checkpoint")
    url = server.create_database()
    try:
        yield url
    finally:
        server.drop_database(url)


@contextmanager
def _redis() -> Iterator[Place]:
    """Redis without persistence."""
    account = unprivileged_account()
    folder, port = temporary_folder(account), free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    server = Supervised([redis_program(), *options], folder=folder, account=account)
    try:
        if not wait_until(lambda: _answers(port) or not server.running, seconds=20) or not server.running:
            raise NoPlace(f"redis-server did not start; its log ends with: {server.log_tail()[-200:]}")
        yield Place(f"redis://127.0.0.1:{port}/0", server.pid)
    finally:
        server.end((signal.SIGTERM, 5.0))
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def redis_program(
    *,
    which: Callable[[str], str | None] = shutil.which,
    is_root: bool | None = None,
    install: Callable[[], None] | None = None,
) -> str:
    """The server's program. Root gets it from Debian's packages where it is missing; others get an error."""
    if found := which("redis-server"):
        return found
    if not (os.geteuid() == 0 if is_root is None else is_root) or which("apt-get") is None:
        raise NoPlace("redis-server is not installed: as root, apt-get install redis-server")
    (install or _install_redis)()
    if found := which("redis-server"):
        return found
    raise NoPlace("redis-server was installed, but is not on the path")


def _install_redis() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "redis-server"]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise NoPlace(f"apt-get {arguments[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
