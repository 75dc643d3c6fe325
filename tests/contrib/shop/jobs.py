"""Jobs of the test project, which Django's app config loads."""

from __future__ import annotations

import os
import threading

from django.db import connection

from shop import tasks  # noqa: F401 - tasks are declared with the jobs
from tenure.contrib.django import app


@app.job(queue="mail", max_attempts=1, on_exhausted="fail")
def write(name: str) -> int:
    """Uses Django's connection on the job's own thread."""
    with connection.cursor() as cursor:
        cursor.execute("insert into notes(name) values (%s)", [name])
    return threading.get_ident()


@app.job(isolation="process", max_attempts=1, on_exhausted="fail")
def write_in_process(name: str) -> int:
    """Uses Django's connection in a child process."""
    write(name)
    return os.getpid()
