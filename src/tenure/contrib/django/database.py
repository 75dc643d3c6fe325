"""The database of a Django project as a URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured

_PASSED_ON = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Options of Django's PostgreSQL connection that the URL has too. Others are those of its driver."""


def url_of(database: Mapping[str, Any]) -> str:
    """The URL of an entry of DATABASES.

    >>> url_of({"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/shop.db"})
    'sqlite:////srv/shop.db'
    >>> url_of({"ENGINE": "django.db.backends.postgresql", "NAME": "shop", "USER": "ada", "HOST": "db", "PORT": 5432})
    'postgresql://ada@db:5432/shop'
    """
    engine, name = database["ENGINE"].rpartition(".")[2], str(database["NAME"])
    if engine == "sqlite3":
        return f"sqlite:///{Path(name).absolute()}"
    if engine not in ("postgresql", "postgis"):
        problem = f"tenure runs on PostgreSQL and SQLite, not on {database['ENGINE']}"
        raise ImproperlyConfigured(f"{problem}; set TENURE = {{'DATABASE': 'postgresql://…'}}")
    user, password = (quote(str(database.get(part) or ""), safe="") for part in ("USER", "PASSWORD"))
    account = f"{user}{f':{password}' if password else ''}@" if user else ""
    host, port = str(database.get("HOST") or ""), database.get("PORT")
    options = {key: value for key, value in (database.get("OPTIONS") or {}).items() if key in _PASSED_ON}
    if host.startswith("/"):
        options["host"], host = host, ""
        options |= {"port": port} if port else {}
    place = f"{host}:{port}" if host and port else host
    return f"postgresql://{account}{place}/{quote(name, safe='')}{'?' if options else ''}{urlencode(options)}"
