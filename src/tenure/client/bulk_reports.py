"""The results of operations on many jobs."""

from __future__ import annotations

from uuid import UUID

import msgspec


class SkippedJob(msgspec.Struct, frozen=True):
    """A job that was not changed, and the error or reason."""

    job_id: UUID
    reason: str


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operation on many jobs. `more`: the limit was reached, and the filter matches further jobs."""

    skipped: tuple[SkippedJob, ...] = ()
    more: bool = False


class CancelReport(BulkReport, frozen=True, kw_only=True):
    """`cancelled` jobs have ended; `requested` ones are leased, and their workers are asked to end them."""

    cancelled: int = 0
    requested: int = 0


class RedriveReport(BulkReport, frozen=True, kw_only=True):
    """`redriven` jobs have a new job each; `already_redriven` ones have it from an earlier redrive."""

    redriven: int = 0
    already_redriven: int = 0


class DiscardReport(BulkReport, frozen=True, kw_only=True):
    """How many dead letters were discarded."""

    discarded: int = 0
