"""Where settings come from: defaults, then the environment, then what the program says."""

from __future__ import annotations

from collections.abc import Mapping

DATABASE_VARIABLE = "TENURE_DATABASE"
DATABASE_DEFAULT = "sqlite:///tenure.db"


def database_url(given: str | None, environment: Mapping[str, str]) -> str:
    """The database to use: the one given, else the environment's, else a file beside the program.

    >>> database_url(None, {})
    'sqlite:///tenure.db'
    """
    return given or environment.get(DATABASE_VARIABLE) or DATABASE_DEFAULT
