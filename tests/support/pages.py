"""The blocks of code on README, tutorial and guides, and a shell that runs them as they are pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.postgres import find_install
from tests.support.server_process import unprivileged_account
from tools.generated import DOCS, ROOT

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {path.name: path for path in (ROOT / "README.md", DOCS / "tutorial.md", *sorted(DOCS.glob("guides/*.md")))}


def all_blocks(page: str) -> list[tuple[str, str]]:
    """The language and the code of each block of the page."""
    return BLOCK.findall(PAGES[page].read_text(encoding="utf-8"))


def blocks(page: str, language: str = "python") -> list[str]:
    return [code for of, code in all_blocks(page) if of == language]


def typed(console: str) -> list[str]:
    """The commands of a block that shows a terminal."""
    return [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")]


def shell(written: str, *, folder: Path, code: int = 0, **env: str) -> str:
    """What bash prints for these lines, which end by themselves. The first that fails ends them."""
    programs = (Path(sys.executable).parent, find_install().usable_by(unprivileged_account()).bin, os.environ["PATH"])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", written],
        cwd=folder,
        env={**clean, "PATH": os.pathsep.join(map(str, programs)), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, f"{written}\n{done.stdout}{done.stderr}"
    assert "ERROR" not in done.stderr, done.stderr  # psql goes on after an error of its input.
    return done.stdout
