"""Middleware that keeps Django's connections usable across jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from tenure.jobs.context import Context
from tenure.jobs.middleware import Middleware


class DjangoConnections(Middleware):
    """Closes connections of Django before and after each job, as Django does for each request.

    Before the job also one that the database has closed: after a restart of the database no job meets it. The
    connections are those of the job's own thread; async functions of one worker share the thread of `sync_to_async`.
    """

    async def run(self, ctx: Context, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if not ctx.is_async:
            return await proceed()
        await sync_to_async(close_unusable_connections)()
        try:
            return await proceed()
        finally:
            await sync_to_async(close_old_connections)()

    def run_sync(self, ctx: Context, proceed: Callable[[], Any]) -> Any:
        close_unusable_connections()
        try:
            return proceed()
        finally:
            close_old_connections()


def close_old_connections() -> None:
    """Close this thread's connections that are past CONN_MAX_AGE or have failed. None inside `atomic` is touched."""
    for connection in connections.all(initialized_only=True):
        connection.close_if_unusable_or_obsolete()


def close_unusable_connections() -> None:
    """The same, and ask the database whether those that stay open are usable."""
    close_old_connections()
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
            connection.close()
