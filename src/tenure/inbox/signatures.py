"""Standard Webhooks signatures: HMAC-SHA256 over id, timestamp and body, in base64, as `v1`.

A header holds several signatures, separated by spaces: one per key while keys are rotated. Versions that this module
does not know (`v1a`, which is asymmetric) are skipped when a header is verified.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable

from tenure.errors import InvalidInput

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
SECRET_PREFIX = "whsec_"
KEY_BYTES_MIN, KEY_BYTES_MAX = 24, 64
VERSION = "v1"
_SIGNATURES_MAX = 32
"""A header with more is refused, so that a request cannot ask for much work."""


def decode_secret(secret: str, *, where: str = "secret") -> bytes:
    """The key in a secret, which is base64 with or without the prefix `whsec_`. An error does not repeat the secret.

    >>> len(decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    24
    """
    if not isinstance(secret, str):
        raise InvalidInput(where, "must be text: base64 of 24 to 64 random bytes, with or without the prefix whsec_")
    try:
        text = secret.strip().removeprefix(SECRET_PREFIX).rstrip("=")
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(where, "is not base64 with or without the prefix whsec_") from None
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise InvalidInput(where, f"has {len(key)} bytes; use {KEY_BYTES_MIN} to {KEY_BYTES_MAX} random bytes")
    return key


def sign(keys: Iterable[bytes], *, id: str, timestamp: int, body: bytes) -> str:
    """The signature header of a request: one signature per key.

    >>> sign([b"0" * 24], id="m1", timestamp=1614265330, body=b"{}")
    'v1,...='
    """
    return " ".join(f"{VERSION},{_signature(key, id, str(timestamp), body)}" for key in keys)


def is_signed(header: str, keys: Iterable[bytes], *, id: str, timestamp: str, body: bytes) -> bool:
    """Whether one signature of the header is that of one of the keys. The comparison takes constant time."""
    given = header.split(" ", _SIGNATURES_MAX)[:_SIGNATURES_MAX]
    values = [value for version, _, value in (one.partition(",") for one in given) if version == VERSION]
    expected = [_signature(key, id, timestamp, body) for key in keys]
    matches = [hmac.compare_digest(value.encode(), right.encode()) for value in values for right in expected]
    return any(matches)


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode() + body
    return binascii.b2a_base64(hmac.digest(key, signed, "sha256"), newline=False).decode()
