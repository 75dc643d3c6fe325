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


class SigningKeys:
    """The keys that references name, read from the environment for each request: a process can be given a new one.

    >>> SigningKeys(["env:KEY"], {"KEY": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}).read()
    [b'secret-secret-secret-secret']
    """

    def __init__(self, references: Iterable[str], environment: Mapping[str, str]) -> None:
        self._names = [one.removeprefix("env:") for one in check_references(references)]
        self._environment = environment
        self._read: tuple[list[str | None], list[bytes]] | None = None

    def read(self) -> list[bytes]:
        """The keys in the order of their references. Values that are the same as before are not decoded again."""
        values = [self._environment.get(name) for name in self._names]
        if self._read is None or self._read[0] != values:
            self._read = values, [_decode(name, value) for name, value in zip(self._names, values, strict=True)]
        return self._read[1]


def _decode(name: str, secret: str | None) -> bytes:
    if not secret:
        raise InvalidInput("secrets", f"the environment variable {name} is not set in this process")
    return decode_secret(secret, where=f"environment variable {name}")
