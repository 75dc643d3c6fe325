"""How a file is opened: the settings that durability depends on, and the file systems that break them."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tenure.errors import DatabaseReplaced, GuardViolated, InvalidInput, StoreError, StoreUnavailable
from tenure.stores.database_url import shown_url

T = TypeVar("T")

SWITCH_TRIES = 5
PRIMARY_CODE = 0xFF
"""The bits of SQLite's primary error code; the others are details."""
MEMORY = ":memory:"
SQLITE_LEAST = (3, 34, 0)
SQLITE_SAFE_RESET = (3, 51, 3)
"""From here on SQLite has no race between resetting the WAL and a writer."""
PRIVATE_MODE = 0o600
BUSY_SECONDS = 5.0
"""How long a connection waits for the write lock of another process, before the next try."""
CACHE_KIB = 32_768
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "ncpfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "davfs", "fuse.davfs2"}
)


def path_from_url(url: str) -> str:
    """The path of `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite://:memory:`."""
    scheme, _, path = url.partition("://")
    if scheme == "sqlite" and path == MEMORY:
        return MEMORY
    if scheme == "sqlite" and path.startswith("/") and path != "/":
        return path[1:]
    forms = "sqlite:///relative.db, sqlite:////absolute.db or sqlite://:memory:"
    raise InvalidInput("database", f"{shown_url(url)} is not {forms}")


def connect(
    path: str, *, read_only: bool = False, busy_seconds: float = BUSY_SECONDS, foreign_keys: bool = False
) -> sqlite3.Connection:
    """A connection with the store's settings, and no implicit transactions.

    With `foreign_keys` it enforces those that the user's tables declare, as PostgreSQL does; the store's have none.
    """
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        least = ".".join(map(str, SQLITE_LEAST))
        raise StoreError(f"this Python has SQLite {sqlite3.sqlite_version}, and tenure needs {least} or newer")
    if not read_only:
        create_private(path)
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


def create_private(path: str) -> None:
    """Create the file if it is missing, for its owner alone. SQLite gives the WAL and the shared memory its mode."""
    if path == MEMORY:
        return
    try:
        # No file descriptor: closing one would drop the locks of other connections in this process.
        os.mknod(path, stat.S_IFREG | PRIVATE_MODE)
    except FileExistsError:
        return
    except (OSError, AttributeError):
        # Not every system lets users create files like this; a path that cannot be created is reported by SQLite.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_MODE))


class OpenedFile:
    """Which file was opened: a connection to a file that was deleted or replaced keeps writing to the old file."""

    def __init__(self, path: str) -> None:
        # Absolute, as SQLite keeps it: the process may change its working directory.
        self._path = path if path == MEMORY else str(Path(path).absolute())
        self._identity: tuple[int, int] | None = None

    def record(self) -> None:
        """Called after the first connection was opened."""
        if self._identity is None and self._path != MEMORY:
            with suppress(OSError):
                self._identity = _identity(self._path)

    def require_same(self) -> None:
        """Raise DatabaseReplaced unless the path still leads to the file that was opened."""
        if self._identity is None:
            return
        try:
            found = _identity(self._path)
        except FileNotFoundError:
            raise DatabaseReplaced(self._path, "deleted") from None
        except OSError:
            return
        if found != self._identity:
            raise DatabaseReplaced(self._path, "replaced")


def _identity(path: str) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino


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
        raise StoreUnavailable(_unavailable(where, problem), where=where) from problem
    except sqlite3.Error as problem:
        raise StoreUnavailable(f"{where} cannot be used: {problem}; {_remedy(problem)}", where=where) from problem


def _remedy(problem: sqlite3.Error) -> str:
    """What to do about a file that SQLite cannot read."""
    code = getattr(problem, "sqlite_errorcode", 0) & PRIMARY_CODE
    if code == sqlite3.SQLITE_NOTADB:
        return "correct the database's URL, or restore the file from a backup"
    return "restore it from a backup" if code == sqlite3.SQLITE_CORRUPT else "run `tenure doctor`"


def _unavailable(where: str, problem: sqlite3.OperationalError) -> str:
    folder = Path(where).parent
    if "unable to open" in str(problem):
        if not folder.is_dir():
            return f"{where} cannot be created: there is no folder {folder}; create it, or correct the database's URL"
        if Path(where).is_dir():
            return f"{where} is a folder, and the database is a file; correct the database's URL"
        return f"{where} cannot be opened: {problem}; check the permissions of the file and of its folder"
    message = f"{where} did not answer: {problem}; repeat the request with the same id"
    if "locked" in str(problem):
        message += "; if a connection of yours has it locked, enqueue on that: job.within(connection).enqueue(…)"
    return message


class UnreadableText(str):
    """A text that is no UTF-8, with its other bytes escaped."""

    __slots__ = ()


def is_undecoded(error: BaseException | None) -> bool:
    """Whether a row was not read because one of its texts is no UTF-8."""
    return isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)


@contextmanager
def any_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Read texts that are no UTF-8 as UnreadableText. It costs a call for each text, and is used after a row could not
    be read."""
    connection.text_factory = _escaped
    try:
        yield
    finally:
        connection.text_factory = str


def read_any_text(connection: sqlite3.Connection, read: Callable[[], T]) -> T:
    """The result of a read, which is repeated with `any_text` if a text in it is no UTF-8."""
    try:
        return read()
    except sqlite3.OperationalError as problem:
        if not is_undecoded(problem):
            raise
    with any_text(connection):
        return read()


def _escaped(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return UnreadableText(raw.decode("utf-8", "backslashreplace"))


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
