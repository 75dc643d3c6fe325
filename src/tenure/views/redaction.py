"""Hides the values of secret fields in content that is shown. Pure; what is stored does not change.

A field is secret by its name: one that every program has (`SECRET_NAMES`), one that the declaration of the job names
(`secret`, which is stored with its policy), or one that the reader of the content names. A text that quotes a value of
a secret field, such as the message of an error, is shown without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from tenure.lifecycle.dead_letter import DeadLetterRecord
from tenure.lifecycle.json_text import load
from tenure.lifecycle.provenance import Provenance
from tenure.lifecycle.records import Event, Job
from tenure.lifecycle.steps import StepRecord

REDACTED = "[redacted]"
QUOTED_LENGTH_MIN = 4
"""A shorter value of a secret field is not searched for in texts, where it would be found by chance."""
SECRET_NAMES = frozenset((
    "password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credential", "credentials",
    "api_key", "apikey", "access_key", "private_key", "signing_key", "pin", "cvv", "iban", "card_number",
))  # fmt: skip
"""Names of fields that are secret whatever the program declares."""


class Redaction(msgspec.Struct, frozen=True):
    """What is hidden: fields of these names, whatever their case, and texts that quote one of these values."""

    names: frozenset[str] = frozenset()
    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job, names: Iterable[str] = (), steps: Iterable[StepRecord] = ()) -> Redaction:
        """What is hidden of a job and its steps: the secret fields of its declaration, and those of these names."""
        hidden = frozenset((*(job.policy.secret or ()), *names))
        texts = (job.origin.payload, job.result, job.partial_result, job.committed_result, *(s.result for s in steps))
        found = {value for text in texts if text is not None for value in _secret_values(load(text), hidden)}
        # The longest first: one value may contain another.
        return cls(hidden, tuple(sorted(found, key=lambda value: (-len(value), value))))

    def text(self, text: str) -> str:
        """JSON text without the secret values."""
        value = load(text)
        shown = redacted(value, self.names, self.values)
        return text if shown == value else msgspec.json.encode(shown).decode()

    def optional(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def plain(self, text: str) -> str:
        """A text that is not JSON, without the secret values that it quotes."""
        for value in self.values:
            text = text.replace(value, REDACTED)
        return text

    def job(self, job: Job) -> Job:
        """The record."""
        return msgspec.structs.replace(
            job,
            origin=msgspec.structs.replace(job.origin, payload=self.text(job.origin.payload)),
            **self._texts(job, "result", "partial_result", "committed_result", "error", "last_error"),
            progress_message=None if job.progress_message is None else self.plain(job.progress_message),
        )

    def step(self, step: StepRecord) -> StepRecord:
        """The record of a step."""
        return msgspec.structs.replace(step, **self._texts(step, "result", "error"))

    def event(self, event: Event) -> Event:
        return msgspec.structs.replace(event, **self._texts(event, "detail"))

    def dead_letter(self, letter: DeadLetterRecord) -> DeadLetterRecord:
        return msgspec.structs.replace(letter, **self._texts(letter, "last_error"))

    def provenance(self, provenance: Provenance) -> Provenance:
        """All content of the provenance. The digests stay those of what is stored."""
        inputs, outcome = provenance.inputs, provenance.outcome
        return msgspec.structs.replace(
            provenance,
            inputs=msgspec.structs.replace(inputs, **self._texts(inputs, "payload")),
            attempts=tuple(msgspec.structs.replace(one, **self._texts(one, "error")) for one in provenance.attempts),
            tool_calls=tuple(
                msgspec.structs.replace(one, **self._texts(one, "result", "error")) for one in provenance.tool_calls
            ),
            outcome=msgspec.structs.replace(outcome, **self._texts(outcome, "result", "partial_result", "error")),
        )

    def _texts(self, record: Any, *names: str) -> dict[str, Any]:
        """These fields of a record, which are JSON text or None."""
        return {name: self.optional(getattr(record, name)) for name in names}


def is_secret(name: str, names: Collection[str] = ()) -> bool:
    """Whether a field of this name is secret: it has one of the names, or ends with one after a `_` or `-`.

    >>> [is_secret(name) for name in ("password", "Access-Token", "clientSecret", "tokens_used", "to")]
    [True, True, True, False, False]
    >>> [is_secret(name, ["diagnosisCode"]) for name in ("diagnosis_code", "firstDiagnosisCode", "code")]
    [True, True, False]
    """
    spelled = _spelled(name)
    return any(spelled == one or spelled.endswith(f"_{one}") for one in {*SECRET_NAMES, *map(_spelled, names)})


def redacted(value: Any, names: Collection[str] = (), values: Collection[str] = ()) -> Any:
    """The value with every secret field replaced, at any depth, and every quoted secret value.

    >>> redacted({"to": "ada", "login": {"password": "hunter2"}, "note": "not hunter2"}, values=["hunter2"])
    {'to': 'ada', 'login': {'password': '[redacted]'}, 'note': 'not [redacted]'}
    """
    if isinstance(value, dict):
        return {
            name: REDACTED if is_secret(name, names) else redacted(one, names, values) for name, one in value.items()
        }
    if isinstance(value, list):
        return [redacted(one, names, values) for one in value]
    if isinstance(value, str):
        for secret in values:
            value = value.replace(secret, REDACTED)
    return value


def _spelled(name: str) -> str:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).replace("-", "_")
    return words.replace("__", "_").lstrip("_")


def _secret_values(value: Any, names: Collection[str]) -> Iterator[str]:
    """The texts and numbers in the secret fields of a value."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _leaves(one) if is_secret(name, names) else _secret_values(one, names)
    elif isinstance(value, list):
        for one in value:
            yield from _secret_values(one, names)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) >= QUOTED_LENGTH_MIN:
        yield str(value)
