"""Jobs read by id, with the policies that they name."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from tenure.lifecycle.records import Job
from tenure.stores.postgres import rows as row
from tenure.stores.postgres.connections import Fetches
from tenure.stores.postgres.policies import KnownPolicies


async def jobs_by_id(
    fetches: Fetches, policies: KnownPolicies, job_ids: Sequence[UUID], *, with_token: bool = False
) -> dict[UUID, Job]:
    """The jobs that are there."""
    if not job_ids:
        return {}
    answers = await fetches.fetch("read", {"ids": list(job_ids)})
    return {job.id: job for job in await jobs_of(policies, answers, with_token=with_token)}


async def jobs_of(policies: KnownPolicies, answers: Sequence[asyncpg.Record], *, with_token: bool = False) -> list[Job]:
    """The records of these rows."""
    known = await policies.of(answers)
    return [row.job_from(answer, known, with_token=with_token) for answer in answers]
