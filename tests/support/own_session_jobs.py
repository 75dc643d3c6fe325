"""Jobs with process isolation that commit on sessions which they open."""

from __future__ import annotations

import tenure
from tests.support.own_sessions import asyncpg_connection, psycopg_sync, sqlite_aiosqlite, sqlite_sync

app = tenure.App("sqlite:///unused.db", name="own-sessions")


@app.job()
def follow(note: str) -> str:
    return note


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
def noted_sync(ctx: tenure.Context, note: str, fails: bool) -> str:
    opened = sqlite_sync if app.database.startswith("sqlite") else psycopg_sync
    ctx.attach("early.txt", note)
    with opened(app.database) as own, ctx.commit(result=note, conn=own.connection) as tx:
        own.run(f"insert into effects values ('{note}')")
        tx.enqueue(follow.request(note))
        tx.outbox("noted", {"note": note}, aggregate="a")
        tx.attach("late.txt", note.encode())
        if fails:
            raise ValueError("changed my mind")
    return note


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
async def noted(ctx: tenure.Context, note: str, fails: bool) -> str:
    opened = sqlite_aiosqlite if app.database.startswith("sqlite") else asyncpg_connection
    ctx.attach("early.txt", note)
    async with opened(app.database) as own, ctx.commit(result=note, conn=own.connection) as tx:
        await own.run(f"insert into effects values ('{note}')")
        tx.enqueue(follow.request(note))
        tx.outbox("noted", {"note": note}, aggregate="a")
        tx.attach("late.txt", note.encode())
        if fails:
            raise ValueError("changed my mind")
    return note
