"""The signing keys of an endpoint: what is stored refers to the environment, and never contains a key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tenure.errors import InvalidInput
from tenure.inbox.signatures import decode_secret

_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]{0,254})")
REFERENCES_MAX = 8


def check_references(references: Iterable[str]) -> tuple[str, ...]:
    """References to secrets, as they are stored. An error does not repeat them: one may be a secret.

    >>> check_references(["env:BILLING_WEBHOOK_SECRET"])
    ('env:BILLING_WEBHOOK_SECRET',)
    """
    if isinstance(references, str):
        raise InvalidInput("secrets", "must be a list of references like env:NAME")
    checked = tuple(references)
    if not 0 < len(checked) <= REFERENCES_MAX:
        raise InvalidInput("secrets", f"must be 1 to {REFERENCES_MAX} references like env:NAME, one per key")
    if not all(isinstance(one, str) and _REFERENCE.fullmatch(one) for one in checked):
        raise InvalidInput(
            "secrets", "must be references like env:NAME, where the variable NAME contains the secret; never a secret"
        )
    return checked


def read_keys(references: Iterable[str], environment: Mapping[str, str]) -> list[bytes]:
    """The keys that the references name, in their order."""
    return [_read_key(reference.removeprefix("env:"), environment) for reference in check_references(references)]


def _read_key(name: str, environment: Mapping[str, str]) -> bytes:
    secret = environment.get(name)
    if not secret:
        raise InvalidInput("secrets", f"the environment variable {name} is not set in this process")
    return decode_secret(secret, where=f"environment variable {name}")
