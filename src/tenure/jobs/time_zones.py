"""Time zones by their names, from the machine's own data or from the package `tzdata`."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache

from tenure.errors import InvalidInput

WITNESS = "Europe/London"
"""A zone that every collection has: where it is missing too, there is none."""


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """The zone of an IANA name such as `Europe/Berlin`; a refusal says whether the name or the data is missing."""
    if name == "UTC":
        return UTC
    zone = _read(name)
    if zone is not None:
        return zone
    if _read(WITNESS) is None:
        raise InvalidInput(
            "timezone",
            f"{name!r} cannot be looked up, since this machine has no time zone data; install the system's package "
            "or `pip install tzdata`",
        )
    raise InvalidInput("timezone", f"{name!r} is not the IANA name of a time zone, such as Europe/Berlin or UTC")


def _read(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        # Not known is a KeyError; a folder, an odd path or a file of something else are the others.
        return None
