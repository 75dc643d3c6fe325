"""Environments of their own with the built wheel, and interpreters to make them with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.generated import ROOT

SECONDS_MAX = 300


def interpreter(least: tuple[int, int]) -> str | None:
    """A Python of this version or a later one on this machine: this one, one on the path, or one of pyenv."""
    if sys.version_info >= least:
        return sys.executable
    return next((found for found in _others(least) if _runs(found)), None)


def _others(least: tuple[int, int]) -> Iterator[str]:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(least[1], least[1] + 5):
        name = f"python{least[0]}.{minor}"
        if found := shutil.which(name):
            yield found
        yield from (str(path) for path in versions.glob(f"{least[0]}.{minor}.*/bin/{name}"))


def _runs(python: str) -> bool:
    # A shim of pyenv is on the path also for versions that are not enabled.
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=60, check=False).returncode == 0


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository."""
    _run(_uv(), "build", "--wheel", "--quiet", "--out-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("tenure-*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, *requirements: str, extra: str = "", python: str | None = None) -> Path:
    """Make a virtual environment that has the wheel and these requirements, and return the folder of its programs."""
    _run(python or sys.executable, "-m", "venv", str(folder))
    programs = folder / "bin"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    _run(str(programs / "python"), "-m", "pip", "install", "--quiet", wanted, *requirements)
    return programs


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv") or "uv"


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
