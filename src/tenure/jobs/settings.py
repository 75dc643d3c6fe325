"""Settings: an argument comes before the environment, which comes before the default."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenure.errors import InvalidInput
from tenure.lifecycle.json_text import check_integer
from tenure.lifecycle.size_limits import CONTENT_BYTES_MAX, STEP_BYTES_MAX, STORED_BYTES_MAX, STORED_STEP_BYTES_MAX
from tenure.stores.database_url import check_scheme, without_driver

DATABASE_VARIABLE = "TENURE_DATABASE"
DATABASE_DEFAULT = "sqlite:///tenure.db"


class ContentLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest payload and result of an app's jobs, in bytes of JSON, at most 2 MiB each; and the largest result of
    a step, at most 8 MiB.

    >>> ContentLimits(result_bytes_max=1_000_000).payload_bytes_max
    262144
    """

    payload_bytes_max: int = CONTENT_BYTES_MAX
    result_bytes_max: int = CONTENT_BYTES_MAX
    step_bytes_max: int = STEP_BYTES_MAX

    def __post_init__(self) -> None:
        for name in ("payload_bytes_max", "result_bytes_max"):
            check_integer(getattr(self, name), name, least=1, most=STORED_BYTES_MAX)
        check_integer(self.step_bytes_max, "step_bytes_max", least=1, most=STORED_STEP_BYTES_MAX)


def check_type(value: object, expected: type, where: str, example: str) -> None:
    """Refuse a setting of another type, with an example of what it takes. None is a default, and accepted."""
    if value is not None and not isinstance(value, expected):
        raise InvalidInput(where, f"must be {example}, not {type(value).__name__}")


def database_url(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the URL of the database: the argument, else `TENURE_DATABASE`, else a file in the working directory.

    A driver in its scheme (`postgresql+asyncpg://`) is left out.

    >>> database_url(None, {})
    'sqlite:///tenure.db'
    """
    check_type(given, str, "database", "a URL as text, such as sqlite:///jobs.db or postgresql://localhost/shop")
    return check_scheme(without_driver(given or environment.get(DATABASE_VARIABLE) or DATABASE_DEFAULT))
