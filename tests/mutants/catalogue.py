"""All mutants: of the policy, the stores, the workers and the vocabularies."""

from __future__ import annotations

from tests.mutants import (
    budgets,
    children,
    engines,
    forks,
    outbox,
    policy,
    postgres_store,
    queue_limits,
    sqlite_store,
    steps,
    vocabularies,
    workers,
    workflows,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *policy.MUTANTS,
    *children.MUTANTS,
    *sqlite_store.MUTANTS,
    *postgres_store.MUTANTS,
    *steps.MUTANTS,
    *budgets.MUTANTS,
    *forks.MUTANTS,
    *engines.MUTANTS,
    *queue_limits.MUTANTS,
    *outbox.MUTANTS,
    *workers.MUTANTS,
    *vocabularies.MUTANTS,
    *workflows.MUTANTS,
)
