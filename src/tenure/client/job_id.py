"""Ids of jobs as callers give them: a UUID or its text."""

from __future__ import annotations

from uuid import UUID

from tenure.errors import InvalidInput

JobId = UUID | str


def job_id_of(given: JobId) -> UUID:
    """Return the id. InvalidInput: it is neither a UUID nor the text of one.

    >>> job_id_of("01890a5d-ac96-774b-bcce-b302099a8057")
    UUID('01890a5d-ac96-774b-bcce-b302099a8057')
    """
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given)
    except (ValueError, TypeError, AttributeError):
        problem = f"{given!r} is not the id of a job; ids look like 01890a5d-ac96-774b-bcce-b302099a8057"
        raise InvalidInput("job_id", problem) from None
