"""SQLAlchemy's sync part is enough: its asyncio part needs greenlet, which not every installation has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

sys.modules["sqlalchemy.ext.asyncio"] = None
sys.modules["greenlet"] = None

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import tenure

app = tenure.App("sqlite:///shop.db")


@app.job
def confirm(order: int) -> None: ...


engine = create_engine("sqlite:///shop.db")
with Session(engine) as session, session.begin():
    confirm.within(session).enqueue_sync(1)
with engine.begin() as connection:
    confirm.within(connection).enqueue_sync(2)
print(len(app.background.run(lambda: app.find(tenure.JobFilter())).jobs))
"""


def test_a_sync_session_and_connection_need_no_greenlet(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
