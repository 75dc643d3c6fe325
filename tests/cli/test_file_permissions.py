"""The files that tenure makes: for their owner alone, never through a symbolic link, never larger than they may be."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.testing.driver import Driver
from tests.support.command import tenure
from tests.support.databases import Database

MEMORY_BYTES_MAX = 900 * 1024 * 1024
BOMB_BYTES = 6 * 1024 * 1024 * 1024
BOMB_MEMBER_BYTES = 64 * 1024 * 1024
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from tenure.cli.main import main
sys.argv = ["tenure", "import", sys.argv[1], "--database", sys.argv[2]]
main()
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def open_umask() -> object:
    before = os.umask(0o000)
    yield
    os.umask(before)


async def test_a_new_database_and_the_files_beside_it_are_for_their_owner_alone(tmp_path: Path) -> None:
    async with Database(f"sqlite:///{tmp_path / 'jobs.db'}").opened() as store:
        await Driver(store).running()
        modes = {file.name: mode(file) for file in tmp_path.iterdir()}
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


async def test_a_database_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch(mode=0o660)
    async with Database(f"sqlite:///{path}").opened() as store:
        await Driver(store).running()
        assert {mode(file) for file in tmp_path.iterdir()} == {0o660}


async def test_an_export_is_for_its_owner_alone_unless_the_file_was_there(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened() as store:
        await Driver(store).add()
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch(mode=0o640)
    for file, expected in ((new, 0o600), (old, 0o640)):
        assert tenure("export", str(file), "--database", database.url).code == 0
        assert mode(file) == expected
        assert file.stat().st_size > 0
    assert not list(tmp_path.glob("*unfinished*"))


async def test_an_export_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    async with database.opened():
        pass
    victim, link = tmp_path / "victim", tmp_path / "export.jsonl"
    victim.write_text("precious")
    link.symlink_to(victim)
    (tmp_path / "other.jsonl.unfinished").symlink_to(victim)
    answer = tenure("export", str(link), "--database", database.url)
    assert answer.code == 1
    assert "symbolic link" in answer.err
    assert tenure("export", str(tmp_path / "other.jsonl"), "--database", database.url).code == 0
    assert victim.read_text() == "precious"
    assert link.is_symlink()


def test_a_compressed_line_that_is_too_long_is_refused_within_a_bounded_memory(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.jsonl.gz"
    # One member many times: concatenated gzip members are one stream.
    bomb.write_bytes(gzip.compress(bytes(BOMB_MEMBER_BYTES)) * (BOMB_BYTES // BOMB_MEMBER_BYTES))
    assert bomb.stat().st_size < 8 * 1024 * 1024
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(limit=MEMORY_BYTES_MAX), str(bomb), f"sqlite:///{tmp_path / 'jobs.db'}"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done
    assert "line 1: is longer than" in done.stderr
    assert not (tmp_path / "jobs.db").exists()
