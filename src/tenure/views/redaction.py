"""Hides the values of secret fields in content that is shown. Pure; what is stored does not change."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from tenure.lifecycle.json_text import load
from tenure.lifecycle.records import Job
from tenure.lifecycle.steps import StepRecord

REDACTED = "[redacted]"
SECRET_NAMES = frozenset((
    "password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credential", "credentials",
    "api_key", "apikey", "access_key", "private_key", "signing_key", "pin", "cvv", "iban", "card_number",
))  # fmt: skip
"""Names of fields that are secret whatever the program declares."""


def is_secret(name: str, names: Collection[str] = ()) -> bool:
    """Whether a field of this name is secret: it has one of the names, or ends with one after a `_` or `-`.

    >>> [is_secret(name) for name in ("password", "Access-Token", "clientSecret", "tokens_used", "to")]
    [True, True, True, False, False]
    """
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).replace("-", "_")
    spelled = words.replace("__", "_").lstrip("_")
    return any(spelled == one or spelled.endswith(f"_{one}") for one in {*SECRET_NAMES, *map(str.lower, names)})


def redacted(value: Any, names: Collection[str] = ()) -> Any:
    """The value with every secret field replaced, at any depth.

    >>> redacted({"to": "ada", "login": {"password": "hunter2"}})
    {'to': 'ada', 'login': {'password': '[redacted]'}}
    """
    if isinstance(value, dict):
        return {name: REDACTED if is_secret(name, names) else redacted(one, names) for name, one in value.items()}
    if isinstance(value, list):
        return [redacted(one, names) for one in value]
    return value


def redacted_text(text: str | None, names: Collection[str] = ()) -> str | None:
    """JSON text with every secret field replaced."""
    return None if text is None else msgspec.json.encode(redacted(load(text), names)).decode()


def redacted_job(job: Job, names: Collection[str] = ()) -> Job:
    """The record with secret fields of its payload and results replaced."""
    return msgspec.structs.replace(
        job,
        origin=msgspec.structs.replace(job.origin, payload=redacted_text(job.origin.payload, names) or "null"),
        result=redacted_text(job.result, names),
        partial_result=redacted_text(job.partial_result, names),
        committed_result=redacted_text(job.committed_result, names),
    )


def redacted_step(step: StepRecord, names: Collection[str] = ()) -> StepRecord:
    """The record with secret fields of its result replaced."""
    return msgspec.structs.replace(step, result=redacted_text(step.result, names))
