"""Settings: an argument comes before the environment, which comes before the default."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.stores.database_url import without_driver

DATABASE_VARIABLE = "TENURE_DATABASE"
DATABASE_DEFAULT = "sqlite:///tenure.db"


def database_url(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the URL of the database: the argument, else `TENURE_DATABASE`, else a file in the working directory.

    A driver in its scheme (`postgresql+asyncpg://`) is left out.

    >>> database_url(None, {})
    'sqlite:///tenure.db'
    """
    return without_driver(given or environment.get(DATABASE_VARIABLE) or DATABASE_DEFAULT)
