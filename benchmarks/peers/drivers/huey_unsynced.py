"""Huey on SQLite with `fsync=False`: a power failure can lose what was committed, and damage the file."""

from __future__ import annotations

from benchmarks.peers.drivers.huey import Huey
from benchmarks.peers.drivers.protocol import main


class HueyUnsynced(Huey):
    configuration = Huey.configuration.replace("synchronous=FULL", "synchronous=OFF (fsync=False)")
    fsync = False


if __name__ == "__main__":
    main(HueyUnsynced())
