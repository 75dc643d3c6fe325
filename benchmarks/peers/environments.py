"""An environment for each peer, made once under build/peers and reused while its requirements are the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.roster import Peer

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "peers"
INSTALL_SECONDS_MAX = 600
NEWEST_MINOR = 15

VERSIONS = """
import importlib.metadata as m, json, platform, re, sys
names = [re.split(r"[\\[<>=]", r)[0] for r in sys.argv[1:]]
print(json.dumps({"python": platform.python_version(), **{n: m.version(n) for n in names}}))
"""


class NotInstalled(Exception):
    """The peer cannot take part, and why."""


def environment_for(peer: Peer) -> Path:
    """The Python of the peer's environment, which is made where it is missing."""
    folder = ENVIRONMENTS / peer.environment
    python, stamp = folder / "bin" / "python", folder / ".requirements"
    if python.exists() and stamp.exists() and stamp.read_text() == _stamp(peer):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([interpreter(peer.python_least), "-m", "venv", folder])
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_arguments(peer)])
    stamp.write_text(_stamp(peer))
    return python


def versions(peer: Peer, python: Path) -> dict[str, str]:
    """What is installed there: Python, the peer, and what it was installed with."""
    answer = _run([python, "-c", VERSIONS, *peer.requirements])
    found: dict[str, str] = json.loads(answer)
    return found


def interpreter(least: tuple[int, int]) -> Path:
    """The Python we run on, or, where a peer needs a newer one, the oldest that is new enough and installed here."""
    if sys.version_info[:2] >= least:
        return Path(sys.executable)
    for minor in range(least[1], NEWEST_MINOR + 1):
        for candidate in _candidates(f"python{least[0]}.{minor}"):
            try:
                _run([candidate, "-c", "import venv"])
            except NotInstalled:  # A shim may stand for a version that is not active.
                continue
            return candidate
    raise NotInstalled(f"needs Python {least[0]}.{least[1]} or later, and none is installed")


def _candidates(name: str) -> Iterator[Path]:
    if found := shutil.which(name):
        yield Path(found)
    # Version managers keep their interpreters side by side, each under a prefix of its own.
    yield from Path(sys.base_prefix).parent.glob(f"*/bin/{name}")


def _arguments(peer: Peer) -> list[str]:
    """The requirements for pip. Our own package is taken from this checkout, as it is."""
    own = ["--editable", f"{ROOT}[postgres]"]
    return [part for name in peer.requirements for part in (own if name.startswith("tenure") else [name])]


def _stamp(peer: Peer) -> str:
    return json.dumps(peer.requirements)


def _run(command: list[str | Path]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise NotInstalled(str(failure)) from failure
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NotInstalled(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")
    return done.stdout
