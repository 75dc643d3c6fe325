"""How a file is opened: the settings that durability depends on, and the file systems that break them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import GuardViolated, StoreError, StoreUnavailable

SWITCH_TRIES = 5
PRIMARY_CODE = 0xFF
"""The bits of SQLite's primary error code; the others are details."""
MEMORY = ":memory:"
SQLITE_LEAST = (3, 34, 0)
SQLITE_SAFE_RESET = (3, 51, 3)
"""From here on SQLite has no race between resetting the WAL and a writer."""
BUSY_SECONDS = 5.0
"""How long a connection waits for the write lock of another process, before the next try."""
CACHE_KIB = 32_768
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "ncpfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "davfs", "fuse.davfs2"}
)


def connect(
    path: str, *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS, foreign_keys: bool = False
) -> sqlite3.Connection:
    """A connection with the store's settings, and no implicit transactions.

    With `foreign_keys` it enforces those that the user's tables declare, as PostgreSQL does; the store's have none.
    """
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        least = ".".join(map(str, SQLITE_LEAST))
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}, and tenure needs {least} or newer")
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        if not read_only:
            _switch_to_wal(connection)
        connection.execute("pragma synchronous = full")
        connection.execute("pragma temp_store = memory")
        connection.execute(f"pragma cache_size = -{CACHE_KIB}")
        # Only the store checkpoints: an automatic checkpoint may meet the reset race of versions before 3.51.3.
        connection.execute("pragma wal_autocheckpoint = 0")
        if read_only:
            connection.execute("pragma query_only = on")
        if foreign_keys:
            connection.execute("pragma foreign_keys = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Of two connections that switch a new file at once, SQLite refuses one without waiting."""
    for tries_left in reversed(range(SWITCH_TRIES)):
        try:
            connection.execute("pragma journal_mode = wal").fetchone()
            return
        except sqlite3.OperationalError as problem:
            if not tries_left or problem.sqlite_errorcode & PRIMARY_CODE != sqlite3.SQLITE_BUSY:
                raise
        # Wait for the lock of the other connection with the busy timeout.
        connection.execute("begin immediate")
        connection.execute("rollback")


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise SQLite's errors as errors of the store."""
    try:
        yield
    except sqlite3.IntegrityError as problem:
        raise GuardViolated(f"{where} refused a write: {problem}") from problem
    except sqlite3.OperationalError as problem:
        raise StoreUnavailable(f"{where} did not answer: {problem}; repeat the request with the same id") from problem
    except sqlite3.Error as problem:
        raise StoreUnavailable(f"{where} cannot be used: {problem}; run `tenure doctor`") from problem


def file_system(path: Path, mounts: str) -> str:
    """The type of a path's file system, from a text like /proc/mounts; empty if it is not listed.

    >>> file_system(Path("/srv/share/jobs.db"), "/dev/vda / ext4 rw 0 0\\nserver:/x /srv/share nfs4 rw 0 0")
    'nfs4'
    """
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].encode().decode("unicode_escape"))
        if (path == point or point in path.parents) and len(point.parts) > best:
            best, found = len(point.parts), fields[2]
    return found


def require_local(path: str, mounts: str) -> None:
    """Refuse a file on a file system where the WAL's shared memory is not shared, and commits are lost."""
    if path == MEMORY:
        return
    kind = file_system(Path(path).resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} lies on a network file system ({kind}), where SQLite's WAL loses commits; "
            f"put the file on a local disk, or use PostgreSQL"
        )


def machine_mounts() -> str:
    """The mounted file systems; empty where /proc/mounts does not exist."""
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
