"""Time zones by IANA name, from the data of the system or of the package `tzdata`."""

from __future__ import annotations

from datetime import UTC, tzinfo
from functools import lru_cache

from tenure.errors import InvalidInput

PROBE = "Europe/London"
"""A zone of every installation of the data. If it is missing, there is no data."""


@lru_cache(maxsize=256)
def time_zone(name: str) -> tzinfo:
    """Return the zone of an IANA name such as `Europe/Berlin`. InvalidInput: the name or the data is missing."""
    if name == "UTC":
        return UTC
    zone = _read(name)
    if zone is not None:
        return zone
    if _read(PROBE) is None:
        raise InvalidInput(
            "timezone",
            f"{name!r} cannot be looked up, because this system has no time zone data; install the system's package "
            "or `pip install tzdata`",
        )
    raise InvalidInput("timezone", f"{name!r} is not an IANA name of a time zone; use one such as Europe/Berlin or UTC")


def _read(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        # KeyError: unknown. The others: a directory, an invalid path, or a file with other content.
        return None
