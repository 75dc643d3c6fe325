"""Positions of a log that was restored from a dump of another cluster.

An event's position is the id of its transaction (decision 007). A dump keeps it, and the ids of another cluster may be
ahead of this one's: the tail would not return these events, and would return new ones before them.
"""

from __future__ import annotations

from typing import Any

from tenure.stores.postgres.connections import PACKAGE, Connections, Session, fetch
from tenure.stores.sql_files import numbered

SECONDS_MAX = 24 * 3600.0
"""How long one statement over the whole log may take."""
REACHED = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
LOCK = "lock table tenure.jobs, tenure.events in access exclusive mode"
DISABLE_GUARDS = "alter table tenure.events disable trigger user"
ENABLE_GUARDS = "alter table tenure.events enable trigger user"
WRITE_AS_STORE = "set local tenure.writer = 'store'"
OPERATOR_LOG = "insert into tenure.operator_log (actor, action, detail) values ('owner', 'rebase log', $1)"


async def is_ahead(connection: Session) -> bool:
    """Whether the log has positions that this cluster has not reached."""
    [found] = await fetch(connection, "events/select_ahead", {})
    return bool(found["ahead"])


async def rebase(connections: Connections) -> int:
    """Give a log that is ahead new positions in the same order; how many events it has. 0: it is not ahead.

    The new positions are above all that a reader of this cluster can have, so that it skips nothing and reads events
    again. Writers and readers of the log wait until the end.
    """
    async with connections.transaction() as connection:
        if not await is_ahead(connection):
            return 0
        await connection.execute(LOCK, timeout=SECONDS_MAX)
        await connection.execute(DISABLE_GUARDS)
        reached: int = await connection.fetchval(REACHED)
        count = await _fetchval(connection, "events/count_runs", reached)
        # The ids up to the last new position are used up elsewhere: this transaction has only one of them.
        async with connections.session() as other:
            await use_up_to(other, reached + count)
        updated = await _execute(connection, "events/rebase", reached)
        await connection.execute(ENABLE_GUARDS)
        await connection.execute(WRITE_AS_STORE)
        await connection.execute(OPERATOR_LOG, f"{updated} events after {reached}")
        return updated


async def use_up_to(connection: Session, number: int) -> None:
    """Use up ids of transactions until this one has passed."""
    while await _reached(connection) <= number:
        # As one message, which a pooler does not divide among servers; it ends transactions itself.
        await connection.execute("call tenure.pass_transactions()")


async def _reached(connection: Session) -> int:
    async with connection.transaction():
        reached: int = await connection.fetchval(REACHED)
        return reached


async def _fetchval(connection: Session, name: str, reached: int) -> Any:
    return await connection.fetchval(numbered(PACKAGE, name).sql, reached, timeout=SECONDS_MAX)


async def _execute(connection: Session, name: str, reached: int) -> int:
    status = await connection.execute(numbered(PACKAGE, name).sql, reached, timeout=SECONDS_MAX)
    return int(status.rpartition(" ")[2])
