"""The fields of an event that its request determines, and their encoding."""

from __future__ import annotations

import msgspec

from tenure.lifecycle.json_text import encode

CLASS_LENGTH_MAX = 200
"""How much of the name of an error's class an event has as its cause."""


class EventFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of an event that follow from the request alone. A repeated request has the same.

    Without a cause, the event has the one that `Operation.cause_for` names.
    """

    cause: str | None = None
    detail: str | None = None
    digest: str | None = None


NO_FIELDS = EventFields()


def claim_detail(code_version: str | None) -> str | None:
    """The detail of a claim: the version of the code that runs the attempt. None if it is not known."""
    return None if code_version is None else detail_of(code_version=code_version)


def detail_of(**facts: object) -> str:
    return encode({name: fact for name, fact in facts.items() if fact is not None}, where="detail")


class _ErrorType(msgspec.Struct):
    type: str = ""


def error_class(error: str) -> str | None:
    """The class of an error, from its JSON text; None if it names none."""
    try:
        return msgspec.json.decode(error, type=_ErrorType).type[:CLASS_LENGTH_MAX] or None
    except msgspec.MsgspecError:
        return None


def with_error(error: str, **facts: object) -> str:
    """A detail that embeds the error's JSON text as it is, so that the log keeps the error of each attempt."""
    rest = detail_of(**facts)
    return f'{{"error":{error}}}' if rest == "{}" else f'{{"error":{error},{rest[1:]}'
