"""Tasks of the test project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connection

if TYPE_CHECKING:
    from django_tasks import task
else:
    try:
        from django.tasks import task
    except ModuleNotFoundError:  # Before Django 6.
        from django_tasks import task


class Refused(Exception):
    """An error of the project's own."""


@task()
def note(name: str, *, times: int = 1) -> dict[str, Any]:
    with connection.cursor() as cursor:
        for _ in range(times):
            cursor.execute("insert into notes(name) values (%s)", [name])
    return {"noted": name}


@task()
async def note_async(name: str) -> str:
    return str((await sync_to_async(note.func)(name))["noted"])


@task(takes_context=True)
def attempt(context: Any) -> int:
    return int(context.attempt)


@task(backend="once")
def refuse() -> None:
    raise Refused("no stock")
