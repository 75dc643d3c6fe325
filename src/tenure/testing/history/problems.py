"""What the history checker can report: every kind of problem has a stable code and a message."""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

import msgspec


class Code(StrEnum):
    """The codes, each named after the problem."""

    # Results compared with what is stored.
    ACKNOWLEDGED_LOST = "acknowledged_lost"
    REFUSED_STORED = "refused_stored"
    OK_NOT_WRITTEN = "ok_not_written"
    REFUSED_WRITTEN = "refused_written"
    WRITTEN_OTHERWISE = "written_otherwise"
    WRONG_JOB = "wrong_job"
    RESULT_WRONG = "result_wrong"
    TWO_RESULTS = "two_results"
    REFUSED_AFTER_OK = "refused_after_ok"
    REQUEST_TWICE = "request_twice"
    CLAIM_NOT_WRITTEN = "claim_not_written"
    CLAIM_UNREPORTED = "claim_unreported"

    # Effects of the user's code compared with commits.
    EFFECT_TWICE = "effect_twice"
    EFFECT_WITHOUT_COMMIT = "effect_without_commit"
    EFFECT_OF_ANOTHER_ATTEMPT = "effect_of_another_attempt"
    COMMIT_WITHOUT_EFFECT = "commit_without_effect"

    # One job's log.
    NO_EVENTS = "no_events"
    NO_JOB = "no_job"
    REVISION_GAP = "revision_gap"
    REVISION_REPEATED = "revision_repeated"
    REVISION_ORDER = "revision_order"
    TERMINAL_CHANGED = "terminal_changed"
    LEASE_OVERLAP = "lease_overlap"
    LEASE_ENDED = "lease_ended"
    RANK_FELL = "rank_fell"
    ATTEMPT_MISCOUNTED = "attempt_miscounted"
    CHAIN_BROKEN = "chain_broken"
    ILLEGAL_STEP = "illegal_step"
    NOT_AUTHORISED = "not_authorised"
    TIME_BACK = "time_back"
    COMMITTED_TWICE = "committed_twice"
    AFTER_COMMIT = "after_commit"
    TOO_EARLY = "too_early"
    AGAINST_POLICY = "against_policy"
    BROKEN_LOG = "broken_log"
    VOCABULARY = "vocabulary"

    # One job's row.
    ROW_DIFFERS = "row_differs"
    ROW_INVARIANT = "row_invariant"
    ORIGIN_CHANGED = "origin_changed"
    CONTENT_CHANGED = "content_changed"
    NO_END_EVENT = "no_end_event"
    SECRET_SHOWN = "secret_shown"

    # The whole log, and relations between jobs.
    TAIL_MISSING = "tail_missing"
    TAIL_REPEATED = "tail_repeated"
    TAIL_ORDER = "tail_order"
    TAIL_DIFFERS = "tail_differs"
    DEDUPE_OVERLAP = "dedupe_overlap"
    LIVE_LEFT = "live_left"


class HistoryProblem(msgspec.Struct, frozen=True):
    """One problem: its code, the message, and the job (None if a request names none)."""

    code: Code
    message: str
    job_id: UUID | None = None
    rev: int | None = None

    def __str__(self) -> str:
        place = "" if self.rev is None else f", revision {self.rev}"
        return f"{self.code}: job {self.job_id or 'unknown'}{place}: {self.message}"
