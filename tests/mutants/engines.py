"""Faults of the gateways of remote engines."""

from __future__ import annotations

from tenure.engines.connection import EngineConnection
from tenure.engines.session import SessionKeys
from tests.mutants.edits import Edits
from tests.mutants.layers import Simulator
from tests.mutants.mutant import Mutant


def reply_to_any_claim(edits: Edits) -> None:
    edits.python(EngineConnection._record, "lease is None or lease.claim != message.claim", "lease is None")
    edits.python(SessionKeys.lease_token, "lease/{claim}", "lease")


def finished_job_keeps_its_slot(edits: Edits) -> None:
    edits.python(EngineConnection._drop, "del self._held[lease.job.id]", "pass")


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "gateway: a reply counts for any claim",
        "an end of an earlier attempt is recorded under the lease of a later one",
        Simulator(first=28),
        r"InvariantViolated",
        reply_to_any_claim,
    ),
    Mutant(
        "gateway: a finished job keeps its slot",
        "the engine's credit does not grow when it finishes a job",
        Simulator(first=46),
        r"jobs did not come to an end",
        finished_job_keeps_its_slot,
    ),
)
