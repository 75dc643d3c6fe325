"""The names of the fields that a declaration calls secret. Pure."""

from __future__ import annotations

import re
from typing import Any

from tenure.errors import InvalidInput

SECRET_NAMES_MAX = 50
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


def check_secret(names: Any) -> tuple[str, ...] | None:
    """The names, sorted, each once; None for none of them.

    >>> check_secret(["token", "pin", "pin"])
    ('pin', 'token')
    """
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise InvalidInput("secret", f"must be a list of names of fields, not {names!r}")
    given = list(names)
    for name in given:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput("secret", f"{name!r} is no name of a field: letters, digits, _ and -, at most 100")
    if len(given) > SECRET_NAMES_MAX:
        raise InvalidInput("secret", f"has more than {SECRET_NAMES_MAX} names")
    return tuple(sorted(set(given))) or None
